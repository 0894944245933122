"""Entry point of `python -m dara`, the same as the `dara` command."""

from dara.cli import main

main()

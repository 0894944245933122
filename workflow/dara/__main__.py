"""`python -m dara` is the `dara` command."""

from dara.cli import main

main()

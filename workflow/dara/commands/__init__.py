"""The commands of `dara`, as functions of their options; `dara.cli` assigns their names and groups.

Slow imports are inside the commands, so that `dara --help` answers at once.
"""

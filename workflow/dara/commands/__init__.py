"""The commands of `dara`, as functions of their options; `dara.cli` gives them their names and groups.

What is slow to import is imported inside a command, so that `dara --help` answers at once.
"""

"""What the verbs of the `dara` command do, one verb a function; their options are in `dara.cli`.

Imports of heavy packages stand inside the functions, so that each verb starts as fast as it can.
"""

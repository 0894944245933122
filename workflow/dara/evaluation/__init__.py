"""Evaluation of checkpoints: what a model says to held-out cases, and what that is worth.

`generate.generate_checkpoints` writes the responses of all checkpoints of a run, `score.score_checkpoints` scores
them in a worker process (`sandbox`), and `score.summarise` turns scores into metrics. A benchmark is a module with
the same few names (`bfcl`, `math`); `score.BENCHMARKS` lists them. Nothing is imported here, so that the worker
process starts fast.
"""

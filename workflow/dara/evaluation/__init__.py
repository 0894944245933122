"""Evaluation of checkpoints: what a model says to held-out cases, and what that is worth.

`generate.generate_checkpoints` writes the responses of all checkpoints of a run, `score.score_checkpoints` scores
them in worker processes (`sandbox`), and `score.summarise` turns scores into metrics. A benchmark is a module with
the same few names, which `score` describes: `bfcl` and `math` (the laptop's; `math` has the five sets too), `bfcl_v4`,
`validation_tools` and `validation_math`; `score.BENCHMARKS` lists them. Nothing is imported here, so that a worker
starts fast.
"""

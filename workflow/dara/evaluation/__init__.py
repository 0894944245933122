"""Evaluation of checkpoints: responses to held-out cases, their scores, and metrics.

`generate.generate_checkpoints` writes the responses of all checkpoints of a run, `grading.score_checkpoints` scores
them in worker processes (`sandbox`), and `grading.summarise` turns scores into metrics. Each benchmark is a module with
the functions of a `BenchmarkDefinition`: `bfcl` and `math` (the laptop's; `math` has the five sets too), `bfcl_v4`,
`validation_tools` and `validation_math`. Nothing is imported here, so that a worker starts fast.
"""

"""The OpenRLHF engine: Ray, DeepSpeed and vLLM, on GPUs or, adapted, on a CPU.

`engine.train` starts OpenRLHF in a child process, in which `worker.install` replaces a few of its classes by ours:
rollouts, experience maker, strategy, policy actor, trainer. Nothing is imported here: torch and Ray take seconds.
"""

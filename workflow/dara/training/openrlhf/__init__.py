"""The OpenRLHF engine: Ray, DeepSpeed and vLLM, on GPUs or, adapted, on a CPU.

`engine.train` starts OpenRLHF in a child process (`worker`), whose classes are replaced by ours at a few points
(`patches`): rollouts, experience maker, policy actor, trainer. Nothing is imported here: torch and Ray take seconds.
"""

"""The OpenRLHF engine: Ray, DeepSpeed and vLLM, on GPUs or, adapted, on a CPU.

`engine.train` starts OpenRLHF in a child process, in which `worker.install` replaces a few of its classes by ours. Each
subclass has a module: rollouts, experience, strategy, policy_actor, trainer; `versions.NAMES` lists every name of
OpenRLHF that is replaced or called, and is checked at the start. What only a CPU needs is in cpu and cpu_worker.
Nothing is imported here: torch and Ray take seconds.
"""

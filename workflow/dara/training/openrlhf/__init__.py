"""The OpenRLHF engine: Ray, DeepSpeed and vLLM, on GPUs or, adapted, on a CPU.

`launch.train` starts OpenRLHF in a child process, which replaces a few of its classes: those of DeepSpeed's ranks and
of the trainer that leads a run (`trainer`), and of vLLM (`executor`). `node.NAMES` lists every name of OpenRLHF that is
replaced or called, and is checked at the start.
"""

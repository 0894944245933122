"""The OpenRLHF engine: Ray, DeepSpeed and vLLM, on GPUs or, adapted, on a CPU.

`launch.train` starts OpenRLHF in a child process, which replaces a few of its classes: those of the trainer that leads
a run (`trainer`), of DeepSpeed's ranks (`actor`) and of vLLM (`executor`). These modules change OpenRLHF when they are
imported, in different processes of Ray. `node.NAMES` lists every name of OpenRLHF that is replaced or called, and
is checked at the start. Nothing is imported here: torch and Ray take seconds to import.
"""

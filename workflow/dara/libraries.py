"""Settings of large libraries: one thread, and no output of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block.

    The order of summation, and so every weight and every sampled token, depends on the number of threads. Also, two
    runs share two cores.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def quiet() -> None:
    """Turn off the progress bars and log messages of transformers, datasets, TRL and accelerate."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)

"""How the large libraries are used: one thread, and no output of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread inside the block.

    The order of sums, and so every weight and every drawn token, depends on the number of threads; and two runs share
    two cores.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def quiet() -> None:
    """Only our own lines: no progress bars and no notes of transformers, datasets, TRL and accelerate."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)

"""Data: the laptop tasks, their tokenizer, and the preparation of a run's training rows and held-out benchmark."""

from dara.data.laptop_tools import bfcl_prompt
from dara.data.prepare import (
    SOURCES,
    demonstration_parameters,
    draw,
    held_out,
    held_out_problems,
    prepare,
    source_module,
)

__all__ = [
    "SOURCES",
    "bfcl_prompt",
    "demonstration_parameters",
    "draw",
    "held_out",
    "held_out_problems",
    "prepare",
    "source_module",
]

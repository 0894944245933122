"""Aggregation of K rewards into one advantage: ten methods, one file each, and a user's own.

`load_method("dara_asym", w_max=5.0)(rewards, lengths).advantages` maps rewards of shape (B, G, K), groups by responses
by rewards, to advantages of shape (B, G).
"""

from pathlib import Path
from typing import Any

from dara.methods import (
    dara_asym,
    dara_sym,
    dvao,
    gd2po_hard,
    gdpo,
    gdpo_saw,
    grpo,
    sa_mrpo,
    static_asym,
    static_sym,
)
from dara.methods.core import Aggregate, Batch, Output, energies
from dara.methods.method import Method
from dara.places import load_function, source_file, suggestion

METHODS = {
    "grpo": grpo,
    "gdpo": gdpo,
    "dara_sym": dara_sym,
    "dara_asym": dara_asym,
    "static_sym": static_sym,
    "static_asym": static_asym,
    "dvao": dvao,
    "gd2po_hard": gd2po_hard,
    "gdpo_saw": gdpo_saw,
    "sa_mrpo": sa_mrpo,
}

__all__ = [
    "Aggregate",
    "Batch",
    "Method",
    "Output",
    "available_methods",
    "energies",
    "load_method",
    "source_file",
]


def available_methods() -> list[str]:
    """Return the names of the built-in methods."""
    return list(METHODS)


def load_method(name: str, *, function: str | None = None, base_dir: str | Path | None = None, **params: Any) -> Method:
    """Return the built-in method `name`, or a user's own if `function` gives its location.

    function: 'my_methods.py:contributions', a file relative to base_dir (the working directory without one), or
    'package.module:function'. The module may set FINAL_NORMALIZATION; the default is "response".
    params: the method's own and those of every method: reward_weights, final_normalization, eps, tau.
    ValueError for unknown names (with the nearest right one), missing or wrong values, a function that is not there.
    """
    if function is None:
        if name not in METHODS:
            raise ValueError(f"There is no method {name!r}.{suggestion(str(name), METHODS)}")
        contributions, module = METHODS[name].contributions, METHODS[name]
    elif name in METHODS:
        raise ValueError(f"{name!r} is the name of a built-in method: give {function!r} a name of its own.")
    else:
        contributions, module = load_function(function, base_dir)
    default = getattr(module, "FINAL_NORMALIZATION", "response")
    return Method(name, contributions, params, default_final_normalization=default, built_in=function is None)

"""What the methods are about, on a toy batch: a reward that few groups vary in has little energy, and gets a weight."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from dara.analysis.energy import Energies, active_density, energies, group_z_scores
from dara.analysis.figures.style import INK, PAGE_WIDTH, legend_below
from dara.analysis.names import BASELINE
from dara.analysis.view import View

TOY_REWARDS = np.array(
    [
        [[1, 0], [0, 0], [1, 1], [0, 0]],
        [[1, 0], [1, 0], [0, 0], [0, 0]],
        [[0, 0], [1, 0], [0, 0], [1, 0]],
        [[1, 0], [0, 0], [0, 0], [1, 0]],
    ],
    dtype=float,
)
"""(B, G, K) = (4, 4, 2): the first reward varies in every group, the second in the first group alone."""

COMPARED = (BASELINE, "dara_sym", "dara_asym")  # unweighted, both signs weighted, positive advantages weighted
QUIET = "#bdbdbd"
NEGATIVE_ALPHA = 0.4


Toy = tuple[np.ndarray, Energies]
"""A method's result on the toy batch: its weights (K,) and the energies of its contributions (K,)."""


def draw(view: View) -> Figure:
    """Draw the toy batch on the left, and each method's energy by reward and sign on the right.

    The numbers come from `dara.methods` with the parameters of the view's rows, and none from its source. Raise
    ValueError if the view has none of the methods of `COMPARED`.
    """
    shown = [name for name in COMPARED if name in view.methods]
    if not shown:
        raise ValueError(
            f"experiment {view.experiment.experiment}: the overview compares {', '.join(COMPARED)}, "
            f"and the experiment has none of them (it has {', '.join(view.methods)})"
        )
    figure = Figure(figsize=(PAGE_WIDTH, 2.6))
    batch, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.15, 1]})
    toys = {name: toy_of(name, view.methods[name].params) for name in shown}
    _draw_batch(batch)
    _write_formulas(batch, toys)
    for place, name in enumerate(shown):
        _draw_bars(bars, place, toys[name], view.methods[name].color)
    for place, name in enumerate(shown):
        bars.annotate(
            view.methods[name].label, xy=(place, 0), xycoords=("data", "axes fraction"), xytext=(0, -15),
            textcoords="offset points", ha="center", va="top", color=view.methods[name].color, annotation_clip=False,
        )  # fmt: skip
    bars.set_xticks([place + side for place in range(len(shown)) for side in (-0.2, 0.2)], ["R1", "R2"] * len(shown))
    bars.tick_params(axis="x", length=0)
    bars.grid(axis="x", visible=False)
    bars.set_xlim(-0.5, len(shown) - 0.5)
    bars.set_ylim(0, 15)
    bars.set_ylabel("energy")
    bars.set_title("energy of each reward, and its weight (\u00d7)", loc="left")
    handles = [
        Patch(facecolor="#eef3f8", edgecolor=INK, linewidth=1.1, label="active group"),
        Patch(facecolor=INK, edgecolor=INK, label="reward is 1"),
        Patch(facecolor="white", edgecolor=INK, label="reward is 0"),
        Patch(facecolor=INK, linewidth=0, label="positive advantages"),
        Patch(facecolor=INK, alpha=NEGATIVE_ALPHA, linewidth=0, label="negative advantages"),
    ]
    legend_below(figure, handles, columns=5)
    return figure


def toy_of(name: str, params: dict) -> Toy:
    """Return weights and energies of the built-in method `name` on the toy batch."""
    import torch  # not at the top: no other figure needs it, and its import takes seconds

    from dara.methods import load_method

    out = load_method(name, **params)(torch.tensor(TOY_REWARDS))
    return out.weights.numpy(), energies(out.contributed.numpy())


def _draw_batch(axes: Axes) -> None:
    """Draw rows of squares: a row a reward, a box a group, coloured if the group is active for the reward."""
    groups, responses, rewards = TOY_REWARDS.shape
    z = group_z_scores(TOY_REWARDS)
    for group in range(groups):
        left = group * (responses + 1.4)
        axes.text(left + responses / 2, 5.15, f"group {group + 1}", ha="center", va="bottom", fontsize=7, color=INK)
        for reward in range(rewards):
            bottom = 3.2 * (1 - reward)
            active = bool(np.abs(z[group, :, reward]).sum() > 0)
            ink = INK if active else QUIET
            axes.add_patch(
                FancyBboxPatch(
                    (left - 0.2, bottom - 0.2), responses + 0.4, 1.4, boxstyle="round,pad=0.15,rounding_size=0.3",
                    facecolor="#eef3f8" if active else "white", edgecolor=ink,
                    linewidth=1.1 if active else 0.7, linestyle="-" if active else (0, (2, 1.5)),
                )
            )  # fmt: skip
            for response, value in enumerate(TOY_REWARDS[group, :, reward]):
                corner = left + response + 0.12, bottom + 0.12
                color = ink if value > 0 else "white"
                axes.add_patch(Rectangle(corner, 0.76, 0.76, facecolor=color, edgecolor=ink, linewidth=0.7))
    for reward, density in enumerate(active_density(z)):
        name = f"R{reward + 1}\n$\\pi_{reward + 1}$ = {round(density * groups)}/{groups}"
        axes.text(-0.9, 3.2 * (1 - reward) + 0.5, name, ha="right", va="center", fontsize=8, color=INK)
    axes.set_xlim(-4.2, groups * (responses + 1.4) - 0.7)
    axes.set_ylim(-7.2, 6.2)
    axes.set_aspect("equal", anchor="NW")
    axes.set_axis_off()
    axes.set_title("a batch of 4 groups of 4 responses", loc="left")


def _write_formulas(axes: Axes, toys: dict[str, Toy]) -> None:
    """Write, below the batch, the energies that follow from the densities, and DARA's weights, with their values."""
    groups, responses, _ = TOY_REWARDS.shape
    energy = groups * active_density(group_z_scores(TOY_REWARDS)) * (responses - 1)
    formulas = [(-2.6, "energy:  $E_k = B\\,\\pi_k\\,(G-1)$", "E", energy)]
    if weighted := [weights for name, (weights, _) in toys.items() if name != BASELINE]:
        formula = "weight:  $w_k = \\min(w_{max}, \\sqrt{\\max_l \\pi_l / \\pi_k}\\,)$"
        formulas.append((-5.2, formula, "w", weighted[0]))
    for height, formula, symbol, values in formulas:
        found = ",  ".join(f"${symbol}_{k + 1}$ = {value:.3g}" for k, value in enumerate(values))
        axes.text(-4.0, height, formula, ha="left", va="center", fontsize=8, color=INK)
        axes.text(13.4, height, found, ha="left", va="center", fontsize=8, color=INK)


def _draw_bars(axes: Axes, place: int, toy: Toy, color: str) -> None:
    """Draw a bar for each reward, positive energy full and negative light on top, with total and weight above."""
    weights, (positives, negatives) = toy
    for reward, side in enumerate((-0.2, 0.2)):
        positive, negative = float(positives[reward]), float(negatives[reward])
        bar = {"width": 0.34, "color": color, "linewidth": 0}
        axes.bar(place + side, positive, **bar)
        axes.bar(place + side, negative, bottom=positive, alpha=NEGATIVE_ALPHA, **bar)
        label = f"{positive + negative:.3g}\n\u00d7{weights[reward]:.3g}"
        axes.text(place + side, positive + negative + 0.3, label, ha="center", va="bottom", fontsize=7, color=INK)

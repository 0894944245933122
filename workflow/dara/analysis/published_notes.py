"""What stands under a table of published numbers: their sources, seeds, and what to know about single ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dara.analysis.names import BASE

Who = tuple[str, str, int | None]
"""What a number is about: the model or group size (where there are several), the method, the seed."""


def published_notes(rows: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    """Sources, seeds and remarks of rows of `read_published`; `labels` are the names of their methods.

    A remark is said once, with the methods and seeds that it is about unless it is about all. Those that name a
    contradiction of docs/published.md are first: they change how a number is read.
    """
    if rows.empty:
        return []
    who = _who(rows)
    sources = "; ".join(dict.fromkeys(rows["source"]))
    notes = [f"Numbers that the authors published (docs/published.md): {sources}."]
    notes += _seeds_note(rows, who, labels)
    about: dict[str, list[Who]] = {}
    for note, one in zip(rows["note"], who, strict=True):
        for remark in filter(None, note.split("; ")):
            about.setdefault(remark, []).append(one)
    remarks = [
        f"{remark[0].upper()}{remark[1:]}{_named(them, who, labels)}." for remark, them in _merged(about).items()
    ]
    return notes + sorted(remarks, key=lambda remark: not remark.startswith("Contradiction"))


def seeds_of(rows: pd.DataFrame) -> list[int]:
    """All seeds behind the rows, as far as they were published."""
    return sorted({int(seed) for text in rows["seeds"] for seed in text.split()})


def _who(rows: pd.DataFrame) -> list[Who]:
    trained = rows[rows["method"] != BASE]
    several = [name for name in ("model", "group_size") if trained[name].nunique() > 1]
    places = []
    for row in rows.itertuples():
        parts = {"model": row.model, "group_size": "" if pd.isna(row.group_size) else f"G={row.group_size}"}
        places.append(" ".join(filter(None, (parts[name] for name in several))))
    seeds = [None if pd.isna(seed) else int(seed) for seed in rows["seed"]]
    return list(zip(places, rows["method"], seeds, strict=True))


def _seeds_note(rows: pd.DataFrame, who: Sequence[Who], labels: Mapping[str, str]) -> list[str]:
    """`Seeds: 0, 2, 5 (GRPO); 0, 1 (GDPO).` of the rows that say so."""
    everyone = [(place, method, None) for place, method, _ in who]
    by_run: dict[Who, list[int]] = {}
    for one, index in zip(everyone, range(len(rows)), strict=True):
        if one[1] != BASE:
            by_run.setdefault(one, []).append(index)
    by_seeds: dict[str, list[Who]] = {}
    for one, indices in by_run.items():
        if seeds := seeds_of(rows.iloc[indices]):
            by_seeds.setdefault(", ".join(map(str, seeds)), []).append(one)
    parts = [f"{seeds}{_named(them, everyone, labels)}" for seeds, them in by_seeds.items()]
    return [f"Seeds: {'; '.join(parts)}."] if parts else []


def _merged(about: Mapping[str, list[Who]]) -> dict[str, list[Who]]:
    """Remarks on exactly the same numbers, one after the other, as one; a contradiction starts its own."""
    merged: dict[str, list[Who]] = {}
    for remark, them in about.items():
        last = next(reversed(merged), None)
        if last is not None and merged[last] == them and not remark.startswith("Contradiction"):
            merged[f"{last}; {remark}"] = merged.pop(last)
        else:
            merged[remark] = them
    return merged


def _named(them: Iterable[Who], everyone: Sequence[Who], labels: Mapping[str, str]) -> str:
    """` (GRPO, GDPO seed 2; DVAO of G=8)`: who is meant; empty where it is all, the base models aside."""
    meant = set(them)
    if {one for one in everyone if one[1] != BASE} <= meant:
        return ""
    order = list(dict.fromkeys(everyone))
    names = {}  # (place, method) -> its name, with seeds unless all are meant
    for place, method in dict.fromkeys((place, method) for place, method, _ in order):
        own = [one for one in order if one[:2] == (place, method)]
        seeds = [str(one[2]) for one in own if one in meant]
        label = "base model" if method == BASE else labels[method]
        if seeds:
            some = f" seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            names[place, method] = label if len(seeds) == len(own) else label + some
    everywhere, by_place = [], {}
    for (place, method), name in names.items():
        places = [place for place, other in dict.fromkeys((one[0], one[1]) for one in order) if other == method]
        if all(names.get((other, method)) == name for other in places):
            everywhere.append(name)
        else:
            by_place.setdefault(place, []).append(name)
    places_of: dict[str, list[str]] = {}
    for place, found in by_place.items():
        complete = len(found) == len({one[1] for one in order if one[0] == place and one[1] != BASE})
        text = "all methods" if complete and set(found) <= set(labels.values()) else ", ".join(found)
        places_of.setdefault(text, []).append(place)
    parts = [", ".join(dict.fromkeys(everywhere))] if everywhere else []
    parts += [f"{text} of {', '.join(places)}" for text, places in places_of.items()]
    return f" ({'; '.join(parts)})"

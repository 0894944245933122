"""The figures and tables of a report: read from their files, ready for the template."""

from __future__ import annotations

import base64
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from dara.analysis.figures import describe

MIME = {".png": "image/png", ".svg": "image/svg+xml"}

PIXELS_PER_INCH = 125
"""On the page, so that text of 8 points has the size of the notes. Figures are made for paper, 3.4 or 7 inches wide."""


@dataclass(frozen=True)
class Figure:
    """A figure as a data address; None where neither a PNG nor an SVG is at `path` (without a suffix).

    width: how wide it is shown where there is room, in CSS pixels.
    """

    path: str
    data: str | None
    width: int = 0


@dataclass(frozen=True)
class MarkdownTable:
    """A table as `dara.analysis.tables.render` writes it; None in `rows` where there is no file at `path`.

    `right`: for each column, whether it is aligned to the right. Cells and notes may have `code` and **bold**.
    """

    path: str
    title: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] | None = None
    notes: tuple[str, ...] = ()
    right: tuple[bool, ...] = ()


def read_figure(stem: Path) -> Figure:
    """The smaller of `stem`.svg and `stem`.png, as they show the same."""
    found = [path for suffix in MIME if (path := _with(stem, suffix)).is_file()]
    if not found:
        return Figure(stem.as_posix(), None)
    chosen = min(found, key=lambda path: (path.stat().st_size, path.suffix))
    content = chosen.read_bytes()
    inches = _svg_inches(content) if chosen.suffix == ".svg" else _png_inches(content)
    address = f"data:{MIME[chosen.suffix]};base64,{base64.b64encode(content).decode('ascii')}"
    return Figure(stem.as_posix(), address, round(inches * PIXELS_PER_INCH))


def read_table(stem: Path) -> MarkdownTable:
    """The table in `stem`.md. ValueError where that is no table of this project."""
    path = _with(stem, ".md")
    if not path.is_file():
        return MarkdownTable(path.as_posix())
    lines = path.read_text(encoding="utf-8").splitlines()
    table = [_cells(line) for line in lines if line.startswith("|")]
    title = next((line.strip("*") for line in lines if line.startswith("**")), "")
    if len(table) < 3 or any(len(row) != len(table[0]) for row in table):
        raise ValueError(f"{path}: not a table (a header, a line of dashes, and rows of as many cells); make it again")
    notes = tuple(line.removeprefix("- ") for line in lines if line.startswith("- "))
    right = tuple(cell.endswith(":") for cell in table[1])
    return MarkdownTable(path.as_posix(), title, tuple(table[0]), tuple(map(tuple, table[2:])), notes, right)


def caption(kind: str, module: str) -> str:
    """What a module of analysis/figures or analysis/tables shows: the first sentence of its documentation."""
    text = (
        describe(module)
        if kind == "figures"
        else importlib.import_module(f"dara.analysis.{kind}.{module}").__doc__ or ""
    )
    first = re.sub(r"\s+", " ", text.strip().split("\n\n")[0]).removeprefix("Table: ")
    return first[:1].upper() + first[1:]


def _svg_inches(content: bytes) -> float:
    """Width of a drawing; 7 where it does not say it in points."""
    found = re.search(rb'<svg[^>]*?\swidth="([0-9.]+)pt"', content)
    return float(found[1]) / 72 if found else 7.0


def _png_inches(content: bytes) -> float:
    """Width of an image: pixels over pixels a metre (the chunk pHYs, before the data); 7 where it does not say that."""
    place = content.find(b"pHYs", 0, 4096)
    if content[12:16] != b"IHDR" or place < 0:
        return 7.0
    pixels, density = int.from_bytes(content[16:20]), int.from_bytes(content[place + 4 : place + 8])
    return pixels / density / 0.0254 if density else 7.0


def _with(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


def _cells(line: str) -> list[str]:
    """The cells of a row; a pipe or a backslash within one has a backslash before it."""
    cells = re.findall(r"((?:[^|\\]|\\.)*)\|", line.strip()[1:])
    return [re.sub(r"\\(.)", r"\1", cell).strip() for cell in cells]

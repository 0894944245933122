"""A table as Markdown, LaTeX (booktabs) and CSV, and numbers as they are printed in a cell."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dara.analysis.crossing import SpeedUp

MISSING = "–"

LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "≥": r"$\geq$",
    "–": "--",
}


@dataclass(frozen=True)
class Table:
    """A table with its text columns, raw columns, title and notes.

    `frame` has the columns named in `display` as strings for readers, and the raw columns (numbers, fractions as
    fractions). Markdown and LaTeX show the display columns; the CSV has every column. `numeric` names the display
    columns that are aligned to the right, `bold` the cells (row from 0, column) that are set in bold.
    """

    frame: pd.DataFrame
    title: str
    notes: list[str]
    display: list[str]
    numeric: tuple[str, ...] = ()
    bold: frozenset[tuple[int, str]] = frozenset()

    def __post_init__(self) -> None:
        if self.frame.empty:
            raise ValueError(f"table {self.title!r} has no row")
        for column in self.display:
            wrong = [value for value in self.frame[column] if not isinstance(value, str)]
            if wrong:
                raise ValueError(f"table {self.title!r}, column {column!r}: {wrong[0]!r} must be a string for display")


def render_table(table: Table, stem: Path) -> list[Path]:
    """Write `stem`.md, `stem`.tex and `stem`.csv, and return the paths; the same table gives the same bytes."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    contents = {".md": markdown(table), ".tex": latex(table)}
    contents[".csv"] = table.frame.to_csv(index=False, lineterminator="\n")
    # not with_suffix: an id such as "tool_main.scores" contains a dot
    paths = {stem.with_name(stem.name + suffix): text for suffix, text in contents.items()}
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(paths)


def markdown(table: Table) -> str:
    """Return the display columns as a GitHub table, with the title above and the notes below."""
    rule = ["---:" if column in table.numeric else "---" for column in table.display]
    cells = [list(row.values()) for row in _cells(table, _markdown_cell, "**{}**")]
    lines = ["| " + " | ".join(row) + " |" for row in [[*map(_markdown_cell, table.display)], rule, *cells]]
    return "\n".join([f"**{table.title}**", "", *lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """Return the display columns as `table` or `table*` environments that fit an article of two columns.

    The first line names the packages. A table is as wide as a column if it fits in type of at least 8 points, else as
    wide as the page; headings break into lines, and a common first word is set once above its headings. Text that is
    still too wide is set in paragraphs, and columns that do not fit go below the others, after the first columns again.
    Rows and notes that do not fit on a page continue in another environment.
    """
    layout = _layout(table)
    lines = [r"% Packages: booktabs. For the standard article class in two columns."]
    for part, (rows, notes) in enumerate(_pages(table, layout)):
        continued = [r"\addtocounter{table}{-1}"] if part else []
        lines += [rf"\begin{{{layout.environment}}}", r"\centering", *continued]
        lines += [rf"\caption{{{escape_latex(table.title)}{' (continued)' if part else ''}}}"]
        lines += [rf"\{layout.size}", r"\setlength{\tabcolsep}{4pt}"]
        for columns in layout.parts if rows else ():
            lines += [*_tabular(table, layout, columns, rows), r"\par\smallskip"]
        lines += [r"\footnotesize", *[escape_latex(note) + r"\par" for note in notes], rf"\end{{{layout.environment}}}"]
    return "\n".join(lines) + "\n"


COLUMN, PAGE, HEIGHT = 229.0, 469.0, 500.0
"""Points of a column and of a page of the standard article class, and of a page's height without its caption."""
SIZES = {"normalsize": 1.0, "small": 0.93, "footnotesize": 0.85}
"""Type size -> width of its letters relative to normal size; smaller sizes have relatively wider letters."""
GAP, LINE, HEAD = 8.0, 12.2, 40.0
"""Points between two columns, between lines at normal size, and of the headings."""
LETTERS = {2.8: "il.,:;'![]|", 3.1: "jf", 3.4: " -", 4.0: "trs()", 4.5: "cez", 5.0: "ago0123456789–/*I", 5.3: "vxykq",
           5.6: "bdhnpuSJ", 6.9: "EFLPZ", 10.3: "WMm"}  # fmt: skip
"""Width of a letter of Computer Modern at 10 points -> letters; any other letter counts as 8.4 wide."""
POINTS = {letter: width for width, letters in LETTERS.items() for letter in letters}


@dataclass(frozen=True)
class Layout:
    """Layout of a table: the columns of each part, and the widths of columns set in paragraphs (points)."""

    environment: str
    size: str
    parts: list[list[str]]
    paragraphs: dict[str, float]


def text_width(text: str) -> float:
    """Return the approximate width of a text, in points at normal size."""
    return sum(POINTS.get(letter, 8.4) for letter in text)


def _layout(table: Table) -> Layout:
    """Return the first layout in which the table fits."""
    shared = _shared(table.display)
    widths = {}
    for column in table.display:
        body = max(text_width(cell) for cell in table.frame[column])
        bold = 1.15 if any(name == column for _, name in table.bold) else 1.0
        heading = _heading(column, body, shared)
        widths[column] = max(bold * body, *(text_width(line) for line in heading.split("\n")))
    # Prefer the narrow environment and large type; then set long columns as paragraphs; then split the columns.
    for environment, width in (("table", COLUMN), ("table*", PAGE)):
        for size, scale in SIZES.items():
            if _fits(widths, table.display, width, scale):
                return Layout(environment, size, [table.display], {})
    long = [column for column in table.display if widths[column] > PAGE / 3]
    if long:
        rest = sum(SIZES["footnotesize"] * widths[column] for column in table.display if column not in long)
        room = PAGE - rest - GAP * (len(table.display) - 1)
        total = sum(widths[column] for column in long)
        paragraphs = {column: max(40.0, room * widths[column] / total) for column in long}
        return Layout("table*", "footnotesize", [table.display], paragraphs)
    keys = table.display[: table.display.index("Method") + 1] if "Method" in table.display else table.display[:1]
    parts = [[*keys]]
    for column in table.display[len(keys) :]:
        if not _fits(widths, [*parts[-1], column], PAGE, SIZES["footnotesize"]):
            parts.append([*keys])
        parts[-1].append(column)
    return Layout("table*", "footnotesize", parts, {})


def _fits(widths: dict[str, float], columns: list[str], width: float, scale: float) -> bool:
    return 1.02 * scale * sum(widths[column] for column in columns) + GAP * (len(columns) - 1) <= width


def _shared(columns: list[str]) -> dict[str, str]:
    """Return column -> first word, for neighbouring headings with the same first word, which is set once above them."""
    shared = {}
    for left, right in itertools.pairwise(columns):
        word, _, rest = right.partition(" ")
        if rest and left.startswith(f"{word} ") and not word[0].isdigit():
            shared |= {left: word, right: word}
    return shared


def _heading(column: str, width: float, shared: dict[str, str]) -> str:
    """Return a column's heading, without its shared word, in lines no wider than the cells need."""
    lines: list[str] = []
    words = column.removeprefix(f"{shared[column]} " if column in shared else "").split(" ")
    for word in words:
        if lines and text_width(f"{lines[-1]} {word}") <= max(width, *map(text_width, words)):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _pages(table: Table, layout: Layout) -> list[tuple[list[int], list[str]]]:
    """Return the rows and the notes of each environment, such that none is higher than a page."""
    scale, small, start = SIZES[layout.size], SIZES["footnotesize"], HEAD * len(layout.parts)
    pages, used = [([], [])], start
    for row in range(len(table.frame)):
        cells = ((table.frame[column].iloc[row], width) for column, width in layout.paragraphs.items())
        lines = max([1, *(math.ceil(1.1 * scale * text_width(cell) / width) for cell, width in cells)])
        height = LINE * scale * lines * len(layout.parts)
        if used + height > HEIGHT:
            pages.append(([], []))
            used = start
        pages[-1][0].append(row)
        used += height
    for note in table.notes:
        width = COLUMN if layout.environment == "table" else PAGE
        height = LINE * small * math.ceil(1.1 * small * text_width(note) / width)
        if used + height > HEIGHT:
            pages.append(([], []))
            used = 0.0
        pages[-1][1].append(note)
        used += height
    return pages


def _tabular(table: Table, layout: Layout, columns: list[str], rows: list[int]) -> list[str]:
    cells = _cells(table, escape_latex, r"\textbf{{{}}}")
    alignment = {name: "r" if name in table.numeric else "l" for name in columns}
    for name in layout.paragraphs:
        alignment[name] = f"p{{{int(layout.paragraphs[name])}pt}}"
        for row in rows:  # a line may break inside names, paths and checksums
            breaks = re.sub(r"(\\_|/|[0-9a-f]{8}(?=[0-9a-f]))", r"\1\\allowbreak{}", cells[row][name])
            cells[row][name] = r"\raggedright " + breaks
    lines = [" & ".join(cells[row][name] for name in columns) + r" \tabularnewline" for row in rows]
    return [
        rf"\begin{{tabular}}{{@{{}}{''.join(alignment.values())}@{{}}}}",
        r"\toprule",
        *_headings(table, columns),
        r"\midrule",
        # LaTeX's line break would read a following "[" or "*" as its argument.
        *["{}" * line.startswith(("[", "*")) + line for line in lines],
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _headings(table: Table, columns: list[str]) -> list[str]:
    """Return the lines above the body: shared words with a rule below, then the headings."""
    shared, upper, rules, names = _shared(columns), [], [], []
    for word, group in itertools.groupby(enumerate(columns, start=1), key=lambda item: shared.get(item[1])):
        places = [place for place, _ in group]
        if word:
            upper.append(rf"\multicolumn{{{len(places)}}}{{c}}{{{escape_latex(word)}}}")
            rules.append(rf"\cmidrule(lr){{{places[0]}-{places[-1]}}}")
        else:
            upper.append("& " * (len(places) - 1))
    for column in columns:
        lines = _heading(column, max(map(text_width, table.frame[column])), shared).split("\n")
        text = r"\\".join(map(escape_latex, lines))
        side = "r" if column in table.numeric else "l"
        names.append(rf"\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text)
    above = [" & ".join(upper) + r" \\", "".join(rules)] if rules else []
    return [*above, " & ".join(names) + r" \\"]


def escape_latex(text: str) -> str:
    """Return `text` with LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in text)


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[dict[str, str]]:
    """Return the display cells of each row by column, escaped; bold ones in the form `bold`."""
    rows = table.frame[table.display].to_dict("records")
    return [
        {name: (bold if (index, name) in table.bold else "{}").format(escape(cell)) for name, cell in row.items()}
        for index, row in enumerate(rows)
    ]


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


# Cells


def number(value: float | None, digits: int | None = None) -> str:
    """Return `value` with `digits` decimals, or in its shortest form; a dash if it is undefined."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.{digits}f}" if digits is not None else f"{value:g}"
    return text.replace("-", "−")


def with_interval(value: float, low: float, high: float, digits: int, scale: float = 1.0) -> str:
    """Return `81.2 [78.0, 84.4]`, all times `scale`; the value alone if the interval is undefined."""
    shown = number(scale * value, digits)
    if not (math.isfinite(low) and math.isfinite(high)):
        return shown
    return f"{shown} [{number(scale * low, digits)}, {number(scale * high, digits)}]"


def signed(value: float | None) -> str:
    """Return a difference with its sign: `+4`, `−12.5`, `0`."""
    text = number(value)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


def saved_text(saved: SpeedUp | None, unknown: str = MISSING) -> str:
    """Return steps saved in percent, `40.5` or `40.5 [12, 60]`; `unknown` if they are not estimable.

    A dash replaces an end of the interval that the budget leaves open.
    """
    if saved is None or math.isnan(saved.saved):
        return unknown
    text = number(100 * saved.saved, 1)
    if saved.saved_ends is None:
        return text
    low, high = saved.saved_ends
    return f"{text} [{number(100 * low, 0)}, {number(100 * high, 0)}]"

"""A table as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

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
    """A table: one row a line.

    `frame` holds the columns named in `display` as strings, ready to be read, and beside them the raw columns (numbers,
    fractions as fractions). Markdown and LaTeX show the display columns; the CSV has every column. `numeric` names
    the display columns that are aligned to the right, `bold` the cells (row from 0, column) that are set in bold.
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
    """Write `stem`.md, `stem`.tex and `stem`.csv; the same table gives the same bytes. Returns the three paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    contents = {
        ".md": markdown(table),
        ".tex": latex(table),
        ".csv": table.frame.to_csv(index=False, lineterminator="\n"),
    }
    paths = []
    for suffix, text in contents.items():
        # not with_suffix: an id such as "tool_main.scores" has a dot of its own
        path = stem.with_name(stem.name + suffix)
        path.write_text(text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def markdown(table: Table) -> str:
    """The display columns as a GitHub table, the title above and the notes below."""
    rule = ["---:" if column in table.numeric else "---" for column in table.display]
    rows = [[_markdown_cell(column) for column in table.display], rule, *_cells(table, _markdown_cell, "**{}**")]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([f"**{table.title}**", "", *lines, "", *notes]) + "\n"


def latex(table: Table) -> str:
    """The display columns as a `table` environment; it needs the package booktabs."""
    body = _cells(table, escape_latex, r"\textbf{{{}}}")
    alignment = "".join("r" if column in table.numeric else "l" for column in table.display)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(escape_latex(column) for column in table.display) + r" \\",
        r"\midrule",
        # The line break before a row would read its first character as an argument where that is "[" or "*".
        *["{}" * row[0].startswith(("[", "*")) + " & ".join(row) + r" \\" for row in body],
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        r"\footnotesize",
        *[escape_latex(note) + r"\par" for note in table.notes],
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """`text` with each character that LaTeX would interpret replaced by what prints it."""
    return "".join(LATEX.get(character, character) for character in text)


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """The display cells, escaped; those in bold put into the form `bold`."""
    rows = table.frame[table.display].to_numpy().tolist()
    return [
        [
            bold.format(escape(cell)) if (index, column) in table.bold else escape(cell)
            for column, cell in zip(table.display, row, strict=True)
        ]
        for index, row in enumerate(rows)
    ]


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")

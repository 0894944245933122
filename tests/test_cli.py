"""The `dara` command: what there is to choose from, its version, and mistakes in its own words."""

import json

import pytest

import dara
from dara.cli import COMMANDS, FORMER, main
from dara.commands.look import KINDS
from project import ROOT


def said(capsys, *words: str) -> str:
    main(["--root", str(ROOT), *words])
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_listed_has_a_name_and_a_line(capsys, kind):
    rows = json.loads(said(capsys, "list", kind, "--json"))
    assert rows
    assert all(row["name"] and row["about"] for row in rows)
    lines = said(capsys, "list", kind).splitlines()
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


def test_a_listed_figure_has_the_command_that_draws_it(capsys):
    rows = {row["name"]: row for row in json.loads(said(capsys, "list", "figures", "--preset", "smoke", "--json"))}
    assert rows["learning"]["about"].startswith("Learning curves: each training reward over steps")
    assert rows["learning"]["command"].endswith("presets/smoke.yaml -- results/smoke/figures/learning.png")


def test_the_version_and_every_command_in_the_help(capsys):
    assert said(capsys, "--version") == f"dara {dara.__version__}\n"
    shown = said(capsys, "--help")
    assert all(f" {name} " in shown for name, _, _ in COMMANDS.values())
    assert not any(f" {name} " in shown for name in FORMER)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["stats"], 2, "Did you mean 'status'?"),
        (["list", "methds"], 1, "'methds' is not something to list; did you mean 'methods'?"),
        (["plan", "tool_mian"], 1, "did you mean 'tool_main'?"),
    ],
)
def test_a_mistake_names_the_nearest_word(capsys, words, code, message):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == code
    assert message in capsys.readouterr().err

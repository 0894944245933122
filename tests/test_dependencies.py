"""Edited code leaves no old number: what it computes and draws is planned again, and nothing is trained for it."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dara.outputs import PACKAGE as CODE
from dara.outputs import code_digest, code_files
from project import planned, snakemake
from test_workflow import copy_repository

PACKAGE = {
    "__init__.py": "",
    "draw.py": "from typing import TYPE_CHECKING\nfrom p.look import color\nif TYPE_CHECKING:\n    import p.plan\n"
    "def table(plan: p.plan.Plan): from .sub import mean; return mean\ndef figure(): return color()\n",
    "look.py": "import p.draw\nfrom p import names\nLABELS = {1: names}\ndef color(): return p.draw\n",
    "names.py": "def kept(function): return function\n@kept\ndef found_elsewhere(): from p.rows import row\n",
    "rows.py": "",
    "plan.py": "class Plan: pass\n",
    "sub/__init__.py": "from p.sub.mean import mean\nfrom p.sub.spread import spread\n",
    "sub/mean.py": "def mean(): pass\n",
    "sub/spread.py": "def spread(): pass\n",
    "sub/page.jinja": "a page",
    "sub/.page.jinja.swp": "what an editor left",
}


def package(directory: Path, **edited: str) -> Path:
    for name, text in PACKAGE.items():
        path = directory / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edited.get(path.stem, text))
    return directory / "p"


TABLE = {"draw.py", "sub/__init__.py", "sub/mean.py", "sub/page.jinja"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("p.draw:table", TABLE),
        ("p.draw:figure", {*TABLE, "look.py", "names.py", "rows.py"}),
        ("p.sub", {"sub/__init__.py", "sub/mean.py", "sub/spread.py", "sub/page.jinja"}),
        ("p.names", {"names.py", "rows.py"}),
    ],
)
def test_code_is_what_a_function_can_reach_through_names_and_imports_and_the_data_beside_it(tmp_path, target, expected):
    """`figure` uses `look`, which uses all of `draw`; what only type checkers import is not run."""
    p = package(tmp_path)
    assert {path.relative_to(p).as_posix() for path in code_files(target, package=p)} == {"__init__.py", *expected}


@pytest.mark.parametrize("target", ["p.drawing", "p.draw:tables", "q.draw"])
def test_code_that_is_not_there_is_an_error(tmp_path, target):
    with pytest.raises(ValueError, match=f"there is no {target}"):
        code_files(target, package=package(tmp_path))


def test_a_digest_is_another_one_after_an_edit_but_for_comments_and_layout(tmp_path):
    def digest(folder: str, **edited: str) -> str:
        return code_digest("p.draw:table", package=package(tmp_path / folder, **edited))

    first = digest("first")
    assert digest("same", mean="def mean():  # nothing\n\n    pass\n") == first
    assert digest("other", mean="def mean(): return 1\n") != first
    assert digest("page", page="another page") != first


DRAWN = ("tables", "figures", "side_by_side")
PUBLISHED = ("published_tables", "published_figures")
HYPERPARAMETERS = {"tool_hyperparameters", "math_hyperparameters"}
SCORES = {"final_scores", "math_final_scores", "tool_rates", "math_rates", "score_intervals", "math_score_intervals"}
SCORES |= {"tool_step60", "tool_step100", "math_step50"}
CROSSINGS = {"crossings", "math_crossings"}
BESIDE = {"tool_summary", "math_summary", "tool_step100", "math_step50"}
CROSSING = {"crossing", "math_crossing"}
ALL = None


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("analysis/crossing.py", dict.fromkeys(("frames", *DRAWN, *PUBLISHED, "html_report"))),
        ("analysis/tables/side_by_side.py", {"side_by_side": BESIDE}),
        ("analysis/figures/style.py", {"figures": ALL, "published_figures": ALL}),
        ("report/template.html.jinja", {"html_report": ALL}),
        (
            "analysis/view_published.py",
            {
                "tables": HYPERPARAMETERS | SCORES | CROSSINGS,
                **dict.fromkeys(("side_by_side", *PUBLISHED, "html_report")),
            },
        ),
        *((f"{name}.py", {}) for name in ("training/trl", "evaluation/generate")),
    ],
)
def test_a_file_is_code_of_what_it_decides_alone(file, expected):
    """expected: rule or kind of output -> the outputs, or ALL of them."""
    plan, made = planned("smoke"), {}
    for rule, function in (("frames", "frames"), ("html_report", "report")):
        made[rule] = {rule: [f"dara.commands.results:{function}"]}
    for prefix, outputs in (("", plan.outputs), ("published_", plan.published)):
        for drawing in outputs.drawings():
            targets = [f"dara.commands.results:{prefix or 'own_'}{drawing.function}", drawing.path]
            made.setdefault(prefix + drawing.kind, {}).update(dict.fromkeys(drawing.command.split()[1:], targets))
    for kind, outputs in made.items():
        found = {name for name, targets in outputs.items() if CODE / file in code_files(*targets)}
        wanted = expected.get(kind, set())
        assert found == (outputs.keys() if wanted is ALL else wanted), kind


EDITED = ("\nfrom dara", "\nEDITED = 1\nfrom dara")
COMMENTED = [f"analysis/{name}.py" for name in ("crossing", "tables/rows", "figures/style", "view_published")]
COMMENTED += [f"{name}.py" for name in ("report/page", "plan", "training/trl", "evaluation/generate", "rewards/math")]
EDITS = {
    "a comment": [(name, "from __future__", "# why\nfrom __future__") for name in COMMENTED],
    "a statistic": [("analysis/crossing.py", "WINDOW = 10", "WINDOW = 5")],
    "a figure and a table": [
        (f"analysis/{name}.py", *EDITED) for name in ("figures/crossing_strip", "tables/side_by_side")
    ],
}
"""Name -> (file of the package, text in it, what it becomes)."""
SHELL = re.compile(r'^( +)shell:\n(?:\1    "[^\n]*\n)+', re.M)
JOB = re.compile(r"^(?:local)?rule (\w+):\n(?:    input: .*\n)?    output: (.*)$", re.M)


def planned_jobs(clone: Path, *options: str) -> dict[str, set[str]]:
    """The jobs that Snakemake runs, by rule (of what is drawn by its kind), each by the names of what it makes."""
    preset = ("--cores", "2", "--configfile", "config/presets/smoke.yaml")
    done = snakemake(clone, *preset, *options, "--", "all", "html", "published")
    assert done.returncode == 0, done.stdout[-4000:]
    jobs: dict[str, set[str]] = {}
    for rule, made in JOB.findall(done.stdout):
        kind = next((kind for kind in (*DRAWN, *PUBLISHED) if rule.startswith(f"{kind}_")), rule)
        jobs.setdefault(kind, set()).update(Path(file).stem for file in made.split(", "))
    return jobs


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, dict[str, set[str]]]:
    """A clone in which every rule was run, but made empty files; and what it made."""
    clone = copy_repository(tmp_path_factory.mktemp("built"), "cached")
    for rules in (clone / "workflow/rules").glob("*.smk"):
        text = SHELL.sub('\\1shell:\n\\1    "touch {output}"\n', rules.read_text())
        rules.write_text(text.replace("check_settings(PLAN, workflow)", "pass"))  # which imports torch
    return clone, planned_jobs(clone)


def after(built: Path, clone: Path, edits: list[tuple[str, str, str]]) -> dict[str, set[str]]:
    """What is planned after edits."""
    shutil.copytree(built, clone, symlinks=True)
    for name, old, new in edits:
        path = clone / "workflow/dara" / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
    return planned_jobs(clone, "-n")


@pytest.mark.slow
def test_what_edited_code_makes_is_planned_again_and_nothing_else(built, tmp_path):
    clone, made = built
    assert made.keys() >= {"train", "evaluate", "score", "frames", *DRAWN, *PUBLISHED, "html_report"}
    with ThreadPoolExecutor(2) as pool:
        started = {name: pool.submit(after, clone, tmp_path / name, edits) for name, edits in EDITS.items()}
        found = {name: job.result() for name, job in started.items()}
    everything = ("frames", *DRAWN, *PUBLISHED, "html_report")
    assert found == {
        "a comment": {},
        "a statistic": {rule: made[rule] for rule in everything},
        "a figure and a table": {
            "figures": CROSSING,
            "published_figures": {*CROSSING, "group_size_crossing"},
            "side_by_side": {f"{name}_side_by_side" for name in BESIDE},
            "html_report": made["html_report"],
        },
    }

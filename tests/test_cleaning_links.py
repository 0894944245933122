"""Links in scratch and results: `dara clean` deletes a link and never what it points to, and names all that it deletes."""

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dara.cleaning import clean, clean_results, find
from dara.files import remove
from dara.loading import merge, read_yaml
from dara.plan import WorkflowPlan
from dara.store import record_owner
from project import ROOT
from test_cleaning import base_of, begin, finish, score


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> WorkflowPlan:
    """The smoke preset of a copied configuration, which has no other presets: they take a second to read each time."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "config", root / "config")
    files = [root / "config/config.yaml", root / "config/presets/smoke.yaml"]
    for path in set(files[1].parent.iterdir()) - set(files):
        path.unlink()
    return WorkflowPlan.load(root, merge(read_yaml(files[0]), read_yaml(files[1])), files[1:])


@pytest.fixture
def flow(planned, tmp_path, monkeypatch) -> WorkflowPlan:
    """The same in an empty clone, beside which an archive may be."""
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    return told(WorkflowPlan(planned.configuration, planned.root))


def told(flow: WorkflowPlan) -> WorkflowPlan:
    """A workflow has begun with it."""
    flow.paths.root.mkdir(parents=True, exist_ok=True)
    (flow.paths.root / "configuration.json").write_text(flow.configuration_json())
    return flow


def moved(path: Path, to: Path) -> Path:
    """Move a directory to another disk, and link it to where it was."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    path.symlink_to(to.absolute())
    return to


def test_an_archived_checkpoint_is_unlinked_and_the_archive_stays(flow):
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    archive = [moved(work / f"step_{step}", Path(f"../archive/{step}")) for step in (3, 6)]
    finish(flow, run)
    score(flow, run, 3, 6)
    assert [str(removal.path) for removal in find(flow)] == [f".scratch/{run}/step_3"]
    clean(flow, dry_run=False)
    assert not os.path.lexists(work / "step_3")
    assert (work / "step_6").is_symlink()
    assert [len(list(path.iterdir())) for path in archive] == [1, 5], "nothing of the archive is gone"


def test_work_that_is_a_link_is_unlinked_without_touching_its_lock(flow):
    work = begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    elsewhere = moved(work, Path("../archive/run"))
    (elsewhere / "lock").write_text("as it was")
    clean(flow, dry_run=False)
    assert not os.path.lexists(work)
    assert (elsewhere / "lock").read_text() == "as it was"
    assert (elsewhere / "step_3").is_dir()


def test_a_run_whose_lock_is_a_link_is_left_alone(flow):
    work = begin(flow, "tool_calling-old-gdpo-g4-s1-12345678", (3,))
    Path("../theirs").write_text("as it was")
    (work / "lock").unlink()
    (work / "lock").symlink_to("../../../theirs")
    assert clean(flow, dry_run=False) == "0 B freed"
    assert Path("../theirs").read_text() == "as it was"


@pytest.mark.parametrize("place", ["results", "results/smoke", ".scratch"])
def test_linked_results_and_scratch_are_cleaned_as_others_are(flow, place):
    """A workflow that publishes through a link to another disk still knows its own work."""
    Path(".scratch").mkdir()
    moved(Path(place), Path("../disk"))
    run = min(flow.matrix.runs)
    work = begin(flow, run)
    finish(flow, run)
    score(flow, run, 3, 6)
    assert "kept" not in clean(flow, dry_run=False)
    assert sorted(path.name for path in work.glob("step_*")) == ["step_6"]
    clean_results(flow, dry_run=False)
    assert not work.exists()
    assert not flow.paths.root.exists()
    assert Path(place).is_symlink() == (place != "results/smoke"), "the results' own link goes with them"


def test_results_of_two_presets_in_one_directory_are_not_deleted(flow):
    Path("results/other").symlink_to("smoke")
    with pytest.raises(ValueError, match="results/smoke and results/other are one directory; nothing is deleted"):
        clean_results(flow, dry_run=False)


def test_what_no_workflow_made_is_kept_and_named(flow):
    (flow.paths.root / "notes.txt").write_text("mine")
    (flow.paths.root / "data").mkdir()
    assert clean_results(flow, dry_run=False).splitlines()[0] == (
        "     kept  results/smoke/notes.txt: no workflow made it"
    )
    assert [path.name for path in flow.paths.root.iterdir()] == ["notes.txt"]


# --- any tree ---------------------------------------------------------------------------------------------------------

SOMEWHERE = ("archive", "archive/file", "nowhere", "itself", "clone", "clone/results/mine", "clone/.scratch")
"""What links point to: a directory and a file of others, nothing, the link itself, and what is around it."""
LINKED = (
    "step_3",
    "step_6",
    "openrlhf",
    "openrlhf/_actor",
    "openrlhf.log",
    "step_6/optimizer.pt",
    "step_3/more",
    "lock",
)
"""What is a link instead, in a run's directory."""
LINKED_RESULTS = ("logs", "logs/train", "logs/x.log", "runs", "models", "scores", "data")
run_trees = st.fixed_dictionaries(
    {
        "planned": st.booleans(),
        "owner": st.sampled_from(["ours", "ours", "theirs", "both", "nobody"]),
        "finished": st.booleans(),
        "scored": st.booleans(),
        "is_link": st.booleans(),
        "links": st.dictionaries(st.sampled_from(LINKED), st.sampled_from(SOMEWHERE), max_size=3),
    }
)
trees = st.fixed_dictionaries(
    {
        "runs": st.lists(run_trees, min_size=1, max_size=3),
        "disks": st.sets(st.sampled_from(["results", "results/smoke", ".scratch"])),
        "links": st.dictionaries(st.sampled_from(LINKED_RESULTS), st.sampled_from(SOMEWHERE), max_size=2),
        "foreign": st.booleans(),
        "models": st.booleans(),
    }
)


def link(path: Path, world: Path, target: str) -> None:
    """Put a link in the place of whatever is there."""
    if path.parent.is_dir() and not path.parent.is_symlink():
        remove(path)
        path.symlink_to(path.name if target == "itself" else world / target)


def grow(flow: WorkflowPlan, world: Path, tree: dict) -> set[Path]:
    """Build a tree in the working directory; what belongs to others in it."""
    others = {world / "archive", world / "clone/results/mine", world / "clone/results/cached"}
    (world / "archive/logs/train").mkdir(parents=True)
    for name in ("file", "model.safetensors", "optimizer.pt", "x.log", "logs/train/y.log", "lock", "inputs.json"):
        (world / "archive" / name).write_text("theirs")
    for directory in ("results/mine/logs", "results/cached/run/logs", ".scratch"):
        Path(directory).mkdir(parents=True)
        (Path(directory) / "old.log").write_text("theirs")
    for disk in sorted(tree["disks"], reverse=True):
        moved(Path(disk), world / "disk" / disk.replace("/", "-"))
    for number, run in enumerate(tree["runs"]):
        name = sorted(flow.matrix.runs)[number] if run["planned"] else f"tool_calling-old-gdpo-g4-s{number}-12345678"
        grow_run(flow, world, name, run)
        if run["owner"] != "ours":
            others.add(Path(os.path.realpath(flow.paths.scratch)) / name)
    if tree["models"]:
        base_of(flow, min(flow.matrix.runs))
    (flow.paths.root / "logs").mkdir(exist_ok=True)
    for name, target in sorted(tree["links"].items()):
        link(flow.paths.root / name, world, target)
    if tree["foreign"]:
        (flow.paths.root / "notes.txt").write_text("mine")
        others.add(Path(os.path.realpath(flow.paths.root)) / "notes.txt")
    for path in world.rglob("*.log"):
        os.utime(path, (0.0, 0.0), follow_symlinks=False)
    return others


def grow_run(flow: WorkflowPlan, world: Path, name: str, run: dict) -> None:
    """One run with its files in scratch and in the results."""
    work = begin(flow, name)
    (work / "owners.json").unlink()
    if run["owner"] in ("ours", "both"):
        record_owner(work, flow.paths.run(name))
    if run["owner"] in ("theirs", "both"):
        record_owner(work, world / "another clone/results/smoke/runs" / name)
    (work / "openrlhf/_actor/global_step6").mkdir(parents=True)
    (work / "openrlhf/_actor/global_step6/state.pt").write_text("state")
    (work / "openrlhf.log").write_text("words")
    for place, target in sorted(run["links"].items()):
        link(work / place, world, target)
    if run["finished"]:
        finish(flow, name)
    if run["scored"] and run["planned"]:
        score(flow, name, 3, 6)
    if run["is_link"]:
        moved(work, world / "disk" / name)


def snapshot(world: Path) -> dict[Path, str]:
    """Everything below a directory, no link followed: what it is, and what is in it. Locks say who holds them."""
    found = {}
    for directory, folders, names in os.walk(world):
        for path in (Path(directory, name) for name in (*folders, *names)):
            if path.is_symlink():
                found[path] = f"link to {os.readlink(path)}"
            elif path.is_dir():
                found[path] = "directory"
            elif ".snakemake" not in path.parts:
                ours = path.name == "lock" and path.parents[1].name == ".scratch"
                found[path] = "lock" if ours else path.read_text()
    return {path: what for path, what in found.items() if ".snakemake" not in path.parts}


def named(printed: str) -> set[Path]:
    """The paths that a table of removals names, as they are on disk; of linked results, the directory too."""
    shown = re.findall(r"^ *[\d.]+ k?B  \w+ +(\S.*)$", printed, re.MULTILINE)
    paths = {Path(os.path.realpath(Path(name).parent), Path(name).name) for name in shown}
    linked = {Path(os.path.realpath(name)) for name in shown if name == "results/smoke"}
    return paths | linked


def test_any_tree_loses_what_the_dry_run_names_and_nothing_of_others(planned):
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(tree=trees, delete=st.sampled_from([clean, clean_results]))
    def check(tree, delete):
        flow = WorkflowPlan(planned.configuration, planned.root)
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            world = Path(os.path.realpath(name))
            (world / "clone").mkdir()
            stack.enter_context(contextlib.chdir(world / "clone"))
            told(flow)
            others = grow(flow, world, tree)
            before = snapshot(world)
            said = delete(flow, dry_run=True)
            assert snapshot(world) == before, "a dry run changes nothing"
            roots = named(said)
            gone = {path for path in before if path in roots or roots & set(path.parents)}
            assert delete(flow, dry_run=False) == said.replace("would be freed", "freed")
            assert snapshot(world) == {path: what for path, what in before.items() if path not in gone}
            assert {path for path in gone if path in others or others & set(path.parents)} == set()

    check()

# Reads and checks the configuration, and says where files are.
import sys
from pathlib import Path

ROOT = Path(workflow.snakefile).parents[
    2
]  # workflow.basedir is that of the workflow of which this is a module
sys.path.insert(0, str(ROOT / "workflow"))

from dara.registries import names_of
from dara.orphan_guard import job_environment
from dara.outputs import code_digest
from dara.plan import FRAMES, RUN_FILES, WorkflowPlan
from dara.preflight import (
    check_settings,
    refuse_other_preset,
    refuse_unknown_output,
    start_jobs,
    user_errors,
)
from dara.store import canonical_json

job_environment(ROOT, main=workflow.is_main_process, remote=workflow.remote_exec)
with user_errors():
    presets = [Path(file) for file in workflow.configfiles]
    presets = [file for file in presets if file != ROOT / "config/config.yaml"]
    PLAN = WorkflowPlan.load(ROOT, config, presets)
    if workflow.is_main_process:
        check_settings(PLAN, workflow)

OUT = str(PLAN.paths.root)
EVALUATION_PYTHON = PLAN.evaluation_python
# Only a batch system ends a job that takes too long; then training stops at a checkpoint before.
TIME_LIMIT = "enforced" if workflow.remote_exec else "none"
# Shell commands are formatted with the names of the outermost workflow, also where this one is a module of it.
workflow.modifier_stack[0].globals.update(
    PLAN=PLAN, EVALUATION_PYTHON=EVALUATION_PYTHON, TIME_LIMIT=TIME_LIMIT
)


onstart:
    with user_errors():
        start_jobs(PLAN, workflow)


onsuccess:
    print(
        f"Results of preset {PLAN.name} ({len(PLAN.matrix.runs)} runs): {OUT}/tables/, figures/ and data/",
        file=sys.stderr,
    )


wildcard_constraints:
    run="[^/]+",
    model="[^/]+",
    data="[a-z_]+-[0-9a-f]{8}",
    benchmark="[a-z0-9_]+",
    evaluation="[a-z0-9_]+-[0-9a-f]{8}",


def code_of(*targets):
    """Make the digest of code a parameter, so that an edit makes again what it decides."""
    return lambda wildcards: code_digest(*targets)


def benchmark_json(wildcards):
    """Write the settings of an evaluation for the command line."""
    return canonical_json(PLAN.settings(wildcards.run, wildcards.evaluation))


def steps_of(wildcards):
    """Write the steps of an evaluation for the command line."""
    return ",".join(map(str, PLAN.steps(wildcards.run, wildcards.evaluation)))


def other_preset(wildcards):
    """There is no input for a file of another preset, but a sentence that ends the workflow."""
    with user_errors():
        refuse_other_preset(PLAN, wildcards.preset, wildcards.file)


def unknown_output(wildcards):
    """The same for a table or figure that this preset does not have."""
    with user_errors():
        refuse_unknown_output(PLAN, wildcards.file)

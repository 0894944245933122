# Reads and checks the configuration, and says where files are. No rules here.
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "workflow"))

from dara.dag import Workflow
from dara.dependencies import code_digest
from dara.loading import check_method_parameters
from dara.parent import job_environment
from dara.preflight import (
    check_available,
    check_environments,
    check_hardware,
    check_trackers,
    user_errors,
)
from dara.specs import PUBLISHED_BENCHMARKS
from dara.workflow_lock import guard_directory, runs_jobs

job_environment(ROOT, main=workflow.is_main_process, remote=workflow.remote_exec)
with user_errors():
    if workflow.is_main_process:
        guard_directory(sys.argv[1:])
    FLOW = Workflow.load(ROOT, config, workflow.overwrite_configfiles)
    if workflow.is_main_process:
        check_method_parameters(FLOW.configuration)
        if runs_jobs(sys.argv[1:]):
            check_hardware(FLOW)
            check_trackers(FLOW)
            check_environments(FLOW)
            check_available(FLOW)

OUT = str(FLOW.paths.root)
EVALUATION_PYTHON = FLOW.evaluation_python
# Only a batch system ends a job that takes too long; then training stops at a checkpoint before.
TIME_LIMIT = "enforced" if workflow.remote_exec else "none"
PUBLISHED = str(FLOW.paths.published)


wildcard_constraints:
    run="[^/]+",
    model="[^/]+",
    data="[a-z_]+-[0-9a-f]{8}",
    benchmark="[a-z0-9_]+",
    table="[a-z0-9_]+",
    figure="[a-z0-9_]+",


onsuccess:
    print(FLOW.summary(), file=sys.stderr)

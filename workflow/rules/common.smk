# Reads and checks the configuration, and says where files are. No rules here.
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "workflow"))

from dara.benchmarks import names_of
from dara.dag import Workflow
from dara.dependencies import code_digest
from dara.loading import check_method_parameters
from dara.parent import job_environment
from dara.preflight import check_before_jobs, check_gpus, check_targets, user_errors
from dara.profiles import check_profiles
from dara.snakemake_command import RUN, Command
from dara.workflow_lock import guard_directory

job_environment(ROOT, main=workflow.is_main_process, remote=workflow.remote_exec)
with user_errors():
    if workflow.is_main_process:
        COMMAND = Command.read(sys.argv[1:], Path(workflow.rundir))
        guard_directory(COMMAND)
        check_profiles(COMMAND, ROOT)
    FLOW = Workflow.load(ROOT, config, workflow.overwrite_configfiles)
    if workflow.is_main_process:
        check_method_parameters(FLOW.configuration)
        check_targets(FLOW, COMMAND)
        check_gpus(FLOW, COMMAND)
        if COMMAND.purpose == RUN:
            FLOW.make_directories()
            check_before_jobs(FLOW, COMMAND)

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

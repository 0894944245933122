# The whole reproduction: data -> warm start -> training -> evaluation -> scores -> frames -> tables, figures and report.
# What each rule does is a function of the package in workflow/dara/; what is run is decided by config/.
from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


configfile: f"{workflow.basedir}/config/config.yaml"


# A profile or --configfile chooses the preset; without either it is the laptop's.
if not workflow.overwrite_configfiles:

    configfile: f"{workflow.basedir}/config/presets/laptop.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/analyze.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/published.smk"


# With `reuse: only` nothing can be trained or evaluated, because the rules for it are not there.
if FLOW.reuse != "only":

    include: "workflow/rules/data.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/evaluate.smk"


rule all:
    default_target: True
    input:
        rules.collect.output,
        rules.analyse.output,
        rules.tables.input,
        rules.figures.input,
        [FLOW.run_file(run, "manifest.json") for run in FLOW.plan.runs],
        FLOW.scored,
    localrule: True


# What a workflow was told stands in its configuration.json, so that `dara status` and `dara clean` know its runs.
rule trained:
    input:
        rules.configuration.output,
        [FLOW.run_file(run, "manifest.json") for run in FLOW.plan.runs],
    localrule: True


rule evaluated:
    input:
        rules.configuration.output,
        FLOW.scored,
    localrule: True

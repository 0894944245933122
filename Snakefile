# The whole reproduction: data -> warm start -> training -> evaluation -> scores -> frames -> tables, figures and report.
# What each rule does is a function of the package in workflow/dara/; what is run is decided by config/.
import re
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


configfile: f"{Path(workflow.snakefile).parent}/config/config.yaml"


# A profile, --configfile, or the workflow that uses this one as a module chooses the preset; else it is the laptop's.
if not (workflow.overwrite_configfiles or "experiments" in config):

    configfile: f"{Path(workflow.snakefile).parent}/config/presets/laptop.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/analyze.smk"
include: "workflow/rules/report.smk"


# With `reuse: only` nothing can be trained or evaluated, because the rules for it are not there.
if PLAN.reuse != "only":

    include: "workflow/rules/data.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/evaluate.smk"


rule all:
    default_target: True
    input:
        rules.frames.output,
        rules.tables.input,
        rules.figures.input,
        PLAN.manifests,
        PLAN.scored,
    localrule: True


# configuration.json holds the merged configuration; `dara status` and `dara clean` read it.
rule trained:
    input:
        rules.configuration.output,
        PLAN.manifests,
    localrule: True


rule evaluated:
    input:
        rules.configuration.output,
        PLAN.scored,
    localrule: True


# Makes no file: it says which preset makes it.
rule other_preset:
    input:
        other_preset,
    output:
        f"{PLAN.paths.results}/{{preset}}/{{file}}",
    wildcard_constraints:
        preset="|".join(PLAN.other_presets),
        file=".+",
    localrule: True


# Makes no file either: it says which table or figure was meant.
rule unknown_output:
    input:
        unknown_output,
    output:
        f"{OUT}/{{file}}",
    wildcard_constraints:
        file=rf"(?!({'|'.join(map(re.escape, PLAN.outputs.names))})$)(tables|figures)/[^/]+\.(md|tex|csv|png|svg)",
    localrule: True

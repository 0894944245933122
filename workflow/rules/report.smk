# Tables and figures, with captions for Snakemake's report.


rule table:
    input:
        configuration=f"{OUT}/configuration.json",
        frames=[f"{OUT}/data/{frame}.csv" for frame in FLOW.frames],
        settings=lambda wildcards: FLOW.outputs.settings("tables", wildcards.table),
    output:
        report(
            f"{OUT}/tables/{{table}}.md",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        multiext(f"{OUT}/tables/{{table}}", ".tex", ".csv"),
    log:
        f"{OUT}/logs/table/{{table}}.log",
    benchmark:
        f"{OUT}/benchmarks/table/{{table}}.tsv"
    wildcard_constraints:
        table=r"(?!\w*_side_by_side\b)\w+",
    localrule: True
    params:
        code=lambda wildcards: code_digest(
            "dara.drawing:table", FLOW.outputs.module("tables", wildcards.table)
        ),
    shell:
        "python -m dara table {wildcards.table} {input.configuration:q} > {log:q} 2>&1"


rule figure:
    input:
        configuration=f"{OUT}/configuration.json",
        frames=[f"{OUT}/data/{frame}.csv" for frame in FLOW.frames],
        settings=lambda wildcards: FLOW.outputs.settings("figures", wildcards.figure),
    output:
        report(
            f"{OUT}/figures/{{figure}}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        f"{OUT}/figures/{{figure}}.svg",
    log:
        f"{OUT}/logs/figure/{{figure}}.log",
    benchmark:
        f"{OUT}/benchmarks/figure/{{figure}}.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest(
            "dara.drawing:figure", FLOW.outputs.module("figures", wildcards.figure)
        ),
    shell:
        "python -m dara figure {wildcards.figure} {input.configuration:q} > {log:q} 2>&1"


rule side_by_side:
    input:
        configuration=f"{OUT}/configuration.json",
        frames=[f"{OUT}/data/{frame}.csv" for frame in FLOW.frames],
        published=FLOW.published_data + FLOW.published.definitions,
        settings=lambda wildcards: FLOW.outputs.settings(
            "side_by_side", wildcards.table
        ),
    output:
        report(
            f"{OUT}/tables/{{table}}_side_by_side.md",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}, ours beside the published"},
        ),
        multiext(f"{OUT}/tables/{{table}}_side_by_side", ".tex", ".csv"),
    log:
        f"{OUT}/logs/side_by_side/{{table}}.log",
    benchmark:
        f"{OUT}/benchmarks/side_by_side/{{table}}.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest(
            "dara.drawing:side_by_side",
            FLOW.outputs.module("side_by_side", wildcards.table),
        ),
    shell:
        "python -m dara side-by-side {wildcards.table} {input.configuration:q} > {log:q} 2>&1"


rule html_report:
    input:
        rules.analyse.output,
        configuration=f"{OUT}/configuration.json",
        drawn=FLOW.outputs.files,
        published=FLOW.published_data + FLOW.published.files,
        manifests=[FLOW.run_file(run, "manifest.json") for run in FLOW.plan.runs],
    output:
        f"{OUT}/report.html",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest("dara.verbs.analysis:report"),
    shell:
        "python -m dara report {input.configuration:q} > {log:q} 2>&1"


rule tables:
    input:
        FLOW.outputs.files_of("tables"),
        FLOW.outputs.files_of("side_by_side"),
    localrule: True


rule figures:
    input:
        FLOW.outputs.files_of("figures"),
    localrule: True


rule html:
    input:
        f"{OUT}/report.html",
    localrule: True

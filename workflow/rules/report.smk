# Tables and figures, with captions for Snakemake's report.


rule table:
    input:
        configuration=f"{OUT}/configuration.json",
        frames=[f"{OUT}/data/{frame}.csv" for frame in FLOW.frames],
        settings=lambda wildcards: FLOW.settings_of("tables", wildcards.table),
        code=lambda wildcards: FLOW.code_of("tables", wildcards.table),
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
    shell:
        "python -m dara table {wildcards.table} {input.configuration} > {log} 2>&1"


rule figure:
    input:
        configuration=f"{OUT}/configuration.json",
        frames=[f"{OUT}/data/{frame}.csv" for frame in FLOW.frames],
        settings=lambda wildcards: FLOW.settings_of("figures", wildcards.figure),
        code=lambda wildcards: FLOW.code_of("figures", wildcards.figure),
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
    shell:
        "python -m dara figure {wildcards.figure} {input.configuration} > {log} 2>&1"


rule tables:
    input:
        [f"{OUT}/tables/{table}.md" for table in FLOW.outputs("tables")],
    localrule: True


rule figures:
    input:
        [f"{OUT}/figures/{figure}.png" for figure in FLOW.outputs("figures")],
    localrule: True

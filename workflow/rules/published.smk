# The authors' published numbers, drawn by the code that draws ours. They are files in git: one table or figure is one job.


rule published_table:
    input:
        data=FLOW.published_data,
        settings=lambda wildcards: FLOW.published.settings("tables", wildcards.table),
    output:
        multiext(f"{PUBLISHED}/tables/{{table}}", ".md", ".tex", ".csv"),
    log:
        f"{PUBLISHED}/logs/table/{{table}}.log",
    benchmark:
        f"{PUBLISHED}/benchmarks/table/{{table}}.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest(
            "dara.drawing:published_table",
            FLOW.published.module("tables", wildcards.table),
        ),
        source=subpath(output[0], ancestor=2),
    shell:
        "python -m dara table {wildcards.table} {params.source:q} > {log:q} 2>&1"


rule published_figure:
    input:
        data=FLOW.published_data,
        settings=lambda wildcards: FLOW.published.settings("figures", wildcards.figure),
    output:
        multiext(f"{PUBLISHED}/figures/{{figure}}", ".png", ".svg"),
    log:
        f"{PUBLISHED}/logs/figure/{{figure}}.log",
    benchmark:
        f"{PUBLISHED}/benchmarks/figure/{{figure}}.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest(
            "dara.drawing:published_figure",
            FLOW.published.module("figures", wildcards.figure),
        ),
        source=subpath(output[0], ancestor=2),
    shell:
        "python -m dara figure {wildcards.figure} {params.source:q} > {log:q} 2>&1"


rule published:
    input:
        FLOW.published.files,
    localrule: True

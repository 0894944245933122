# Tables and figures, with captions for Snakemake's report. What one module draws is one job, because most of the time of a
# job is the import of its libraries; a table or figure is asked for by its file.


for drawing in PLAN.outputs.drawings():

    rule:
        name:
            drawing.rule
        input:
            configuration=f"{OUT}/configuration.json",
            frames=rules.frames.output,
            published=(
                PLAN.published.data + PLAN.published.definitions
                if drawing.kind == "side_by_side"
                else []
            ),
            settings=drawing.settings,
        output:
            [
                report(
                    file,
                    caption=f"../report/{drawing.noun}.rst",
                    category=f"{drawing.noun.capitalize()}s",
                    labels={drawing.noun: label},
                )
                for label, file in drawing.shown
            ],
            drawing.others,
        log:
            f"{OUT}/logs/{drawing.rule}.log",
        benchmark:
            f"{OUT}/benchmarks/{drawing.rule}.tsv"
        localrule: True
        params:
            code=code_of(f"dara.drawing:{drawing.function}", drawing.path),
            command=drawing.command,
        shell:
            "python -m dara {params.command} {input.configuration:q} > {log:q} 2>&1"


# The authors' numbers, drawn by the code that draws those of the runs. They are files in git: one job a module.
for drawing in PLAN.published.drawings():

    rule:
        name:
            f"published_{drawing.rule}"
        input:
            PLAN.published.data,
            drawing.settings,
        output:
            [file for _, file in drawing.shown],
            drawing.others,
        log:
            f"{PLAN.paths.published}/logs/{drawing.rule}.log",
        benchmark:
            f"{PLAN.paths.published}/benchmarks/{drawing.rule}.tsv"
        localrule: True
        params:
            code=code_of(f"dara.drawing:published_{drawing.function}", drawing.path),
            command=drawing.command,
            source=PLAN.paths.published,
        shell:
            "python -m dara {params.command} {params.source:q} > {log:q} 2>&1"


rule html_report:
    input:
        rules.frames.output,
        configuration=f"{OUT}/configuration.json",
        drawn=PLAN.outputs.files,
        published=PLAN.published.data + PLAN.published.files,
        manifests=PLAN.manifests,
    output:
        f"{OUT}/report.html",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    localrule: True
    params:
        code=code_of("dara.commands.results:report"),
    shell:
        "python -m dara report {input.configuration:q} > {log:q} 2>&1"


rule tables:
    input:
        PLAN.outputs.files_of("tables"),
        PLAN.outputs.files_of("side_by_side"),
    localrule: True


rule figures:
    input:
        PLAN.outputs.files_of("figures"),
    localrule: True


rule html:
    input:
        f"{OUT}/report.html",
    localrule: True


rule published:
    input:
        PLAN.published.files,
    localrule: True

# The configuration of the workflow, and tidy frames from finished runs and their scores.


rule configuration:
    output:
        f"{OUT}/configuration.json",
    log:
        f"{OUT}/logs/configuration.log",
    priority: 100  # `dara status` reads it from the first moments on
    localrule: True
    params:
        json=PLAN.configuration_json(),
    shell:
        "printf '%s\\n' {params.json:q} > {output:q} 2> {log:q}"


rule frames:
    input:
        configuration=f"{OUT}/configuration.json",
        thresholds=PLAN.outputs.definitions,
        runs=PLAN.manifests,
        scores=PLAN.scored,
    output:
        [f"{OUT}/data/{frame}.csv" for frame in FRAMES],
    log:
        f"{OUT}/logs/frames.log",
    benchmark:
        f"{OUT}/benchmarks/frames.tsv"
    localrule: True
    params:
        code=code_of("dara.commands.results:frames"),
    shell:
        "python -m dara frames {input.configuration:q} > {log:q} 2>&1"

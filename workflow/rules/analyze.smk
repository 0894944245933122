# Tidy frames from finished runs and their scores.


rule configuration:
    output:
        f"{OUT}/configuration.json",
    log:
        f"{OUT}/logs/configuration.log",
    priority: 100  # `dara status` reads it from the first moments on
    localrule: True
    params:
        json=FLOW.configuration_json(),
    shell:
        "printf '%s\\n' {params.json:q} > {output:q} 2> {log:q}"


rule collect:
    input:
        configuration=f"{OUT}/configuration.json",
        runs=[FLOW.run_file(run, "manifest.json") for run in FLOW.plan.runs],
    output:
        [f"{OUT}/data/{frame}.csv" for frame in ("runs", "training_curves")],
    log:
        f"{OUT}/logs/collect.log",
    benchmark:
        f"{OUT}/benchmarks/collect.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest("dara.verbs.analysis:collect"),
    shell:
        "python -m dara collect {input.configuration:q} > {log:q} 2>&1"


rule analyse:
    input:
        configuration=f"{OUT}/configuration.json",
        thresholds=FLOW.outputs.definitions,
        runs=rules.collect.output,
        scores=FLOW.scored,
    output:
        [
            f"{OUT}/data/{frame}.csv"
            for frame in (
                "checkpoint_scores",
                "score_intervals",
                "crossings",
                "energies",
            )
        ],
    log:
        f"{OUT}/logs/analyse.log",
    benchmark:
        f"{OUT}/benchmarks/analyse.tsv"
    localrule: True
    params:
        code=lambda wildcards: code_digest("dara.verbs.analysis:analyse"),
    shell:
        "python -m dara analyse {input.configuration:q} > {log:q} 2>&1"

# Base models, made by a supervised warm start or fetched, and the runs of the matrix. Checkpoints are in scratch and are no output: they
# survive a failure, and the next attempt continues from the last complete one.


rule model_spec:
    output:
        f"{OUT}/models/{{model}}/spec.json",
    log:
        f"{OUT}/logs/model_spec/{{model}}.log",
    localrule: True
    params:
        json=lambda wildcards: FLOW.model_json(wildcards.model),
    shell:
        "printf '%s\\n' {params.json:q} > {output:q} 2> {log:q}"


rule base_model:
    input:
        spec=f"{OUT}/models/{{model}}/spec.json",
        data=lambda wildcards: FLOW.model_data(wildcards.model),
    output:
        f"{OUT}/models/{{model}}/manifest.json",
    log:
        f"{OUT}/logs/base_model/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/base_model/{{model}}.tsv"
    localrule: True
    params:
        data=lambda wildcards, input: (
            ["--data", input.data] if input.get("data") else []
        ),
    shell:
        "python -m dara base-model {input.spec:q} {params.data:q} --scratch {FLOW.paths.scratch:q} --manifest {output:q} "
        "--fetch {FLOW.fetching:q} 2>&1 | tee {log:q}"


rule run_spec:
    output:
        f"{OUT}/runs/{{run}}/spec.json",
    log:
        f"{OUT}/logs/run_spec/{{run}}.log",
    localrule: True
    params:
        json=lambda wildcards: FLOW.run_json(wildcards.run),
    shell:
        "printf '%s\\n' {params.json:q} > {output:q} 2> {log:q}"


rule train:
    input:
        spec=f"{OUT}/runs/{{run}}/spec.json",
        data=lambda wildcards: FLOW.run_data(wildcards.run),
        model=lambda wildcards: FLOW.run_model(wildcards.run),
    output:
        [f"{OUT}/runs/{{run}}/{name}" for name in FLOW.run_files],
    log:
        f"{OUT}/logs/train/{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/train/{{run}}.tsv"
    # Where and for how long a job runs stands here and not in params: it changes no result, so nothing trains again.
    threads: lambda wildcards: FLOW.resources(wildcards.run).cpus
    resources:
        gpu=lambda wildcards: FLOW.training_gpus(wildcards.run),
        mem_mb=lambda wildcards: FLOW.resources(wildcards.run).memory_mb,
        runtime=lambda wildcards: FLOW.resources(wildcards.run).minutes,
    shell:
        "python -m dara train {input.spec:q} --data {input.data:q} --model {input.model:q} "
        "--scratch {FLOW.paths.scratch:q} {FLOW.training_options} --minutes {resources.runtime} --time-limit {TIME_LIMIT} "
        "2>&1 | tee {log:q}"

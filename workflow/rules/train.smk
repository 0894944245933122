# Base models by a supervised warm start, and the runs of the matrix. Checkpoints are in scratch and are no output: they
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
        "printf '%s\\n' {params.json:q} > {output} 2> {log}"


rule warm_start:
    input:
        spec=f"{OUT}/models/{{model}}/spec.json",
        data=lambda wildcards: FLOW.model_data(wildcards.model),
    output:
        f"{OUT}/models/{{model}}/manifest.json",
    log:
        f"{OUT}/logs/warm_start/{{model}}.log",
    benchmark:
        f"{OUT}/benchmarks/warm_start/{{model}}.tsv"
    params:
        scratch=FLOW.paths.scratch,
    shell:
        "python -m dara warm-start {input.spec} --data {input.data} --scratch {params.scratch} --manifest {output} 2>&1 | tee {log}"


rule run_spec:
    output:
        f"{OUT}/runs/{{run}}/spec.json",
    log:
        f"{OUT}/logs/run_spec/{{run}}.log",
    localrule: True
    params:
        json=lambda wildcards: FLOW.run_json(wildcards.run),
    shell:
        "printf '%s\\n' {params.json:q} > {output} 2> {log}"


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
    params:
        scratch=FLOW.paths.scratch,
    shell:
        "python -m dara train {input.spec} --data {input.data} --model {input.model} --scratch {params.scratch} 2>&1 | tee {log}"

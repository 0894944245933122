# One process, or a few that share the checkpoints, generates for a run or a base model; another scores the responses.


rule evaluate_part:
    input:
        manifest=lambda wildcards: FLOW.evaluated_manifest(wildcards.run),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.evaluation),
    output:
        touch(f"{OUT}/scores/{{run}}/{{evaluation}}/part{{part}}of{{parts}}.done"),
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{evaluation}}.part{{part}}of{{parts}}.log",
    threads: lambda wildcards: FLOW.resources(wildcards.run).evaluation_cpus
    resources:
        gpu=lambda wildcards: FLOW.resources(wildcards.run).evaluation_gpus,
        mem_mb=lambda wildcards: FLOW.resources(wildcards.run).evaluation_memory_mb,
        runtime=lambda wildcards: FLOW.resources(wildcards.run).evaluation_minutes,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(
            wildcards.run, wildcards.evaluation
        ),
        steps=lambda wildcards: FLOW.steps_option(wildcards.run, wildcards.evaluation),
        out=subpath(output[0], parent=True),
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} --part {wildcards.part}/{wildcards.parts} 2>&1 | tee {log:q}"


# Where parts have made all responses, this job only checks that none is missing and writes what made them: no GPU, no model.
rule evaluate:
    input:
        manifest=lambda wildcards: FLOW.evaluated_manifest(wildcards.run),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.evaluation),
        parts=lambda wildcards: FLOW.evaluation_parts(
            wildcards.run, wildcards.evaluation
        ),
    output:
        f"{OUT}/scores/{{run}}/{{evaluation}}/responses.json",
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{evaluation}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate/{{run}}.{{evaluation}}.tsv"
    threads: lambda wildcards: FLOW.evaluation_job(wildcards.run, wildcards.evaluation).cpus
    resources:
        gpu=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.evaluation
        ).gpus,
        mem_mb=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.evaluation
        ).memory_mb,
        runtime=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.evaluation
        ).minutes,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(
            wildcards.run, wildcards.evaluation
        ),
        steps=lambda wildcards: FLOW.steps_option(wildcards.run, wildcards.evaluation),
        out=subpath(output[0], parent=True),
        gather=lambda wildcards, input: "--gather" if input.get("parts") else "",
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} {params.gather} 2>&1 | tee {log:q}"


rule score:
    input:
        responses=lambda wildcards: FLOW.responses(wildcards.run, wildcards.evaluation),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.evaluation),
    output:
        f"{OUT}/scores/{{run}}/{{evaluation}}/scores.json",
    log:
        f"{OUT}/logs/score/{{run}}.{{evaluation}}.log",
    benchmark:
        f"{OUT}/benchmarks/score/{{run}}.{{evaluation}}.tsv"
    threads: lambda wildcards: FLOW.scoring_cores(wildcards.run, wildcards.evaluation)
    resources:
        mem_mb=lambda wildcards, threads: 3000 * threads,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(
            wildcards.run, wildcards.evaluation
        ),
        # Another version scores again.
        scorer=lambda wildcards: FLOW.scorer_version(
            wildcards.run, wildcards.evaluation
        ),
        responses=subpath(input.responses, parent=True),
        out=subpath(output[0], parent=True),
    shell:
        "python -m dara score --data {input.data:q} --benchmark {params.benchmark:q} --responses {params.responses:q} "
        "--out {params.out:q} --workers {threads} 2>&1 | tee {log:q}"

# One process generates for all checkpoints of a run (or for a base model), or a few that share them; another scores what was
# said.


rule evaluate_part:
    input:
        manifest=lambda wildcards: FLOW.evaluated_manifest(wildcards.run),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.benchmark),
    output:
        touch(f"{OUT}/scores/{{run}}/{{benchmark}}.part{{part}}of{{parts}}.done"),
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{benchmark}}.part{{part}}of{{parts}}.log",
    threads: lambda wildcards: FLOW.resources(wildcards.run).evaluation_cpus
    resources:
        gpu=lambda wildcards: FLOW.resources(wildcards.run).evaluation_gpus,
        mem_mb=lambda wildcards: FLOW.resources(wildcards.run).evaluation_memory_mb,
        runtime=lambda wildcards: FLOW.resources(wildcards.run).evaluation_minutes,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(wildcards.benchmark),
        steps=lambda wildcards: FLOW.steps_option(wildcards.run, wildcards.benchmark),
        out=subpath(output[0], parent=True),
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} --part {wildcards.part}/{wildcards.parts} 2>&1 | tee {log:q}"


# Where parts have made all responses, this only finds them complete and puts down what made them: no GPU, no model.
rule evaluate:
    input:
        manifest=lambda wildcards: FLOW.evaluated_manifest(wildcards.run),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.benchmark),
        parts=lambda wildcards: FLOW.evaluation_parts(
            wildcards.run, wildcards.benchmark
        ),
    output:
        f"{OUT}/scores/{{run}}/{{benchmark}}.identity.json",
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{benchmark}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate/{{run}}.{{benchmark}}.tsv"
    threads: lambda wildcards: FLOW.evaluation_job(wildcards.run, wildcards.benchmark).cpus
    resources:
        gpu=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.benchmark
        ).gpus,
        mem_mb=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.benchmark
        ).memory_mb,
        runtime=lambda wildcards: FLOW.evaluation_job(
            wildcards.run, wildcards.benchmark
        ).minutes,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(wildcards.benchmark),
        steps=lambda wildcards: FLOW.steps_option(wildcards.run, wildcards.benchmark),
        out=subpath(output[0], parent=True),
        gather=lambda wildcards, input: "--gather" if input.get("parts") else "",
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} {params.gather} 2>&1 | tee {log:q}"


rule score:
    input:
        identity=lambda wildcards: FLOW.response_identity(
            wildcards.run, wildcards.benchmark
        ),
        data=lambda wildcards: FLOW.evaluated_data(wildcards.run, wildcards.benchmark),
    output:
        f"{OUT}/scores/{{run}}/{{benchmark}}.scored.json",
    log:
        f"{OUT}/logs/score/{{run}}.{{benchmark}}.log",
    benchmark:
        f"{OUT}/benchmarks/score/{{run}}.{{benchmark}}.tsv"
    threads: lambda wildcards: FLOW.scoring_cores(wildcards.benchmark)
    resources:
        mem_mb=lambda wildcards, threads: 3000 * threads,
    params:
        benchmark=lambda wildcards: FLOW.benchmark_json(wildcards.benchmark),
        # Another version scores again.
        scorer=lambda wildcards: FLOW.scorer_version(wildcards.benchmark),
        responses=subpath(input.identity, parent=True),
        out=subpath(output[0], parent=True),
    shell:
        "python -m dara score --data {input.data:q} --benchmark {params.benchmark:q} --responses {params.responses:q} "
        "--out {params.out:q} --workers {threads} 2>&1 | tee {log:q}"

# One process generates for all checkpoints of a run (or for a base model), or a few that share them; another scores the responses.


rule evaluate_part:
    input:
        unpack(PLAN.evaluation_inputs),
    output:
        touch(f"{OUT}/scores/{{run}}/{{evaluation}}/part{{part}}of{{parts}}.done"),
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{evaluation}}.part{{part}}of{{parts}}.log",
    threads: PLAN.asks("evaluate_part", "cpus")
    resources:
        gpu=PLAN.asks("evaluate_part", "gpus"),
        mem_mb=PLAN.asks("evaluate_part", "memory_mb"),
        runtime=PLAN.asks("evaluate_part", "minutes"),
    params:
        benchmark=benchmark_json,
        steps=steps_of,
        out=subpath(output[0], parent=True),
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} --part {wildcards.part}/{wildcards.parts} 2>&1 | tee {log:q}"


# With parts, this job only checks that all of them finished and writes the identity file: no GPU, no model.
rule evaluate:
    input:
        unpack(PLAN.evaluation_inputs),
        parts=lambda wildcards: PLAN.parts(wildcards.run, wildcards.evaluation),
    output:
        f"{OUT}/scores/{{run}}/{{evaluation}}/responses.json",
    log:
        f"{OUT}/logs/evaluate/{{run}}.{{evaluation}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate/{{run}}.{{evaluation}}.tsv"
    threads: PLAN.asks("evaluate", "cpus")
    resources:
        gpu=PLAN.asks("evaluate", "gpus"),
        mem_mb=PLAN.asks("evaluate", "memory_mb"),
        runtime=PLAN.asks("evaluate", "minutes"),
    params:
        benchmark=benchmark_json,
        steps=steps_of,
        out=subpath(output[0], parent=True),
        gather=lambda wildcards, input: "--gather" if input.get("parts") else "",
    shell:
        "{EVALUATION_PYTHON:q} -m dara evaluate {input.manifest:q} --data {input.data:q} --benchmark {params.benchmark:q} "
        "--steps {params.steps} --out {params.out:q} {params.gather} 2>&1 | tee {log:q}"


rule score:
    input:
        unpack(PLAN.scoring_inputs),
    output:
        f"{OUT}/scores/{{run}}/{{evaluation}}/scores.json",
    log:
        f"{OUT}/logs/score/{{run}}.{{evaluation}}.log",
    benchmark:
        f"{OUT}/benchmarks/score/{{run}}.{{evaluation}}.tsv"
    threads: lambda wildcards: 16 if PLAN.benchmark_definition(wildcards).kind == "published" else 1
    resources:
        mem_mb=lambda wildcards, threads: 3000 * threads,
    params:
        benchmark=benchmark_json,
        scorer=lambda wildcards: PLAN.benchmark_definition(wildcards).scorer_version,  # another version scores again
        responses=subpath(input.responses, parent=True),
        out=subpath(output[0], parent=True),
    shell:
        "python -m dara score --data {input.data:q} --benchmark {params.benchmark:q} --responses {params.responses:q} "
        "--out {params.out:q} --workers {threads} 2>&1 | tee {log:q}"

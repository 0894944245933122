# Base models, made by a supervised warm start or fetched, and the runs of the matrix. Checkpoints are in scratch and are no output: they
# survive a failure, and the next attempt continues from the last complete one.


rule base_model:
    input:
        spec=f"{OUT}/models/{{model}}/spec.json",
        data=PLAN.model_data,
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
        "python -m dara prepare-model {input.spec:q} {params.data:q} --scratch {PLAN.paths.scratch:q} --manifest {output:q} "
        "--fetch {PLAN.fetching:q} 2>&1 | tee {log:q}"


rule train:
    input:
        unpack(PLAN.training_inputs),
        spec=f"{OUT}/runs/{{run}}/spec.json",
    output:
        [f"{OUT}/runs/{{run}}/{name}" for name in RUN_FILES],
    log:
        f"{OUT}/logs/train/{{run}}.log",
    benchmark:
        f"{OUT}/benchmarks/train/{{run}}.tsv"
    # Where and for how long a job runs is not in params: it changes no result, so nothing trains again.
    threads: PLAN.asks("train", "cpus")
    resources:
        gpu=PLAN.asks("train", "gpus"),
        mem_mb=PLAN.asks("train", "memory_mb"),
        runtime=PLAN.asks("train", "minutes"),
    shell:
        "python -m dara train {input.spec:q} --data {input.data:q} --model {input.model:q} "
        "--scratch {PLAN.paths.scratch:q} {PLAN.training_options} --minutes {resources.runtime} --time-limit {TIME_LIMIT} "
        "2>&1 | tee {log:q}"

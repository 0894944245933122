# Prepared data: training prompts, held-out cases, tokenizer.


rule data_spec:
    output:
        f"{OUT}/inputs/{{data}}/spec.json",
    log:
        f"{OUT}/logs/data_spec/{{data}}.log",
    localrule: True
    params:
        json=lambda wildcards: FLOW.data_json(wildcards.data),
    shell:
        "printf '%s\\n' {params.json:q} > {output:q} 2> {log:q}"


rule data:
    input:
        f"{OUT}/inputs/{{data}}/spec.json",
    output:
        f"{OUT}/inputs/{{data}}/manifest.json",
    log:
        f"{OUT}/logs/data/{{data}}.log",
    benchmark:
        f"{OUT}/benchmarks/data/{{data}}.tsv"
    localrule: True
    params:
        out=subpath(output[0], parent=True),
    shell:
        "python -m dara prepare {input:q} --out {params.out:q} --fetch {FLOW.fetching:q} 2>&1 | tee {log:q}"


# A published benchmark has its own cases; the laptop's are held out when the data is prepared.
rule benchmark_data:
    output:
        f"{OUT}/inputs/{{benchmark}}/manifest.json",
    log:
        f"{OUT}/logs/benchmark_data/{{benchmark}}.log",
    wildcard_constraints:
        benchmark="|".join(names_of("published")),
    localrule: True
    params:
        out=subpath(output[0], parent=True),
    shell:
        "python -m dara prepare-benchmark {wildcards.benchmark} --out {params.out:q} --fetch {FLOW.fetching:q} 2>&1 | tee {log:q}"

# Specifications, and prepared data: training prompts, held-out cases, tokenizer.


# Of data sets, base models and runs; their names have a checksum of their content.
rule spec:
    output:
        f"{OUT}/{{kind}}/{{name}}/spec.json",
    log:
        f"{OUT}/logs/spec/{{kind}}/{{name}}.log",
    wildcard_constraints:
        kind="inputs|models|runs",
        name="[^/]+",
    localrule: True
    params:
        json=PLAN.spec_json,
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
        "python -m dara prepare {input:q} --out {params.out:q} --fetch {PLAN.fetching:q} 2>&1 | tee {log:q}"


# A public benchmark has its own cases; the laptop's are held out when the data is prepared.
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
        "python -m dara prepare-benchmark {wildcards.benchmark} --out {params.out:q} --fetch {PLAN.fetching:q} 2>&1 | tee {log:q}"

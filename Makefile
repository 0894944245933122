# make            the Python environment in .venv (a second time: nothing to do)
# make reproduce  trains, evaluates, compares and draws the laptop preset: at most half an hour on two cores
# make figures    draws every table and figure from cached runs and published numbers: four minutes
# make test       all tests of the laptop path, `make smoke` among them
# The other targets are listed by `make help`.

PRESET ?= laptop
PYTHON ?= python3
# Options of pytest, for example -k methods.
TEST_OPTIONS ?=
# What installs the packages: uv (which comes with them, and has pip's settings), or pip alone; and options for it.
INSTALLER ?= uv
INSTALL_OPTIONS ?=

VENV := .venv
BIN := $(VENV)/bin
# Jobs that run at once share the machine's memory, and have its GPUs one after the other.
MEMORY_MB := $(shell '$(PYTHON)' -c 'import os; print(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6)' 2>/dev/null)
CREATE = '$(PYTHON)' envs/create.py --installer $(INSTALLER) --options='$(INSTALL_OPTIONS)'
SNAKEMAKE := $(BIN)/snakemake --profile profiles/local --resources gpu=1 $(if $(MEMORY_MB),mem_mb=$(MEMORY_MB))
RESULTS := results/$(PRESET)
REPORT := $(RESULTS)/snakemake_report.html

.DEFAULT_GOAL := environment
.PHONY: environment environments openrlhf-cpu openrlhf-cuda help test test-openrlhf test-slurm smoke reproduce figures report \
        check format keys clean

environment: $(VENV)/.complete

environments: environment openrlhf-cuda ## everything that a cluster's jobs need, prepared on a node with a network

openrlhf-cpu: .venv-openrlhf/.complete ## OpenRLHF, Ray, DeepSpeed and vLLM for machines without a GPU: 3 GB

openrlhf-cuda: .venv-cuda/.complete ## the same for CUDA; see the head of envs/openrlhf-cuda.txt

.venv-openrlhf/.complete: envs/openrlhf-cpu.txt
	$(CREATE) $< .venv-openrlhf

.venv-cuda/.complete: envs/openrlhf-cuda.txt
	$(CREATE) $< .venv-cuda

$(VENV)/.complete: envs/laptop.txt pyproject.toml
	$(CREATE) $< $(VENV) --editable

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# Presets that train with OpenRLHF need its environment.
reproduce: environment $(if $(filter laptop-openrlhf laptop-study,$(PRESET)),openrlhf-cpu) ## train, evaluate, compare and draw PRESET (laptop), nothing from the cache; continues where it stopped
	@test -f 'config/presets/$(PRESET).yaml' || { echo "PRESET is '$(PRESET)'; it must name a file of config/presets/, such as laptop"; exit 1; }
	$(SNAKEMAKE) --configfile config/presets/$(PRESET).yaml --config reuse=none -- all html
	@$(MAKE) --no-print-directory $(REPORT)

# Snakemake's own report, if there are newer results than it.
$(REPORT): $(wildcard $(RESULTS)/data/*.csv $(RESULTS)/tables/* $(RESULTS)/figures/*)
	$(SNAKEMAKE) --configfile config/presets/$(PRESET).yaml --config reuse=none --report $@

figures: environment ## every table and figure, ours from the cached runs and the published ones: four minutes, no training
	$(SNAKEMAKE) --configfile config/presets/laptop-study.yaml --config reuse=only -- all published

report: environment ## the report of the cached runs: results/laptop-study/report.html
	$(SNAKEMAKE) --configfile config/presets/laptop-study.yaml --config reuse=only -- html

smoke: ## the whole workflow on two methods, one seed and six steps: four minutes
	@$(MAKE) --no-print-directory reproduce PRESET=smoke

test: environment ## every test of the laptop path
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(TEST_OPTIONS)

test-openrlhf: environment openrlhf-cpu ## the tests that train with the real OpenRLHF on the CPU
	OMP_NUM_THREADS=1 PYTHONPATH=workflow .venv-openrlhf/bin/python -m pytest -m openrlhf $(TEST_OPTIONS) $$(grep -l mark.openrlhf tests/test_*.py)

test-slurm: environment ## the workflow on a real Slurm of one node with pretended GPUs (root; Debian's packages)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm $(TEST_OPTIONS)

check: environment ## formatting, lint, rules of structure, the configuration
	$(BIN)/ruff check workflow tests envs
	$(BIN)/ruff format --check workflow tests envs
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/python tests/structure.py
	$(BIN)/dara check-config

format: environment ## format all code
	$(BIN)/ruff check --fix workflow tests envs
	$(BIN)/ruff format workflow tests envs
	$(BIN)/snakefmt Snakefile workflow/rules

keys: environment ## the page of documented configuration keys, from the models
	$(BIN)/dara config-docs --out docs/configuration.md

clean: environment ## remove results and scratch of PRESET (never the cached and published ones, nor what other presets have)
	$(BIN)/dara clean --results --preset '$(PRESET)'

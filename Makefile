# Each target sets itself up on a fresh clone, in $(VENV), and installs nothing anywhere else.
# PYTHON is the first of these, all of which have a build of this torch, that can make a virtual environment.
TORCH ?= torch==2.13.0
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$python -c 'import ensurepip, venv' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
FRAMEWORKS ?= .venv_frameworks
PLAYED ?= .venv_played
FLEET ?= .venv_fleet
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPARED := $(VENV)/bench/.installed

# Without bytecode files, each of the many processes would compile torch's sources and ours again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check fast test test-long test-cuda test-cuda-long played-runtime beside frameworks fleet-test gpu lint demo docs bench bench-query soak install clean

# For every commit: under 90 s on 2 cores.  Unit tests that take more than 2 s, alone or as a file, are marked slow and
# left out.
check: $(INSTALLED)
	$(MAKE) --jobs 2 lint fast

fast: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not alone" tests/unit

# Three processes share the tests that may run side by side, long files (not those with many tests) first, with ruff and
# mypy beside them; the tests that need the machine to themselves follow.
test: $(INSTALLED)
	$(MAKE) --jobs 2 lint beside
	$(BIN)/pytest -m "alone and not long" $$(grep -rl --include 'test_*.py' mark.alone tests/unit tests/integration)

beside: $(INSTALLED)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not alone and not long and not soak"

# What repeats in many rounds, versions, options or pages what a shorter test does once: CI runs it after `make test`.
test-long: LONG = $$(grep -rl --include 'test_*.py' mark.long tests/acceptance tests/integration tests/unit | sort)
test-long: $(INSTALLED)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "long and not alone" $(LONG)
	$(BIN)/pytest -m "long and alone" $$(grep -l mark.alone $(LONG))

# Hugging Face, accelerate and Lightning, in an environment of their own, because they bring many packages.
frameworks: $(FRAMEWORKS)/.installed
	HF_HUB_OFFLINE=1 $(FRAMEWORKS)/bin/python -m pytest -rfEs tests/frameworks
	@echo "not run: CUDA and CUDA graphs, DeepSpeed, Megatron-LM, other versions than these (make soak has some)"

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt tests/frameworks/constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet -c constraints.txt -c tests/frameworks/constraints.txt -e '.[dev,frameworks]' $(TORCH)
	touch $@

# Daft, Ray and Polars, in an environment of their own: Daft needs an older pyarrow than the rest is tested with.
fleet-test: $(FLEET)/.installed
	$(FLEET)/bin/python -m pytest -rfEs tests/fleet tests/unit/record/test_plain_readers.py

$(FLEET)/.installed: pyproject.toml tests/fleet/constraints.txt
	$(PYTHON) -m venv $(FLEET)
	$(FLEET)/bin/pip install --quiet --no-compile -c tests/fleet/constraints.txt -e '.[ray]' hypothesis polars pytest pytest-timeout
	touch $@

# Jobs under torch's CUDA build on a played runtime, which needs no device: an environment of its own, 3 GB.
test-cuda: played-runtime
	$(PLAYED)/bin/python -m pytest -rfEs -n 3 --dist worksteal -m "not long" tests/played/test_twenty_times.py tests/played

# As test-long: on one rank as on two, twenty times, without devices, and what torch.compile puts into graphs.
test-cuda-long: played-runtime
	$(PLAYED)/bin/python -m pytest -rfEs -n 3 --dist worksteal -m long tests/played/test_twenty_times.py tests/played

played-runtime: $(PLAYED)/.installed $(PLAYED)/played/libplayed.so

$(PLAYED)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PLAYED)
	$(PLAYED)/bin/pip install --quiet --no-compile -c constraints.txt -e '.[dev]' '$(subst ==,===,$(TORCH))'
	$(PLAYED)/bin/python -c 'import torch._dynamo, torch.distributed.run'
	touch $@

$(PLAYED)/played/libplayed.so: $(wildcard tests/played/runtime/*) | $(PLAYED)/.installed
	$(PLAYED)/bin/python tests/played/build.py $(PLAYED)/played

# Needs a machine with a CUDA device, and takes ten minutes: what probe does there, in first_ten_minutes.md.  GPU_PYTHON is
# one whose torch can use the device and that has what the command needs (pip install -e . there).
GPU_PYTHON ?= $(BIN)/python
gpu: $(INSTALLED)
	$(GPU_PYTHON) tests/gpu/first_ten_minutes.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p probe
	$(BIN)/lint-imports

demo: $(INSTALLED)
	@$(BIN)/probe demo

# Writes docs/reference/ from the declarations in the code, and the cookbook from the questions of `probe ask`; tests
# fail if they differ.
docs: $(INSTALLED)
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/cookbook.py

# About 35 minutes; BENCH=--quick only checks that it works.  The measured jobs have an environment of their own, which
# includes the tools that probe is compared with.
bench: $(INSTALLED) $(COMPARED)
	$(BIN)/python tests/bench/attach.py
	$(BIN)/python tests/bench/step_time.py --python $(VENV)/bench/bin/python --write $(BENCH)
	$(BIN)/python tests/bench/micro.py --write $(BENCH)
	$(BIN)/python tests/bench/profile_shares.py

# Some minutes on an idle machine: a million rows, 512 ranks, scans of a running training.
bench-query: $(INSTALLED)
	$(BIN)/python tests/bench/query.py
	$(BIN)/python tests/bench/fan.py
	$(BIN)/python tests/bench/parts.py
	$(BIN)/python tests/bench/scan.py

# About six hours.  Other versions of torch, 6 GB each, lie in a temporary folder while they run.
soak: $(INSTALLED) played-runtime
	PLAYED_PYTHON=$(PLAYED)/bin/python $(BIN)/python tests/bench/soak.py

install: $(INSTALLED)

# --no-compile: most of torch is never imported.  What all jobs import is compiled once, not by many of them at once.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]' $(TORCH)
	$(BIN)/python -c 'import torch._dynamo, torch.distributed.run'
	touch $@

$(COMPARED): $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/pip install --quiet $(TORCH) transformers==5.23.0 probing==0.2.4
	touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(PLAYED) $(FLEET) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

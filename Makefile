# Each target sets itself up on a fresh clone, in $(VENV); nothing is installed anywhere else.
# A Python for which this torch can be had: the first of these that can make a virtual environment.
TORCH ?= torch==2.13.0
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$python -c 'import ensurepip, venv' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
FRAMEWORKS ?= .venv_frameworks
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPARED := $(VENV)/bench/.installed

# Each of the many processes would compile torch's sources and ours anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test beside frameworks gpu lint demo docs bench bench-query soak install clean

# Two processes share what may run side by side, the long files (not the ones with many tests) first, and ruff and mypy
# run beside them; then comes what may not.
test: $(INSTALLED)
	$(MAKE) --jobs 2 lint beside
	$(BIN)/pytest -m alone

beside: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not alone"

# Hugging Face, accelerate and Lightning, in an environment of their own: they bring many packages.
frameworks: $(FRAMEWORKS)/.installed
	HF_HUB_OFFLINE=1 $(FRAMEWORKS)/bin/python -m pytest -rfEs tests/frameworks
	@echo "not run: CUDA and CUDA graphs, DeepSpeed, Megatron-LM, other versions than these (make soak has some)"

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt tests/frameworks/constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet -c constraints.txt -c tests/frameworks/constraints.txt -e '.[dev,frameworks]' $(TORCH)
	touch $@

# On a machine with a CUDA device; prints what recording costs there.  Elsewhere all of it is skipped.
gpu: $(INSTALLED)
	$(BIN)/pytest tests/gpu -s

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy -p probe
	$(BIN)/lint-imports

demo: $(INSTALLED)
	@$(BIN)/probe demo

# docs/reference/ is written from the declarations in the code; a test fails when it is not.
docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

# About 35 minutes; BENCH=--quick for a look whether it works.  The jobs that are measured have an environment of their
# own, with what they are compared with.
bench: $(INSTALLED) $(COMPARED)
	$(BIN)/python tests/bench/attach.py
	$(BIN)/python tests/bench/step_time.py --python $(VENV)/bench/bin/python --write $(BENCH)
	$(BIN)/python tests/bench/micro.py --write $(BENCH)

# About five minutes, on a machine with nothing else to do: a million rows, 512 ranks, a training that is scanned.
bench-query: $(INSTALLED)
	$(BIN)/python tests/bench/query.py
	$(BIN)/python tests/bench/fan.py
	$(BIN)/python tests/bench/scan.py

# About four hours; puts other versions of torch, 6 GB each, into a temporary folder for as long as they run.
soak: $(INSTALLED)
	$(BIN)/python tests/bench/soak.py

install: $(INSTALLED)

# What is imported is compiled then, once; the most of torch never is.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]' $(TORCH)
	touch $@

$(COMPARED): $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/pip install --quiet $(TORCH) transformers==5.23.0 probing==0.2.4
	touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Each command sets itself up: `make quickstart`, `make test`, `make test-all`, `make lint` and `make docs`;
# `make gpu` is for those who have one, `make test-lowest` and `make audit` for those who change the bounds of versions, `make test-optimizers` for those who
# change what an event does to an optimizer, `make test-neighbours` for those who change an adapter, `make test-crash` and `make dist`
# for those who publish a release.
# uv is used where present, otherwise venv and pip. VENV and PYTHON may be overridden.
# On Windows it takes a make that finds sh, as in Git Bash.
VENV ?= .venv
ifeq ($(OS),Windows_NT)
PYTHON ?= python
SCRIPTS := Scripts
EXE := .exe
else
PYTHON ?= python3
SCRIPTS := bin
endif
BIN := $(VENV)/$(SCRIPTS)
INSTALL = if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python -c constraints.txt $(1); \
	else $(BIN)/python -m pip install --quiet -c constraints.txt $(1); fi

LOWEST := $(VENV)-lowest
LOWEST_PYTHON ?= 3.10
BUILD := $(VENV)-build
AUDIT := $(VENV)-audit
OPTIMIZERS := $(VENV)-optimizers
NEIGHBOURS := $(VENV)-neighbours
REPORT := $(VENV)-report

# with a script that uses the public names as a user does
TYPED := $(wildcard $(addprefix lightning_fire/,functional where when.py methods callbacks optim integrations board \
  checkpoints metrics recipe experiments data experience modules nets contracts.py distributed.py messages.py \
  prepare_text.py cli.py atomic.py elsewhere.py printable.py _private.py _lightning.py)) tests/public_types/user_script.py
# on as many processes as there are cores
PYTEST := python -m pytest -n auto --dist worksteal

# KaTeX typesets formulas while the site is built; a message about another site generator is suppressed
MKDOCS = NO_MKDOCS_2_WARNING=1 KATEX=$(wildcard $(VENV)/npm/node_modules/katex/dist) $(BIN)/mkdocs

.PHONY: quickstart test test-all test-optimizers test-neighbours test-crash test-lowest zoo gpu lint audit docs docs-serve report dist clean

quickstart: $(VENV)/.package  ## watch a network stop learning, and FIRE keep it able to learn
	$(BIN)/lightning-fire compare quick_start \
		--methods vanilla full_reset reset_head shrink_and_perturb fire fire_procrustes --seeds 5 --output runs/quickstart

test: $(VENV)/.test  ## the fast tests
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) -m "not slow and not crash"

test-all: $(VENV)/.test  ## what every change must pass
	OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) -m "not crash"

test-lowest: $(LOWEST)/.test  ## the same with the lowest versions that pyproject.toml allows, which may warn; needs uv
	OMP_NUM_THREADS=1 $(LOWEST)/$(SCRIPTS)/$(PYTEST) -m "not crash" -W default

test-optimizers: $(OPTIMIZERS)/.libraries  ## the first steps after an event, with the optimizers of other libraries
	$(OPTIMIZERS)/$(SCRIPTS)/python -m tests.optimizers_of_libraries

test-neighbours: $(NEIGHBOURS)/.libraries  ## one script for each of the libraries in examples/neighbours
	OMP_NUM_THREADS=2 $(NEIGHBOURS)/$(SCRIPTS)/python examples/neighbours/run.py

test-crash: $(VENV)/.test  ## before a release: many kills and random files, notebooks, whole examples
	OMP_NUM_THREADS=1 EXAMPLES=10 $(BIN)/$(PYTEST) -m "crash or fuzz"

gpu:  ## all measurements on a GPU, in one call of ten minutes, with the Python that has torch, lightning and pytest
	$(PYTHON) benchmarks/gpu.py $(GPU)

lint: $(VENV)/.dev  ## style, and types where they are strict and as a user sees them
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy $(TYPED)

zoo: $(VENV)/.test  ## what is taken of architectures of other libraries, those that are installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo

audit: $(VENV)/.test $(AUDIT)/.audit  ## known advisories on what is installed; needs the network, and is not part of CI
	$(AUDIT)/$(SCRIPTS)/pip-audit --vulnerability-service osv --progress-spinner off \
		--path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

$(AUDIT)/.audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/$(SCRIPTS)/python -m pip install --quiet pip-audit
	@touch $@

$(BIN)/python$(EXE):
	if command -v uv >/dev/null; then uv venv --quiet --python $(PYTHON) $(VENV); else $(PYTHON) -m venv $(VENV); fi

$(VENV)/.package: $(BIN)/python$(EXE) pyproject.toml constraints.txt
	@echo "installing lightning-fire into $(VENV) (PyTorch is large: one to five minutes)"
	@$(call INSTALL,-e .)
	@touch $@

$(VENV)/.test: $(BIN)/python$(EXE) pyproject.toml constraints.txt
	@echo "installing lightning-fire and its tests into $(VENV) (PyTorch is large: one to five minutes)"
	@$(call INSTALL,-e '.[test]')
	@touch $@

$(LOWEST)/.test: pyproject.toml
	uv venv --quiet --allow-existing --python $(LOWEST_PYTHON) $(LOWEST)
	uv pip install --quiet --python $(LOWEST)/$(SCRIPTS)/python --resolution lowest-direct -e '.[test]'
	@touch $@

$(OPTIMIZERS)/.libraries: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OPTIMIZERS)
	$(OPTIMIZERS)/$(SCRIPTS)/python -m pip install --quiet -c constraints.txt -e . timm pytorch_optimizer torch-optimizer \
		schedulefree heavyball bitsandbytes lion-pytorch prodigyopt
	@touch $@

$(NEIGHBOURS)/.libraries: pyproject.toml constraints.txt examples/neighbours/requirements.txt
	$(PYTHON) -m venv $(NEIGHBOURS)
	$(NEIGHBOURS)/$(SCRIPTS)/python -m pip install --quiet -c constraints.txt -e . \
		-r examples/neighbours/requirements.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(call INSTALL,-e '.[dev]')
	@touch $@

docs: $(VENV)/.docs  ## the site, into site/: warnings, dead links and dead anchors are errors
	$(MKDOCS) build --strict

docs-serve: $(VENV)/.docs  ## the site while you write, on http://127.0.0.1:8000
	$(MKDOCS) serve

$(VENV)/.docs: $(VENV)/.package
	@$(call INSTALL,-e '.[docs]')
	@npm install --silent --no-save --prefix $(VENV)/npm katex@0.16 || echo "no KaTeX, which npm installs: formulas stay as TeX"
	@touch $@

report: $(REPORT)/.report  ## docs/report.md as build/report.pdf
	$(REPORT)/$(SCRIPTS)/python docs/report.py build/report.pdf

$(REPORT)/.report:
	$(PYTHON) -m venv $(REPORT)
	$(REPORT)/$(SCRIPTS)/python -m pip install --quiet pypandoc-binary typst
	@touch $@

dist: $(BUILD)/.build  ## what is published: dist/ with the source distribution and the wheel that is built from it
	rm -rf dist build *.egg-info
	$(BUILD)/$(SCRIPTS)/python -m build
	$(BUILD)/$(SCRIPTS)/python -m twine check --strict dist/*
	$(BUILD)/$(SCRIPTS)/python -m zipfile -l dist/*.whl
	$(BUILD)/$(SCRIPTS)/python -m tarfile -l dist/*.tar.gz

$(BUILD)/.build:
	$(PYTHON) -m venv $(BUILD)
	$(BUILD)/$(SCRIPTS)/python -m pip install --quiet build twine
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(BUILD) $(AUDIT) $(OPTIMIZERS) $(NEIGHBOURS) $(REPORT) site runs build dist *.egg-info

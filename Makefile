# Each target builds .venv when it is missing, or when pyproject.toml or constraints.txt changed since.

PYTHON ?= python3
# test workers, one torch thread each
JOBS ?= 2
# further arguments, e.g. make test ARGS="-k metrics"
ARGS ?=
# what `make test-fast` runs: mathematics, layers, heads and the objective, for daily work; `make test` runs all that are not slow
FAST := tests/messages tests/layers tests/heads tests/evidence $(addprefix tests/, network/test_graph.py network/test_shapes.py \
	network/test_priors.py test_imports.py test_metrics.py)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-fast lint format bench dist docs clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP)  ## build .venv with the package, the tools and the experiments' needs

# torch goes first and alone, so that no other requirement can pick a different one
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,experiments]'
	@touch $@

demo: $(STAMP)  ## fit a small network and show what it knows
	$(BIN)/bayesmp demo $(ARGS)

test: $(STAMP)  ## run the tests, but for the slow ones
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

test-all: $(STAMP)  ## run all tests, as before a release
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-fast: $(STAMP)  ## run the quick tests of the mathematics and its parts, in under a minute
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(FAST) $(ARGS)

lint: $(STAMP)  ## check format, lint, types and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

format: $(STAMP)  ## rewrite the files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

dist: $(STAMP)  ## build the sdist, and the wheel from it, into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# what the guide needs comes with its first build only
$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## build the guide into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:  ## remove .venv, caches and build products
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

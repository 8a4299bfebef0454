# People and CI use the same targets. Everything happens in .venv; nothing is installed elsewhere.
PYTHON ?= python3
VENV := .venv
SMODICE := $(VENV)/bin/smodice
STAMP := $(VENV)/.installed
RUN_TESTS := $(VENV)/bin/python -m pytest -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick lint bench clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## make .venv and install the tool with its development extras

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,minari]'
	@touch $@

demo: setup  ## PointMass-4Direction end to end: data, discriminator, value, policy, score
	$(SMODICE) run pipelines/examples/pointmass-4direction.toml

test: setup  ## every test
	$(RUN_TESTS)

test-quick: setup  ## the tests that take less than two minutes
	$(RUN_TESTS) -m "not slow"

lint: setup  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup  ## speed against the official-style step and the bare matrix products
	$(VENV)/bin/python benchmarks/step.py

clean:  ## remove run folders and caches, keep .venv
	rm -rf runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis

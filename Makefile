# People and CI use the same targets. Everything happens in .venv; nothing is installed elsewhere.
PYTHON ?= python3
VENV := .venv
SMODICE := $(VENV)/bin/smodice
STAMP := $(VENV)/.installed
PIP := $(VENV)/bin/pip --quiet --disable-pip-version-check
RUN_TESTS := $(VENV)/bin/python -m pytest -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup setup-d4rl demo test test-quick test-experts test-cluster torture lint docs bench bench-hopper bench-halfcheetah bench-scale clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## make .venv and install the tool with its development extras

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '.[dev,minari,video,lerobot,zarr,onnx,tensorboard,kitchen]'
	@$(MAKE) --no-print-directory setup-d4rl
	@touch $@

# D4RL 1.1 asks for packages that no longer install, and its data and tables need none of them.
setup-d4rl:  ## optional, part of setup: the genuine gym and d4rl; without them our copies of their tables are used
	@{ $(PIP) install --constraint constraints.txt gym==0.26.2 tqdm && $(PIP) install --no-deps d4rl==1.1; } 2>/dev/null \
	|| echo "d4rl could not be installed; nothing else depends on it"

demo: setup  ## PointMass-4Direction end to end: data, discriminator, value, policy, score
	$(SMODICE) run pipelines/examples/pointmass-4direction.toml

test: setup  ## every test
	$(RUN_TESTS)

test-quick: setup  ## the tests that take less than two minutes
	$(RUN_TESTS) -m "not slow"

test-experts: setup  ## install the extra [experts] (JAX, 600 MB) and train a tiny expert
	$(PIP) install --constraint constraints.txt --editable '.[experts]'
	$(VENV)/bin/python -m pytest -q tests/test_train_expert.py

test-cluster: setup  ## fetch Slurm (Debian's) and Ray (270 MB) and run chains on clusters of two nodes on this machine
	@$(PIP) install --constraint constraints.txt --editable '.[ray]' || echo "Ray could not be installed; its tests are skipped"
	$(VENV)/bin/python -m pytest -q -s tests/on_clusters.py

torture: setup  ## half an hour of two cores: thousands of kills, failing writes, power cuts, mutated files, abused flags
	$(VENV)/bin/python tests/torture

lint: setup  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Not --quiet: that would silence the warnings that strictness counts.
docs: setup  ## the pages as a site, build/site/index.html; a link that leads nowhere is an error
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bench: setup  ## speed: training steps, reading recorded data, simulation
	$(VENV)/bin/python benchmarks/step.py
	$(VENV)/bin/python benchmarks/baselines.py
	$(VENV)/bin/python benchmarks/read_d4rl.py
	$(VENV)/bin/python benchmarks/read_formats.py
	$(VENV)/bin/python benchmarks/simulate.py
	$(VENV)/bin/python benchmarks/seeds.py
	$(VENV)/bin/python benchmarks/many_chains.py

bench-hopper: setup  ## half an hour: processor time to 95 % of the expert on Hopper, ours and the official way
	$(SMODICE) build-dataset --config pipelines/observations/hopper.toml --out runs/hopper/dataset.h5
	$(VENV)/bin/python benchmarks/hopper.py runs/hopper/dataset.h5

bench-halfcheetah: setup  ## half an hour: the same on HalfCheetah, the official way scored after 1 and 10 times our time
	$(SMODICE) build-dataset --config pipelines/observations/halfcheetah.toml --out runs/halfcheetah/dataset.h5
	$(VENV)/bin/python benchmarks/hopper.py runs/halfcheetah/dataset.h5 --times 10

bench-scale: setup  ## growth of time and memory of every stage with rows and dimensions
	$(VENV)/bin/python benchmarks/scale.py --plot docs/speed-scale.png

clean:  ## remove run folders and caches, keep .venv
	rm -rf runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis

include pipelines/rules.mk

# `make demo` and `make test` do all the set-up themselves on a machine with Python 3.11, git and make.
PYTHON ?= python3.11
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo demo-tools test test-slow test-tinker test-servers test-vllm test-molt lint format bench clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed  ## Train the embedded model inside 64 tokens (about a minute), then say where the report is.
	$(BIN)/python -m recipes.rl_basic

demo-tools: .venv/installed  ## Train the embedded agent to call a calculator (about a minute), then say where the report is.
	$(BIN)/python -m recipes.rl_basic model=tiny_tools environment=calculator

# One thread each: two workers share two cores, and torch's threads would wait for each other. Bytecode is written even where
# the environment forbids it: each of the thousand commands that the tests run would compile the whole project.
TESTING = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

test: .venv/installed-dev  ## The fast tests.
	$(TESTING) $(BIN)/python -m pytest -m 'not slow' -n 2 --dist worksteal

test-slow: .venv/installed-dev  ## The slow tests: whole training runs, many hypothesis examples.
	$(TESTING) $(BIN)/python -m pytest -m slow -n 2 --dist worksteal

test-tinker: .venv/installed-dev  ## engine=tinker against a real server on this CPU; the first time it installs about 6 GB.
	TANKA_TEST_TINKER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engines/test_tinker_server.py

test-servers: .venv/installed-dev  ## recipes.translate against vLLM on this CPU; the first time it installs about 4 GB.
	TANKA_TEST_SERVERS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/recipes/test_translate_server.py

test-vllm: .venv/installed-dev  ## engine=vllm against vLLM on this CPU (half an hour); the first time it installs about 4 GB.
	TANKA_TEST_VLLM=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engines/test_vllm_real.py

# For test-servers, test-vllm and make bench.
build/vllm/installed: .venv/installed-dev
	$(BIN)/python -c "from tests.helpers import vllm_server; vllm_server.install()"

# Molt's own dependencies need CUDA: --no-deps, and beside it what its parser, agents and loss module import.
.venv-molt/installed: tests/helpers/molt/requirements.txt
	$(PYTHON) -m venv .venv-molt
	.venv-molt/bin/pip install --quiet --requirement tests/helpers/molt/requirements.txt
	.venv-molt/bin/pip install --quiet --no-deps molt-rl==0.2.1
	touch $@

test-molt: .venv/installed-dev .venv-molt/installed  ## engine=molt against the molt-rl package on this CPU: its parser, agents, loss module.
	TANKA_TEST_MOLT=$(CURDIR)/.venv-molt/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engines/test_molt_package.py tests/engines/test_molt_agent.py

lint: .venv/installed-dev  ## Linter, formatter, type checker.
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: .venv/installed-dev  ## Let ruff rewrite what it can.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: .venv/installed-dev  ## Measure speed and memory beside peers on this machine (two hours), for docs/performance.md.
	for name in grading sampling learner training scale budgets engines memory progress busy; do $(BIN)/python -m benchmarks.$$name || exit 1; done
	$(BIN)/python -m benchmarks.table

clean:  ## Remove the environment and caches; runs/ stays.
	rm -rf .venv .venv-molt .pytest_cache .ruff_cache .mypy_cache .hypothesis build *.egg-info

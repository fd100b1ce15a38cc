# Each target does all its own set-up: a .venv beside this file, made once for a given setup.py.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench lint clean

demo: .venv/installed  ## adapt from rendered to handwritten digits: both methods, a table, a picture
	$(BIN)/fastget demo

test: .venv/installed-test lint  ## what CI runs
	$(BIN)/python -m pytest -n auto -m "not slow and not gpu" --cov --cov-report=term --cov-fail-under=90

test-slow: .venv/installed-test  ## the minutes-long checks alone
	$(BIN)/python -m pytest -m "slow and not gpu"

bench: .venv/installed-test  ## throughput against the reference and named peers
	$(BIN)/python -m pytest benchmarks --benchmark-only

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

.venv/python-found:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "fastget needs Python 3.10 or newer; $(PYTHON) is older. Name another: make demo PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: setup.py | .venv/python-found
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/installed-test: setup.py | .venv/python-found
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

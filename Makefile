# Each target does all its own set-up: a .venv beside this file, made once for a given setup.py.
PYTHON ?= python3
BIN := .venv/bin

# Less than this machine's CPU can do: what computes must not depend on it. torch.compile's own tests stay out, since
# inductor crashes where ATen is told of less than it sees itself.
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
QUICK := tests/test_reference.py $(addprefix tests/methods/test_,formulas.py get.py) tests/evaluation
as-on-other-cpus = for cpu in $(CPUS); do echo "with $$cpu:"; \
  env $$cpu $(PYTEST) --rings 12 -m numeric -k "not inductor" $(1) || exit 1; done
PYTEST = $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo docs test test-all test-cpus test-slow bench bench-all bench-gpu lint clean

demo: .venv/installed  ## adapt from rendered to handwritten digits: both methods, a table, a picture
	$(BIN)/fastget demo

# three rings of tests; tests/conftest.py says which test is in which
test: .venv/installed-test  ## the first ring, within five minutes: every unit, a tiny run of every method, a call of every command
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(PYTEST) --rings 1

test-all: .venv/installed-test lint  ## the first two rings with coverage: all that is not slow; and a part as on three lesser CPUs
	$(PYTEST) --rings 12 --cov --cov-report=term --cov-fail-under=90
	@$(call as-on-other-cpus,$(QUICK))

test-cpus: .venv/installed-test  ## every numeric test, as on three lesser CPUs
	@$(call as-on-other-cpus)

test-slow: .venv/installed-test  ## the minutes-long checks alone
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	$(BIN)/python -m pytest --rings 3

# seven minutes, nearly all in one thread; torch.compile's rows, which take that long to compile, are in bench-all
bench: .venv/installed-test  ## throughput against the reference and named peers, as JSON; and a report of it in bench/
	mkdir -p bench
	$(BIN)/python -m pytest benchmarks --benchmark-only -k "not compile and not test_features and not test_loader" \
	  --benchmark-json=bench/kernels.json
	for name in train eval predict scaling; do $(BIN)/python -m benchmarks.bench_$$name --json bench/$$name.json || exit 1; done
	-$(BIN)/python -m benchmarks.bench_loader --encodings jpeg --steps 4 --rounds 2 --json bench/loader.json
	$(BIN)/python -m benchmarks.report bench/*.json --baseline benchmarks/baseline.json --out bench

bench-all: bench  ## and what takes longer: torch.compile's rows, a run on features, PNG
	$(BIN)/python -m pytest benchmarks --benchmark-only -k "compile or test_features" --benchmark-json=bench/long.json
	-$(BIN)/python -m benchmarks.bench_loader --json bench/loader.json
	$(BIN)/python -m benchmarks.report bench/*.json --baseline benchmarks/baseline.json --out bench

bench-gpu: .venv/installed-test  ## the kernels on this machine's GPU, in CUDA graphs; `fastget selftest` times the rest
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	  { echo "make bench-gpu needs a CUDA device, and torch sees none here: make bench is for CPUs"; exit 1; }
	mkdir -p bench
	$(BIN)/python -m pytest benchmarks --benchmark-only -k "not test_features and not test_loader" \
	  --benchmark-json=bench/gpu.json
	$(BIN)/fastget selftest
	$(BIN)/python -m benchmarks.report bench/gpu.json --out bench/gpu

docs: .venv/installed-docs  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html, or see it while you write: $(BIN)/mkdocs serve"

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
	@touch $@ .venv/installed .venv/installed-docs

.venv/installed-docs: setup.py | .venv/python-found
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

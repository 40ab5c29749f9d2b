# `make demo` and `make test` do all their own set-up; they need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test native test-native check docs bench bench-kafka growth fuzz soak test-spark-versions clean

# The first two programs need the library alone, so they run before Spark is installed.
demo: $(CORE)
	$(BIN)/python examples/quickstart.py
	$(BIN)/python examples/replicated_log.py
	@$(MAKE) --no-print-directory $(VENV)/.demo
	$(BIN)/python examples/spark_pipeline/run.py

# Covered lines are counted by sys.monitoring, which costs nothing and came with Python 3.12. On 3.11 a trace function would
# have to count: 60 % more processor time, and a wrong figure, because tests/crash sets trace functions of its own.
MONITORS := $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'

test: $(READY)  # -rs: what cannot run here, and why
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest -n 2 --dist worksteal -rs $$($(MONITORS) && echo --cov --cov-report=)
	@if $(MONITORS); then echo "covered lines, child processes not counted: $$($(BIN)/coverage report --format=total) %"; \
		else echo "covered lines are counted from Python 3.12 on: make PYTHON=python3.13 VENV=.venv-3.13 test"; fi

# The optional compiled package, into .venv: from then on commitlog uses it, unless COMMITLOG_PURE=1 is set.
native: $(CORE)
	@command -v $${CC:-cc} >/dev/null || \
		{ echo "make native needs a C compiler (Debian: apt-get install gcc), or CC=... to name one"; exit 1; }
	@$(BIN)/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
		{ echo "make native needs the headers of Python (Debian: apt-get install python3-dev)"; exit 1; }
	rm -rf native/build # what was built with other options would be taken as it is
	$(INSTALL) --force-reinstall --no-deps ./native
	@$(BIN)/python -c 'from commitlog import speedups; print("speedups:", speedups.status)'

# The tests of everything that it does, with it; a test that finds it missing fails.
test-native: $(READY)
	COMMITLOG_STRICT=1 $(MAKE) --no-print-directory native
	COMMITLOG_REQUIRE_SPEEDUPS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs \
		tests/unit tests/property tests/golden tests/crash tests/replication tests/aio \
		$(addprefix tests/integration/test_,compaction_readers.py locks_and_forks.py threads.py two_processes.py)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest tests/test_tidy.py

# The documentation as a site, in site/: open site/index.html. A broken link or anchor is an error.
docs: $(READY)
	$(BIN)/python tools/configuration.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html; its search needs a server: $(BIN)/python -m http.server --directory site"

bench: $(READY)
	@$(MAKE) --no-print-directory native || echo "the benchmark goes on without commitlog-speedups"
	$(BIN)/python benchmarks/run.py --json benchmarks/results/latest.json
	$(BIN)/python benchmarks/plots.py benchmarks/results/latest.json docs/images/performance

# Beside a real Kafka, which Maven fetches; a quarter of an hour, on a quiet machine. In small: make FORM=--quick bench-kafka
bench-kafka: $(READY)
	$(BIN)/python benchmarks/beside_kafka.py $(FORM) --json benchmarks/results/beside_kafka.json

# How our own cost grows with partitions, groups, members, segments and sizes: tables and pictures.
growth: $(READY)
	$(BIN)/python benchmarks/run.py $(FORM) --rows growth,growth_curves --json benchmarks/results/growth.json
	$(BIN)/python benchmarks/plots.py benchmarks/results/growth.json docs/images/performance
	$(BIN)/python benchmarks/plots.py --markdown benchmarks/results/growth.json

# The long forms of the tests that have one; prints the table of docs/guarantees.md. A part of it: make LONG=tests/jepsen soak
LONG := tests/jepsen tests/crash tests/property tests/unit/test_recovery.py \
	$(addprefix tests/spark/test_,cluster.py pipeline.py) \
	$(addprefix tests/integration/test_,compaction_readers.py resources.py threads.py two_processes.py) \
	$(addprefix tests/replication/test_,hostile.py processes.py rules_machine.py simulation.py)

soak: $(READY)
	rm -rf /dev/shm/commitlog-soak-*  # what a run that was killed left in memory
	COMMITLOG_SOAK=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs -o tmp_path_retention_policy=failed $(LONG)

# A million inputs for each target; those that show a fault are kept in fuzz-faults/.
fuzz: $(READY)
	PYTHONPATH=tests $(BIN)/python -m fuzz --inputs 1000000 --jobs 2

# One version after another, each in an environment of its own.
test-spark-versions:
	@for version in 4.0 4.1 4.2 4.3; do $(MAKE) --no-print-directory test-spark-$$version || exit 1; done

test-spark-%:
	@test -x .venv-spark-$*/bin/python || $(PYTHON) -m venv .venv-spark-$*
	.venv-spark-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 'pyspark~=$*.0'
	.venv-spark-$*/bin/python -m pytest tests/spark

$(CORE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "commitlog needs Python 3.11 or newer; say which one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.demo: $(CORE)
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(READY): $(CORE)
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.demo $@

clean:
	rm -rf $(VENV) .venv-* dist build native/build native/*.egg-info site fuzz-faults .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis

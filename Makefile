# The host needs python3.11 (with venv), git and make. Everything else comes from the locked requirements.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: setup demo test check clean

setup: $(STAMP)
	@$(BIN)/python -m mirror_core.sandbox.jars

$(STAMP): requirements.lock requirements-setup.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-setup.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Two live clusters, Airflow, a producer and a consumer; a failover, a failback, and a verdict.
demo: setup
	@$(BIN)/python -m demo

# Two processes, each with clusters of its own: tests mostly wait. A file's tests stay together, and files in their order.
test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	@if command -v promtool >/dev/null; then \
		promtool check rules monitoring/alerts.yaml && promtool test rules monitoring/alerts_test.yaml; \
	elif [ -n "$$CI" ]; then echo "promtool is missing: .ci/run brings it" >&2; exit 1; \
	else echo "promtool is not here: alert rules are parsed by the tests, but not run"; fi

# Stops the clusters that `demo` and `mirrorbook sandbox up` started here; downloaded jars stay in the user's cache.
clean:
	@for dir in .demo/sandbox .sandbox; do \
		if [ -d $$dir ]; then $(BIN)/mirrorbook sandbox down --delete --dir $$dir || exit 1; fi; \
	done
	rm -rf .venv .demo .sandbox build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

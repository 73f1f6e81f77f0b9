# Everything a developer runs. Each target makes the virtualenv that it needs; python3 must be 3.11 or newer.
#
#   make run      a broker on 127.0.0.1:9092 with its data in ./data; PORT=9192 takes another port
#   make cluster  three brokers on 127.0.0.1:9092 to 9094 and a ZooKeeper (Java, and Maven the first time), their data in
#                 ./kbroker-cluster; PORT=9192 takes other ports
#   make unit     the tests that need no Java and end soon, three files at a time, random ones with a tenth of their tries:
#                 under three minutes
#   make test     all tests, in three processes at once; those against Apache Kafka and Spark fetch their jars with Maven,
#                 those in a browser install Debian's chromium where they may
#   make check    linters, types, import rules, freshness of generated pages
#   make bench    the measured claims
#   make torture  a thousand ends of the broker under load, and nothing lost; ten times the tries of random tests
#   make demo     the tour of the pipeline: events, visits, an archive, and a chart in ./demo
#   make docs     regenerate generated pages
#   make site     the pages as a site, in ./site
#   make fmt      format the sources
#   make clean    remove what these targets made (never ./data, ./kbroker-cluster)

PYTHON ?= python3
ifneq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null),True)
$(error kbroker needs Python 3.11 or newer; "$(PYTHON)" is not that: use make PYTHON=/path/to/python3.11)
endif
BIN := .venv/bin
PYTEST_ARGS ?=
PORT ?= 9092

.PHONY: run cluster unit test check bench torture demo docs site fmt clean

# mkdocs-material's word about its successor, at each build.
export NO_MKDOCS_2_WARNING := 1

run: .venv-run/.stamp
	.venv-run/bin/kbroker start --dev --listen 127.0.0.1:$(PORT) --data-dir ./data

cluster: .venv-run/.stamp
	.venv-run/bin/kbroker cluster up --listen 127.0.0.1:$(PORT)

unit: .venv/.stamp
	KBROKER_TESTS=short $(BIN)/pytest tests --ignore=tests/crash -m "not java and not spark and not long and not browser" \
	    --numprocesses 3 --dist loadfile $(PYTEST_ARGS)

test: .venv/.stamp
	tests/console/browser.sh
	$(BIN)/python -m tests.streams $(PYTEST_ARGS)

check: .venv/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy compat_tests benchmarks conftest.py docs/site_pages.py
	$(BIN)/mypy --config-file examples/mypy.ini examples
	$(BIN)/lint-imports
	$(BIN)/python -m kbroker.config.docs | diff -u docs/configuration.md - || (echo "docs/configuration.md is stale: run make docs"; exit 1)
	rm -rf .parts/man && $(BIN)/python -m kbroker.cli.man .parts/man
	diff -ru man .parts/man || (echo "man/ is stale: run make docs"; exit 1)
	$(BIN)/mkdocs build --site-dir .parts/site
	test ! -x $(BIN)/hadolint || $(BIN)/hadolint docker/Dockerfile

bench: .venv/.stamp
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.schema_checks
	$(BIN)/python -m benchmarks.registry

torture: .venv/.stamp
	$(BIN)/python -m tests.crash.torture --kills 1000
	$(BIN)/python -m tests.simulation --steps 1000000 --seed 1
	$(BIN)/python -m tests.cluster.torture --faults 2000
	$(BIN)/python -m tests.cluster.share_torture --faults 1000
	$(BIN)/python -m tests.cluster.processes --faults 1000
	$(BIN)/python -m tests.log.mutated_batches --batches 1000000 --seed 1
	$(BIN)/python -m compat_tests.clients.mutated_batches --batches 1000000 --seed 1
	$(BIN)/python -m tests.crash.transactions --kills 200
	$(BIN)/python -m tests.crash.pipeline --kills 20
	$(BIN)/python -m tests.crash.visits --kills 20
	$(BIN)/python -m tests.pipeline.million
	KBROKER_TESTS=long $(BIN)/pytest compat_tests/cluster compat_tests/registry compat_tests/remote compat_tests/tiers compat_tests/wire compat_tests/faults compat_tests/compared compat_tests/examples compat_tests/files compat_tests/share
	KBROKER_TESTS=long KBROKER_KAFKA=live $(BIN)/pytest compat_tests/clients compat_tests/streams compat_tests/spark compat_tests/pipeline
	KBROKER_TESTS=long $(BIN)/pytest tests --ignore=tests/crash -m "not java and not spark"
	KBROKER_TESTS=long $(BIN)/pytest tests/crash
	KBROKER_TESTS=long $(BIN)/pytest tests/txn/test_on_kafka.py tests/fair/test_built_up.py

demo: .venv-demo/.stamp
	.venv-demo/bin/kbroker pipeline demo --out demo --jars "$$(.venv-demo/bin/python -m compat_tests.spark.session)"

docs: .venv/.stamp
	$(BIN)/python -m kbroker.config.docs > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md
	$(BIN)/python -m kbroker.cli.man man

site: .venv/.stamp
	$(BIN)/mkdocs build
	@echo 'open site/index.html; its search needs a server: python3 -m http.server --bind 127.0.0.1 --directory site'

fmt: .venv/.stamp
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

# Base dependencies only: what a user gets.
.venv-run/.stamp: pyproject.toml hatch_build.py $(wildcard kbroker/log/_record_*.[ch])
	@echo "making a virtual environment (once, some 40 s) ..."
	$(PYTHON) -m venv .venv-run
	.venv-run/bin/pip install --quiet --editable .
	touch $@

# The version of Spark is that of the connector, compat_tests/parts/spark.xml.
.venv-demo/.stamp: pyproject.toml hatch_build.py $(wildcard kbroker/log/_record_*.[ch]) compat_tests/parts/spark.xml
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet --editable '.[spark]' pyspark==4.0.0
	touch $@

.venv/.stamp: pyproject.toml hatch_build.py $(wildcard kbroker/log/_record_*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[test,dev]'
	touch $@

clean:
	rm -rf demo site .venv .venv-run .venv-demo .parts .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

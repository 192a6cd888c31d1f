# make train: install, and train a small language model with four learners and a syncer.   make test: the tests.
# make soak: variants of the code that are broken on purpose, and 10,000 simulated clusters with faults: about 40 minutes.
# make mutate: small changes of the cores, which the tests must notice; MODULES="quorum accounts" for some of them.
# Everything is installed into .venv, once; a second call needs no network.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := setup.cfg pyproject.toml

.PHONY: help install train test check bench soak mutate clean

help:
	@grep -E '^# make' Makefile | sed 's/^# //'

# Editable, so that a change of the code needs no new installation.
.venv/installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/installed-check: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check]'
	touch $@

.venv/installed-mutate: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,mutate]'
	touch $@

install: .venv/installed

train: .venv/installed
	$(BIN)/isthmus train

# Those with real processes come last, one at a time: they measure themselves by the clock of a machine that is theirs.
test: .venv/installed-test
	$(BIN)/python -m pytest -n 2 tests/ops tests/runtime
	$(BIN)/python -m pytest tests/programs

# mypy does not see an editable installation; the links show it the packages under their import name.
.typing/isthmus: .venv/installed-check
	mkdir -p $@
	for part in runtime ops programs; do ln -sfn ../../$$part $@/$$part; done
	touch $@

check: .typing/isthmus
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p isthmus.runtime -p isthmus.ops -p isthmus.programs
	$(BIN)/lint-imports

soak: .venv/installed-test
	$(BIN)/python -m tests.programs.mutants
	$(BIN)/isthmus simulate world --seeds 10000 --each 20

mutate: .venv/installed-mutate
	$(BIN)/python tests/mutation/mutate.py $(MODULES)

bench: .venv/installed-test
	for bench in tests/bench/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

clean:
	rm -rf .venv .typing build dist *.egg-info runs

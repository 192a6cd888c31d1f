# make train: install, and train a small language model with four learners and a syncer.   make test: the tests.
# make quick: the tests of the core, without processes.   make changed: those of make test that a change can reach; SINCE=COMMIT V=1.
# make install: install only.   make install-test: with pytest, for your own tests.
# make further: what .ci/run tries beside that: tests of a second and more, of what others reach, too.
# make long: what is too long for make test and is checked before an issue is done.
# make soak: thousands of simulated clusters with faults, real runs with kills, all examples and seeds, and variants of the code that are broken on purpose, in parts of at most half an hour: it goes on where it was left, and says what is left. PARTS="world kills" carries out some of them.
# make soak-long: the same with 10,000 clusters, and 200 runs with kills.
# make bench: what the runtime reaches of its limits, beside what was kept (tests/bench/kept.json), five minutes; make bench-keep keeps.
# make tables: where the kept cells of the pages' tables were made, and which of them are of code that has changed since.
# make scale: large fragments and models, one at a time, with 24 GiB of memory that nothing else wants: about 20 minutes.
# make wings: whether each wing can be deleted, in a copy, some minutes each; WING=launch is one alone.
# make engines: launches on a real Slurm, Ray and Kubernetes of this machine; as root, and it says what is missing.
# make test-torch: the tests of tasks in PyTorch, in an environment of their own, .venv-torch.
# make readme: every command of the README, in its order, in a fresh clone with a fresh .venv: a quarter of an hour, and 7 GB for as long.
# make mutate: small changes of the cores, which the tests must notice; MODULES="quorum_core verify" for some of them.
# make docs: the site of the documents, in .site, with the Python API from docstrings.
# make versions: the wheel, installed and trained with every Python at hand, and a few tests with the newest.
# Everything is installed into .venv (make versions: .venv-3.13 and so on), once; a second call needs no network.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := setup.cfg pyproject.toml

.PHONY: help install install-test train test further changed long quick check bench bench-keep tables soak soak-long scale engines test-torch readme wings mutate docs versions clean

help:
	@grep -E '^# make' Makefile | sed 's/^# //'

# Editable, so that a change of the code needs no new installation.
.venv/installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@# A wheel that has trained here leaves compiled kernels, which hide the package.
	rm -rf .venv/lib/python3*/site-packages/isthmus
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/installed-check: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check]'
	touch $@

.venv/installed-engines: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,engines]'
	touch $@

.venv/installed-mutate: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,mutate]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

install: .venv/installed

install-test: .venv/installed-test

train: .venv/installed
	$(BIN)/isthmus train

# A file of tests is one worker's, so that what its fixtures start is started once; tests/conftest.py puts long ones first.
# Bytecode is kept: without it every process that a test starts compiles the sources anew, and every worker all tests.
WORKERS ?= 2
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --dist

OF_TEST := not further and not soak and not long and not engine and not torch

test: .venv/installed-test
	$(PYTEST) loadfile -m "$(OF_TEST)"

# Of those, what a change can reach: of what differs from SINCE, or else from where this branch left main (tests/changed.py).
changed: .venv/installed-test
	$(BIN)/python -m tests.changed $(if $(SINCE),--since $(SINCE)) $(if $(V),--verbose) -- $(PYTEST) loadfile -m "$(OF_TEST)"

# Dear tests of what make test reaches by another one, too.
further: .venv/installed-test
	$(PYTEST) loadfile -m "further and not soak and not long and not engine and not torch"

long: .venv/installed-test
	$(PYTEST) loadfile -m "long and not soak and not engine and not torch"

# The core: what is in wings, is tested with them.
NOT_CORE := tests/engines tests/torch_tasks tests/programs/wings \
	$(addprefix tests/programs/,model_folders engine/metrics test_dipaco.py test_regional.py test_routers.py) \
	tests/ops/data/test_routing.py tests/test_figures.py tests/test_wings.py

quick: .venv/installed-test
	$(PYTEST) worksteal $(addprefix --ignore=,$(NOT_CORE)) -m "not process and not slow and $(OF_TEST)"

# mypy and mkdocstrings do not see an editable installation; the links show them the packages under their import name.
.typing/isthmus: $(SOURCES) Makefile
	mkdir -p $@
	for part in runtime ops programs; do ln -sfn ../../$$part $@/$$part; done
	for part in __init__.py __main__.py learners.py testing.py torch.py py.typed; do ln -sfn ../../programs/face/$$part $@/$$part; done
	touch $@

check: .venv/installed-check .typing/isthmus
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p isthmus
	PYTHONPATH=.typing $(BIN)/lint-imports  # Of an editable installation it would see the face alone.

# What has been carried out of this code is recorded outside of the tree (tests/soak.py).
soak: .venv/installed-test .venv-torch/installed-doors .venv-mosaic/installed
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.soak $(PARTS)

soak-long: .venv/installed-test .venv-torch/installed-doors .venv-mosaic/installed
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.soak --long $(PARTS)

# 500M parameters merged, and taken all the way round; 1.2 billion, in eight fragments, from one learner; gpt-124m whole.
scale: .venv/installed-test
	$(BIN)/python -m tests.bench.bench_merge --learners 4 --mib 1907 --repeats 5 --cases rda last
	$(BIN)/python -m tests.bench.long.bench_fragment --codes float32
	$(BIN)/python -m tests.bench.long.bench_fragment --codes int4 --dtype bfloat16
	$(BIN)/python -m tests.bench.long.bench_fragment --values 1_200_000_000 --fragments 8 --learners 1 --dtype bfloat16 --codes float32
	$(BIN)/python -m tests.bench.bench_memory --every 15

# One at a time: each starts an engine, and measures on it.
engines: .venv/installed-engines
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -m engine tests/engines

# Whichever build pip finds. One for CPUs has no gigabytes of libraries for GPUs: TORCH="torch ==2.13.0+cpu", where pip
# is configured to find it.
TORCH ?= torch

.venv-torch/installed: $(SOURCES)
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test-torch]'
	touch $@

# With the build of PyTorch that is there: what else is installed must not bring another one.
.venv-torch/installed-doors: .venv-torch/installed
	.venv-torch/bin/python -m pip freeze | grep '^torch==' > .venv-torch/constraints
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-torch/constraints --editable '.[test-torch,test-doors]'
	touch $@

# It wants other versions of what the rest has.
.venv-mosaic/installed: $(SOURCES)
	test -x .venv-mosaic/bin/python || $(PYTHON) -m venv .venv-mosaic
	.venv-mosaic/bin/python -m pip install --quiet --disable-pip-version-check mosaicml-streaming --editable '.[torch,pytest]'
	touch $@

test-torch: .venv-torch/installed
	env -u PYTHONDONTWRITEBYTECODE .venv-torch/bin/python -m pytest -n 2 --no-loadscope-reorder --dist loadfile -m "torch and not soak" tests/torch_tasks tests/programs/reading tests/programs/test_forms_of_data.py

# By the Python that makes the environment of the clone: nothing of this one is there for a reader of the README.
readme:
	$(PYTHON) -m tests.readme

wings: .venv/installed-test
	$(BIN)/python -m tests.wings $(WING)

mutate: .venv/installed-mutate
	$(BIN)/python tests/mutation/mutate.py $(MODULES)

# The variable keeps its makers' news about other programs out of the output.
docs: .venv/installed-docs .typing/isthmus
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

versions: .venv/installed
	tests/versions.sh

# Each figure that matters as a share of its limit, beside those kept: five minutes on two idle cores.
bench: .venv/installed-test
	$(BIN)/python -m tests.bench.ratios

bench-keep: .venv/installed-test
	$(BIN)/python -m tests.bench.ratios --keep

# Nothing is measured.
tables: .venv/installed-test
	$(BIN)/python -m tests.bench.tables

clean:
	rm -rf .venv .venv-* .typing .site build dist *.egg-info runs

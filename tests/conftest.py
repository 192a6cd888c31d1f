"""Settings of the whole suite: the same examples on every machine, compiled programs kept between tests, and no test
that finds the files of users which another one has loaded."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.environment import prepare_environment
from tests.effort import examples

# Hypothesis also tries constants of whatever modules are loaded: other examples in every order of tests, and failures
# that nobody finds again.
providers._get_local_constants = providers.Constants
settings.register_profile(
    "isthmus",
    max_examples=examples(100),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("isthmus")
# Tests, and the processes that they start, compile most programs alike: where users' runs keep them, they are found.
prepare_environment(1)

BARE = frozenset({"runtime", "ops", "programs"})


class FullNamesOnly(MetaPathFinder):
    """Refuses to import a package of this project by its bare name, as the current folder would allow."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in BARE:
            raise ImportError(f"import isthmus.{fullname}, not {fullname}")


sys.meta_path.insert(0, FullNamesOnly())

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
"""Audit events of whatever starts a process."""
_in_one_process: list[str] = []
"""The test that runs now, if it may start no process."""


def _refuse_processes(
    event: str,
    arguments: tuple[object, ...],
    starts: frozenset[str] = STARTS,
    in_one_process: list[str] = _in_one_process,
) -> None:
    """Its defaults are there even when the interpreter shuts down, and audits go on."""
    if event in starts and in_one_process:
        raise AssertionError(
            f"Running {in_one_process[0]}: expected a test in one process, found {event} of {arguments[:1]}. "
            "Mark it `process`, or call what it tests in this process."
        )


sys.addaudithook(_refuse_processes)


LATEST = Path("runs", "latest").absolute()


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None, object, object]:
    """The newest run of the clone is its user's: tests' runs, which are elsewhere, only borrow runs/latest."""
    if not hasattr(session.config, "workerinput"):  # Once for all workers.
        former = os.readlink(LATEST) if LATEST.is_symlink() else None
        session.config.add_cleanup(lambda: _restore(former))
    return (yield)


def _restore(former: str | None) -> None:
    """Let runs/latest point where it did, unless it points to a run of the clone."""
    if LATEST.is_symlink() and len(Path(os.readlink(LATEST)).parts) > 1:
        LATEST.unlink()
        if former is not None:
            LATEST.symlink_to(former)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with real processes come first, then those that take long: whatever is last is short, for each worker."""
    begin = [item.path for item in items if item.get_closest_marker("process")]
    then = [item.path for item in items if item.get_closest_marker("slow")]
    order = {path: number for number, path in enumerate(dict.fromkeys(begin + then))}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Nothing but what is marked `process` starts processes: `make quick` leaves these out, and no others."""
    if item.get_closest_marker("process") is None:
        _in_one_process.append(item.nodeid)
    try:
        return (yield)
    finally:
        _in_one_process.clear()


def pytest_collection_finish() -> None:
    """What is there once all tests are collected stays there: the garbage collector need not walk it again and again,
    nor look after each few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture(autouse=True, scope="module")
def forgotten_by_other_modules() -> Iterator[None]:
    """What fixtures of a module of tests have loaded is gone with it."""
    with _forgetting():
        yield


@pytest.fixture(autouse=True)
def forgotten_by_other_tests() -> Iterator[None]:
    """What a test has loaded is gone with it."""
    with _forgetting():
        yield


@contextmanager
def _forgetting() -> Iterator[None]:
    """Forget which files of users, and which folders on the path, come in here: a file is a module by its stem, and the
    next one of that stem would be refused."""
    path, modules, loaded = list(sys.path), set(sys.modules), dict(reference._loaded)
    yield
    folders = {str(EXAMPLES), *sys.path} - set(path)
    sys.path[:] = path
    for name in sorted(set(sys.modules) - modules):
        file = getattr(sys.modules[name], "__file__", None)
        is_users = file is not None and str(Path(file).parent) in folders
        if is_users or (name in reference._loaded and name not in loaded):
            del sys.modules[name]
    reference._loaded.clear()
    reference._loaded.update(loaded)

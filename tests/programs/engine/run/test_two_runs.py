"""Two runs at once on one machine: what their processes hold, load and compute with, and that they do not meet.

The first has a wall around each of its learners, through which nobody can connect to them; the second one trains the
shipped model with one learner.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.procfs import listening, open_files, threads
from tests.programs.engine.machine import walled
from tests.programs.engine.run import process_run
from tests.programs.engine.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.long]

WALLED = (
    process_run.TASK.replace("import time", "import os, pathlib, sys, time", 1).replace(
        "    time.sleep(0.004)", "    behind_a_wall()\n    time.sleep(0.004)"
    )
    + f"""
def behind_a_wall():
    stone = pathlib.Path(f"walled-{{os.getpid()}}")
    if stone.exists() or not pathlib.Path("/proc/self/cmdline").read_text().startswith("isthmus learner/"):
        return
    sys.path.insert(0, {str(Path(str(walled.__file__)).parent)!r})
    import walled
    walled.build()
    stone.touch()
"""
)
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs while both trained: what was there, by the name of a host, of the daemon or of the command."""

    pids: dict[str, int]
    files: dict[str, set[str]]
    """What descriptors are of, `socket:[INODE]` among it."""
    with_jax: set[str]
    walled: set[str]
    """Hosts with a wall around them, through which nobody can connect."""
    endpoint: str
    mode: int
    """Of the folder in which that is."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Two runs side by side, of which the first comes to its end, and then the second."""

    first: Side
    second: Side
    listening: set[str]
    """All sockets on which anything listens, as in `Side.files`."""
    ticks: list[int]
    """Of the learner of the shipped model: the clock ticks that each thread has computed meanwhile, the most last."""
    compute_threads: int
    pids_after: dict[str, int]
    """Of the second run, after it had gone on without the first."""
    status_after: dict[str, Any]


def side(run: Run) -> Side:
    """What there is of a run that trains."""
    hosts = run.pids()
    pids = {**hosts, "command": run.command.pid}
    return Side(
        pids,
        {name: open_files(pid) for name, pid in hosts.items()},
        {name for name, pid in pids.items() if "jaxlib" in Path(f"/proc/{pid}/maps").read_text()},
        {name for name, pid in hosts.items() if (run.here / f"walled-{pid}").exists()},
        (endpoint := run.daemon()["endpoint"]),
        stat.S_IMODE(Path(endpoint.removeprefix("ipc://")).parent.stat().st_mode),
    )


def computed(run: Run) -> tuple[list[int], int]:
    """The ticks that each thread of the learner computes while all of them compute a second; and how many threads are
    for large operations. Ratios within the process, which other load on the machine leaves as they are."""
    pid = run.pids()["learner/0"]
    before = threads(pid)

    def since() -> list[int]:
        now = threads(pid).items()
        return sorted(each.ticks - (before[number].ticks if number in before else 0) for number, each in now)

    run.wait_for(lambda: sum(since()) > TICKS)
    return since(), sum("Eigen" in thread.name for thread in before.values())


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    task = WALLED if walled.is_possible() else process_run.TASK
    first = Run(tmp_path_factory.mktemp("walled"), task=task)
    second = Run(tmp_path_factory.mktemp("shipped"), "--model", "nano", learners=1)
    try:
        for run in (first, second):
            run.wait_for_merges(5)
        heard, sides, (ticks, compute_threads) = listening(), [side(run) for run in (first, second)], computed(second)
        first.wait_for_merges(10)  # Behind its wall.
        first.stop()
        second.wait_for_merges(3)
        pids, status = second.pids(), second.status()
        os.killpg(second.command.pid, signal.SIGINT)
        second.finish()
        yield Scenario(*sides, heard, ticks, compute_threads, pids, status)
    finally:
        first.close()
        second.close()


def test_learners_listen_to_nobody(scenario: Scenario) -> None:
    for run in (scenario.first, scenario.second):
        assert run.files["syncer/0"] & scenario.listening
        for name, files in run.files.items():
            if name.startswith("learner/"):
                assert any(file.startswith("socket:") for file in files - scenario.listening)
                assert not files & scenario.listening


def test_daemons_listen_to_their_own_user_only(scenario: Scenario) -> None:
    for run in (scenario.first, scenario.second):
        assert run.mode == 0o700
        assert not run.files["daemon"] & scenario.listening


@pytest.mark.skipif(not walled.is_possible(), reason="the numbers of this machine's system calls are not known here")
def test_learners_train_where_nobody_can_connect_to_them(scenario: Scenario) -> None:
    assert scenario.first.walled == {"learner/0", "learner/1"}


def test_syncer_recorder_daemon_and_command_load_no_jax(scenario: Scenario) -> None:
    for run in (scenario.first, scenario.second):
        assert run.with_jax == {name for name in run.pids if name.startswith(("learner/", "evaluator/"))}


def test_a_learner_computes_with_one_thread(scenario: Scenario) -> None:
    assert scenario.compute_threads <= 1
    *_, second, first = scenario.ticks
    assert second < 0.35 * first


def test_the_end_of_one_run_is_nothing_to_the_other(scenario: Scenario) -> None:
    one, other = scenario.first, scenario.second
    assert not {*other.pids.values()} & {*one.pids.values()}
    assert one.endpoint != other.endpoint
    assert {**scenario.pids_after, "command": other.pids["command"]} == other.pids
    hosts = scenario.status_after["hosts"]
    assert {host["incarnation"] for host in hosts} == {1}
    assert sum(host["refused"] for host in hosts) == 0
    assert scenario.status_after["refused"] == {}

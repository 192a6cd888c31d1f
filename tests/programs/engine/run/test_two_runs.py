"""Two runs at once on one machine: what their processes hold, load and compute with, and that they do not meet.

The first has a wall around each of its learners, through which nobody can connect to them; the second one trains the
shipped model with one learner.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.procfs import listening, open_files, threads
from tests.programs.engine.machine import walled
from tests.programs.engine.run import process_run
from tests.programs.engine.run.process_run import Run

pytestmark = pytest.mark.process

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """Both, training."""
    task = WALLED if walled.is_possible() else process_run.TASK
    pair = (
        Run(tmp_path_factory.mktemp("walled"), task=task),
        Run(tmp_path_factory.mktemp("shipped"), "--model", "nano", learners=1),
    )
    try:
        for run in pair:
            run.wait_for_merges(5)
        yield pair
    finally:
        for run in pair:
            run.close()


def test_learners_listen_to_nobody(runs: tuple[Run, Run]) -> None:
    heard = listening()
    for run in runs:
        pids = run.pids()
        assert open_files(pids["syncer/0"]) & heard
        for name, pid in pids.items():
            if name.startswith("learner/"):
                assert any(name.startswith("socket:") for name in open_files(pid) - heard)
                assert not open_files(pid) & heard


@pytest.mark.skipif(not walled.is_possible(), reason="the numbers of this machine's system calls are not known here")
def test_learners_train_where_nobody_can_connect_to_them(runs: tuple[Run, Run]) -> None:
    run, _ = runs
    pids = run.pids()
    for name in ("learner/0", "learner/1"):
        assert (run.here / f"walled-{pids[name]}").exists()
    assert not (run.here / f"walled-{pids['evaluator/0']}").exists()
    run.wait_for_merges(10)


def test_syncer_recorder_daemon_and_command_load_no_jax(runs: tuple[Run, Run]) -> None:
    for run in runs:
        pids = {**run.pids(), "command": run.command.pid}
        loads = {name for name, pid in pids.items() if "jaxlib" in Path(f"/proc/{pid}/maps").read_text()}
        assert loads == {name for name in pids if name.startswith(("learner/", "evaluator/"))}


def test_a_learner_computes_with_one_thread(runs: tuple[Run, Run]) -> None:
    _, run = runs
    pid = run.pids()["learner/0"]
    before = threads(pid)
    assert sum("Eigen" in thread.name for thread in before.values()) <= 1

    def computed() -> list[int]:
        return sorted(
            now.ticks - (before[number].ticks if number in before else 0) for number, now in threads(pid).items()
        )

    # Ratios within the process, which other load on the machine leaves as they are.
    run.wait_for(lambda: sum(computed()) > TICKS)
    *_, second, first = computed()
    assert second < 0.35 * first


def test_the_end_of_one_run_is_nothing_to_the_other(runs: tuple[Run, Run]) -> None:
    one, other = runs
    before = other.pids()
    assert not set(before.values()) & set(one.pids().values())
    assert one.daemon()["endpoint"] != other.daemon()["endpoint"]
    one.stop()
    other.wait_for_merges(3)
    assert other.pids() == before
    assert {host["incarnation"] for host in other.status()["hosts"]} == {1}
    assert sum(host["refused"] for host in other.status()["hosts"]) == 0
    assert other.status()["refused"] == {}
    os.killpg(other.command.pid, signal.SIGINT)
    other.finish()

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

from tests.programs.machine import walled
from tests.programs.run import process_run
from tests.programs.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

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
LISTENING = "0A"


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


def inodes_listening() -> set[str]:
    """The inodes of all TCP sockets of this machine that listen."""
    tables = [Path("/proc/net", name) for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {line[9] for line in lines if line[3] == LISTENING}


def inodes_held(pid: int) -> set[str]:
    """The inodes of the sockets of a process."""
    targets = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {target[8:-1] for target in targets if target.startswith("socket:[")}


def busy_ticks(pid: int) -> dict[str, int]:
    """Thread -> the clock ticks that it has computed."""
    found = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        fields = (path / "stat").read_text().rpartition(")")[2].split()
        found[path.name] = int(fields[11]) + int(fields[12])
    return found


def test_learners_listen_to_nobody(runs: tuple[Run, Run]) -> None:
    listening = inodes_listening()
    for run in runs:
        pids = run.pids()
        assert inodes_held(pids["syncer/0"]) & listening
        for name, pid in pids.items():
            if name.startswith("learner/"):
                assert inodes_held(pid) - listening
                assert not inodes_held(pid) & listening


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
    names = [(path / "comm").read_text().strip() for path in Path(f"/proc/{pid}/task").iterdir()]
    assert sum("Eigen" in name for name in names) <= 1
    before = busy_ticks(pid)
    # Ratios within the process, which other load on the machine leaves as they are.
    run.wait_for(lambda: sum(busy_ticks(pid).values()) > sum(before.values()) + TICKS)
    first, second, *_ = sorted((now - before.get(name, 0) for name, now in busy_ticks(pid).items()), reverse=True)
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

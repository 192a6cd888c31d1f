"""Logs: what their owner can read, which stay, and processes of a run that have none any more."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.programs.engine.machine.own_daemon import LOGS_KEPT, keep_newest
from isthmus.programs.engine.run.logs import opened_log
from isthmus.programs.engine.run.private_daemon import kill_all
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.ids import Member, Replica


def test_its_owner_reads_a_log_whatever_a_task_has_set(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        with opened_log(tmp_path / "a.log") as log:
            log.write(b"begun\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) & 0o600 == 0o600
    assert (tmp_path / "a.log").read_bytes() == b"begun\n"


def test_of_loops_that_have_ended_the_newest_logs_stay(tmp_path: Path) -> None:
    first = 1 << 22  # Above all numbers of processes.
    mine, others = tmp_path / f"{os.getpid()}.log", tmp_path / "notes.log"
    for age, path in enumerate([mine, others, *(tmp_path / f"{first + i}.log" for i in range(LOGS_KEPT + 5))]):
        path.write_text("")
        os.utime(path, (age, age))
    keep_newest(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine.name, others.name, *(f"{first + i}.log" for i in range(5, LOGS_KEPT + 5))}


@pytest.mark.process
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_host_that_has_closed_its_output_is_killed_by_its_ledger(tmp_path: Path, is_noted: bool) -> None:
    member, ledger = Member(Replica("learner", 0), 1), Ledger(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL) as host:
        ledger.begin([member])
        if is_noted:
            ledger.started(member, host.pid)
        ledger.close()
        kill_all(tmp_path)
        assert (host.poll() is not None) == is_noted
        host.kill()

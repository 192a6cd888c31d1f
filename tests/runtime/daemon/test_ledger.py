"""The ledger: numbers that outlive everything, lives and their processes, what is owed to the disk, and its loss."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from isthmus.runtime.daemon.home_daemon import JOURNAL, LEFT_OUT, journal_of, reopen
from isthmus.runtime.daemon.ledger import FILE, LOST, Ledger, LedgerError, LedgerRow, living
from isthmus.runtime.supervision.home_events import Journal
from isthmus.runtime.supervision.incidents import Ordered
from isthmus.runtime.system import processes
from isthmus.runtime.system.processes import is_stopped, started_at
from tests.runtime.supervision.supervision_stories import life, lives

LEARNER = life("learner/0")
NOBODY = 2**22 + 1
"""A pid that no process can have."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path)
    yield opened
    opened.close()


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """No file of this process may grow beyond what the ledger's has."""
    size = (folder / f"{FILE}-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def after_power_failure(folder: Path) -> Path:
    """What a power failure leaves where every transaction is synced: the files as they are, without shared memory."""
    there = folder / "after"
    there.mkdir()
    for name in (FILE, f"{FILE}-wal"):
        shutil.copy(folder / name, there / name)
    return there


def test_a_ledger_that_is_deleted_under_its_daemon_is_written_anew_with_all_that_it_had(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.give(lives("learner/1#7"))
    ledger.started(LEARNER, os.getpid())
    assert not ledger.restore()
    for path in tmp_path.iterdir():
        path.unlink()
    ledger.note("said", b"afterwards")
    assert ledger.restore()
    assert not ledger.restore()
    ledger.give(lives("learner/1#8"))
    ledger.close()
    again = Ledger(tmp_path, was_there=True)
    assert again.numbers() == lives("learner/1#8")
    assert [row.member for row in again.newest() if row.is_alive] == [LEARNER]
    assert (again.noted("said"), again.is_lost("home")) == (b"afterwards", False)
    again.close()


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_numbers_outlive_a_power_failure(ledger: Ledger, tmp_path: Path) -> None:
    ledger.give(lives("learner/1 learner/0 syncer/0"))
    ledger.give(lives("learner/0#2"))
    assert ledger._database.execute("pragma synchronous").fetchone() == (2,)  # Full: each transaction is synced.
    again = Ledger(after_power_failure(tmp_path))
    assert again.numbers() == lives("learner/0#2 learner/1 syncer/0")
    again.close()


def test_a_number_never_falls(ledger: Ledger) -> None:
    ledger.give(lives("learner/0#7"))
    ledger.give(lives("learner/0#3"))
    assert ledger.numbers() == lives("learner/0#7")


def test_a_ledger_that_cannot_be_written_takes_no_number_and_says_so(ledger: Ledger, tmp_path: Path) -> None:
    ledger.give(lives("learner/0"))
    ledger.begin(lives("learner/0"))
    with full(tmp_path):
        for write in (ledger.give, ledger.begin):
            with pytest.raises(
                LedgerError, match=r"noting learner/0#2, learner/1#1: .*sqlite cannot be written: disk I/O"
            ):
                write(lives("learner/0#2 learner/1"))
        with pytest.raises(OSError, match="Make room on its disk"):
            ledger.give(lives("learner/0#2"))
        assert ledger.numbers() == lives("learner/0")
    assert [row.member for row in ledger.newest()] == [LEARNER]
    ledger.give(lives("learner/0#2 learner/1"))
    assert ledger.numbers() == lives("learner/0#2 learner/1")


# -- lives -------------------------------------------------------------------------------------------------------------


def test_the_newest_life_of_each_replica_and_whether_its_process_is_there(ledger: Ledger, tmp_path: Path) -> None:
    ledger.begin(lives("learner/0 learner/1 syncer/0#3 learner/0#2"))
    ledger.started(life("learner/0#2"), os.getpid())
    ledger.started(life("learner/1"), NOBODY)
    newest = [
        LedgerRow(life("learner/0#2"), os.getpid(), True),
        LedgerRow(life("learner/1"), NOBODY, False),
        LedgerRow(life("syncer/0#3"), None, False),
    ]
    assert ledger.newest() == newest
    assert living(tmp_path) == [os.getpid()]
    ledger.begin(lives("learner/0#2"))  # Once more changes nothing.
    assert ledger.newest() == newest


def test_a_life_that_was_adopted_need_not_have_been_begun_here(ledger: Ledger) -> None:
    ledger.started(life("learner/0#5"), os.getpid())
    assert ledger.newest() == [LedgerRow(life("learner/0#5"), os.getpid(), True)]


def test_a_later_life_has_no_process_before_one_is_known(ledger: Ledger, tmp_path: Path) -> None:
    ledger.started(LEARNER, os.getpid())
    ledger.begin(lives("learner/0#2"))
    assert ledger.newest() == [LedgerRow(life("learner/0#2"), None, False)]
    assert living(tmp_path) == [os.getpid()]  # Of all lives, not of the newest ones alone.


def test_a_pid_that_was_given_to_somebody_else_is_not_taken_for_the_process(ledger: Ledger, tmp_path: Path) -> None:
    ledger.started(LEARNER, os.getpid())
    ledger._database.execute("update lives set started = started - 1")
    assert ledger.newest() == [LedgerRow(LEARNER, os.getpid(), False)]
    assert living(tmp_path) == []


def test_after_a_boot_every_process_is_gone_for_all_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Ledger(tmp_path)
    before.started(LEARNER, os.getpid())
    before.close()
    monkeypatch.setattr(processes, "boot_id", lambda: b"another")
    assert living(tmp_path) == []
    for _ in range(2):
        again = Ledger(tmp_path)
        assert [(row.member, row.is_alive) for row in again.newest()] == [(LEARNER, False)]
        again.close()


@pytest.mark.parametrize("content", [None, b"", b"no database"])
def test_no_process_is_known_of_a_folder_without_a_ledger(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert living(tmp_path) == []


# -- what is owed ------------------------------------------------------------------------------------------------------


def test_what_the_disk_did_not_take_is_written_later(ledger: Ledger, tmp_path: Path) -> None:
    ledger.begin([LEARNER])
    with full(tmp_path):
        ledger.started(LEARNER, os.getpid())
        ledger.note("journal", b"first")
        ledger.note("journal", b"second")
        assert not ledger.settle()
        assert ledger.noted("journal") is None
    assert ledger.settle()
    assert ledger.noted("journal") == b"second"
    assert living(tmp_path) == [os.getpid()]


def test_a_note_takes_the_place_of_the_one_before_and_no_other(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note("journal", b"first")
    ledger.note("training", b"else")
    ledger.note("journal", b"second")
    ledger.close()
    again = Ledger(tmp_path)
    assert (again.noted("journal"), again.noted("training"), again.noted("nothing")) == (b"second", b"else", None)
    again.close()


# -- a ledger that was lost --------------------------------------------------------------------------------------------


def test_a_run_that_is_continued_keeps_every_number_and_every_life(ledger: Ledger, tmp_path: Path) -> None:
    ledger.give(lives("learner/0#3 learner/1#2 syncer/0#5"))
    ledger.begin(lives("learner/0#3 syncer/0#5"))
    ledger.note(JOURNAL, msgspec.msgpack.encode(Journal(outcome="failed", failure=Ordered("enough"), number_least=7)))
    assert ledger.settle()
    ledger.close()
    reopen(tmp_path, lambda replica: replica.slot == 1)
    again = Ledger(tmp_path, was_there=True)
    assert again.numbers() == lives("learner/0#3 learner/1#2 syncer/0#5")
    assert [row.member for row in again.newest()] == list(lives("learner/0#3 syncer/0#5"))
    assert not again.is_lost("home")
    again.close()
    journal = journal_of(tmp_path)
    assert journal is not None
    assert (journal.outcome, journal.number_least, journal.retired) == ("running", 7, (("learner/1", LEFT_OUT),))


def test_a_ledger_that_was_never_there_is_not_lost(tmp_path: Path) -> None:
    for _ in range(2):
        opened = Ledger(tmp_path, was_there=(tmp_path / FILE).exists())
        assert not opened.is_lost("home")
        assert not opened.is_lost("station")
        opened.close()


def test_one_that_is_missing_is_lost_until_home_and_station_have_made_up_for_it(
    tmp_path: Path,
) -> None:
    first = Ledger(tmp_path, was_there=True)
    assert first.is_lost("home")
    first.close()
    second = Ledger(tmp_path, was_there=True)
    assert (second.is_lost("home"), second.is_lost("station")) == (True, True)
    second.mark_whole("station")
    assert (second.is_lost("home"), second.is_lost("station")) == (True, False)
    second.close()
    third = Ledger(tmp_path, was_there=True)
    assert (third.is_lost("home"), third.is_lost("station")) == (True, False)
    third.mark_whole("home")
    third.close()
    fourth = Ledger(tmp_path, was_there=True)
    assert not fourth.is_lost("home")
    fourth.close()


def test_one_whose_daemon_died_before_its_first_transaction_is_lost_as_well(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE).execute("pragma journal_mode = wal").connection.close()
    assert (tmp_path / FILE).exists()
    opened = Ledger(tmp_path, was_there=True)
    assert opened.is_lost("home")
    opened.close()


@pytest.mark.parametrize("is_empty_inside", [False, True])
def test_one_that_is_torn_is_put_aside(tmp_path: Path, is_empty_inside: bool) -> None:
    opened = Ledger(tmp_path)
    opened.give(lives(" ".join(f"learner/{slot}" for slot in range(2000))))
    opened.close()
    data = (tmp_path / FILE).read_bytes()
    torn = data[:4096] + bytes(len(data) - 4096) if is_empty_inside else b"not " + data
    (tmp_path / FILE).write_bytes(torn)
    again = Ledger(tmp_path)
    assert (again.is_lost("home"), again.is_lost("station")) == (True, True)
    assert again.numbers() == ()
    assert (tmp_path / LOST).read_bytes() == torn
    again.give(lives("learner/0#1001"))
    again.close()
    third = Ledger(tmp_path)
    assert third.numbers() == lives("learner/0#1001")
    third.close()


def test_a_ledger_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Ledger(tmp_path / "missing")


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_process_that_is_stopped_is_seen_to_be() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 10
        while not is_stopped(process.pid):
            assert time.monotonic() < until
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert started_at(process.pid) is None  # A zombie has ended.
        process.wait()
        assert not is_stopped(process.pid)
    assert started_at(NOBODY) is None

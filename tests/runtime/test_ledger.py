"""The ledger: a number is given once, whatever becomes of the disk; and what is owed to the file is written later."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isthmus.runtime.ids import Replica
from isthmus.runtime.ledger import Ledger, LedgerError

LEARNER = Replica("learner", 0)


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def after_power_failure(path: Path) -> Path:
    """What a power failure leaves where every transaction is synced: the files as they are, without shared memory."""
    there = path.parent / "after"
    there.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.with_name(name), there / name)
    return there / path.name


def test_a_number_that_was_given_outlives_a_power_failure(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sqlite"
    ledger = Ledger(path)
    assert [ledger.next(LEARNER) for _ in range(3)] == [1, 2, 3]
    assert ledger._database.execute("pragma synchronous").fetchone() == (2,)  # Full: each transaction is synced.
    again = Ledger(after_power_failure(path))
    assert again.last(LEARNER) == 3
    assert again.next(LEARNER) == 4
    again.close()
    ledger.close()


def test_a_ledger_that_cannot_be_written_gives_no_number_and_no_number_twice(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sqlite"
    ledger = Ledger(path)
    given = [ledger.next(LEARNER)]
    with full(path.with_name("daemon.sqlite-wal").stat().st_size):
        for _ in range(3):
            with pytest.raises(LedgerError, match=r"learner/0 its next life: .*sqlite cannot be written: disk I/O"):
                ledger.next(LEARNER)
        with pytest.raises(OSError, match="Make room on its disk"):
            ledger.take(LEARNER, 7)
        assert ledger.last(LEARNER) == 1
    given += [ledger.next(LEARNER), ledger.next(LEARNER)]
    assert given == [1, 2, 3]
    ledger.close()


def test_what_the_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sqlite"
    ledger = Ledger(path)
    number = ledger.next(LEARNER)
    with full(path.with_name("daemon.sqlite-wal").stat().st_size):
        ledger.started(LEARNER, number, os.getpid())
        ledger.note("stopping", b"first")
        ledger.note("stopping", b"second")
        assert not ledger.settle()
        assert ledger.noted("stopping") is None
    assert ledger.settle()
    ledger.close()
    again = Ledger(path)
    assert again.noted("stopping") == b"second"
    assert again.living() == [os.getpid()]
    again.close()


def test_a_ledger_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        Ledger(tmp_path / "missing" / "daemon.sqlite")

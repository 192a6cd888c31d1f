"""Locks on files, and the notes that stand in for them where a disk has none."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.system import locks
from isthmus.runtime.system.locks import NOTE_SUFFIX, FileLock, LockHolder, has_record_locks, holder_of, is_locked

Refuse = Callable[[int], None]
ELSEWHERE = LockHolder("another-host", 77, 5, "boot")
LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Has locks fail by an error."""

    def by(number: int) -> None:
        def refused(*arguments: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(locks.fcntl, "flock", refused)
        monkeypatch.setattr(locks.fcntl, "lockf", refused)

    return by


@contextmanager
def opened(path: Path) -> Iterator[FileLock]:
    with path.open("ab") as file:
        yield FileLock(file.fileno(), path)


def note(path: Path) -> Path:
    return path.with_name(path.name + NOTE_SUFFIX)


def test_one_has_a_lock_and_leaves_no_note(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with opened(path) as first, opened(path) as second, path.open("rb") as third:
        assert first.take()
        assert not second.take()
        assert is_locked(third.fileno(), path)
        assert not first.is_noted
        assert not note(path).is_symlink()
    with opened(path) as third_lock:
        assert third_lock.take()


def test_a_look_leaves_the_lock_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with opened(path) as first, path.open("rb") as other:
        assert not is_locked(other.fileno(), path)
        assert first.take()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EBADF])
def test_any_other_error_is_none_of_another(tmp_path: Path, refuse: Refuse, number: int) -> None:
    path = tmp_path / "a.lock"
    refuse(number)
    with opened(path) as lock, pytest.raises(OSError) as caught:
        lock.take()
    assert caught.value.errno == number


@pytest.mark.parametrize("number", LOCKLESS)
def test_on_a_disk_without_locks_a_note_stands_in(tmp_path: Path, refuse: Refuse, number: int) -> None:
    path = tmp_path / "a.lock"
    refuse(number)
    with opened(path) as first, opened(path) as second, path.open("rb") as third:
        assert first.take()
        assert first.is_noted
        assert holder_of(path) == LockHolder.this()
        assert not second.take()
        assert is_locked(third.fileno(), path)
        second.release()  # It has nothing.
        assert holder_of(path) == LockHolder.this()
        first.release()
        assert holder_of(path) is None
        assert not is_locked(third.fileno(), path)
        assert second.take()


@pytest.mark.parametrize(
    "holder",
    [
        LockHolder.this()._replace(started=1),
        LockHolder.this()._replace(boot="a former one"),
        LockHolder.this()._replace(pid=1 << 22),
    ],
)
def test_a_note_of_a_process_that_has_ended_is_none(tmp_path: Path, refuse: Refuse, holder: LockHolder) -> None:
    path = tmp_path / "a.lock"
    refuse(errno.ENOLCK)
    note(path).symlink_to(holder.note())
    with opened(path) as lock:
        assert not is_locked(os.open(path, os.O_RDONLY), path)
        assert lock.take()
    assert holder_of(path) == LockHolder.this()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.lock", "a.lock.held"]


def test_a_process_of_another_host_counts_as_living(tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / "a.lock"
    refuse(errno.ENOLCK)
    note(path).symlink_to(ELSEWHERE.note())
    with opened(path) as lock:
        assert not lock.take()
        assert holder_of(path) == ELSEWHERE
        assert not ELSEWHERE.is_here


def test_whoever_inherits_a_lock_signs_its_note(tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / "a.lock"
    refuse(errno.ENOLCK)
    with opened(path) as parents, path.open("rb") as file:
        assert parents.take()
        os.replace(note(path), tmp_path / "aside")
        note(path).symlink_to(ELSEWHERE.note())
        lock = FileLock.inherited(file.fileno())
        assert lock.is_noted
        assert holder_of(path) == LockHolder.this()
        lock.release()
        assert holder_of(path) is None


def test_of_two_that_remove_a_dead_note_one_gets_the_lock(tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / "a.lock"
    refuse(errno.ENOLCK)
    dead = LockHolder.this()._replace(started=1)
    note(path).symlink_to(dead.note())
    taking = path.with_name("a.lock.held.taking")
    taking.symlink_to(LockHolder.this().note())
    with opened(path) as lock:
        assert not lock.take()  # Another one is about to.
        assert holder_of(path) == dead
        taking.unlink()
        taking.symlink_to(dead.note())  # That was killed meanwhile.
        assert not lock.take()
        assert lock.take()


def test_without_links_it_says_what_is_missing(tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise PermissionError(errno.EPERM, "no links")

    path = tmp_path / "a.lock"
    refuse(errno.ENOLCK)
    monkeypatch.setattr(locks.os, "symlink", refused)
    with opened(path) as lock, pytest.raises(OSError, match="neither locks nor symbolic links") as caught:
        lock.take()
    assert caught.value.errno == errno.ENOLCK


def test_whether_databases_can_lock(tmp_path: Path, refuse: Refuse) -> None:
    assert has_record_locks(tmp_path)
    refuse(errno.ENOLCK)
    assert not has_record_locks(tmp_path)
    assert not list(tmp_path.iterdir())
    assert fcntl.LOCK_EX

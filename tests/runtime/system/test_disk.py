"""Files and folders of the kernel's disk have the permissions of this process, whatever a task makes of its umask; a
full disk is known by where it is mounted, and told of once a minute."""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from isthmus.runtime.system.disk import (
    AGAIN_SECONDS,
    DISK,
    REFUSED_SECONDS,
    FullDisks,
    FullNews,
    FullNotes,
    KernelFile,
    mount_point,
)
from tests.odd_files import file_size_limit


def test_a_umask_that_changes_meanwhile_changes_no_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").touch()
    before = os.umask(0o777)
    try:
        for open_file in (DISK.create, DISK.append):
            file = open_file(tmp_path / "run" / "spans" / "learner")
            file.write(b"a")
            file.close()
    finally:
        os.umask(before)
    assert DISK.read(tmp_path / "run" / "spans" / "learner") == b"aa"
    for made, same in (("run", plain), ("run/spans", plain), ("run/spans/learner", plain / "file")):
        assert (tmp_path / made).stat().st_mode == same.stat().st_mode


def test_what_a_folder_hands_down_is_kept(tmp_path: Path) -> None:
    """In a folder of a group, new files and folders are the group's: a mode that is set takes that away."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    file = DISK.create(shared / "run" / "events")
    file.close()
    assert (shared / "run").stat().st_mode & stat.S_ISGID


FULL, QUOTA, BROKEN = (OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO))


@dataclass
class Room:
    """What the kernel says of a disk."""

    f_bavail: int = 0
    f_frsize: int = 1
    f_favail: int = 9
    f_files: int = 9


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """The room of every disk: none."""
    found = Room()
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    return found


def test_an_error_of_a_file_names_it(tmp_path: Path) -> None:
    file = DISK.append(tmp_path / "full")
    with file_size_limit(0), pytest.raises(OSError) as caught:  # By its fields.
        file.write(b"a")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "full"))
    file.close()


def test_a_disk_is_full_until_a_write_into_the_folder_succeeds(tmp_path: Path, room: Room) -> None:
    full, folders = FullDisks(), [tmp_path / name for name in ("tape", "snapshots")]
    for folder in folders:
        folder.mkdir()
        full.refused(folder, BROKEN)
    assert full.now() == ()
    for folder in folders:
        full.refused(folder, FULL, 10)
    assert full.now() == (mount_point(str(tmp_path)),)  # One disk, however many files wait for it.
    full.took(folders[0])
    assert len(full.now()) == 1
    full.took(folders[1])
    assert full.now() == ()


def test_it_is_full_no_longer_once_there_is_room_for_what_was_refused(tmp_path: Path, room: Room) -> None:
    full = FullDisks()
    full.refused(tmp_path, FULL, 100)
    room.f_bavail = 100
    assert len(full.now()) == 1
    room.f_bavail = 101
    assert full.now() == ()
    room.f_favail = 0  # Not one more file.
    assert len(full.now()) == 1
    room.f_favail = 9
    full.refused(tmp_path, QUOTA, 100)  # Of this user: that the disk has room means nothing.
    assert len(full.now()) == 1


def test_a_folder_that_is_gone_is_on_no_disk_and_a_refusal_that_is_long_ago_is_none(
    tmp_path: Path, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FullDisks()
    (tmp_path / "gone").mkdir()
    full.refused(tmp_path / "gone", QUOTA)
    (tmp_path / "gone").rmdir()
    assert full.now() == ()
    full.refused(tmp_path, QUOTA)
    assert len(full.now()) == 1
    later = time.monotonic() + REFUSED_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert full.now() == ()


def test_what_is_written_whole_needs_room_for_all_of_it(tmp_path: Path, room: Room) -> None:
    """A part of it had room, which it gives back."""
    full = FullDisks()
    file = KernelFile(tmp_path / "whole", os.O_RDWR | os.O_EXCL, full)
    file.write(bytes(70))
    file.close()
    room.f_bavail = 100
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(bytes(50))
    assert full.now() == ()
    file._note(FULL, 50)
    assert len(full.now()) == 1  # It needs 120.


def test_a_full_disk_is_told_at_once_and_then_once_a_minute() -> None:
    notes = FullNotes[str]()
    told = [second for second in range(200) if notes.update(["/data"], float(second)).full]
    assert told == [0, 60, 120, 180]
    again = [second for second in range(200, 220) if notes.update([], float(second)).again]
    assert again == [199 + AGAIN_SECONDS]
    assert notes.update(["/data"], 230.0).full == []  # Not within a minute of the last word.
    assert notes.update(["/data", "/other"], 240.0) == FullNews(["/data", "/other"], [])

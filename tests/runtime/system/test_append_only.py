"""Files that only grow: what a disk does not take waits within a bound, is counted, and never torn by what follows."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.system import files
from isthmus.runtime.system.files import Growing, Lines
from tests.odd_files import file_size_limit

PATH = Path("/run/lines.jsonl")


def nothing() -> None:
    """Somebody is told, whom nobody asks."""


def test_a_piece_that_does_not_fit_is_continued_where_it_ended() -> None:
    disk = SimulatedDisk("full")
    lines = Lines(PATH, Mount(disk))
    lines.append({"a": 1})
    disk.troubles[1] = Trouble(nothing, room=4)
    lines.append({"b": 2})
    lines.append({"c": 3})
    assert disk.files()[PATH] == b'{"a": 1}\n{"b"'
    assert lines.counts() == {"written": 1, "waiting": 2, "lost": 0, "torn": 0, "error": "No space left on device"}
    assert not lines.flush()
    del disk.troubles[1]
    lines.append({"d": 4})
    assert [json.loads(line) for line in disk.files()[PATH].splitlines()] == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]
    assert lines.counts() == {"written": 4, "waiting": 0, "lost": 0, "torn": 0, "error": None}


def test_what_waits_is_bounded_and_what_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAITING_BYTES_MAX", 10)
    disk = SimulatedDisk("broken")
    disk.troubles[1] = Trouble(nothing, share=1.0)
    file = Growing(PATH, Mount(disk))
    for piece in (b"0123", b"4567", b"89ab", b"c"):
        file.append(piece)
    assert (file.waiting, file.lost, file.written) == (3, 1, 0)
    assert file.error == file.lost_to == "Input/output error"
    disk.troubles.clear()
    file.append(b"d")
    assert disk.files()[PATH] == b"01234567cd"
    assert (file.waiting, file.lost, file.written, file.error) == (0, 1, 4, None)
    disk.troubles[1] = Trouble(nothing, share=1.0)
    file.append(b"e")
    file.close()
    assert (file.lost, file.lost_to) == (2, "Input/output error")


def test_a_torn_line_is_left_alone_and_counted_once() -> None:
    disk = SimulatedDisk("torn")
    first = Mount(disk)
    lines = Lines(PATH, first)
    disk.troubles[1] = Trouble(nothing, room=5)
    lines.append({"a": 1})
    first.is_gone = True
    lines.close()
    again = Lines(PATH, Mount(disk))
    assert again.counts()["error"] == "No space left on device"
    disk.troubles.clear()
    again.append({"b": 2})
    assert disk.files()[PATH] == b'{"a":\n{"b": 2}\n'
    assert again.counts()["torn"] == 1
    assert Lines(PATH, Mount(disk)).counts()["torn"] == 0


def test_without_a_mark_nothing_is_torn() -> None:
    disk = SimulatedDisk("tape")
    Growing(PATH, Mount(disk)).append(b"abc")
    again = Growing(PATH, Mount(disk))
    again.append(b"def")
    assert disk.files()[PATH] == b"abcdef"
    assert again.torn == 0


def test_a_file_that_cannot_be_renamed_goes_on_growing() -> None:
    disk = SimulatedDisk("rotation")
    file = Growing(PATH, Mount(disk), bytes_max=6)
    file.append(b"abcd")
    disk.troubles[1] = Trouble(nothing, share=1.0)
    file.append(b"efgh")
    assert disk.files() == {PATH: b"abcd"}
    disk.troubles.clear()
    file.append(b"ijkl")
    assert disk.files() == {PATH: b"", PATH.with_name("lines.jsonl.1"): b"abcdefghijkl"}


def test_a_real_disk_that_takes_no_more_of_a_file_is_no_different(tmp_path: Path) -> None:
    file = Growing(tmp_path / "full")
    with file_size_limit(0):
        file.append(b"abc")
        assert (file.written, file.waiting, file.error) == (0, 1, os.strerror(errno.EFBIG))
        file.close()
    assert file.lost == 1


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_appended_to_what_a_link_names_or_to_a_pipe(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "lines.jsonl", tmp_path / "of-the-user"
    other.write_bytes(b"mine")
    path.symlink_to(other) if kind == "link" else os.mkfifo(path)
    file = Growing(path)
    file.append(b"abc")
    assert (file.written, file.waiting) == (0, 1)
    assert file.error
    assert other.read_bytes() == b"mine"
    file.close()

"""Logs within a bound: the writer goes on, the end is kept, and a full disk does not let it grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.runtime.system import files


def test_a_long_log_is_cut_and_its_writer_goes_on(tmp_path: Path) -> None:
    log, short = tmp_path / "learner-0.log", tmp_path / "syncer-0.log"
    short.write_text("short\n")
    with log.open("ab", buffering=0) as writer:  # As a host's output is opened.
        writer.write(b"begin" + b"a" * 100)
        files.cut(tmp_path, 50)
        assert log.read_text() == ""
        assert files.former(log).read_text() == "a" * 50
        writer.write(b"b" * 40)
        files.cut(tmp_path, 50)
        assert files.read(log) == "a" * 50 + "b" * 40
        writer.write(b"c" * 30)
        files.cut(tmp_path, 50)
        assert files.read(log) == "b" * 20 + "c" * 30
    assert files.read(short) == "short\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learner-0.log", "learner-0.log.1", "syncer-0.log"]


def test_a_disk_that_takes_no_copy_costs_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / "learner-0.log").write_text("a" * 100)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    files.cut(tmp_path, 50)
    assert (tmp_path / "learner-0.log").read_text() == ""


def test_without_a_log_that_is_said(tmp_path: Path) -> None:
    files.cut(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "learner-0.log")

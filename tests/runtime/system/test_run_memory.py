"""Folders of runs in memory: of this account alone, and gone with their runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.runtime.system import run_memory


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(run_memory, "ROOT", tmp_path / "memory")
    return tmp_path / "memory"


def test_each_run_has_a_folder_that_nobody_else_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = run_memory.folder_of(tmp_path / "one"), run_memory.folder_of(tmp_path / "other")
    assert one is not None
    assert one != other
    assert run_memory.folder_of(tmp_path / "one") == one
    assert [each.stat().st_mode & 0o777 for each in (one, one.parent)] == [0o700, 0o700]
    monkeypatch.setattr(run_memory, "KEPT_FREE", 1 << 62)  # However full the disk of these tests is.
    assert run_memory.room_in(one) > 0
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert run_memory.folder_of(tmp_path / "link") == one
    run_memory.forget(tmp_path / "one")
    assert not one.exists()
    run_memory.forget(tmp_path / "one")
    run_memory.forget(tmp_path / "nowhere")
    assert run_memory.folder_of(tmp_path / "nowhere") is None


@pytest.mark.parametrize("what", ["link", "file", "none"])
def test_where_somebody_else_has_laid_something_there_is_none(tmp_path: Path, root: Path, what: str) -> None:
    (tmp_path / "one").mkdir()
    place = run_memory.path_of(tmp_path / "one").parent
    match what:
        case "link":
            (tmp_path / "elsewhere").mkdir()
            place.symlink_to(tmp_path / "elsewhere")
        case "file":
            place.write_text("")
        case "none":
            root.rmdir()
    assert run_memory.folder_of(tmp_path / "one") is None
    run_memory.sweep(lambda run: False)
    assert what != "link" or place.is_symlink()


def test_a_sweep_removes_those_whose_runs_are_gone(tmp_path: Path) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
    kept, gone = run_memory.folder_of(tmp_path / "kept"), run_memory.folder_of(tmp_path / "gone")
    assert kept is not None
    assert gone is not None
    (gone / "local").mkdir()
    (gone / "local" / "learner-0").write_bytes(b"copy")
    (kept.parent / "half-made").mkdir()
    (kept.parent / "unnamed").mkdir()
    os.utime(kept.parent / "unnamed", (0, 0))
    run_memory.sweep(lambda run: run == tmp_path / "kept")
    assert sorted(path.name for path in kept.parent.iterdir()) == sorted([kept.name, "half-made"])

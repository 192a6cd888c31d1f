"""Files and folders of the kernel's disk have the permissions of this process, whatever a task makes of its umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from isthmus.runtime.system.disk import DISK


def test_a_umask_that_changes_meanwhile_changes_no_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").touch()
    before = os.umask(0o777)
    try:
        for open_file in (DISK.append, DISK.create, DISK.append):
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

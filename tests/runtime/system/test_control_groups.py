"""What a control group permits of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.runtime.system import control_groups
from isthmus.runtime.system.control_groups import groups, memory_most
from isthmus.runtime.wire.segments import MEMORY_SHARE, SegmentPool


def test_the_groups_of_a_process_are_its_own_and_those_around_it(tmp_path: Path) -> None:
    inner = tmp_path / "sys" / "outer" / "inner"
    inner.mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    assert list(groups(tmp_path / "sys", own)) == [inner, inner.parent, tmp_path / "sys"]
    assert list(groups(tmp_path / "sys", tmp_path / "none")) == []


def test_memory_is_the_machines_or_the_least_that_a_group_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []
    monkeypatch.setattr(control_groups, "groups", lambda: found)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_most() == physical
    for name, limit in (("a", "max"), ("b", str(64 << 20)), ("c", str(128 << 20)), ("d", "no number")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text(limit)
        found.append(tmp_path / name)
    assert memory_most() == 64 << 20
    assert SegmentPool()._bytes_max == (64 << 20) // MEMORY_SHARE

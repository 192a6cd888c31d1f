"""Times of a run count on from where they were, after a reboot and on another machine, whose clock may be behind."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from isthmus.programs.engine.request import spec

HOUR = 3600 * 10**9


def told(folder: Path, *, since_ns: int) -> None:
    """A spec of a run that began so long ago by the time of day, written in another boot."""
    data = {"zero_ns": 0, "here": {"boot": "another", "wall_ns": time.time_ns() - since_ns}}
    (folder / spec.SPEC).write_text(json.dumps(data))


def age_of(folder: Path) -> int:
    return time.monotonic_ns() - int(json.loads((folder / spec.SPEC).read_text())["zero_ns"])


@pytest.mark.parametrize(("since", "expected"), [(3 * HOUR, 3 * HOUR), (HOUR, 2 * HOUR), (-HOUR, 2 * HOUR)])
def test_on_another_machine_a_run_is_never_younger_than_its_snapshot(tmp_path: Path, since: int, expected: int) -> None:
    told(tmp_path, since_ns=since)
    spec.rebase_clock(tmp_path, 2 * HOUR)
    assert expected <= age_of(tmp_path) < expected + HOUR


@pytest.mark.parametrize(("since", "expected"), [(3 * HOUR, 3 * HOUR), (-HOUR, 0)])
def test_after_a_reboot_a_run_has_not_begun_in_the_future(tmp_path: Path, since: int, expected: int) -> None:
    told(tmp_path, since_ns=since)
    spec.rebase_clock_after_reboot(tmp_path)
    assert expected <= age_of(tmp_path) < expected + HOUR

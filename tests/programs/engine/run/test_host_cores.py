"""Which cores a host of a machine with accelerators keeps to."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.request.spec import Here
from isthmus.programs.engine.run import host_process
from isthmus.programs.engine.run.host_process import cores_apart, has_accelerators, settle_on_core
from isthmus.runtime.ids import Replica


@pytest.mark.parametrize(
    ("cores", "islands", "of_islands", "of_others"),
    [
        (16, 1, 8, 8),
        (96, 8, 86, 10),
        (18, 8, 16, 2),
        (16, 8, 16, 16),  # Too few for two to an island beside them.
        (2, 1, 2, 2),
    ],
)
def test_syncer_and_recorder_have_cores_that_no_island_on_an_accelerator_uses(
    cores: int, islands: int, of_islands: int, of_others: int
) -> None:
    theirs, others = cores_apart(range(cores), islands)
    assert (len(theirs), len(others)) == (of_islands, of_others)
    are_apart = cores == of_islands + of_others
    assert theirs.isdisjoint(others) == are_apart
    assert theirs | others == frozenset(range(cores))


@pytest.mark.parametrize(
    ("kinds", "platforms", "has_plugin", "found"),
    [
        ((), "", True, True),
        (("NVIDIA H200",), "cuda", True, True),
        (("cpu",), "", True, False),
        ((), "cpu", True, False),
        ((), "", False, False),
    ],
)
def test_accelerators_are_those_that_learners_would_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
    platforms: str,
    has_plugin: bool,
    found: bool,
) -> None:
    monkeypatch.setattr(host_process, "find_spec", lambda name: has_plugin or None)
    (tmp_path / "nvidia0").touch()
    here = Here("127.0.0.1", 2, kinds=kinds)
    assert has_accelerators(here, {"JAX_PLATFORMS": platforms}, tmp_path) == found
    assert not has_accelerators(here, {"JAX_PLATFORMS": platforms}, tmp_path / "none")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (18, {"learner/3": set(range(16)), "syncer/0": {16, 17}, "recorder/0": {16, 17}, "evaluator/0": None}),
        (2, {"learner/3": {1}, "syncer/0": None, "recorder/0": None, "evaluator/0": None}),  # Too few to have apart.
    ],
)
def test_cores_of_islands_are_apart_where_xla_makes_their_devices(
    monkeypatch: pytest.MonkeyPatch, count: int, expected: dict[str, set[int] | None]
) -> None:
    made = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    for name, cores in expected.items():
        settled: list[set[int]] = []

        def settle(thread: int, kept: Collection[int], settled: Any = settled) -> None:
            settled.append(set(kept))

        monkeypatch.setattr(os, "sched_setaffinity", settle)
        settle_on_core(Replica.parse(name), Here("127.0.0.1", 8), range(count), made)
        assert all(each == cores for each in settled), name
        assert bool(settled) == (cores is not None), name

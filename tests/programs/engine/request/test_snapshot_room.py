"""Whether the snapshots of a run have room on its disks is asked before it starts, and by how much they may grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from isthmus.programs.engine.recorder.summary import fragment_sizes
from isthmus.programs.engine.request import snapshot_room
from isthmus.programs.engine.request.model_sizes import learner_bytes
from isthmus.programs.engine.request.request import Program, Request, prepare
from isthmus.programs.engine.request.snapshot_room import (
    AT_ONCE,
    DiskNeeds,
    SnapshotNeeds,
    of_folder,
    of_store,
    store_folder,
    with_room,
)
from isthmus.programs.program_graph import training_of
from isthmus.runtime.errors import ConfigError

LEARNERS: Final = 3


def asked(here: Path, name: str = "decoupled-diloco", snapshots: str = "", **settings: Any) -> Request:
    """A request for a small model of the shipped task."""
    small = {"layers": 1, "width": 16, "heads": 2, "context": 16}
    run = {"learners": LEARNERS, "tokens": 100_000, "snapshots": snapshots}
    return prepare(Program(name, **settings), None, run=run, task_settings=small, run_dir=here / "run")


def needs(request: Request) -> SnapshotNeeds:
    found = SnapshotNeeds.of(request)
    assert found is not None
    return found


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leave so many bytes free on every disk."""
    return lambda free: monkeypatch.setattr(snapshot_room, "_free_bytes", lambda place: free)


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({"outer_momentum": 0.5}, 2, 2),
        ({"outer_momentum": 0.0}, 1, 1),
        ({"outer_momentum": 0.5, "update": "int4"}, 2, 3),
    ],
)
def test_a_version_has_values_momentum_and_exact_values(
    tmp_path: Path, settings: dict[str, Any], least: int, most: int
) -> None:
    request = asked(tmp_path, **settings)
    values = 4 * sum(fragment_sizes(request.graph))
    found = needs(request)
    assert (found.least, found.most, found.model) == (least * values, most * values, values)


def test_in_lock_step_learners_add_their_states_and_without_a_syncer_a_state_is_all(tmp_path: Path) -> None:
    request = asked(tmp_path, "diloco", outer_momentum=0.0)
    values, state = 4 * sum(fragment_sizes(request.graph)), learner_bytes(request)
    assert needs(request).least == values
    assert needs(request).most >= values + LEARNERS * state
    averaged = needs(asked(tmp_path, "data-parallel"))
    assert (averaged.least, averaged.most) == (values, state)


def test_a_folder_has_three_at_once_one_more_while_it_is_brought_to_a_store_and_what_learners_keep() -> None:
    found = SnapshotNeeds(least=100, most=200, model=50, local=10)
    plain = of_folder(found, 2, has_store=False)
    assert plain == DiskNeeds(150, round(snapshot_room.SPARE * (3 * 200 + 2 * 2 * 10 + 50)))
    assert of_folder(found, 2, has_store=True).most - plain.most == round(snapshot_room.SPARE * 200)
    assert of_store(found) == DiskNeeds(100, round(snapshot_room.SPARE * AT_ONCE * 200))


def test_less_than_one_snapshot_and_the_final_model_is_refused_and_what_is_tight_is_a_warning(
    tmp_path: Path, leave: Callable[[int], None]
) -> None:
    request = asked(tmp_path)
    room = of_folder(needs(request), LEARNERS, has_store=False)
    leave(room.most)
    assert with_room(request).warnings == request.warnings
    for free in (room.most - 1, room.least):
        leave(free)
        (warning,) = with_room(request).warnings[len(request.warnings) :]
        assert str(request.run_dir) in warning.action
    leave(room.least - 1)
    with pytest.raises(ConfigError) as caught:
        with_room(request)
    assert [str(request.run_dir) in fault.action for fault in caught.value.faults] == [True]
    # What a run that goes on has there already is a part of what it needs.
    assert with_room(request, has=room.most).warnings == request.warnings
    leave(1 << 50)
    assert with_room(request) is request


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_store_that_is_a_folder_is_asked_about_too(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    request = asked(tmp_path, snapshots=form.format(store))
    assert store_folder(request) == store
    room = of_folder(needs(request), LEARNERS, has_store=True)
    free = {request.run_dir: room.most, store: 1}
    monkeypatch.setattr(snapshot_room, "_free_bytes", free.__getitem__)
    # Both are on one file system here, so they need the room of both.
    (warning,) = with_room(request).warnings[len(request.warnings) :]
    assert str(request.run_dir) in warning.action
    devices = iter(range(10))
    monkeypatch.setattr(snapshot_room, "_device", lambda place: next(devices))
    with pytest.raises(ConfigError) as caught:
        with_room(request)
    assert [str(store) in fault.action for fault in caught.value.faults] == [True]


def test_what_is_no_folder_and_what_keeps_nothing_is_not_asked_about(
    tmp_path: Path, leave: Callable[[int], None]
) -> None:
    assert store_folder(asked(tmp_path, snapshots="")) is None
    request = asked(tmp_path)
    assert store_folder(replace(request, run=replace_run(request, "s3://bucket/run"))) is None
    leave(1)
    graph = replace_graph(request)
    assert with_room(graph) is graph


def replace_run(request: Request, snapshots: str) -> Any:
    import msgspec

    return msgspec.structs.replace(request.run, snapshots=snapshots)


def replace_graph(request: Request) -> Request:
    """The same request of a graph that keeps nothing."""
    return replace(request, graph=replace(request.graph, declared={"training": training_of(request.graph)}))

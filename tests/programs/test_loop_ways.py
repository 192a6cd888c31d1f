"""How a process of a script knows in which way it comes to its life."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from isthmus.programs.loop_script import INVITE, ISLAND, LoopAhead, LoopHome, LoopLife
from isthmus.programs.loop_ways import (
    LIVES_MAX,
    JoiningLoop,
    LoopWay,
    StartedLoop,
    WaitingLoop,
    is_first_slot,
    seed_of_life,
    way_of,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica


def started(process: LoopLife | LoopAhead) -> LoopWay:
    """The way of a process that `isthmus train --loop` has started as this."""
    return way_of({ISLAND: json.dumps(process._asdict())}, address="tcp://ignored:1")


def test_a_process_that_was_started_is_what_its_environment_says() -> None:
    life = started(LoopLife("/run", "learner/2", 3, "ipc://x"))
    assert isinstance(life, StartedLoop)
    assert (life.replica, life.incarnation, life.place) == (Replica("learner", 2), 3, None)
    waits = started(LoopAhead(9, 10, 11, "learner/1", 4, 77))
    assert isinstance(waits, WaitingLoop)
    assert waits.replica == Replica("learner", 1)
    assert (waits.place.slot, waits.place.slots, waits.place.seed) == (1, 4, 77)


def test_lives_of_slots_draw_from_seeds_of_their_own() -> None:
    assert seed_of_life(5, started(LoopLife("/run", "learner/2", 3, "ipc://x"))) == 5 + 2 * LIVES_MAX + 3
    assert seed_of_life(5, started(LoopAhead(9, 10, 11, "learner/1", 4, 77))) == 5 + LIVES_MAX + 1
    for unknown in (started(LoopAhead(9)), way_of({}, address="tcp://h:1")):
        assert seed_of_life(5, unknown) is None
        assert not is_first_slot(unknown)
    assert is_first_slot(started(LoopLife("/run", "learner/0", 3, "ipc://x")))


def test_a_process_that_is_only_asked_answers_with_faults_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> NoReturn:
        raise SystemExit

    monkeypatch.setattr("isthmus.programs.loop_ways.end_process", end)
    reader, writer = os.pipe()
    model: Any = SimpleNamespace(step_call="island.step(loss, tokens=n)")
    with pytest.raises(SystemExit):
        started(LoopAhead(writer)).leave_unbegun(None, model)
    with os.fdopen(reader) as file:
        (fault,) = json.load(file)["faults"]
    assert fault[1:3] == ["a step", "none"]


def test_a_process_is_the_island_of_a_home_if_it_is_told_of_one(tmp_path: Path) -> None:
    def home_of(environment: dict[str, str], **told: Any) -> LoopHome:
        way = way_of(environment, **told)
        assert isinstance(way, JoiningLoop)
        return way.home

    assert home_of({}, address="tcp://h:1", name="x") == LoopHome(address="tcp://h:1", name="x")
    assert home_of({}, invite=tmp_path / "a.invite") == LoopHome(invitation=str(tmp_path / "a.invite"))
    assert home_of({INVITE: "text"}) == LoopHome(invitation_text="text")
    assert home_of({INVITE: "text"}, address="tcp://h:1") == LoopHome(address="tcp://h:1")
    for wrong in ({}, {"address": "tcp://h:1", "invite": "x"}):
        with pytest.raises(ConfigError, match=r"neither|both"):
            way_of({}, **wrong)


def test_a_life_that_fails_leaves_the_interpreter_nothing_to_look_through_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("all"))
    life = started(LoopLife("/run", "learner/2", 3, "ipc://x"))
    life.close(0, is_over=False)
    way_of({}, address="tcp://h:1").close(1, is_over=False)  # Of a user's own process, which may go on.
    assert frozen == []
    life.close(1, is_over=False)
    assert frozen == ["all"]

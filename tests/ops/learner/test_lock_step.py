"""The gate: which steps it permits, and what is adopted and captured at each of them."""

from __future__ import annotations

from typing import Any

from isthmus.ops.data.batches import At
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.lock_step import LockStep, StepGate
from isthmus.ops.learner.run_terms import RunTerms
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update


def turn(fragment: int, number: int, steps: int, **more: Any) -> dict[str, Any]:
    return {**pull(fragment, number, **more), "steps": steps}


def item(fragment: int, count: int) -> dict[str, Any]:
    return {
        "fragment": fragment,
        "version": [1, count],
        "kind": "merge",
        "values": None,
        "clock": [],
        "totals": [],
        "refused": [],
    }


STEPPING: Any = {"phase": "stepping"}


class Learner:
    """A gate, and what it permitted, as short texts: 'a0' adopts a version, '.' steps, 'c1' captures fragment 1."""

    def __init__(self, *, fragments: int = 1, overlap: int = 0, free: int = 0) -> None:
        self.gate = StepGate(fragments=fragments, overlap=overlap, free=free)
        self.gate.open(Context())
        self.passed: list[tuple[str, Any]] = []
        self.hear(updates=[item(p, 0) for p in range(fragments)])
        self.gate(progress=STEPPING)

    def hear(self, *, turns: Any = (), updates: Any = ()) -> str:
        """The permits that follow."""
        emitted = self.gate(
            update={("syncer/0", each["fragment"]): each for each in updates} or None,
            pull={("syncer/0", each["fragment"]): each for each in turns} or None,
        )
        self.passed += [pair for pair in emitted if pair[0] != "permit"]
        return " ".join(_told(permit) for port, permit in emitted if port == "permit")


def _told(permit: Any) -> str:
    adopted = "".join(f"a{each['version'][1]}" for each in permit["updates"])
    captured = "".join(f"{each['kind'][0]}{each['fragment']}" for each in permit["pulls"])
    return adopted + ("." if permit["trains"] else "") + captured


def test_without_overlap_nobody_steps_between_a_capture_and_its_update() -> None:
    learner = Learner()
    assert learner.hear(turns=[turn(0, 1, 3)]) == ". . .m0"
    assert learner.hear(turns=[turn(0, 2, 3)]) == ""
    assert learner.hear(updates=[item(0, 1)]) == "a1. . .m0"


def test_an_update_that_comes_before_the_next_turn_is_kept_for_its_step() -> None:
    learner = Learner()
    learner.hear(turns=[turn(0, 1, 3)])
    assert learner.hear(updates=[item(0, 1)]) == ""
    assert learner.hear(turns=[turn(0, 2, 2)]) == "a1. .m0"


def test_with_overlap_an_update_is_adopted_at_its_boundary_and_not_before() -> None:
    learner = Learner(overlap=2, free=2)
    assert learner.hear(turns=[turn(0, 1, 4)]) == ". . . .m0 . ."
    assert learner.hear(turns=[turn(0, 2, 4)]) == ""
    assert learner.hear(updates=[item(0, 1)]) == "a1. .m0 . ."
    early = Learner(overlap=2, free=2)
    early.hear(turns=[turn(0, 1, 4)])
    assert early.hear(updates=[item(0, 1)], turns=[turn(0, 2, 4)]) == "a1. .m0 . ."


def test_captures_within_the_overlap_wait_for_no_update() -> None:
    learner = Learner(fragments=3, overlap=2)
    assert learner.hear(turns=[turn(p, p + 1, 1) for p in range(3)]) == ".m0 .m1 .m2"
    assert learner.hear(updates=[item(1, 1)], turns=[turn(0, 4, 1)]) == ""
    assert learner.hear(updates=[item(0, 1)]) == "a1.m0"
    assert learner.hear(turns=[turn(1, 5, 1)]) == "a1.m1"


def test_the_end_adopts_what_is_there_and_steps_no_more() -> None:
    learner = Learner(fragments=2, overlap=1, free=1)
    learner.hear(turns=[turn(0, 1, 2)])
    learner.hear(updates=[item(0, 1)])
    assert learner.hear(turns=[turn(0, 2, 3, kind="final")]) == ""  # The other fragment's is under way.
    assert learner.hear(turns=[turn(1, 3, 3, kind="final")]) == "a1. . f0f1"
    learner.passed.clear()
    assert learner.hear(updates=[item(0, 2)]) == ""
    assert [port for port, _ in learner.passed] == ["update"]


def test_turns_of_others_are_left_to_them() -> None:
    learner = Learner()
    assert learner.hear(turns=[turn(0, 1, 3, members=[(1, 1), (0, 2)])]) == ""
    assert learner.hear(turns=[turn(0, 2, 3)]) == ". . .m0"


def test_a_syncer_that_comes_back_is_answered_at_once_and_its_turns_count() -> None:
    learner = Learner()
    learner.hear(turns=[turn(0, 7, 3)])
    assert learner.hear(turns=[turn(0, (1 << 32) + 1, 0, kind="recover")]) == "r0"
    assert learner.hear(turns=[turn(0, (1 << 32) + 2, 2)]) == ". .m0"


def test_a_learner_that_waits_to_begin_is_asked_at_once_for_it_takes_no_permits() -> None:
    def asked(*then: Any) -> list[tuple[str, Any]]:
        gate = StepGate(fragments=1, overlap=0, free=0)
        gate.open(Context())
        gate(update={("recorder/0", 0): {**item(0, 3), "kind": "copy"}})
        request = turn(0, (1 << 32) + 1, 0, kind="recover")
        assert gate(pull={("syncer/0", 0): request}) == [("pull", request)]
        return [pair for each in then for pair in gate(**each)]

    came = {"update": {("syncer/0", 0): {**item(0, 3), "kind": "recover"}}}
    assert asked(came, {"progress": STEPPING}) == []
    # It may have begun before the request was there: then it is asked again, at a boundary.
    ((port, permit),) = asked({"progress": STEPPING})
    assert (port, permit["trains"], [each["kind"] for each in permit["pulls"]]) == ("permit", False, ["recover"])


def test_before_all_fragments_are_there_everything_goes_straight_on() -> None:
    gate = StepGate(fragments=2, overlap=0, free=0)
    gate.open(Context())
    first = gate(pull={("syncer/0", 0): turn(0, 1, 0, kind="initial")})
    assert [port for port, _ in first] == ["pull"]
    assert [port for port, _ in gate(update={("syncer/0", 0): item(0, 0)})] == ["update"]


def test_lock_step_is_inner_step_with_the_capture_after_the_step() -> None:
    """The same values leave as where inner-step answers at the boundary that follows."""
    task = SmallTask()
    parts = fragments_of(task, 1)
    lock_step = LockStep(
        task, fragments=parts, report_every=9, overlap=1, run=RunTerms(tokens=99, evaluations=20, learners=1)
    )
    inner_step = InnerStep(task, fragments=parts)
    batches = [task.batch(At(0, 0, position)) for position in range(2)]
    captured = []
    for body in (lock_step, inner_step):
        body.open(Context())
    begin = {("syncer/0", 0): update(parts[0], 0, 0.5)}
    for firing in (lock_step(None, None, update=begin), inner_step(None, update=begin)):
        _drained(firing)
    assert not lock_step.is_idle
    permit = {"updates": [], "pulls": [pull(0, 1)], "trains": True}
    captured += [value for port, value in _drained(lock_step(batches[0], permit)) if port == "fragment"]
    _drained(inner_step(batches[0]))
    captured += [
        value
        for port, value in _drained(inner_step(batches[1], pull={("syncer/0", 0): pull(0, 1)}))
        if port == "fragment"
    ]
    ours, theirs = captured
    assert bytes(memoryview(ours["values"])) == bytes(memoryview(theirs["values"]))
    assert (ours["begin"], ours["end"], ours["steps"]) == (theirs["begin"], theirs["end"], theirs["steps"]) == (0, 8, 1)


def _drained(firing: Any) -> list[tuple[str, Any]]:
    emitted: list[tuple[str, Any]] = []
    while True:
        try:
            emitted += next(firing)
        except StopIteration as end:
            return [*emitted, *end.value]

"""What a shard knows of learners, beside a roster that looks through all of them each time."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.syncer.schedule import MISSES_MAX, LearnerRoster
from tests.effort import examples

PHASES = ("ready", "stepping", "final")
LISTS = ("live", "stepping", "finishing")


def report(slot: int, incarnation: int = 1, phase: str = "stepping", step_time: int = 5) -> Any:
    return {
        "slot": slot,
        "incarnation": incarnation,
        "phase": phase,
        "step": 0,
        "step_time": step_time,
        "delay_steps": 1,
        "epochs": [1, 0],
    }


def lists(roster: LearnerRoster) -> list[list[Any]]:
    return [getattr(roster, name)() for name in LISTS]


def test_lists_are_the_same_objects_until_a_life_begins_changes_its_phase_or_is_gone() -> None:
    roster = LearnerRoster()
    roster.record(report(1))
    roster.record(report(0))
    before = lists(roster)
    roster.record(report(1, step_time=7))
    assert all(now is then for now, then in zip(lists(roster), before, strict=True))
    assert [learner.step_time for learner in roster.stepping()] == [5, 7]
    for change in (report(1, phase="final"), report(1, 2), report(2)):
        before = lists(roster)
        roster.record(change)
        assert not any(now is then for now, then in zip(lists(roster), before, strict=True))
    for _ in range(MISSES_MAX):
        before = lists(roster)
        is_gone = roster.miss(0, 1)
    assert is_gone
    assert lists(roster)[0] is not before[0]


events = st.one_of(
    st.tuples(st.just("hear"), st.integers(0, 3), st.integers(1, 3), st.sampled_from(PHASES)),
    st.tuples(st.just("miss"), st.integers(0, 3), st.integers(1, 3), st.none()),
)


@settings(max_examples=examples(300))
@given(st.lists(events, max_size=40))
def test_lists_are_what_the_last_reports_say(told: list[tuple[str, int, int, Any]]) -> None:
    roster, known = LearnerRoster(), dict[int, tuple[int, str, int]]()
    for kind, slot, incarnation, phase in told:
        own = known.get(slot, (0, "", 0))
        if kind == "hear":
            roster.record(report(slot, incarnation, phase))
            known |= {slot: (incarnation, phase, 0)} if incarnation >= own[0] else {}
        else:
            roster.miss(slot, incarnation)
            known |= {slot: (*own[:2], min(own[2] + 1, MISSES_MAX))} if incarnation == own[0] else {}
        live = {slot for slot, (_, _, misses) in known.items() if misses < MISSES_MAX}
        stepping = sorted(slot for slot in live if known[slot][1] == "stepping")
        finishing = sorted(slot for slot, (_, phase, _) in known.items() if phase != "ready")
        found = [[learner.slot for learner in each] for each in lists(roster)]
        assert found == [sorted(live), stepping, finishing]
        assert [learner.slot for learner in roster.holding(0)] == sorted(live)
        assert roster.holding(1) == []
        assert roster.live_slots() == live

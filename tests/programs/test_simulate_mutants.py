"""Does the simulator find bugs? Variants of the code that are broken on purpose, each caught by the first seed of 0 to
199 that catches it. `make soak` searches them anew."""

from __future__ import annotations

import pytest

from isthmus.programs.simulate import run
from tests.programs import mutants
from tests.programs.mutants import MUTANTS, SEEDS, violation_of

CAUGHT = {
    "quorum_off_by_one": (0, "is open with nobody to wait for"),
    "counters_not_reset": (0, "(merged, overlapped, refused, lost, pending) of"),
    "pulls_before_updates": (0, "had come before the pull"),
    "without_fencing": (95, "publishes other bytes as version"),
    "connection_number_ignored": (4, "takes connection"),
    "merged_as_they_arrive": (0, "are not in slot order, once each"),
    "stale_incarnation_accepted": (7, "and was told of incarnation"),
    "credit_leaked": (6, "not over after"),
    "item_credit_leaked": (7, "a credit of edge"),
    "final_phase_skipped": (0, "not over after"),
    "strangers_dropped": (1, "whom it does not know"),
    "end_told_once": (7, "not over after"),
    "numbers_not_noted": (29, "cannot know syncer/0#1"),
    "adopted_at_once": (7, "cannot know learner/0#1"),
    "stop_forgotten": (180, "somebody was told that it stops"),
    "late_orders_obeyed": (44, "cannot know syncer/0#1"),
    "lost_machine_waited_for": (37, "is killed, and no fault was about it"),
    "stopped_hosts_killed": (37, "is killed, and no fault was about it"),
    "ledger_believed": (46, "is started a second time"),
    "model_begun_anew": (59, "anew, which was merged"),
    "equal_weights": (0, "has the weight"),
    "oldest_recovered": (25, "it goes on from there, and was given"),
}


def test_every_variant_is_replayed() -> None:
    assert CAUGHT.keys() == {broken.__name__ for broken, _ in MUTANTS}
    assert all(seed < SEEDS for seed, _ in CAUGHT.values())


@pytest.mark.parametrize(("broken", "program"), MUTANTS, ids=[broken.__name__ for broken, _ in MUTANTS])
def test_what_is_broken_is_caught(broken: mutants.Break, program: str) -> None:
    seed, told = CAUGHT[broken.__name__]
    violation = violation_of(broken, seed, program)
    assert violation is not None
    assert told in violation
    assert run(seed, program).violation is None

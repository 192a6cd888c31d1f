"""Does the simulator find bugs? Variants of the code that are broken on purpose, each caught by a seed of 0 to
299. `make soak` searches them anew."""

from __future__ import annotations

from functools import cache

import pytest

from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from tests.effort import long
from tests.programs.wings.simulation import mutants
from tests.programs.wings.simulation.mutants import MUTANTS, SEEDS, outcome, violation_of

CAUGHT = {
    "quorum_off_by_one": (0, "is open, and awaits no vote"),
    "counters_not_reset": (0, "(merged, overlapped, refused, lost, pending) of"),
    "pulls_before_updates": (0, "had come before the pull"),
    "without_fencing": (13, "the books disagree"),
    "connection_number_ignored": (27, "takes connection"),
    "merged_as_they_arrive": (3, "expected a slot for each, ascending"),
    "stale_incarnation_accepted": (7, "and was told of incarnation"),
    "credit_leaked": (41, "not over after"),
    "item_credit_leaked": (10, "a credit of edge"),
    "final_phase_skipped": (4, "not over after"),
    "strangers_dropped": (1, "whom it does not know"),
    "end_told_once": (25, "the run has failed: Unserved"),
    "adopted_at_once": (8, "is back, which had gone"),
    "late_orders_obeyed": (198, "is given up after"),
    "lost_machine_waited_for": (37, "is killed, and no fault was about it"),
    "stopped_hosts_killed": (37, "is killed, and no fault was about it"),
    "ledger_believed": (46, "is started a second time"),
    "model_begun_anew": (124, "anew, which was merged"),
    "equal_weights": (4, "has the weight"),
    "oldest_recovered": (33, "it goes on from there, and was given"),
    "recovered_from_the_first": (19, "without waiting for"),
    "recovered_from_one": (33, "without asking"),
    "work_since_dropped": (7, "what it had trained is lost"),
    "merged_twice": (0, "more tokens of slot"),
    "weights_of_tokens": (4, "has the weight"),
    "weights_of_steps": (4, "has the weight"),
    "forgotten_kept": (4, "which was said to be gone"),
    "window_ignored": (7, "a window holds"),
    "window_ignored_by_both": (7, "a window holds"),
    "joiner_not_in_the_final_round": (38, "ends fragment"),
    "newcomer_not_in_the_final_round": (9, "ends fragment"),
    "begun_from_zero": (9, "has trained from batch 0 on what is merged"),
    "begun_after_one_fragment": (9, "on what is merged; lives before it up to"),
    "begun_after_one_shard": (98, "on what is merged; lives before it up to"),
    "early_end_forgotten": (13, "not over after"),
    "superseded_home_goes_on": (2, "not over after"),
    "roster_once_for_each_replica": (4, "not over after"),
    "refused_start_forgotten": (6, "not over after"),
}

QUICK = {
    *("quorum_off_by_one", "counters_not_reset", "pulls_before_updates", "merged_as_they_arrive", "end_told_once"),
    *("stale_incarnation_accepted", "lost_machine_waited_for", "ledger_believed"),
    *("equal_weights", "merged_twice", "window_ignored", "begun_from_zero", "begun_after_one_fragment"),
    *("connection_number_ignored", "credit_leaked", "item_credit_leaked", "strangers_dropped"),
    *("refused_start_forgotten", "superseded_home_goes_on"),
}
"""Those that `make test` tries: of each mechanism one, among them those that its own tests do not notice."""
VARIANTS = [
    pytest.param(broken, program, id=broken.__name__, marks=[] if broken.__name__ in QUICK else [pytest.mark.soak])
    for broken, program in MUTANTS
]


def test_every_variant_is_replayed() -> None:
    assert CAUGHT.keys() == {broken.__name__ for broken, _ in MUTANTS}
    assert all(seed < SEEDS for seed, _ in CAUGHT.values())


@cache
def is_sound(seed: int, program: str) -> bool:
    """Whether a seed objects to nothing in the code as it is: several variants are caught by one seed."""
    return outcome(seed, program).violation is None


@pytest.mark.long
@pytest.mark.parametrize(("broken", "program"), VARIANTS)
def test_what_is_broken_is_caught(broken: mutants.Break, program: str) -> None:
    seed, told = CAUGHT[broken.__name__]
    violation = violation_of(broken, seed, program)
    assert violation is not None
    assert told in violation
    assert is_sound(seed, program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "shape", "ends", "told"),
    [
        (mutants.stop_forgotten, mutants.NOTED_STOP, "stopped", "after a host was told that it stops"),
        long(mutants.condemned_kept_by_outposts, mutants.HUNG, "done", "was condemned 1"),
        (mutants.noted_after_the_start, mutants.BEGUN, "done", "is started a second time"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_no_seed_catches_is_caught_by_a_scenario(
    broken: mutants.Break, shape: Shape, ends: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = outcome_of(shape)
    assert (sound.violation, sound.outcome, sound.missed) == (None, ends, [])
    broken(monkeypatch)
    assert told in str(outcome_of(shape).violation)


@pytest.mark.long
@pytest.mark.slow
def test_a_home_that_acts_before_it_has_begun_replaces_hosts_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(outcome: Outcome) -> list[str]:
        assert (outcome.violation, outcome.outcome, outcome.missed) == (None, "stopped", [])
        return [life for life in outcome.lives if not life.endswith("#1")]

    assert replaced(outcome_of(mutants.EARLY_STOP)) == []
    mutants.heard_before_it_has_begun(monkeypatch)
    assert replaced(outcome_of(mutants.EARLY_STOP))

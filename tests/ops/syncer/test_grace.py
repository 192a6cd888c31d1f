"""The arithmetic of grace: typical delays, slack and the window, fairness and its deadlines, in closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.syncer.terms import OBSERVATIONS, Delays, Fairness, Spread, Typical, grace, slack, slowest_step

# -- delays, slack and grace -----------------------------------------------------------------------------------------


def test_a_delay_is_the_median_of_the_last():
    typical = Typical()
    assert (typical.value, typical.is_known) == (0, False)
    typical.observe(500)
    assert (typical.value, typical.is_known) == (500, True)
    for _ in range(OBSERVATIONS):
        typical.observe(10)
    for _ in range(OBSERVATIONS // 2):
        typical.observe(900)
    assert typical.value == 10, "so many rounds of a stall change nothing"
    typical.observe(900)
    assert typical.value == 900


def test_a_spread_follows_rfc_6298():
    spread = Spread.of(100)
    assert (spread.mean, spread.deviation, spread.deadline()) == (100, 50, 300)
    spread.observe(180)
    assert (spread.mean, spread.deviation) == (100 * 7 / 8 + 180 / 8, 50 * 3 / 4 + 80 / 4)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], 0),
        ([0, 0], 0),
        ([10], 10),
        ([10, 10, 12, 17], 17),
        ([10, 10, 10, 21], 10),  # More than twice the median of 10.
        ([10, 10, 10, 20], 20),
        ([0, 10, 30], 30),  # The unknown one does not count: the median is 20.
    ],
)
def test_the_slowest_step_is_within_twice_the_median(times, expected):
    assert slowest_step(times) == expected


def test_slack_and_grace_in_closed_form():
    assert slack(2, 1_000_000, 300_000, 200_000) == 1_500_000
    assert grace(0.8, 1_500_000.0) == 1_200_000
    assert grace(0.8, -1.0) == 0


@given(st.floats(0, 0.99), st.floats(-1e12, 1e12))
def test_grace_is_never_negative_nor_above_gamma_slack(gamma, room):
    found = grace(gamma, room)
    assert isinstance(found, int)
    assert 0 <= found <= max(0.0, gamma * room)
    assert found > gamma * room - 1


def test_sync_is_publication_and_half_the_transfer():
    """Quorum after 30, closed 20 later, published 6 after that; learners see 4 steps of 16: 56 without the rounding.

    The median learner's answer waits 10 of the 20; 56 - 10 - 6 = 40 are the two ways.
    """
    delays = Delays()
    delays.observe(1000, 1030, 1050, 1056, is_usual=True)
    assert delays.sync == 6
    delays.observe_answered([(4, 16), (0, 16), (9, 0)])
    assert delays.transfer == 40
    assert delays.sync == 6 + 20
    assert delays.round_trip == 30 + 26
    delays.observe_answered([(100, 16)])
    delays.observe_answered([(100, 16)])
    assert delays.round_trip == delays.answered.value - 10, "what learners see counts where it is longer"


def test_a_delay_shorter_than_its_parts_is_no_negative_transfer():
    delays = Delays()
    delays.observe(0, 30, 50, 56, is_usual=True)
    delays.observe_answered([(1, 2)])
    assert (delays.transfer, delays.sync) == (0, 6)


def test_a_round_that_waited_for_everybody_says_nothing_about_the_quorum():
    delays = Delays()
    delays.observe(0, 9_000_000, 9_000_000, 9_000_004, is_usual=False)
    assert delays.quorum.value == 0
    delays.observe(0, 30, 30, 34, is_usual=True)
    assert (delays.quorum.value, delays.sync) == (30, 4)


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_left_out_four_times_in_a_row_of_one_fragment():
    fairness = Fairness()
    for _ in range(3):
        fairness.observe(0, [0], [1], [], 10)
        fairness.observe(5, [0], [1], [], 10)
    assert fairness.required(0, [0, 1]) == []
    fairness.observe(0, [0], [1], [], 10)
    assert fairness.required(0, [0, 1]) == [1]
    assert fairness.required(5, [0, 1]) == []
    assert fairness.required(0, [0]) == [], "not a member"
    fairness.observe(0, [0, 1], [], [1], 40)
    assert fairness.required(0, [0, 1]) == []


def test_an_answer_in_between_starts_the_count_anew():
    fairness = Fairness()
    for answered, left_out in (([], [1]), ([], [1]), ([], [1]), ([1], []), ([], [1])):
        fairness.observe(0, answered, left_out, [], 10)
    assert fairness.required(0, [1]) == []


def left_out_until_required(fairness, fragment, slot, took=10):
    """How many rounds leave `slot` out before the next would wait for it."""
    count = 0
    while not fairness.required(fragment, [slot]):
        fairness.observe(fragment, [], [slot], [], took)
        count += 1
    return count


def test_one_that_misses_its_deadline_is_waited_for_half_as_often_until_it_answers():
    fairness = Fairness()
    assert left_out_until_required(fairness, 0, 1) == 4
    fairness.observe(0, [], [1], [1], 80)
    assert fairness.deadline([1], 1000, 2, 24) == 160 + 4 * 80, "booked as twice the wait"
    assert left_out_until_required(fairness, 0, 1) == 8
    assert left_out_until_required(fairness, 5, 1) == 8, "of every fragment"
    for _ in range(20):
        fairness.observe(0, [], [1], [1], 80)
    assert left_out_until_required(fairness, 0, 1) == 256
    fairness.observe(0, [1], [], [1], 80)
    assert left_out_until_required(fairness, 0, 1) == 4


def test_a_new_life_owes_nothing():
    fairness = Fairness()
    for _ in range(4):
        fairness.observe(0, [1], [2], [], 10)
    fairness.forget(2)
    assert fairness.required(0, [1, 2]) == []
    assert fairness.deadline([1], 1000, 2, 24) == math.floor(10 + 4 * 5 * (3 / 4) ** 3)
    fairness.forget(1)
    assert fairness.deadline([1], 1000, 2, 24) == 4 * 2 * 1000


def test_deadlines_learned_unknown_and_bounded():
    fairness = Fairness()
    fairness.observe(0, [1], [], [], 100)
    assert fairness.deadline([], 50, 2, 24) is None
    assert fairness.deadline([1], 50, 2, 24) == 300
    assert fairness.deadline([1, 2], 50, 2, 24) == 400, "the latest of 300 and 4 tau steps"
    assert fairness.deadline([2], 50, 8, 24) == 1200, "at most one interval of the slowest"

"""Who is cut off: heartbeats come, and data does not."""

from __future__ import annotations

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import CutOff, Reached, Unreached
from isthmus.runtime.supervision.liveness import CUT_OFF_BEATS, FAR_BEATS, HURRY_BEATS, TOLD_BEATS, Findings, Reach
from isthmus.runtime.supervision.messages import Heartbeat, Missing

LEARNERS = [Member(Replica("learner", slot), 1) for slot in range(3)]
SYNCER = Member(Replica("syncer", 0), 1)
WELL = dict.fromkeys([*LEARNERS, SYNCER], Heartbeat(peers=3))
BEAT_NS = 500_000_000


def without(*members: Member) -> dict[Member, Heartbeat]:
    """What all say while these have no connection, and the others lack one to each of them."""
    return {member: Heartbeat(peers=3, unreached=3 if member in members else min(2, len(members))) for member in WELL}


def test_one_that_reaches_none_is_told_and_then_condemned() -> None:
    reach = Reach()
    for beat in range(1, CUT_OFF_BEATS + 1):
        found = reach.beat(without(LEARNERS[1]), is_hurried=False)
        assert found.written == ([(LEARNERS[1], CutOff(3))] if beat == TOLD_BEATS else [])
        assert found.condemned == (
            [(LEARNERS[1], Unreached(CUT_OFF_BEATS * BEAT_NS, 3))] if beat == CUT_OFF_BEATS else []
        )
        assert reach.is_cut_off(LEARNERS[1]) == (beat >= TOLD_BEATS)


def test_one_whose_way_leads_through_a_bucket_is_given_more_time() -> None:
    reach, far = Reach(), {LEARNERS[1]}
    for beat in range(1, FAR_BEATS + 1):
        found = reach.beat(without(LEARNERS[1]), is_hurried=False, far=far)
        assert bool(found.written) == (beat == FAR_BEATS // 2)
        assert bool(found.condemned) == (beat == FAR_BEATS)
        assert reach.is_cut_off(LEARNERS[1]) == (beat >= FAR_BEATS // 2)


def test_the_next_life_is_given_twice_the_time() -> None:
    reach = Reach()
    reach.ended(LEARNERS[1].replica)
    found = [reach.beat(without(LEARNERS[1]), is_hurried=False).condemned for _ in range(2 * CUT_OFF_BEATS)]
    assert found == [*[[]] * (2 * CUT_OFF_BEATS - 1), [(LEARNERS[1], Unreached(2 * CUT_OFF_BEATS * BEAT_NS, 3, 2))]]


def test_the_last_rounds_wait_for_a_learner_for_a_short_time_and_for_no_other_role() -> None:
    reach = Reach()
    for beat in range(1, HURRY_BEATS + 1):
        condemned = reach.beat(without(LEARNERS[2]), is_hurried=True).condemned
        assert bool(condemned) == (beat == HURRY_BEATS)
    reach = Reach()
    assert not any(reach.beat(without(SYNCER), is_hurried=True).condemned for _ in range(CUT_OFF_BEATS - 1))


def test_lives_that_know_nobody_yet_do_not_tell_that_the_network_is_sound() -> None:
    """All that it talks with have just begun again: it is not at fault that they do not hear it yet."""
    reach, begun = Reach(), dict.fromkeys((*LEARNERS[1:], SYNCER), Heartbeat())
    for _ in range(CUT_OFF_BEATS):
        found = reach.beat({LEARNERS[0]: Heartbeat(peers=3, unreached=3), **begun}, is_hurried=True)
        assert (found.written, found.condemned) == ([], [])


def test_one_that_is_reached_again_begins_anew() -> None:
    reach = Reach()
    for _ in range(CUT_OFF_BEATS - 1):
        reach.beat(without(LEARNERS[0]), is_hurried=False)
    found = reach.beat(WELL, is_hurried=False)
    assert found.written == [(LEARNERS[0], Reached((CUT_OFF_BEATS - 1) * BEAT_NS))]
    assert not reach.is_cut_off(LEARNERS[0])
    assert reach.beat(without(LEARNERS[0]), is_hurried=False).condemned == []


def test_one_that_is_reached_before_anybody_was_told_says_nothing() -> None:
    reach = Reach()
    for _ in range(TOLD_BEATS - 1):
        reach.beat(without(LEARNERS[0]), is_hurried=False)
    assert reach.beat(WELL, is_hurried=False).written == []


def test_where_half_of_all_reach_none_the_network_is_at_fault() -> None:
    reach = Reach()
    for _ in range(2 * CUT_OFF_BEATS):
        found = reach.beat(without(LEARNERS[0], SYNCER), is_hurried=False)
        assert found.written == found.condemned == []


def test_a_host_without_peers_and_one_that_is_silent_are_not_cut_off() -> None:
    reach = Reach()
    alone = {**WELL, LEARNERS[0]: Heartbeat()}
    assert not any(reach.beat(alone, is_hurried=False).condemned for _ in range(CUT_OFF_BEATS + 1))
    silent = {member: said for member, said in without(LEARNERS[0]).items() if member != LEARNERS[0]}
    assert not any(reach.beat(silent, is_hurried=False).condemned for _ in range(CUT_OFF_BEATS + 1))


def test_one_whose_only_peer_is_silent_for_the_home_too_is_not_at_fault() -> None:
    """As the learners of a region whose shard is on a dark machine, among others that reach theirs."""
    dark, reach = Member(Replica("region", 0), 1), Reach()
    waiting = Heartbeat(peers=1, unreached=1, missing=(Missing(dark),))
    heard = {**WELL, LEARNERS[1]: waiting}
    for _ in range(2 * CUT_OFF_BEATS):
        assert reach.beat(heard, is_hurried=True) == Findings()
    # Once its peer is heard, and it does not reach it, it is.
    found = [reach.beat({**heard, dark: Heartbeat(peers=3)}, is_hurried=True).condemned for _ in range(HURRY_BEATS)]
    assert [bool(each) for each in found] == [*[False] * (HURRY_BEATS - 1), True]

"""Replicas that the run cannot do without, and that serve nobody: for how long that is borne."""

from __future__ import annotations

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.liveness import LAST_BEATS, UNSERVED_BEATS, Service, UnservedReplica
from isthmus.runtime.supervision.messages import Heartbeat, Missing

LEARNERS = [Member(Replica("learner", slot), 1) for slot in range(2)]
SYNCER, RECORDER = Member(Replica("syncer", 0), 1), Member(Replica("recorder", 0), 1)
NEEDED = [SYNCER.replica, RECORDER.replica]
WELL = {member: Heartbeat(peers=3) for member in (*LEARNERS, SYNCER, RECORDER)}
BEAT_NS = 500_000_000


def without(*missing: Member) -> dict[Member, Heartbeat]:
    """What all say while the recorder has no connection with these."""
    return {**WELL, RECORDER: Heartbeat(peers=4, unreached=len(missing), missing=tuple(map(Missing, missing)))}


def beats_until_unserved(said: dict[Member, Heartbeat], *, is_hurried: bool = False) -> tuple[int, Replica] | None:
    service = Service()
    for beat in range(1, UNSERVED_BEATS + 1):
        found = service.beat(NEEDED, said, is_hurried=is_hurried)
        if found is not None:
            assert found == UnservedReplica(found.replica, beat * BEAT_NS)
            return beat, found.replica
    return None


def test_nothing_is_said_of_who_serves() -> None:
    assert beats_until_unserved(WELL) is None
    assert beats_until_unserved(WELL, is_hurried=True) is None
    assert beats_until_unserved(without(LEARNERS[0])) is None, "one learner is enough to hear of the end"


def test_one_without_a_life_is_waited_for_ten_minutes_and_a_minute_at_the_end() -> None:
    for gone in (RECORDER, SYNCER):
        left = {member: said for member, said in WELL.items() if member != gone}
        assert beats_until_unserved(left) == (UNSERVED_BEATS, gone.replica)
        assert beats_until_unserved(left, is_hurried=True) == (LAST_BEATS, gone.replica)


def test_a_recorder_without_the_syncer_or_any_learner_does_not_serve() -> None:
    for missing in ([SYNCER], LEARNERS, [*LEARNERS, SYNCER]):
        assert beats_until_unserved(without(*missing), is_hurried=True) == (LAST_BEATS, RECORDER.replica)


def test_a_recorder_serves_without_a_region_that_is_cut_off_but_not_without_all_of_them() -> None:
    regions = [Member(Replica("region", slot), 1) for slot in range(2)]
    needed = [*NEEDED, *(each.replica for each in regions)]
    said = WELL | {member: Heartbeat(peers=3) for member in regions}
    for missing, lasts in ((regions[:1], None), (regions, UnservedReplica(RECORDER.replica, LAST_BEATS * BEAT_NS))):
        heard = {**said, RECORDER: Heartbeat(peers=6, unreached=len(missing), missing=tuple(map(Missing, missing)))}
        service = Service()
        for _ in range(LAST_BEATS):
            found = service.beat(needed, heard, is_hurried=True, group_role="region")
        assert found == lasts


def test_who_is_cut_off_does_not_serve() -> None:
    said = {**WELL, SYNCER: Heartbeat(peers=3, unreached=3)}
    assert beats_until_unserved(said) == (UNSERVED_BEATS, SYNCER.replica)


def test_the_count_begins_anew_with_any_service() -> None:
    service = Service()
    for _ in range(3):
        for _ in range(LAST_BEATS - 1):
            assert service.beat(NEEDED, without(SYNCER), is_hurried=True) is None
        assert service.beat(NEEDED, WELL, is_hurried=True) is None


def test_what_was_borne_before_the_end_does_not_count_at_the_end() -> None:
    service = Service()
    for _ in range(UNSERVED_BEATS - LAST_BEATS - 1):
        assert service.beat(NEEDED, without(SYNCER), is_hurried=False) is None
    found = [service.beat(NEEDED, without(SYNCER), is_hurried=True) is not None for _ in range(LAST_BEATS)]
    assert found == [*[False] * (LAST_BEATS - 1), True]

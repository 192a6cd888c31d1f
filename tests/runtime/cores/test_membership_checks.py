"""What stories of the membership core leave open: counts, limits of options, excuses, and what `check` finds broken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.membership_core import MembershipCore, MembershipOptions
from isthmus.runtime.cores.membership_messages import (
    AdmitMember,
    Excused,
    ExcuseEnded,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    LongExcuse,
    MembershipEvent,
    MembershipTimerFired,
    NoteMember,
    Refused,
    RemoveMember,
    SetMembershipTimer,
    Silence,
    SilenceExcused,
    Suspected,
)
from isthmus.runtime.cores.membership_suspicion import phi, quantile
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.ids import Member, Replica

FIRST, SECOND = Replica("learner", 0), Replica("learner", 1)


def core_at(at: int, *events: MembershipEvent) -> MembershipCore:
    """A core of three slots that was told of all this at one instant."""
    core = MembershipCore(MembershipOptions(slots_max={"learner": 3}, deviation_first=milliseconds(500)))
    tell(core, at, *events)
    return core


def tell(core: MembershipCore, at: int, *events: MembershipEvent) -> None:
    for event in events:
        core.handle(event, Instant(at))
        core.check()


def hello(slot: int, incarnation: int = 1) -> HostAnnounced:
    return HostAnnounced(life(slot, incarnation), "starting")


def beat(slot: int, incarnation: int = 1) -> HeartbeatArrived:
    return HeartbeatArrived(life(slot, incarnation), "starting")


def excuse(slot: int) -> SilenceExcused:
    return SilenceExcused(life(slot), "stopped")


def life(slot: int, incarnation: int = 1) -> Member:
    return Member(Replica("learner", slot), incarnation)


def test_statistics_count_what_came_what_it_led_to_and_who_there_is() -> None:
    core = core_at(0)
    assert set(core.statistics().values()) == {0}
    tell(core, 1, hello(0), hello(1), hello(2), hello(0), hello(0), beat(0), beat(1), beat(0, 2), hello(9))
    tell(core, 2, HostEnded(life(8)), HostEnded(life(7)))
    tell(core, 3, excuse(1), ExcuseEnded(life(1)), beat(1), excuse(1), ExcuseEnded(life(1)), beat(1))
    tell(core, seconds(3), MembershipTimerFired())
    tell(core, seconds(4), MembershipTimerFired())
    tell(core, seconds(4), HostEnded(life(2)), hello(2, 2), hello(2, 3), excuse(2))
    assert core.statistics() == {
        "members admitted": 5,
        "members removed": 2,
        "members refused": 2,
        "suspicions": 4,
        "suspicions cleared": 2,
        "silences excused": 2,
        "slow": 0,
        "slow no more": 0,
        "stuck": 0,
        "heartbeats": 4,
        "announcements repeated": 2,
        "ends ignored": 2,
        "timers": 2,
        "members": 3,
        "suspects": 1,
    }


@pytest.mark.parametrize(
    ("corrupt", "broken"),
    [
        (
            lambda core: core._newest.update({Replica("learner", 9): 1}),
            "membership: learner/9 is known and has no slot",
        ),
        (lambda core: core._hosts.update({FIRST: core._hosts[SECOND]}), "learner/1#1 is kept as learner/0"),
        (lambda core: core._newest.update({FIRST: 2}), "learner/0#1 is live, the newest incarnation is 2"),
        (lambda core: core._newest.pop(FIRST), "learner/0#1 is live, the newest incarnation is None"),
        (lambda core: setattr(core._hosts[FIRST], "phase", "gone"), "learner/0#1 is live in phase gone"),
        (lambda core: setattr(core._hosts[FIRST], "heard_at", Instant(8)), "learner/0#1 was heard at 8 ns, after 7 ns"),
        (lambda core: setattr(core._hosts[FIRST].rhythm, "mean", -1.0), r"learner/0#1 has -1.0 ns, 2.5e\+17 ns\^2"),
        (lambda core: setattr(core._hosts[FIRST].rhythm, "variance", -1.0), "learner/0#1 has 1000000000.0 ns, -1.0 ns"),
        (
            lambda core: setattr(core, "_timer_at", Instant(10**12)),
            "learner/0#1 is due at .*, the timer is at 10{12} ns",
        ),
        (
            lambda core: core._counts.update({"members admitted": 3}),
            "2 members live or removed, not as many as admitted",
        ),
    ],
)
def test_check_finds_a_broken_rule(corrupt: Any, broken: str) -> None:
    core = core_at(7, hello(0), hello(1))
    corrupt(core)
    with pytest.raises(InvariantError, match=broken):
        core.check()


def test_a_phase_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    phases = "starting, compiling, stepping, away, serving, recovering, leaving, final, gone"
    with pytest.raises(RemoteProtocolError, match=f"expected a phase, one of {phases}, found 'dreaming'"):
        core_at(0).handle(HostAnnounced(life(0), "dreaming"), Instant(1))  # type: ignore[arg-type]


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_may_be_at_their_limits() -> None:
    for threshold in (0.5, 300.0):
        options = MembershipOptions(slots_max={}, phi_suspect=threshold, phi_gone=threshold, phi_stuck=threshold)
        assert options.z_suspect == options.z_gone == options.z_stuck == quantile(threshold)
    options = MembershipOptions(slots_max={}, phi_suspect=2.0, phi_gone=9.0, phi_stuck=11.0)
    assert (options.z_suspect, options.z_gone, options.z_stuck) == (quantile(2.0), quantile(9.0), quantile(11.0))
    assert MembershipOptions(slots_max={}, deviation_min=Duration(1)).deviation_min == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phi_suspect": 0.49}, "0.5 <= phi_suspect <= phi_gone <= 300, found 0.49 and 12.0"),
        ({"phi_gone": 300.5}, "0.5 <= phi_suspect <= phi_gone <= 300, found 3.0 and 300.5"),
        ({"phi_gone": 2.5}, "0.5 <= phi_suspect <= phi_gone <= 300, found 3.0 and 2.5"),
        ({"phi_stuck": 0.49}, "0.5 <= phi_stuck <= 300, found 0.49"),
        ({"phi_stuck": 300.5}, "0.5 <= phi_stuck <= 300, found 300.5"),
        ({"excused_max": 0}, "excused_max above 0 ns, found 0"),
    ],
)
def test_options_beyond_their_limits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"membership options: expected {message}. Change them."):
        MembershipOptions(slots_max={}, **options)


# -- silence -----------------------------------------------------------------------------------------------------------

SUSPECT = math.ceil(1e9 + quantile(3.0) * 5e8)
GONE = math.ceil(1e9 + quantile(12.0) * 5e8)


def silence(lasting: int, times: int = 1) -> Silence:
    """What is found of a newcomer."""
    return Silence(lasting, 1e9, 5e8, phi(lasting, 1e9, 5e8), times)


def test_a_member_is_late_from_its_deadline_on() -> None:
    core = core_at(5, hello(0))
    assert core.late(Instant(4 + SUSPECT)) == ()
    assert core.late(Instant(5 + SUSPECT)) == (life(0),)
    tell(core, 5 + SUSPECT, MembershipTimerFired())
    assert core.late(Instant(4 + GONE)) == ()
    assert core.late(Instant(5 + GONE)) == (life(0),)
    assert (core.state(FIRST), core.state(SECOND)) == ("suspect", None)


def test_who_has_lost_its_excuse_is_given_as_long_as_a_suspect() -> None:
    core = core_at(5, hello(0), excuse(0))
    tell(core, 5 + SUSPECT, MembershipTimerFired())
    end = Instant(10 * SUSPECT)
    assert core.handle(ExcuseEnded(life(0)), end) == [
        NoteMember(life(0), Suspected()),
        SetMembershipTimer(Instant(end + GONE)),
    ]


def test_a_suspect_that_is_excused_needs_no_nearer_timer() -> None:
    core = core_at(5, hello(0))
    tell(core, 5 + SUSPECT, MembershipTimerFired())
    excused = NoteMember(life(0), Excused("stopped", SUSPECT))
    assert core.handle(excuse(0), Instant(5 + SUSPECT)) == [excused]


def test_a_finding_says_how_long_silence_and_excuse_have_lasted() -> None:
    core = core_at(0, hello(0))
    tell(core, milliseconds(500), excuse(0))
    tell(core, SUSPECT, MembershipTimerFired())
    due = milliseconds(500) + seconds(600)
    found = LongExcuse(due, "stopped", seconds(600))
    assert core.handle(MembershipTimerFired(), Instant(due)) == [RemoveMember(life(0), "silent", found)]


def test_another_excuse_takes_the_place_of_the_first_and_lasts_no_longer() -> None:
    core = core_at(0, hello(0), excuse(0))
    unheard = NoteMember(life(0), Excused("unheard", SUSPECT))
    assert core.handle(SilenceExcused(life(0), "unheard"), Instant(SUSPECT)) == [unheard]
    tell(core, SUSPECT, MembershipTimerFired())
    found = LongExcuse(seconds(600), "unheard", seconds(600))
    assert core.handle(MembershipTimerFired(), Instant(seconds(600))) == [RemoveMember(life(0), "silent", found)]


def test_a_first_life_that_nobody_has_announced_is_refused_for_that() -> None:
    assert core_at(5).handle(beat(0), Instant(6)) == [NoteMember(life(0), Refused("unannounced"))]


def test_every_life_that_was_lost_to_silence_doubles_the_patience_with_the_next() -> None:
    core, now = core_at(0), 0
    for incarnation in (1, 2, 3):
        times = 2 ** (incarnation - 1)
        tell(core, now, hello(0, incarnation))
        tell(core, now + SUSPECT, MembershipTimerFired())
        last = now + math.ceil((1e9 + quantile(12.0) * 5e8) * times)
        assert core.late(Instant(last - 1)) == ()
        assert core.late(Instant(last)) == (life(0, incarnation),)
        found = silence(last - now, times)
        assert core.handle(MembershipTimerFired(), Instant(last)) == [
            RemoveMember(life(0, incarnation), "silent", found)
        ]
        assert core.roster() == ()
        now = last + 1


def test_a_suspicion_says_how_patient_the_next_life_is_met() -> None:
    core = core_at(0, hello(0))
    tell(core, SUSPECT, MembershipTimerFired())
    tell(core, GONE, MembershipTimerFired(), hello(0, 2))
    [suspected, _] = core.handle(MembershipTimerFired(), Instant(GONE + SUSPECT))
    assert suspected == NoteMember(life(0, 2), Suspected(silence(SUSPECT, 2)))


@pytest.mark.parametrize(("silence_max", "is_longest"), [(GONE, True), (GONE + 1, False)])
def test_a_silence_that_ends_patience_may_be_the_longest_that_is_allowed(silence_max: int, is_longest: bool) -> None:
    options = {"slots_max": {"learner": 1}, "deviation_first": milliseconds(500), "silence_max": Duration(silence_max)}
    core = MembershipCore(MembershipOptions(**options))
    tell(core, 0, hello(0))
    tell(core, SUSPECT, MembershipTimerFired())
    [removed] = core.handle(MembershipTimerFired(), Instant(GONE))
    assert removed == RemoveMember(life(0), "silent", Silence(GONE, 1e9, 5e8, phi(GONE, 1e9, 5e8), 1, is_longest))


def test_a_timer_that_nobody_needs_does_no_harm() -> None:
    assert core_at(0).handle(MembershipTimerFired(), Instant(5)) == []


def test_one_timer_is_enough_for_two_deadlines_at_one_instant() -> None:
    core = core_at(5, hello(0))
    assert core.handle(hello(1), Instant(5)) == [AdmitMember(life(1))]


def test_an_excuse_lasts_longer_by_what_this_host_slept_itself() -> None:
    core, slept = core_at(0, hello(0), excuse(0)), seconds(601)
    due = Instant(slept + seconds(600))
    assert core.handle(MembershipTimerFired(), Instant(SUSPECT + slept)) == [SetMembershipTimer(due)]


def test_one_timer_may_find_two_members_gone() -> None:
    core = core_at(0, hello(0), hello(1))
    tell(core, SUSPECT, MembershipTimerFired())
    commands = core.handle(MembershipTimerFired(), Instant(GONE))
    assert commands == [RemoveMember(life(slot), "silent", silence(GONE)) for slot in (0, 1)]

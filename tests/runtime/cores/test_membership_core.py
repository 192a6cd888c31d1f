"""The membership core: whole command lists for chosen stories, the formula, and a state machine against a replay."""

from __future__ import annotations

import copy
import math
from collections import Counter
from statistics import NormalDist
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import astuple

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.membership_core import STATE, MembershipCore, MembershipOptions
from isthmus.runtime.cores.membership_messages import (
    AdmitMember,
    Excused,
    ExcuseEnded,
    Finding,
    HeardAgain,
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    KeepsUp,
    LongExcuse,
    MembershipCommand,
    MembershipEvent,
    MembershipTimerFired,
    NoteMember,
    Pace,
    Phase,
    Refused,
    RemoveMember,
    SetMembershipTimer,
    Silence,
    SilenceExcused,
    SlowHost,
    Stall,
    Suspected,
)
from isthmus.runtime.cores.membership_suspicion import phi, quantile
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.ids import Member, Replica
from tests.effort import examples
from tests.runtime.tape.twin import restored

MS = milliseconds(1)
OPTIONS = MembershipOptions(slots_max={"learner": 3, "syncer": 1})
REGULAR = MembershipOptions(slots_max={"learner": 3}, deviation_first=milliseconds(500))
"""Newcomers are believed regular: mean 1 s and deviation 0.5 s, suspect after 2545.2 ms and gone after 4517.3 ms."""
FIRST, LAST = (math.ceil(1e9 + quantile(threshold) * 5e8) for threshold in (3.0, 12.0))
"""The two, in nanoseconds."""


def life(number: int, incarnation: int = 1, role: str = "learner") -> Member:
    return Member(Replica(role, number), incarnation)


def hello(number: int, incarnation: int = 1, phase: Any = "starting", role: str = "learner") -> HostAnnounced:
    return HostAnnounced(life(number, incarnation, role), phase)


def beat(number: int, incarnation: int = 1, phase: Any = "stepping") -> HeartbeatArrived:
    return HeartbeatArrived(life(number, incarnation), phase)


def silence(lasting: int, **more: Any) -> Silence:
    """What is found of a newcomer that is believed regular."""
    return Silence(lasting, 1e9, 5e8, phi(lasting, 1e9, 5e8), **more)


class Story:
    """A core that is told events at milliseconds."""

    def __init__(self, options: MembershipOptions = REGULAR) -> None:
        self.core = MembershipCore(options)

    def at(self, ms: float, *events: MembershipEvent) -> list[MembershipCommand]:
        commands: list[MembershipCommand] = []
        for event in events:
            commands += self.core.handle(event, Instant(round(ms * MS)))
            self.core.check()
        return commands


# -- admission ---------------------------------------------------------------------------------------------------------


def test_a_newcomer_is_admitted_and_its_deadline_set() -> None:
    story = Story(OPTIONS)
    patience = math.ceil(1e9 + quantile(3.0) * 2e9)
    assert story.at(5, hello(1)) == [AdmitMember(life(1)), SetMembershipTimer(Instant(5 * MS + patience))]
    assert story.at(6, hello(0, 4, "compiling"), hello(0, 1, "serving", "syncer")) == [
        AdmitMember(life(0, 4)),
        AdmitMember(life(0, 1, "syncer")),
    ]
    assert story.core.roster() == (
        (life(0, 4), "compiling", "alive"),
        (life(1), "starting", "alive"),
        (life(0, 1, "syncer"), "serving", "alive"),
    )
    assert story.core.members("learner") == (life(0, 4), life(1))


def test_a_new_incarnation_replaces_the_old_one_which_is_refused_from_then_on() -> None:
    story = Story()
    story.at(0, hello(1, 2))
    assert story.at(1, hello(1, 5)) == [RemoveMember(life(1, 2), "ended"), AdmitMember(life(1, 5))]
    assert story.at(2, beat(1, 2), hello(1, 2)) == [NoteMember(life(1, 2), Refused("older incarnation"))] * 2
    assert story.at(3, HostEnded(life(1, 5)), beat(1, 5), hello(1, 5)) == [
        RemoveMember(life(1, 5), "ended"),
        NoteMember(life(1, 5), Refused("ended incarnation")),
        NoteMember(life(1, 5), Refused("ended incarnation")),
    ]
    assert story.at(4, beat(1, 6)) == [NoteMember(life(1, 6), Refused("unannounced"))]
    assert story.core.statistics()["members refused"] == 5


@pytest.mark.parametrize("stranger", [life(3), life(-1), life(0, role="evaluator")])
def test_a_replica_without_a_slot_is_refused(stranger: Member) -> None:
    story = Story()
    assert story.at(0, HostAnnounced(stranger, "starting")) == [NoteMember(stranger, Refused("no slot"))]
    assert story.at(0, HostEnded(stranger)) == []
    assert story.core.roster() == ()


def test_leaving_by_a_last_heartbeat() -> None:
    story = Story()
    story.at(0, hello(1))
    assert story.at(1, beat(1, phase="gone")) == [RemoveMember(life(1), "ended")]
    assert story.at(1, hello(1, 2, "gone")) == [NoteMember(life(1, 2), Refused("gone"))]


def test_an_end_that_is_known_before_the_host_was_is_remembered() -> None:
    story = Story()
    assert story.at(0, HostEnded(life(1, 3))) == []
    assert story.at(1, hello(1, 3)) == [NoteMember(life(1, 3), Refused("ended incarnation"))]
    story.at(2, hello(1, 4))
    assert story.at(3, HostEnded(life(1, 3))) == []
    assert story.at(4, HostEnded(life(1, 6))) == [RemoveMember(life(1, 4), "ended")]
    assert story.at(5, hello(1, 5)) == [NoteMember(life(1, 5), Refused("older incarnation"))]
    assert story.core.statistics()["ends ignored"] == 2


# -- silence -----------------------------------------------------------------------------------------------------------


def test_silence_makes_suspect_and_then_removes() -> None:
    story = Story()
    first, last = Instant(FIRST), Instant(LAST)
    assert story.at(0, hello(1)) == [AdmitMember(life(1)), SetMembershipTimer(first)]
    suspected = [NoteMember(life(1), Suspected(silence(first))), SetMembershipTimer(last)]
    assert story.at(first / MS, MembershipTimerFired()) == suspected
    assert story.core.roster() == ((life(1), "starting", "suspect"),)
    assert story.at(last / MS, MembershipTimerFired()) == [RemoveMember(life(1), "silent", silence(last))]
    assert story.core.roster() == ()
    assert [silence(at).phi for at in (first, last)] == [pytest.approx(3.0, abs=1e-4), pytest.approx(12.0, abs=1e-4)]


def test_a_heartbeat_clears_suspicion_and_moves_the_deadline_nearer_again() -> None:
    story = Story()
    story.at(0, hello(1))
    assert story.at(2546, MembershipTimerFired()) != []
    commands = story.at(3000, beat(1))
    late = 2546 * MS - FIRST
    assert commands[0] == NoteMember(life(1), HeardAgain(3000 * MS - late))
    assert story.core.roster() == ((life(1), "stepping", "alive"),)
    assert story.core.statistics()["suspects"] == 0


def test_a_timer_that_heartbeats_have_overtaken_is_set_again() -> None:
    story = Story()
    [_, armed] = story.at(0, hello(1))
    assert isinstance(armed, SetMembershipTimer)
    assert story.at(1000, beat(1)) == story.at(2000, beat(1)) == []
    again = Instant(2 * 10**9 + math.ceil(1e9 + quantile(3.0) * 5e8))
    assert story.at(armed.at / MS, MembershipTimerFired()) == [SetMembershipTimer(again)]


def test_a_deadline_that_comes_nearer_moves_the_timer() -> None:
    story = Story(MembershipOptions(slots_max={"learner": 1}, interval_first=seconds(10)))
    story.at(0, hello(0))
    moved = [command for ms in range(10, 500, 10) for command in story.at(ms, beat(0))]
    assert moved
    assert all(isinstance(command, SetMembershipTimer) for command in moved)


def test_a_second_greeting_counts_as_life_but_teaches_no_interval() -> None:
    story = Story()
    story.at(0, hello(1))
    story.at(2546, MembershipTimerFired())
    before = story.core.suspicion(Replica("learner", 1), Instant(2546 * MS))
    assert isinstance(story.at(2600, hello(1, 1, "recovering"))[0], NoteMember)
    assert story.core.roster() == ((life(1), "recovering", "alive"),)
    assert story.core.suspicion(Replica("learner", 1), Instant((2600 + 2545) * MS)) == pytest.approx(before, abs=0.01)


def test_a_host_that_slept_itself_blames_nobody() -> None:
    story = Story()
    [_, armed] = story.at(0, hello(1))
    assert isinstance(armed, SetMembershipTimer)
    assert story.at(60_000, MembershipTimerFired())[:1] == [NoteMember(life(1), Suspected(silence(FIRST)))]
    assert story.at(60_000, beat(1))[0] == NoteMember(life(1), HeardAgain(FIRST))


def test_one_long_silence_does_not_excuse_the_next() -> None:
    options = MembershipOptions(slots_max={"learner": 1}, deviation_first=seconds(60))
    story = Story(options)
    assert story.at(0, hello(0))[1] == SetMembershipTimer(Instant(options.silence_max))
    most = options.silence_max
    longest = Silence(most, 1e9, 6e10, phi(most, 1e9, 6e10), is_longest=True)
    assert story.at(30_000, MembershipTimerFired()) == [RemoveMember(life(0), "silent", longest)]
    stories = Story(), Story()
    for each, ms in zip(stories, (30_000, 90_000), strict=True):
        each.at(0, hello(0))
        each.at(ms, beat(0))
    first, second = stories
    at_five = [Instant((ms + 5000) * MS) for ms in (30_000, 90_000)]
    assert first.core.suspicion(life(0).replica, at_five[0]) == second.core.suspicion(life(0).replica, at_five[1])


@pytest.mark.parametrize(("interval_ms", "floor_ms"), [(200, 500), (1000, 500), (4000, 2000)])
def test_the_deviation_has_a_floor(interval_ms: int, floor_ms: int) -> None:
    regular = MembershipOptions(
        slots_max={"learner": 1}, interval_first=milliseconds(interval_ms), deviation_first=milliseconds(0.001)
    )
    patience = math.ceil(interval_ms * MS + quantile(3.0) * floor_ms * MS)
    assert Story(regular).at(0, hello(0))[1] == SetMembershipTimer(Instant(patience))


def test_the_rhythm_is_learned() -> None:
    fast, slow = Story(), Story()
    for story, interval in ((fast, 200), (slow, 4000)):
        story.at(0, hello(0))
        for number in range(1, 200):
            story.at(number * interval, beat(0))
    assert fast.core.suspicion(Replica("learner", 0), Instant(199 * 200 * MS + 4000 * MS)) > 12
    assert slow.core.suspicion(Replica("learner", 0), Instant(199 * 4000 * MS + 4000 * MS)) < 1


# -- the formula -------------------------------------------------------------------------------------------------------


@given(st.floats(0.5, 300))
def test_the_quantile_solves_phi(threshold: float) -> None:
    assert phi(5.0 + 2.0 * quantile(threshold), 5.0, 2.0) == pytest.approx(threshold, rel=1e-5)
    assert quantile(threshold) == pytest.approx(-NormalDist().inv_cdf(10.0**-threshold), abs=1e-4)


def test_phi_against_known_tails_of_the_normal() -> None:
    assert phi(1.0, 1.0, 0.1) == pytest.approx(math.log10(2))
    assert phi(1.1, 1.0, 0.1) == pytest.approx(-math.log10(0.15865525393145707))
    assert phi(0.0, 1000.0, 1.0) == 0.0
    assert phi(1e6, 1.0, 1.0) == pytest.approx(5e11 / math.log(10), rel=1e-4)
    assert quantile(12.0) == 7.034484


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "ms", "error"),
    [
        (beat(1), 1, LocalProtocolError),
        (beat(1, phase="dreaming"), 5, RemoteProtocolError),
        (hello(2, phase=None), 5, RemoteProtocolError),
        (hello(2, 0), 5, RemoteProtocolError),
        (HeartbeatArrived(life(1), "stepping", steps=-1), 5, RemoteProtocolError),
        (HeartbeatArrived(life(1), "stepping", busy=Duration(-1)), 5, RemoteProtocolError),
        (HeartbeatArrived(life(1), "stepping", firing=Duration(-1)), 5, RemoteProtocolError),
    ],
)
def test_an_illegal_event_raises_and_leaves_the_state_as_it_was(event: Any, ms: int, error: type[Exception]) -> None:
    story = Story()
    story.at(2, hello(1), hello(0), beat(0))
    before = copy.deepcopy(vars(story.core))
    with pytest.raises(error, match="expected"):
        story.at(ms, event)
    assert vars(story.core) == before


@pytest.mark.parametrize(
    "wrong",
    [{"phi_suspect": 13.0}, {"phi_gone": 301.0}, {"phi_stuck": 0.1}, {"deviation_min": 0}, {"silence_max": -1}],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="membership options: expected"):
        MembershipOptions(slots_max={}, **wrong)


def test_check_finds_a_member_without_deadline() -> None:
    story = Story()
    story.at(2, hello(1))
    story.core._timer_at = None
    with pytest.raises(InvariantError, match=r"learner/1#1 is due at .* ns, the timer is at None"):
        story.core.check()


def test_events_and_commands_survive_encoding() -> None:
    story = Story()
    events: list[MembershipEvent] = [
        hello(1),
        hello(1, 2),
        beat(1),
        HostEnded(life(1, 2)),
        SilenceExcused(life(1), "unheard"),
        ExcuseEnded(life(1)),
        MembershipTimerFired(),
    ]
    figures, pace = Silence(9, 2.5, 0.5, 3.25, 4, True), Pace(7.5, 2.5, 3)
    told: list[MembershipCommand] = [
        NoteMember(life(1), Suspected(figures)),
        NoteMember(life(1), Suspected()),
        NoteMember(life(1), Excused("stopped", 9)),
        NoteMember(life(1), HeardAgain(9)),
        NoteMember(life(1), SlowHost(pace)),
        NoteMember(life(1), KeepsUp(pace)),
        RemoveMember(life(1), "silent", figures),
        RemoveMember(life(1), "silent", LongExcuse(9, "unheard", 8)),
        RemoveMember(life(1), "stuck", Stall("inner-step", 9, 2.5, 0.5, 3.25, True, 4)),
    ]
    records = [*events, *story.at(3, *events), *told]
    decode = msgspec.msgpack.Decoder(list[MembershipEvent | MembershipCommand]).decode
    assert decode(msgspec.msgpack.encode(records)) == records


# -- against a naive replay --------------------------------------------------------------------------------------------


ROUNDING = 10
"""Nanoseconds."""
Head = tuple[str, Member, Any]
"""The name of a command, its member, and what it says of it."""


def head_of(command: Any) -> Head:
    """A command about a member, as the replay gives it."""
    member, *told = astuple(command)
    if isinstance(command, NoteMember):
        told = list(astuple(command.incident))[:2]  # An excuse is of a process that the core does not know.
    name = type(getattr(command, "incident", command)).__name__
    return name, member, [astuple(each) if isinstance(each, Finding) else each for each in told]


class Replay:
    """The roster by going through the whole history; a member's rhythm by going through its own signs of life."""

    def __init__(self, options: MembershipOptions, history: list[tuple[MembershipEvent, int, int]]) -> None:
        self.options = options
        self.lives: dict[Replica, int] = {}
        self.signs: dict[Member, list[tuple[str, int]]] = {}
        self.phases: dict[Member, str] = {}
        self.doubts: Counter[Replica] = Counter()
        self.excused: dict[Member, int] = {}
        self.excuses: dict[Member, str] = {}
        self.suspects: list[Member] = []
        self.heads: list[Head] = []
        for event, now, late in history:
            self.heads = []
            self.tell(event, now, late)

    def tell(self, event: MembershipEvent, now: int, late: int) -> None:
        match event:
            case HostAnnounced(member, phase):
                newest = self.lives.get(member.replica, 0)
                has_slot = member.replica.slot in range(self.options.slots_max.get(member.replica.role, 0))
                if has_slot and phase != "gone" and member in self.signs:
                    self.hear(member, phase, "greeting", now)
                elif has_slot and phase != "gone" and member.incarnation > newest:
                    for old in [old for old in self.signs if old.replica == member.replica]:
                        self.remove(old)
                    self.lives[member.replica] = member.incarnation
                    self.signs[member], self.phases[member] = [("greeting", now)], phase
                    self.heads.append(("AdmitMember", member, []))
                else:
                    why = "no slot" if not has_slot else "gone" if phase == "gone" else self.past(member)
                    self.heads.append(("Refused", member, [why]))
            case HeartbeatArrived(member, phase):
                if member not in self.signs:
                    self.heads.append(("Refused", member, [self.past(member)]))
                elif phase == "gone":
                    self.remove(member)
                else:
                    self.hear(member, phase, "beat", now)
            case HostEnded(member):
                if member.replica.slot in range(self.options.slots_max.get(member.replica.role, 0)):
                    self.lives[member.replica] = max(member.incarnation, self.lives.get(member.replica, 0))
                for old in [old for old in self.signs if old.replica == member.replica]:
                    if old.incarnation <= member.incarnation:
                        self.remove(old)
            case SilenceExcused(member, excuse):
                if member in self.signs and self.excuses.get(member) != excuse:
                    self.suspects = [suspect for suspect in self.suspects if suspect != member]
                    self.excused.setdefault(member, now)
                    self.excuses[member] = excuse
                    self.heads.append(("Excused", member, [excuse, now - self.heard(member)]))
            case ExcuseEnded(member):
                if member in self.excused:
                    del self.excused[member], self.excuses[member]
                    self.signs[member].append(("greeting", now))
                    self.suspects.append(member)
                    self.heads.append(("Suspected", member, [None]))
            case MembershipTimerFired():
                for member in sorted(self.signs):
                    self.signs[member].append(("late", min(late, now - self.heard(member))))
                    if member in self.excused:
                        self.excused[member] = min(now, self.excused[member] + late)
                        if now >= self.excused[member] + self.options.excused_max:
                            lasting = now - self.excused[member]
                            self.remove(member, "silent", (now - self.heard(member), self.excuses[member], lasting))
                            self.doubts[member.replica] += 1
                    elif now >= self.deadline(member, self.options.z_gone):
                        self.remove(member, "silent", self.silence(member, now))
                        self.doubts[member.replica] += 1
                    elif member not in self.suspects and now >= self.deadline(member, self.options.z_suspect):
                        self.suspects.append(member)
                        self.heads.append(("Suspected", member, [self.silence(member, now)]))

    def hear(self, member: Member, phase: str, kind: str, now: int) -> None:
        silence = now - self.heard(member)
        # Of an excused silence nothing is learned.
        self.signs[member].append(("greeting" if member in self.excused else kind, now))
        self.phases[member] = phase
        if member in self.suspects or member in self.excused:
            self.excused.pop(member, None)
            self.excuses.pop(member, None)
            self.suspects = [suspect for suspect in self.suspects if suspect != member]
            self.heads.append(("HeardAgain", member, [silence]))

    def remove(self, member: Member, cause: str = "ended", figures: Any = None) -> None:
        del self.signs[member]
        self.excused.pop(member, None)
        self.excuses.pop(member, None)
        self.suspects = [suspect for suspect in self.suspects if suspect != member]
        self.heads.append(("RemoveMember", member, [cause, figures]))

    def past(self, member: Member) -> str:
        """Why a replica with a slot and no such member refuses it."""
        newest = self.lives.get(member.replica, 0)
        if member.incarnation == newest:
            return "ended incarnation"
        return "older incarnation" if member.incarnation < newest else "unannounced"

    def silence(self, member: Member, now: int) -> Any:
        """The fields of the finding."""
        heard, mean, _ = self.rhythm(member)
        lasting, deviation = now - heard, self.deviation(member)
        suspicion = phi(lasting, mean, deviation)
        figures = [pytest.approx(figure, rel=1e-6, abs=1e-6) for figure in (mean, deviation, suspicion)]
        return (lasting, *figures, 1 << min(self.doubts[member.replica], 6), lasting >= self.options.silence_max)

    def heard(self, member: Member) -> int:
        return self.rhythm(member)[0]

    def rhythm(self, member: Member) -> tuple[int, float, float]:
        """When the member was heard, and mean and variance of its intervals as explicitly weighted sums."""
        heard, intervals = 0, []
        for kind, value in self.signs[member]:
            if kind == "beat":
                intervals.append(min(value - heard, self.options.silence_max))
            heard = heard + value if kind == "late" else value
        old = 15 / 16
        count = len(intervals)
        weights = [old**count, *(old ** (count - 1 - index) / 16 for index in range(count))]
        values = [float(self.options.interval_first), *intervals]
        mean = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
        spread = math.fsum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True))
        return heard, mean, spread + weights[0] * float(self.options.deviation_first) ** 2

    def deviation(self, member: Member) -> float:
        _, mean, variance = self.rhythm(member)
        return max(math.sqrt(variance), self.options.deviation_min, mean / 2)

    def deadline(self, member: Member, z: float) -> int:
        heard, mean, _ = self.rhythm(member)
        deviation = self.deviation(member)
        times = 1 << min(self.doubts[member.replica], 6) if z == self.options.z_gone else 1
        # Weighted sums round otherwise than moving averages: a timer that is due exactly must find its deadline over.
        return heard + min(math.ceil((mean + z * deviation) * times), self.options.silence_max) - times * ROUNDING


MEMBERS: Any = {"number": st.integers(-1, 3), "incarnation": st.integers(1, 4)}
PHASES: Any = st.sampled_from(["starting", "stepping", "stepping", "final", "gone"])


class MembershipMachine(RuleBasedStateMachine):
    """Every event goes to the core and into a history; commands and roster must agree with the replay."""

    def __init__(self) -> None:
        super().__init__()
        self.options = MembershipOptions(slots_max={"learner": 3}, silence_max=seconds(12), excused_max=seconds(15))
        self.core = MembershipCore(self.options)
        self.history: list[tuple[MembershipEvent, int, int]] = []
        self.replay = Replay(self.options, [])
        self.now = 0
        self.timer_at: int | None = None

    def tell(self, event: MembershipEvent, passed_ms: int, late: int = 0) -> None:
        self.now += passed_ms * MS
        self.history.append((event, self.now, late))
        commands = self.core.handle(event, Instant(self.now))
        self.replay = Replay(self.options, self.history)
        for command in commands:
            if isinstance(command, SetMembershipTimer):
                assert command.at > self.now
                self.timer_at = command.at
        heads = [head_of(command) for command in commands if not isinstance(command, SetMembershipTimer)]
        assert heads == self.replay.heads

    @rule()
    def restore(self) -> None:
        self.core = restored(STATE, self.core, MembershipCore(self.options))

    @rule(passed=st.sampled_from([0, 300, 900, 2500]), phase=PHASES, **MEMBERS)
    def greet(self, number: int, incarnation: int, phase: Phase, passed: int) -> None:
        self.tell(hello(number, incarnation, phase), passed)

    @rule(which=st.integers(0, 2), passed=st.sampled_from([0, 300, 900, 1100, 4000]), phase=PHASES)
    def live_beat(self, which: int, phase: Phase, passed: int) -> None:
        for member in sorted(self.replay.signs)[which : which + 1]:
            self.tell(HeartbeatArrived(member, phase), passed)

    @rule(**MEMBERS)
    def any_beat(self, number: int, incarnation: int) -> None:
        self.tell(beat(number, incarnation), 100)

    @rule(**MEMBERS)
    def end(self, number: int, incarnation: int) -> None:
        self.tell(HostEnded(life(number, incarnation)), 0)

    @rule(excuse=st.sampled_from(["stopped", "unheard", None]), passed=st.sampled_from([0, 2500]), **MEMBERS)
    def explain(self, number: int, incarnation: int, excuse: Any, passed: int) -> None:
        member = life(number, incarnation)
        self.tell(ExcuseEnded(member) if excuse is None else SilenceExcused(member, excuse), passed)

    @rule(late_ms=st.sampled_from([-400, 0, 0, 0, 1, 900, 20_000]))
    def fire(self, late_ms: int) -> None:
        if self.timer_at is not None:
            due, self.timer_at = self.timer_at, None
            self.now = max(self.now, due + late_ms * MS)
            self.tell(MembershipTimerFired(), 0, max(0, self.now - due))

    @invariant()
    def agrees(self) -> None:
        self.core.check()
        assert [member for member, _, _ in self.core.roster()] == sorted(self.replay.signs)
        for member, phase, state in self.core.roster():
            assert phase == self.replay.phases[member]
            assert (state == "suspect") == (member in self.replay.suspects)
            assert (state if state in ("stopped", "unheard") else None) == self.replay.excuses.get(member)
            if member in self.replay.excused:
                continue
            z = self.options.z_gone if state == "suspect" else self.options.z_suspect
            assert self.timer_at is not None
            assert self.timer_at <= self.replay.deadline(member, z) + 200 * ROUNDING


TestMembershipMachine = MembershipMachine.TestCase
TestMembershipMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)

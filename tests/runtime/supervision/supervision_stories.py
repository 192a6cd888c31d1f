"""Help to tell the cores of supervision a story: short names of lives, and events at seconds.

A life is written 'learner/1#2'; without a number it is the first one. Of those that are wanted, one with an exclamation
mark is condemned, and one with a tilde is not new.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.cores.membership_messages import Phase, Silence
from isthmus.runtime.cores.membership_suspicion import phi, quantile
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import EdgeFlow, Flows, NodeFlow
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    HomeBeat,
    HomeBegan,
    HomeCommand,
    HomeEvent,
    HomeTimerFired,
    Journal,
    NoteJournal,
    Places,
    ReportCame,
    RunRoles,
    SendOrders,
    SetHomeTimer,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import End, Ended, Exited, Incident, Raised, Verdict
from isthmus.runtime.supervision.messages import Gone, Heartbeat, Over, Report, Seen, Stamp, Wanted
from isthmus.runtime.supervision.rosters import RosterDifference, Row
from isthmus.runtime.supervision.station_events import LivesNoted, NoteLives

KILLED: Final = Exited(signal="SIGKILL")
BOOM: Final = Raised("data", "ValueError", "boom", "mine.py", 12)
CRASHED: Final = Exited(1)
CAST: Final = RunRoles(roles={"learner": 2, "syncer": 1, "recorder": 1}, slots_max={"learner": 4}, least={"learner": 1})
PLACES: Final = Places(
    home="alpha",
    machines={Replica("learner", 1): "beta", Replica("syncer", 0): "beta"},
    offers={"beta": ("syncer",), "gamma": ("syncer",)},
    home_offers=("syncer",),
)
SUSPECT, GONE = (math.ceil(0.25e9 + quantile(threshold) * 2e9) / 1e9 for threshold in (3.0, 12.0))
"""The seconds of silence after which a host that has spoken once is suspect, and gone."""
AT_HOME: Final = "learner/0 recorder/0"
ON_BETA: Final = "learner/1 syncer/0"


ANSWER: Final = "send.answer -> merge.answer"
UPDATE: Final = "outer.update -> step.update"
FOUR_LEARNERS: Final = RunRoles(
    roles={"learner": 4, "syncer": 1, "recorder": 1},
    least={"learner": 1},
    edges={ANSWER: ("learner", "syncer"), UPDATE: ("syncer", "learner")},
)


def life(text: str) -> Member:
    """A life."""
    name, _, number = text.partition("#")
    return Member(Replica.parse(name), int(number or 1))


def lives(text: str) -> tuple[Member, ...]:
    """Lives, with spaces between them."""
    return tuple(map(life, text.split()))


def wanted(text: str) -> tuple[Wanted, ...]:
    """Lives that are asked for."""
    return tuple(Wanted(life(each.rstrip("!~")), "!" in each, "~" not in each) for each in text.split())


def endpoints(text: str) -> tuple[str, str]:
    """Where a life listens."""
    name = str(life(text)).replace("/", "-").replace("#", "-")
    return f"tcp://{name}:1", f"tcp://{name}:2"


def said(text: str, phase: Phase = "serving", **more: Any) -> Heartbeat:
    """What a host says of itself: that it listens at endpoints which have the name of its life."""
    return Heartbeat(phase, endpoints(text), **more)


def seen(text: str, beats: int = 1, phase: Phase = "serving", *, pid: int = 4711, **more: Any) -> Seen:
    """A life whose process is there, and has spoken `beats` times."""
    return Seen(life(text), pid, beats, heartbeat=said(text, phase) if beats else Heartbeat(), **more)


def over(text: str, beats: int = 9, error: str | None = None) -> Seen:
    """A recorder that says that all is over."""
    return seen(text, beats, "final", over=Over(error))


NOTHING = Flows()


def gone(
    text: str, end: End = KILLED, error: Raised | None = None, cpu_seconds: float = 0.0, flows: Flows = NOTHING
) -> Gone:
    """A life that has ended."""
    return Gone(life(text), end, error, cpu_seconds, flows)


def rows(text: str) -> tuple[Row, ...]:
    """A roster of hosts that have spoken; 'learner/1@beta' is not at home."""
    members = [(life(each.partition("@")[0]), each.partition("@")[2] or "alpha") for each in text.split()]
    return tuple((str(each.replica), each.incarnation, endpoints(str(each)), machine) for each, machine in members)


def written(text: str, incident: Incident) -> WriteIncident:
    """What happened to a life is written down."""
    return WriteIncident(life(text), incident)


def ended(text: str, end: End = KILLED, verdict: Verdict | None = None, error: Raised | None = None) -> WriteIncident:
    """The end of a life is written down."""
    return written(text, Ended(end, verdict, error))


def journal(**more: Any) -> NoteJournal:
    """The journal is written: where replicas are, as they were placed, in the first epoch, and `more`."""
    placed = (("learner/1", "beta"), ("syncer/0", "beta"))
    return NoteJournal(Journal(**{"machines": placed, "epoch": 1, **more}))


def used(**seconds_used: float) -> dict[str, float]:
    """What ended lives of roles had used, of CPU seconds alone."""
    return {f"{role}.cpu_seconds": value for role, value in seconds_used.items()}


def moved(items: int, waited: int = 0) -> Flows:
    """What a life has moved on edge 3, ten bytes an item, and awaited in its node 1."""
    return Flows((EdgeFlow(3, items, 10 * items, Duration(waited)),), (NodeFlow(1, items, Duration(waited)),))


def silence(seconds_silent: float) -> Silence:
    """What is found of a host that has spoken once."""
    lasting = seconds(seconds_silent)
    return Silence(lasting, 0.25e9, 2e9, phi(lasting, 0.25e9, 2e9))


def without_timers(commands: list[HomeCommand]) -> list[HomeCommand]:
    """The rest: deadlines of silence move with every heartbeat, and are the membership core's."""
    return [command for command in commands if not isinstance(command, SetHomeTimer)]


def in_order(command: HomeCommand) -> HomeCommand:
    """Orders with the rows of rosters by name, and without their marks, which are digests."""
    if not isinstance(command, SendOrders):
        return command
    changes = [msgspec.structs.replace(each, mark=0, rows=tuple(sorted(each.rows))) for each in command.changes]
    return msgspec.structs.replace(command, changes=tuple(changes))


class HomeStory:
    """A home that is told events at seconds. Numbers that it has noted are noted at once, unless `notes` is off, and
    how it goes on then follows in the list of commands."""

    def __init__(
        self,
        cast: RunRoles = CAST,
        places: Places = PLACES,
        *,
        began: HomeBegan | None = None,
        notes: bool = True,
        patience: Duration | None = None,
    ) -> None:
        self.core, self.places = Home(cast, places, patience=patience), places
        self.notes = notes
        self.stamp = Stamp(places.term, 1)
        self.noted: list[Member] = []
        self.begun = self.at(0, HomeBegan() if began is None else began)

    def at(self, now: float, *events: HomeEvent) -> list[HomeCommand]:
        """What events lead to."""
        commands: list[HomeCommand] = []
        waiting = list(events)
        while waiting:
            came = list(map(in_order, self.core.handle(waiting.pop(0), Instant(seconds(now)))))
            self.core.check()
            commands += came
            for command in came:
                if isinstance(command, SendOrders):
                    self.stamp = command.stamp
                if isinstance(command, NoteLives):
                    self.noted += command.members
                    waiting += [LivesNoted(command.members)] if self.notes else []
        return commands

    def does(self, now: float, *events: HomeEvent) -> list[HomeCommand]:
        """The same without timers."""
        return without_timers(self.at(now, *events))

    def hears(self, now: float, machine: str, *told: Seen | Gone) -> list[HomeCommand]:
        """What a report leads to, without timers."""
        there = tuple(each for each in told if isinstance(each, Seen))
        return self.does(now, ReportCame(machine, Report(there, tuple(x for x in told if isinstance(x, Gone)))))

    def serve(self, now: float, beats: int = 1) -> None:
        """Every life that is to be is there, and speaks."""
        for name, machine in self.core.fleet.machines.items():
            told = [seen(str(member), beats) for member in machine.members()]
            if told:
                self.hears(now, name, *told)

    def beat(self, now: float, count: int = 1) -> list[HomeCommand]:
        """Half a second passes, so many times, all of them at one instant; what the last one leads to."""
        for _ in range(count - 1):
            self.at(now, HomeBeat())
        return self.does(now, HomeBeat())

    def fire(self, now: float) -> list[HomeCommand]:
        """The timer fires, whether it is due or not."""
        return self.does(now, HomeTimerFired())

    def _known(self, each: Wanted) -> Wanted:
        """A life that was seen is not new any more."""
        life = self.core.lives.get(each.member.replica)
        is_seen = life is not None and life.member == each.member
        return Wanted(each.member, each.is_condemned, each.is_new and not is_seen)

    def orders(
        self, at_home: str = AT_HOME, beta: str = ON_BETA, roster: str | None = "", *, back: int = 0, **more: Any
    ) -> SendOrders:
        """The newest orders, or those so many before: what each machine is to have, and the roster, of which none holds
        a row. `more` has further fields, and machines."""
        names = dict.fromkeys((self.places.home, *self.places.offers, *self.places.machines.values()))
        flags = {"is_stopping": False, "is_ending": False, "machines": tuple(names), "over": ()}
        flags |= {"home": self.places.home, "epochs": {}}
        named = {name: {"alpha": at_home, "beta": beta}.get(name, "") for name in names}
        named |= {name: text for name, text in more.items() if name not in flags}
        flags |= {name: value for name, value in more.items() if name in flags}
        return SendOrders(
            wanted={name: tuple(map(self._known, wanted(text))) for name, text in named.items()},
            changes=(RosterDifference(0, 0, tuple(sorted(rows(roster)))),) if roster else (),
            lacking=dict.fromkeys((name for name in named if name not in flags["over"]), 0) if roster else {},
            stamp=Stamp(self.stamp.term, self.stamp.epoch, self.stamp.number - back),
            **flags,
        )

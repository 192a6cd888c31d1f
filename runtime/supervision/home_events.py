"""Events into the core of a run's home and commands out of it, and the facts of the run that it starts from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Member, Party, Record, Replica
from isthmus.runtime.supervision.incidents import (
    Ended,
    Failure,
    Happened,
    Incident,
    Joined,
    MachineTaken,
    NumbersLost,
)
from isthmus.runtime.supervision.messages import Form, Orders, Report, ReportFault, Stamp, Wanted
from isthmus.runtime.supervision.rosters import RosterDifference
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteFound, NoteLives

DAEMON: Final = Member(Replica("daemon", 0), 1)
"""The member of incidents that concern no host."""
Outcome: TypeAlias = Literal["running", "done", "stopped", "failed"]
INTERRUPTED: Final = "interrupted"
"""The outcome, of a daemon and not of its run, where the home was set aside: the next daemon goes on."""
Taken: TypeAlias = Literal["left", "expelled"]


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a run."""

    home: str
    """That of the run, in `term`."""
    machines: dict[Replica, str] = {}
    """Those of replicas elsewhere."""
    offers: dict[str, tuple[str, ...]] = {}
    """For each other machine, the roles, or replicas by name, that may be moved there."""
    home_offers: tuple[str, ...] = ()
    """Those that may be moved home."""
    term: int = 1
    former: str = ""
    """The home in the term before, which is lost; '' in the first term."""


def is_offered(replica: Replica, offers: Collection[str]) -> bool:
    """Whether a machine with these offers takes a replica of a role that may be moved."""
    return replica.role in offers or str(replica) in offers


EXIT_SECONDS: Final = 10.0
"""The time that hosts have to exit on request; then they are killed."""


START_SECONDS: Final = 60.0
"""For the first heartbeat of a process, which takes two seconds of imports on an idle machine."""
SILENT_SECONDS: Final = 20.0
"""A silent host is replaced after this, whatever was learned."""
STUCK_SECONDS: Final = 14.0
"""A learner that steps all the time is stuck after at least so long without a step. A hang lasts for ever, so some
seconds more cost little, and an occasional long firing (a page that was swapped out) costs no life."""


class UserTerms(msgspec.Struct, frozen=True):
    """How long the user's own code may keep a host: the bounds on it (`bounds`). Of `idle` and `away` 0 is for ever."""

    idle: Duration = Duration(0)
    """It may do nothing for so long."""
    away: Duration = Duration(0)
    """It may last for so long."""
    scripts: tuple[str, ...] = ()
    """The roles whose hosts are processes of a user's script, which go on once their host has left."""
    has_guests: bool = False
    """Learners are loops that their users have started; they are never ended, but lose their slots."""
    start: Duration = seconds(START_SECONDS)
    """A process of a task has so long for its first heartbeat."""
    silent: Duration = seconds(SILENT_SECONDS)
    """No host is silent for longer; one with regular heartbeats for a third of it."""
    stuck: Duration = seconds(STUCK_SECONDS)
    """A learner may make no step for at least so long, in one firing; 2.5 times as long for its first ones."""


class RunRoles(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of a run."""

    roles: dict[str, int]
    """The number of those of each role at the start."""
    slots_max: dict[str, int] = {}
    """The largest number of a role, where it differs from that."""
    least: dict[str, int] = {}
    """The smallest number of a role, where it differs: with fewer replicas of it the run cannot go on."""
    processes: tuple[int, ...] = ()
    """The number of those of each learner's island, by slot; one for a slot beyond the end."""
    elastic: tuple[tuple[int, ...], ...] = ()
    """By slot, how many of them may train without the others; empty where they live and end together."""
    edges: dict[str, tuple[str, str]] = {}
    """By the name of each edge between hosts, the roles of its source and its target."""
    exit_seconds: float = EXIT_SECONDS
    """The time that hosts have to end by themselves once the run is over, but for what `user` says of the user's own
    code."""
    user: UserTerms = UserTerms()
    group_role: str = ""
    """The role whose replicas lead groups of learners: those whose slot modulo `groups` is theirs. A group that is cut
    off goes on alone. '' where there are no groups."""
    groups: int = 0
    """The number of groups; 0: as many as that role has replicas."""
    period: int = 1
    """Learners in slots that are equal modulo it train alike, and others do not."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the run's incidents tell a daemon whose ledger was lost: (replica, machine) of those that `joined`, and the
    highest `number` of a life, or from which lives were numbered."""

    joined: tuple[tuple[str, str], ...] = ()
    number: int = 0

    @classmethod
    def of(cls, happened: Iterable[Happened]) -> Recorded:
        """What these incidents tell."""
        joined, number = dict[str, str](), 0
        for each in happened:
            replica, incident = str(each.member.replica), each.incident
            number = max(number, each.member.incarnation)
            match incident:
                case Joined():
                    joined[replica] = incident.machine
                case Ended(end=MachineTaken()):
                    joined.pop(replica, None)
                case NumbersLost():
                    number = max(number, incident.next_number)
        return cls(joined=tuple(joined.items()), number=number)


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that outlives a daemon: decisions that were confirmed."""

    is_stopping: bool = False
    outcome: Outcome = "running"
    failure: Failure | None = None
    machines: tuple[tuple[str, str], ...] = ()
    """(replica, machine) of all that are not where they were placed."""
    away: tuple[str, ...] = ()
    """Machines that take no part any more."""
    retired: tuple[tuple[str, str], ...] = ()
    """(replica, how)."""
    used: dict[str, float] = {}
    """What ended lives had used, by 'ROLE.cpu_seconds' and as in `flows.as_used`."""
    number_least: int = 0
    """Numbers of lives are above it."""
    epoch: int = 0
    """Orders were given in it, in `term`."""
    term: int = 1
    forms: tuple[Form, ...] = ()
    """The newest ones of elastic islands."""
    finished: tuple[str, ...] = ()
    """Replicas whose scripts have come to their end."""
    unfinished: tuple[tuple[str, Ended], ...] = ()
    """Those whose will not, with their last ends."""
    parties: tuple[tuple[str, str, int | None], ...] = ()
    """(machine, party, slots) of machines that another has brought."""


# -- events ------------------------------------------------------------------------------------------------------------


class HomeBegan(Record, frozen=True):
    """A daemon starts, or takes over: the newest recorded life of each replica, and the journal.

    `is_lost`: there was a ledger, and it cannot be read; then `recorded` counts. `parties` are those of machines that
    another has brought, as far as this daemon knows.
    """

    newest: tuple[Member, ...] = ()
    journal: Journal | None = None
    is_lost: bool = False
    recorded: Recorded = Recorded()
    parties: dict[str, Party] = msgspec.field(default_factory=dict)


class ReportCame(Record, frozen=True):
    """The station of a machine reported its state."""

    machine: str
    report: Report


class BadReportCame(Record, frozen=True):
    """A machine sent a report that cannot be counted."""

    machine: str
    fault: ReportFault


class HomeBeat(Record, frozen=True):
    """Half a second has passed in which this daemon ran."""


class StopAsked(Record, frozen=True):
    """A stop of the run was requested: it merges what it has and ends."""


class EndAsked(Record, frozen=True):
    """The run has to end at once: it has failed."""

    failure: Failure


class NotBegun(Record, frozen=True):
    """The home cannot start: the former daemon's files cannot be read, or this one cannot serve."""

    failure: Failure


class SetAside(Record, frozen=True):
    """The home is to be set aside: its hosts leave `within` a duration, no other begins, and the next daemon goes on
    with the run. 0: nobody has said how long."""

    within: Duration = Duration(0)


class ScriptSpoke(Record, frozen=True):
    """The script of a life has made steps for a while after its run was over."""

    member: Member


class MachineJoined(Record, frozen=True):
    """A machine joined with `islands` islands; `parties` says who has brought it, if somebody else has."""

    machine: str
    islands: int
    parties: dict[str, Party] = msgspec.field(default_factory=dict)


class IslandJoined(Record, frozen=True):
    """Machines joined that are one island together, a process on each, the leader's first; `parties` as above."""

    machines: tuple[str, ...]
    parties: dict[str, Party] = msgspec.field(default_factory=dict)


class MachineTakenAway(Record, frozen=True):
    """A machine no longer takes part."""

    machine: str
    how: Taken


class TurnedAway(Record, frozen=True):
    """A machine follows another home of this run, `by`, in that term."""

    by: str
    term: int


class HomeTimerFired(Record, frozen=True):
    """The timer fired. A superfluous one does no harm."""


HomeEvent: TypeAlias = (
    HomeBegan
    | NotBegun
    | ReportCame
    | BadReportCame
    | HomeBeat
    | StopAsked
    | EndAsked
    | SetAside
    | ScriptSpoke
    | MachineJoined
    | IslandJoined
    | MachineTakenAway
    | TurnedAway
    | HomeTimerFired
    | LivesNoted
    | LivesNotNoted
)


# -- commands ----------------------------------------------------------------------------------------------------------


class NoteJournal(Record, frozen=True):
    """Replace the journal in the ledger, now or as soon as possible."""

    journal: Journal


class SendOrders(Record, frozen=True):
    """Send each machine its wanted lives, and all the rest, as in Orders; machines that are `over` are not needed.

    `lacking` has the numbers of the `changes` of the roster that machines lack, `machines` those that take part, and
    `epochs` those of machines that have obeyed orders of a later one than that of `stamp`.
    """

    wanted: dict[str, tuple[Wanted, ...]]
    changes: tuple[RosterDifference, ...]
    lacking: dict[str, int]
    machines: tuple[str, ...]
    is_stopping: bool
    is_ending: bool
    stamp: Stamp
    over: tuple[str, ...] = ()
    home: str = ""
    forms: tuple[Form, ...] = ()
    epochs: dict[str, int] = msgspec.field(default_factory=dict)

    def by_machine(self) -> Iterator[tuple[str, Orders]]:
        """The orders of each machine."""
        flags = self.is_stopping, self.is_ending
        for machine, wanted in self.wanted.items():
            stamp = Stamp(self.stamp.term, self.epochs.get(machine, self.stamp.epoch), self.stamp.number)
            roster = self.changes[self.lacking[machine]] if machine in self.lacking else None
            yield machine, Orders(wanted, roster, *flags, machine in self.over, stamp, self.home, self.forms)


class WriteIncident(Record, frozen=True):
    """Record an incident of a host."""

    member: Member
    incident: Incident


class SetHomeTimer(Record, frozen=True):
    """Send HomeTimerFired at `at`, instead of at the time set before."""

    at: Instant


class FinishRun(Record, frozen=True):
    """Every process has ended, or is no longer awaited: the outcome is final."""


HomeCommand: TypeAlias = NoteLives | NoteFound | NoteJournal | SendOrders | WriteIncident | SetHomeTimer | FinishRun

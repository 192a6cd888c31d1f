"""Events into a station's core and commands out of it: frozen data, complete enough to replay all that it did."""

from __future__ import annotations

from typing import TypeAlias

from isthmus.runtime.clock import Duration
from isthmus.runtime.ids import Count, Member, Record
from isthmus.runtime.supervision.incidents import Exited, Raised
from isthmus.runtime.supervision.messages import Form, Heartbeat, Orders, Over, Report
from isthmus.runtime.supervision.rosters import MetRoles, RosterDifference


class Remembered(Record, frozen=True):
    """The newest life of a replica in the ledger: its process, if one became known, and whether it is alive."""

    member: Member
    pid: int | None
    is_alive: bool


# -- events ------------------------------------------------------------------------------------------------------------


class StationBegan(Record, frozen=True):
    """A daemon starts, or takes over. `is_lost`: there was a ledger, and it cannot be read.

    `home` and `term` are the run's last known home.
    """

    lives: tuple[Remembered, ...] = ()
    is_lost: bool = False
    home: str = ""
    term: int = 1


class HomeCalled(Record, frozen=True):
    """A machine claims to be the home of the run, in that term."""

    home: str
    term: int


class OrdersCame(Record, frozen=True):
    """Orders of the run's home arrived."""

    orders: Orders


class LivesNoted(Record, frozen=True):
    """The ledger has recorded these lives durably."""

    members: tuple[Member, ...]


class LivesNotNoted(Record, frozen=True):
    """The ledger could not record these lives."""

    members: tuple[Member, ...]
    error: str


class ProcessStarted(Record, frozen=True):
    """A requested process was started."""

    member: Member
    pid: int


class ProcessNotStarted(Record, frozen=True):
    """A requested process could not be started."""

    member: Member
    error: str


class ProcessEnded(Record, frozen=True):
    """A process has ended; `cpu_seconds` is None where only its parent could know."""

    member: Member
    end: Exited
    cpu_seconds: float | None = None


class HostSpoke(Record, frozen=True):
    """A host, whose process is `pid`, sent a heartbeat; `error`: a body raised; `over`: a recorder has finished; it
    `meets` these replicas (None: all), and has asked for the whole roster so often."""

    member: Member
    pid: int
    heartbeat: Heartbeat
    error: Raised | None = None
    over: Over | None = None
    meets: MetRoles | None = None
    asks: Count = 0


class StationBeat(Record, frozen=True):
    """Half a second has passed in which this daemon ran; the processes of the `stopped` members are suspended, and the
    user's code of those that are `idle` has done nothing for so long."""

    stopped: tuple[Member, ...] = ()
    idle: tuple[tuple[Member, Duration], ...] = ()


class LeaveAsked(Record, frozen=True):
    """This machine is to leave the run within so many beats: its hosts give what they have, and end."""

    beats: int


class StationLeft(Record, frozen=True):
    """This machine leaves the run: its hosts end."""


StationEvent: TypeAlias = (
    StationBegan
    | HomeCalled
    | OrdersCame
    | LivesNoted
    | LivesNotNoted
    | ProcessStarted
    | ProcessNotStarted
    | ProcessEnded
    | HostSpoke
    | StationBeat
    | LeaveAsked
    | StationLeft
)


# -- commands ----------------------------------------------------------------------------------------------------------


class NoteLives(Record, frozen=True):
    """Record these lives in the ledger durably, and answer LivesNoted or LivesNotNoted."""

    members: tuple[Member, ...]


class StartProcess(Record, frozen=True):
    """Start the process of a life; answer ProcessStarted or ProcessNotStarted, now or later."""

    member: Member


class NoteFound(Record, frozen=True):
    """Record in the ledger that it is reliable again: the losses of the one before are made up for.

    Until then, it counts as lost for every daemon that takes over.
    """


class NoteProcess(Record, frozen=True):
    """Record the process of a life in the ledger, now or as soon as possible."""

    member: Member
    pid: int


class WatchProcess(Record, frozen=True):
    """Answer ProcessEnded when this process ends, or at once where it already has."""

    member: Member
    pid: int


class KillProcess(Record, frozen=True):
    """Kill the process of a life."""

    member: Member


class TellHosts(Record, frozen=True):
    """Send these hosts what they lack of the roster (None: it is not known), and whether the run is stopping and they
    are to end.

    Those that are `leaving` are to leave the run.
    """

    members: tuple[Member, ...]
    roster: RosterDifference | None
    is_stopping: bool
    is_ending: bool
    forms: tuple[Form, ...] = ()
    leaving: tuple[Member, ...] = ()


class DismissHost(Record, frozen=True):
    """Order a host that is not wanted to end."""

    member: Member


class SendReport(Record, frozen=True):
    """Send a report to the home; it is lost where the link is down."""

    report: Report


class FollowHome(Record, frozen=True):
    """Record this home of the run, and send it all reports from now on."""

    home: str
    term: int


class TurnAway(Record, frozen=True):
    """Tell a machine that gives orders, or claims to be home, that the run has another home: `by`, in that term."""

    home: str
    by: str
    term: int


class CloseStation(Record, frozen=True):
    """No process is left here, and none will start."""


StationCommand: TypeAlias = (
    NoteLives
    | NoteFound
    | StartProcess
    | NoteProcess
    | WatchProcess
    | KillProcess
    | TellHosts
    | DismissHost
    | SendReport
    | FollowHome
    | TurnAway
    | CloseStation
)

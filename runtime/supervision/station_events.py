"""Events into a station's core and commands out of it: frozen data, complete enough to repeat all that it did."""

from __future__ import annotations

from typing import TypeAlias

from isthmus.runtime.ids import Member
from isthmus.runtime.records import Record
from isthmus.runtime.supervision.incidents import Exited, Raised
from isthmus.runtime.supervision.messages import Form, Orders, Over, Report, Row, Said


class Remembered(Record, frozen=True):
    """The newest life of a replica that the ledger knows: its process, if one became known, and whether it lives."""

    member: Member
    pid: int | None
    is_alive: bool


# -- events ------------------------------------------------------------------------------------------------------------


class StationBegan(Record, frozen=True):
    """A daemon begins, or takes over. `is_lost`: there was a ledger, and it cannot be read. The run's home is `home`,
    in that `term`, as far as this machine was told."""

    lives: tuple[Remembered, ...] = ()
    is_lost: bool = False
    home: str = ""
    term: int = 1


class HomeCalled(Record, frozen=True):
    """A machine says that it is the home of the run, in that term."""

    home: str
    term: int


class OrdersCame(Record, frozen=True):
    """The run's home says what is to be."""

    orders: Orders


class LivesNoted(Record, frozen=True):
    """The ledger has these lives, to stay."""

    members: tuple[Member, ...]


class LivesNotNoted(Record, frozen=True):
    """The ledger does not take these lives now."""

    members: tuple[Member, ...]
    error: str


class ProcessStarted(Record, frozen=True):
    """A process was asked for, and is there."""

    member: Member
    pid: int


class ProcessNotStarted(Record, frozen=True):
    """A process was asked for, and cannot be."""

    member: Member
    error: str


class ProcessEnded(Record, frozen=True):
    """A process is there no more; `cpu_seconds` is None where only its parent could know."""

    member: Member
    end: Exited
    cpu_seconds: float | None = None


class HostSpoke(Record, frozen=True):
    """A host, whose process is `pid`, says what it is; `error`: that a body raised; `over`: that all is written."""

    member: Member
    pid: int
    said: Said
    error: Raised | None = None
    over: Over | None = None


class StationBeat(Record, frozen=True):
    """Half a second has passed, in which this daemon ran; processes of these members are `stopped`."""

    stopped: tuple[Member, ...] = ()


class StationLeft(Record, frozen=True):
    """This machine takes part no more: its hosts end."""


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
    | StationLeft
)


# -- commands ----------------------------------------------------------------------------------------------------------


class NoteLives(Record, frozen=True):
    """Write these lives into the ledger, so that they stay, and say whether it took them: LivesNoted, LivesNotNoted."""

    members: tuple[Member, ...]


class StartProcess(Record, frozen=True):
    """Start the process of a life; say ProcessStarted or ProcessNotStarted, now or later."""

    member: Member


class NoteFound(Record, frozen=True):
    """Write into the ledger that it may be relied upon again: what was lost with the one before is made up for. Until
    then it is lost for every daemon that takes over."""


class NoteProcess(Record, frozen=True):
    """Write into the ledger which process a life has, now or as soon as it can be."""

    member: Member
    pid: int


class WatchProcess(Record, frozen=True):
    """Say ProcessEnded when this process ends, or at once where it is there no more."""

    member: Member
    pid: int


class KillProcess(Record, frozen=True):
    """Kill the process of a life."""

    member: Member


class TellHosts(Record, frozen=True):
    """Tell these hosts who is live (None: only that there is a daemon), that the run is to stop, and that they are to
    end."""

    members: tuple[Member, ...]
    roster: tuple[Row, ...] | None
    machines: tuple[str, ...]
    is_stopping: bool
    is_ending: bool
    forms: tuple[Form, ...] = ()


class DismissHost(Record, frozen=True):
    """Tell a host that it is not wanted, and is to end."""

    member: Member


class SendReport(Record, frozen=True):
    """Tell the home; what it says is lost where the way is cut."""

    report: Report


class FollowHome(Record, frozen=True):
    """Note that the run has this home from now on, and send it whatever is sent home."""

    home: str
    term: int


class TurnAway(Record, frozen=True):
    """Tell a machine that gives orders, or calls, that the run has another home: `by`, in that term."""

    home: str
    by: str
    term: int


class CloseStation(Record, frozen=True):
    """Nothing is left here, and nothing will be."""


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

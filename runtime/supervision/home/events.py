"""Events into the core of a run's home and commands out of it, and what it has to know of the run when it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.records import Record
from isthmus.runtime.supervision.incidents import Failure, Incident
from isthmus.runtime.supervision.messages import Form, Orders, Report, Row, Stamp, Wanted
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteFound, NoteLives

DAEMON: Final = Member(Replica("daemon", 0), 1)
"""Of whom an incident is that is about no host."""
Outcome: TypeAlias = Literal["running", "done", "stopped", "failed"]
Taken: TypeAlias = Literal["left", "expelled"]


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is: on machine `home`, in that `term`, with these replicas elsewhere (`machines`); `offers` gives,
    for each other machine, the roles that may be moved there, `home_offers` those that may be moved home. `former` was
    the home in the term before, and is lost; '' in the first."""

    home: str
    machines: dict[Replica, str] = {}
    offers: dict[str, tuple[str, ...]] = {}
    home_offers: tuple[str, ...] = ()
    term: int = 1
    former: str = ""


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part in a run: the replicas of each role at its start; the most (`slots_max`) and the `least` that
    there may be, where those are others: a run that has fewer of a role cannot go on. `processes` are those of the
    island of each learner, by slot; of a slot beyond the end, one. `elastic` are, by
    slot, the numbers of them that may train without the others; none where they live and end together."""

    roles: dict[str, int]
    slots_max: dict[str, int] = {}
    least: dict[str, int] = {}
    processes: tuple[int, ...] = ()
    elastic: tuple[tuple[int, ...], ...] = ()


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the next daemon has to know, whatever a former one has confirmed: (replica, machine) of all that are not
    where they were placed, machines `away`, (replica, how) of those `retired`, and what ended lives had `used`, by
    'ROLE.cpu_seconds' and 'ROLE.bytes_sent'; numbers of lives are above `number_least`; orders were given in
    `epoch` of `term`; `forms` are the newest of elastic islands."""

    is_stopping: bool = False
    outcome: Outcome = "running"
    failure: Failure | None = None
    machines: tuple[tuple[str, str], ...] = ()
    away: tuple[str, ...] = ()
    retired: tuple[tuple[str, str], ...] = ()
    used: dict[str, float] = {}
    number_least: int = 0
    epoch: int = 0
    term: int = 1
    forms: tuple[Form, ...] = ()


# -- events ------------------------------------------------------------------------------------------------------------


class HomeBegan(Record, frozen=True):
    """A daemon begins, or takes over: the newest life of each replica whose number was noted, and the journal.
    `is_lost`: there was a ledger, and it cannot be read."""

    newest: tuple[Member, ...] = ()
    journal: Journal | None = None
    is_lost: bool = False


class ReportCame(Record, frozen=True):
    """The station on a machine says what is there."""

    machine: str
    report: Report


class HomeBeat(Record, frozen=True):
    """Half a second has passed, in which this daemon ran."""


class StopAsked(Record, frozen=True):
    """Somebody asks for the end of the run: it is to merge what it has."""


class EndAsked(Record, frozen=True):
    """The run is to end at once: it has failed."""

    failure: Failure


class NotBegun(Record, frozen=True):
    """The home cannot begin: what the daemon before it has left cannot be read, or this one cannot serve."""

    failure: Failure


class MachineJoined(Record, frozen=True):
    """A machine offers so many islands."""

    machine: str
    islands: int


class MachineTakenAway(Record, frozen=True):
    """A machine takes part no more."""

    machine: str
    how: Taken


class TurnedAway(Record, frozen=True):
    """A machine follows another home of this run, `by`, in that term."""

    by: str
    term: int


class HomeTimerFired(Record, frozen=True):
    """The timer came due. A superfluous one does no harm."""


HomeEvent: TypeAlias = (
    HomeBegan
    | NotBegun
    | ReportCame
    | HomeBeat
    | StopAsked
    | EndAsked
    | MachineJoined
    | MachineTakenAway
    | TurnedAway
    | HomeTimerFired
    | LivesNoted
    | LivesNotNoted
)


# -- commands ----------------------------------------------------------------------------------------------------------


class NoteJournal(Record, frozen=True):
    """Write the journal into the ledger, in place of the one before, now or as soon as it can be."""

    journal: Journal


class SendOrders(Record, frozen=True):
    """Tell each of these machines which lives it is to have, and all of them the rest, as in Orders; machines that are
    `over` are needed no more."""

    wanted: dict[str, tuple[Wanted, ...]]
    roster: tuple[Row, ...] | None
    machines: tuple[str, ...]
    is_stopping: bool
    is_ending: bool
    stamp: Stamp
    over: tuple[str, ...] = ()
    home: str = ""
    forms: tuple[Form, ...] = ()

    def by_machine(self) -> Iterator[tuple[str, Orders]]:
        """What each machine is told."""
        rest = self.roster, self.machines, self.is_stopping, self.is_ending
        for machine, wanted in self.wanted.items():
            yield machine, Orders(wanted, *rest, machine in self.over, self.stamp, self.home, self.forms)


class WriteIncident(Record, frozen=True):
    """Write down what happened to a host."""

    member: Member
    incident: Incident


class SetHomeTimer(Record, frozen=True):
    """Send HomeTimerFired at `at`, instead of when it was to be sent before."""

    at: Instant


class FinishRun(Record, frozen=True):
    """Every process has ended, or is waited for no more: the outcome is settled."""


HomeCommand: TypeAlias = NoteLives | NoteFound | NoteJournal | SendOrders | WriteIncident | SetHomeTimer | FinishRun

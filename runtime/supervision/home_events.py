"""Events into the core of a run's home and commands out of it, and the facts of the run that it starts from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Record, Replica
from isthmus.runtime.supervision.incidents import Failure, Incident
from isthmus.runtime.supervision.messages import Form, Orders, Report, Row, Stamp, Wanted
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteFound, NoteLives

DAEMON: Final = Member(Replica("daemon", 0), 1)
"""The member of incidents that concern no host."""
Outcome: TypeAlias = Literal["running", "done", "stopped", "failed"]
Taken: TypeAlias = Literal["left", "expelled"]


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a run: `home`, in `term`, and those of replicas elsewhere (`machines`).

    `offers` gives, for each other machine, the roles that may be moved there, `home_offers` those that may be moved
    home. `former` was the home in the term before, and is lost; '' in the first term.
    """

    home: str
    machines: dict[Replica, str] = {}
    offers: dict[str, tuple[str, ...]] = {}
    home_offers: tuple[str, ...] = ()
    term: int = 1
    former: str = ""


class RunRoles(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of a run: `roles` counts those of each role at its start.

    `slots_max` and `least` are the largest and the smallest count of a role, where they differ from that: with fewer
    replicas of a role the run cannot go on. `processes` counts those of each learner's island, by slot; one for a slot
    beyond the end. `elastic` lists, by slot, how many of them may train without the others; empty where they live and
    end together.
    """

    roles: dict[str, int]
    slots_max: dict[str, int] = {}
    least: dict[str, int] = {}
    processes: tuple[int, ...] = ()
    elastic: tuple[tuple[int, ...], ...] = ()


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that outlives a daemon: decisions that were confirmed.

    (replica, machine) of all that are not where they were placed, machines `away`, (replica, how) of those `retired`,
    and what ended lives had `used`, by 'ROLE.cpu_seconds' and as in `flows.as_used`; numbers of lives are above
    `number_least`; orders were given in `epoch` of `term`; `forms` are the newest of elastic islands.
    """

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
    """A daemon starts, or takes over: the newest recorded life of each replica, and the journal.

    `is_lost`: there was a ledger, and it cannot be read.
    """

    newest: tuple[Member, ...] = ()
    journal: Journal | None = None
    is_lost: bool = False


class ReportCame(Record, frozen=True):
    """The station of a machine reported its state."""

    machine: str
    report: Report


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


class MachineJoined(Record, frozen=True):
    """A machine joined with `islands` islands."""

    machine: str
    islands: int


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
    """Replace the journal in the ledger, now or as soon as possible."""

    journal: Journal


class SendOrders(Record, frozen=True):
    """Send each machine its wanted lives, and all the rest, as in Orders; machines that are `over` are not needed."""

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
        """The orders of each machine."""
        rest = self.roster, self.machines, self.is_stopping, self.is_ending
        for machine, wanted in self.wanted.items():
            yield machine, Orders(wanted, *rest, machine in self.over, self.stamp, self.home, self.forms)


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

"""Messages between a run's home, the stations of its machines, and the hosts on them. It decides nothing.

Orders and reports carry the complete state each time: a lost one costs half a second, and a new daemon at either end
needs only the next message. Orders are numbered, because a re-dialled link may deliver earlier messages after later
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, TypeAlias

import msgspec

from isthmus.runtime.clock import Duration
from isthmus.runtime.cores.membership_messages import Phase
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import Flows
from isthmus.runtime.supervision.incidents import End, Raised, Starved


class ItemRefusal(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """`count` items of `member` violated the schema that the body at the end of `edge` declares.

    The first was wrong at `field` ('' for the whole item): `expected` and `found` describe the difference. `is_vote`:
    rounds wait for such items.

    It travels in the heartbeat of the host that refused the items, and is stored with the incident that it leads to.
    """

    member: Member
    edge: str
    field: str
    expected: str
    found: str
    count: int = 1
    is_vote: bool = False


HEARTBEAT_SECONDS: Final = 0.25
"""The interval of a host's heartbeats."""

COUNT_MAX: Final = 1 << 62
"""Limit of CPU seconds, bytes, steps and heartbeats: more than any host reaches, and sums of it fit everywhere."""

Row: TypeAlias = tuple[str, int, tuple[str, ...], str]
"""A row of a roster: (replica, incarnation, endpoints, machine) of a live member."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of the parts of messages: compared and stored by value."""


class Form(Part, frozen=True):
    """The processes of an elastic island that train together from now on, the leader first; numbers count up."""

    leader: Replica
    number: int
    members: tuple[Member, ...]


class Formed(Part, frozen=True):
    """The form in which an elastic island trains, as its leader reports it: `number` (0 for none) and `processes`.

    Before it nothing was computed for `stall_ns`, and `again` steps were repeated. `broken` is the number of a form
    that has failed.
    """

    number: int = 0
    processes: int = 0
    stall_ns: int = 0
    again: int = 0
    broken: int = 0


MISSING_MAX: Final = 64
"""The most hosts that a heartbeat names; their number is reported in any case."""


class Missing(Part, frozen=True):
    """A host without a data connection to the reporting one, last heard on one `silence` ago; 0 if never."""

    member: Member
    silence: Duration = Duration(0)


class Heartbeat(Part, frozen=True):
    """The state that a host reports: `steps`, `busy`, `firing` and `node` as in HeartbeatArrived.

    `starved`: its data arrive too slowly. Of its `peers` hosts it has no data connection with `unreached`, of which
    `missing` are the first. `refusals` are the items that it has refused, a record for each sender and edge. `formed`
    is set by the leader of an elastic island. `flows`: what it has moved and awaited.
    """

    phase: Phase = "starting"
    endpoints: tuple[str, ...] = ()
    steps: int = 0
    busy: Duration = Duration(0)
    firing: Duration = Duration(0)
    node: str = ""
    cpu_seconds: float = 0.0
    flows: Flows = Flows()
    starved: Starved | None = None
    peers: int = 0
    unreached: int = 0
    missing: tuple[Missing, ...] = ()
    refusals: tuple[ItemRefusal, ...] = ()
    formed: Formed = Formed()


class Over(Part, frozen=True):
    """The end of a recorder: all files are final, or it met an `error`; `is_stopped`: the program requested the end."""

    error: str | None = None
    is_stopped: bool = False

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Over:
        """The Over in the status of a recorder."""
        error = shown.get("error")
        return cls(None if error is None else str(error), shown.get("stop_reason") is not None)


class Seen(Part, frozen=True):
    """A life with a running process, of which `beats` heartbeats arrived. `error` is the failure that it reported."""

    member: Member
    pid: int
    beats: int = 0
    is_stopped: bool = False
    error: Raised | None = None
    heartbeat: Heartbeat = Heartbeat()
    over: Over | None = None


class Gone(Part, frozen=True):
    """A life that has ended, with its CPU time and what it has moved."""

    member: Member
    end: End
    error: Raised | None = None
    cpu_seconds: float = 0.0
    flows: Flows = Flows()


class Stamp(Part, frozen=True, order=True):
    """The position of orders in their sequence: the `number`-th of the `epoch`-th daemon of the home in `term`.

    A run has one home in each term; another machine that becomes its home begins the next term.
    """

    term: int = 1
    epoch: int = 0
    number: int = 0


class Report(Part, frozen=True):
    """The state of a station.

    Some or all `lives`; every `ended` life that is still wanted; the `newest` life of each replica that was ever begun
    there; the stamp of the orders it has `obeyed` last.
    """

    lives: tuple[Seen, ...] = ()
    ended: tuple[Gone, ...] = ()
    newest: tuple[Member, ...] = ()
    obeyed: Stamp = Stamp()


class Wanted(Part, frozen=True):
    """A life that the home wants running or, where it `is_condemned`, killed; it awaits the report of the end of both.

    Only one that `is_new` is begun: the home's present daemon gave it its number, and no station has reported it.
    Whether and where any other was begun is unknown.
    """

    member: Member
    is_condemned: bool = False
    is_new: bool = False


class Orders(Part, frozen=True):
    """The lives that a machine should have; it ends all others.

    `roster` is for all hosts (None: unchanged), `machines` are those that take part. `is_over`: the run needs nothing
    here any more. Orders whose `stamp` is not newer than that of earlier ones are ignored. `home` is the machine that
    gives them, `forms` are those of the elastic islands.
    """

    wanted: tuple[Wanted, ...] = ()
    roster: tuple[Row, ...] | None = None
    machines: tuple[str, ...] = ()
    is_stopping: bool = False
    is_ending: bool = False
    is_over: bool = False
    stamp: Stamp = Stamp()
    home: str = ""
    forms: tuple[Form, ...] = ()


def report_of(plain: Any) -> Report:
    """The report decoded from plain data; ValueError if it is not one, or has counts out of range."""
    report: Report = _converted(plain, Report)
    used: list[tuple[float, ...]] = [
        (each.heartbeat.cpu_seconds, each.heartbeat.steps, each.beats, *each.heartbeat.flows.numbers())
        for each in report.lives
    ]
    used += [(each.cpu_seconds, *each.flows.numbers()) for each in report.ended]
    if not all(isfinite(number) and 0 <= number <= COUNT_MAX for row in used for number in row):
        raise ValueError(f"a report that counts below 0, or beyond {COUNT_MAX}")
    return report


def orders_of(plain: Any) -> Orders:
    """The orders decoded from plain data; ValueError if they are not valid."""
    orders: Orders = _converted(plain, Orders)
    return orders


def _converted(plain: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"no {kind.__name__.lower()}: {error}") from None

"""What is said between a run's home, the stations of its machines, and the hosts on them.

It decides nothing. Orders and reports say everything that is so, each time: one that is lost costs half a second, and
a new daemon at either end needs nothing but what it hears. Orders are numbered, because a link that is dialled anew may
bring what was sent before behind what was sent after.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, TypeAlias

import msgspec

from isthmus.runtime.clock import Duration
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.refused import Refusal
from isthmus.runtime.membership.messages import Phase
from isthmus.runtime.supervision.incidents import End, Raised, Starved

HEARTBEAT_SECONDS: Final = 0.25
"""How often a host says what it is."""

COUNT_MAX: Final = 1 << 62
"""Of CPU seconds, bytes, steps and heartbeats: more than any host comes to, and sums of it fit everywhere."""

Row: TypeAlias = tuple[str, int, tuple[str, ...], str]
"""Of a roster: (replica, incarnation, endpoints, machine) of a live member."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of what messages are made of: compared and stored by value."""


class Form(Part, frozen=True):
    """Which processes of an elastic island train together from now on, the leader first; numbers go upwards."""

    leader: Replica
    number: int
    members: tuple[Member, ...]


class Formed(Part, frozen=True):
    """What the leader of an elastic island says of the form in which it trains, by its `number`, 0 for none, and how
    many `processes` that has: before it nothing was computed for `stall_ns`, and `again` steps were made once more.
    `broken` is the number of a form of which nothing comes."""

    number: int = 0
    processes: int = 0
    stall_ns: int = 0
    again: int = 0
    broken: int = 0


MISSING_MAX: Final = 64
"""Hosts that a heartbeat names; how many there are, it says in any case."""


class Missing(Part, frozen=True):
    """A host that another one has no data connection with, and heard `silence` ago on one; 0 if it never did."""

    member: Member
    silence: Duration = Duration(0)


class Said(Part, frozen=True):
    """What a host says of itself: `steps`, `busy`, `firing` and `node` as in HeartbeatArrived; `starved` while its data
    are too slow for it. Of the `peers` hosts that it is to talk with it has no data connection with `unreached`, of
    which `missing` are the first. `refusals` are the items that it has refused, a record for each sender and edge.
    `formed` is what the leader of an elastic island says of it."""

    phase: Phase = "starting"
    endpoints: tuple[str, ...] = ()
    steps: int = 0
    busy: Duration = Duration(0)
    firing: Duration = Duration(0)
    node: str = ""
    cpu_seconds: float = 0.0
    bytes_sent: int = 0
    starved: Starved | None = None
    peers: int = 0
    unreached: int = 0
    missing: tuple[Missing, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    formed: Formed = Formed()


class Over(Part, frozen=True):
    """A recorder says that everything final is there, or which error it met; `is_stopped`: the program asked for the
    end."""

    error: str | None = None
    is_stopped: bool = False

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Over:
        """What the status of a recorder says of the end."""
        error = shown.get("error")
        return cls(None if error is None else str(error), shown.get("stop_reason") is not None)


class Seen(Part, frozen=True):
    """A life whose process is there, and was heard `beats` times. `error` is what it told of its failure."""

    member: Member
    pid: int
    beats: int = 0
    is_stopped: bool = False
    error: Raised | None = None
    said: Said = Said()
    over: Over | None = None


class Gone(Part, frozen=True):
    """A life that has ended, with what it had used."""

    member: Member
    end: End
    error: Raised | None = None
    cpu_seconds: float = 0.0
    bytes_sent: int = 0


class Stamp(Part, frozen=True, order=True):
    """The place of orders among all that were ever given: the `number`-th of the `epoch`-th daemon of the home in that
    `term`. A run has one home in each term; another machine that becomes its home begins the next one."""

    term: int = 1
    epoch: int = 0
    number: int = 0


class Report(Part, frozen=True):
    """What a station knows: `lives`, some or all; every life that has `ended` and is still asked for; of each replica
    the `newest` life that was ever begun there; and which orders it has `obeyed` last."""

    lives: tuple[Seen, ...] = ()
    ended: tuple[Gone, ...] = ()
    newest: tuple[Member, ...] = ()
    obeyed: Stamp = Stamp()


class Wanted(Part, frozen=True):
    """A life that is asked for: to be, or, where it `is_condemned`, to be killed. The one thing wanted of both is to
    hear of their end. Only one that `is_new` is begun: the home's present daemon gave it its number, and no station has
    reported it. Of any other nobody knows whether it was begun, and where."""

    member: Member
    is_condemned: bool = False
    is_new: bool = False


class Orders(Part, frozen=True):
    """What a machine is to have: lives, and nothing else. `roster` is what all hosts are to know (None: what they know
    already), `machines` those that take part. `is_over`: the run needs nothing here any more. Orders whose `stamp` is
    not newer than that of others before are not obeyed. `home` is the machine that gives them, `forms` are those of
    the elastic islands."""

    wanted: tuple[Wanted, ...] = ()
    roster: tuple[Row, ...] | None = None
    machines: tuple[str, ...] = ()
    is_stopping: bool = False
    is_ending: bool = False
    is_over: bool = False
    stamp: Stamp = Stamp()
    home: str = ""
    forms: tuple[Form, ...] = ()


def report_of(told: Any) -> Report:
    """The report that some data stand for; ValueError if they stand for none, or count what cannot be counted."""
    report: Report = _converted(told, Report)
    used = [(each.said.cpu_seconds, each.said.bytes_sent, each.said.steps, each.beats) for each in report.lives]
    used += [(each.cpu_seconds, each.bytes_sent, 0, 0) for each in report.ended]
    if not all(isfinite(number) and 0 <= number <= COUNT_MAX for row in used for number in row):
        raise ValueError(f"a report that counts below 0, or beyond {COUNT_MAX}")
    return report


def orders_of(told: Any) -> Orders:
    """The orders that some data stand for; ValueError if they stand for none."""
    orders: Orders = _converted(told, Orders)
    return orders


def _converted(told: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"no {kind.__name__.lower()}: {error}") from None

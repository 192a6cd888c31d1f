"""Messages between a run's home, the stations of its machines, and the hosts on them. It decides nothing.

Orders and reports carry the complete state each time: a lost one costs half a second, and a new daemon at either end
needs only the next message. Orders are numbered, because a re-dialled link may deliver earlier messages after later
ones.

A report, and the status shown for people beside it, may come from a machine that lies. Its types bound every field, so
that whatever `report_of` and `shown_of` return can be counted, stored and shown; they refuse the rest as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from isthmus.runtime.clock import Duration
from isthmus.runtime.cores.membership_messages import Phase
from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import LIVES_MAX, Count, Lasting, MachineOwner, Member, Name, Replica
from isthmus.runtime.supervision.flows import Flows
from isthmus.runtime.supervision.incidents import (
    PLACES_MAX,
    TEXT_LENGTH_MAX,
    CodePlace,
    DataSpent,
    End,
    Raised,
    Starved,
    Text,
)
from isthmus.runtime.supervision.rosters import DirectoryDifference, MachineRow, RosterDifference

Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e12)]
"""Of processors: 30,000 years."""
_PORT: Final = r"(6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
Address: TypeAlias = Annotated[
    str, Meta(pattern=rf"^tcp://(\[[0-9A-Fa-f:.]{{2,45}}\]|[A-Za-z0-9._-]{{1,253}}):{_PORT}$")
]
"""An endpoint that a socket can dial."""
DoorAddress: TypeAlias = Annotated[str, Meta(pattern=rf"^(\[[0-9A-Fa-f:.]{{2,45}}\]|[A-Za-z0-9._-]{{1,253}}):{_PORT}$")]
"""HOST:PORT, where the leader of an island of several processes awaits the others; no socket of a channel is there."""
DoorToken: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,128}$")]
"""The secret that the others show there."""
REFUSAL_ROWS_MAX: Final = 256
"""Senders and edges of which one host keeps the refused items (`runtime.host.driver`)."""


class ItemRefusal(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Items of one member that violated the schema which the body at the end of an edge declares.

    It travels in the heartbeat of the host that refused the items, and is stored with the incident that it leads to.
    """

    member: Member
    edge: Name
    field: Text
    """Where the first was wrong; '' for the whole item."""
    expected: Text
    """What it should have been there."""
    found: Text
    """What it was."""
    count: Count = 1
    """The number of such items."""
    is_vote: bool = False
    """Rounds wait for such items."""


HEARTBEAT_SECONDS: Final = 0.25
"""The interval of a host's heartbeats."""
BEAT_SECONDS: Final = 0.5
"""That of a daemon's: twice the interval of heartbeats."""
LONELY_BEATS: Final = 1200
"""Ten minutes, unless the run sets another limit: after so long without orders the run is lost, and nothing else would
ever end its hosts."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of the parts of messages: compared and stored by value."""


class Form(Part, frozen=True):
    """The processes of an elastic island that train together from now on, the leader first; numbers count up."""

    leader: Replica
    number: int
    members: tuple[Member, ...]


class Formed(Part, frozen=True):
    """The form in which an elastic island trains, as its leader reports it."""

    number: Count = 0
    """That of the form; 0 for none."""
    processes: Count = 0
    """How many train in it."""
    stall_ns: Count = 0
    """For how long nothing was computed before it."""
    again: Count = 0
    """The steps that were repeated."""
    broken: Count = 0
    """The number of a form that has failed."""


MISSING_MAX: Final = 64
"""The most hosts that a heartbeat names; their number is reported in any case."""


class Missing(Part, frozen=True):
    """A host without a data connection to the reporting one, last heard on one `silence` ago; 0 if never."""

    member: Member
    silence: Lasting = Duration(0)


Endpoints: TypeAlias = Annotated[tuple[Address, ...], Meta(min_length=2, max_length=3)]


class Heartbeat(Part, frozen=True):
    """The state that a host reports."""

    phase: Phase = "starting"
    endpoints: Endpoints | None = None
    """Those for control and for data of a host that listens, and that of its machine's porter, if there is one."""
    steps: Count = 0
    """As `busy`, `firing` and `node`, those of `HeartbeatArrived`."""
    busy: Lasting = Duration(0)
    firing: Lasting = Duration(0)
    node: Name = ""
    cpu_seconds: Seconds = 0.0
    flows: Flows = Flows()
    """What it has moved and awaited."""
    starved: Starved | None = None
    """Its data arrive too slowly."""
    peers: Count = 0
    """The number of hosts that it has, or should have, a data connection with."""
    unreached: Count = 0
    """The number of those with which it has none."""
    missing: Annotated[tuple[Missing, ...], Meta(max_length=MISSING_MAX)] = ()
    """The first of these."""
    refusals: Annotated[tuple[ItemRefusal, ...], Meta(max_length=REFUSAL_ROWS_MAX)] = ()
    """The items that it has refused, a record for each sender and edge."""
    formed: Formed = Formed()
    """Set by the leader of an elastic island."""
    door: tuple[DoorAddress, DoorToken] | None = None
    """Where the leader of an island of several processes awaits the others."""
    data_digest: Count = 0
    """A digest of the first that it made of its data, which no other host should have; 0 where none is known."""
    outside: Lasting = Duration(0)
    """For how long the user's own code has kept it from its next step."""
    overwritten: Count = 0
    """The tokens of this life that were overwritten as it came back from being away."""
    spent: DataSpent | None = None
    """It leaves for good, because it has trained all that it may of data of its own."""


class Over(Part, frozen=True):
    """The end of a recorder: all files are final, or it met an `error`; `is_stopped`: the program requested the end.

    `unlike`: the slots of learners whose leaves are not the last model, and the first such leaf of each, '' where that
    is not known.
    """

    error: Text | None = None
    is_stopped: bool = False
    unlike: Annotated[tuple[tuple[Count, Text], ...], Meta(max_length=LIVES_MAX)] = ()

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Over:
        """The Over in the status of a recorder."""
        error = shown.get("error")
        unlike = tuple((int(slot), str(leaf)[:TEXT_LENGTH_MAX]) for slot, leaf in shown.get("unlike", ())[:LIVES_MAX])
        text = None if error is None else shortened(str(error), TEXT_LENGTH_MAX)
        return cls(text, shown.get("stop_reason") is not None, unlike)


class Seen(Part, frozen=True):
    """A life with a running process, of which `beats` heartbeats arrived. `error` is the failure that it reported.

    `idle`: for how long the user's code in it has done nothing, where its station looks.
    """

    member: Member
    pid: Count
    beats: Count = 0
    is_stopped: bool = False
    error: Raised | None = None
    heartbeat: Heartbeat = Heartbeat()
    over: Over | None = None
    idle: Lasting = Duration(0)


class Gone(Part, frozen=True):
    """A life that has ended, with its CPU time and what it has moved."""

    member: Member
    end: End
    error: Raised | None = None
    cpu_seconds: Seconds = 0.0
    flows: Flows = Flows()


Scalar: TypeAlias = bool | int | float | str | None
Published: TypeAlias = dict[Name, dict[Name, Scalar | list[Scalar] | dict[Name | int, Scalar]]]
"""The figures that the bodies of a host publish, by node."""


FULL_MAX: Final = 16
"""Disks that a host writes to: a run folder and a store, and those that links in them lead to."""


class HostFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of a host for people; those that it did not measure are unset. The names are those of `Heartbeat`."""

    now_ns: Count | UnsetType = UNSET
    """Its clock; told while it compiles, so that people see for how long."""
    cpu_seconds: Seconds | UnsetType = UNSET
    memory_bytes: Count | UnsetType = UNSET
    bytes_sent: Count | UnsetType = UNSET
    bytes_received: Count | UnsetType = UNSET
    refused: Count | UnsetType = UNSET
    """Counts what it refused."""
    steps: Count | UnsetType = UNSET
    busy_ns: Count | UnsetType = UNSET
    firing_ns: Count | UnsetType = UNSET
    firing_node: Name | UnsetType = UNSET
    outside_ns: Count | UnsetType = UNSET
    """For how long the user's own code has kept it from its next step."""
    places: Annotated[tuple[CodePlace, ...], Meta(max_length=PLACES_MAX)] | UnsetType = UNSET
    """Where that is."""
    starved: Starved | UnsetType | None = UNSET
    peers: Count | UnsetType = UNSET
    unreached: Count | UnsetType = UNSET
    missing: Annotated[tuple[tuple[Name, Count, Count], ...], Meta(max_length=MISSING_MAX)] | UnsetType = UNSET
    relayed: Annotated[tuple[Name, ...], Meta(max_length=MISSING_MAX)] | UnsetType = UNSET
    """The hosts that a porter relays to it."""
    refusals: Annotated[tuple[ItemRefusal, ...], Meta(max_length=REFUSAL_ROWS_MAX)] | UnsetType = UNSET
    full: Annotated[tuple[Text, ...], Meta(max_length=FULL_MAX)] | UnsetType = UNSET
    """The disks of its machine, by where they are mounted, that have no room for what it writes."""
    formed: Formed | UnsetType = UNSET
    flows: Flows | UnsetType = UNSET


class ShownHost(Part, frozen=True):
    """The status of a host for people."""

    member: Member
    figures: HostFigures = HostFigures()
    published: Published = {}


ShownHosts: TypeAlias = Annotated[tuple[ShownHost, ...], Meta(max_length=LIVES_MAX)]


class Stamp(Part, frozen=True, order=True):
    """The position of orders in their sequence: the `number`-th of the `epoch`-th daemon of the home in `term`.

    A run has one home in each term; another machine that becomes its home begins the next term.
    """

    term: Count = 1
    epoch: Count = 0
    number: Count = 0


class Report(Part, frozen=True):
    """The state of a station."""

    lives: Annotated[tuple[Seen, ...], Meta(max_length=LIVES_MAX)] = ()
    """Some or all of those that run."""
    ended: Annotated[tuple[Gone, ...], Meta(max_length=LIVES_MAX)] = ()
    """Every ended life that is still wanted."""
    newest: Annotated[tuple[Member, ...], Meta(max_length=LIVES_MAX)] = ()
    """The newest life of each replica that was ever begun there."""
    obeyed: Stamp = Stamp()
    """The stamp of the orders that it has obeyed last."""
    is_leaving: bool = False
    """Its hosts end by themselves, and none begins."""
    is_far: bool = False
    """What it says comes through a bucket, seconds later, and minutes where that is away."""
    rostered: Count = 0
    """The mark of the roster that it holds."""


class Wanted(Part, frozen=True):
    """A life that the home wants running or, where it `is_condemned`, killed; it awaits the report of the end of both.

    Only one that `is_new` is begun: the home's present daemon gave it its number, and no station has reported it.
    Whether and where any other was begun is unknown.
    """

    member: Member
    is_condemned: bool = False
    is_new: bool = False


class Orders(Part, frozen=True):
    """The lives that a machine should have; it ends all others."""

    wanted: tuple[Wanted, ...] = ()
    roster: RosterDifference | None = None
    """What has changed in that since the one which this machine holds; None: nothing."""
    is_stopping: bool = False
    is_ending: bool = False
    is_over: bool = False
    """The run needs nothing here any more."""
    stamp: Stamp = Stamp()
    """Orders that are not newer than earlier ones are ignored."""
    home: str = ""
    """The machine that gives them."""
    forms: tuple[Form, ...] = ()
    """Those of the elastic islands."""


class Directory(Part, frozen=True):
    """What the home says of the machines that take part, by name: their public keys, and whose they are."""

    keys: dict[str, str] = {}
    owners: dict[str, MachineOwner] = {}

    def of(self, machines: Collection[str]) -> Directory:
        """The part of it about these machines."""
        keys = {name: key for name, key in self.keys.items() if name in machines}
        return Directory(keys, {name: owner for name, owner in self.owners.items() if name in machines})

    def row(self, name: str) -> MachineRow | None:
        """What it says of a machine; None for nothing."""
        key, owner = self.keys.get(name, ""), self.owners.get(name)
        return (name, key, owner) if key or owner is not None else None

    def rows(self) -> list[MachineRow]:
        """What it says of each machine."""
        names = dict.fromkeys((*self.keys, *self.owners))
        return [row for row in map(self.row, names) if row is not None]

    @classmethod
    def of_rows(cls, rows: Iterable[MachineRow]) -> Directory:
        """The directory with these rows."""
        listed = list(rows)
        keys = {name: key for name, key, _ in listed if key}
        return cls(keys, {name: owner for name, _, owner in listed if owner is not None})


NOBODY: Final = Directory()


class ReportFault(msgspec.Struct, frozen=True):
    """The first field of a report that is not as it has to be."""

    field: str
    expected: str
    found: str


class ReportError(ValueError):
    """A report that cannot be counted, because of its `fault`."""

    def __init__(self, fault: ReportFault) -> None:
        super().__init__(f"no report: {fault.field or 'the whole'}: expected {fault.expected}, found {fault.found}")
        self.fault = fault


def report_of(plain: Any) -> Report:
    """The report decoded from plain data; ReportError if it is not one, or has a value out of range."""
    report: Report = _checked(plain, Report, "report")
    return report


def shown_of(plain: Any) -> tuple[ShownHost, ...]:
    """The status of hosts decoded from plain data; ReportError if it is not one, or has a value out of range."""
    shown: tuple[ShownHost, ...] = _checked(plain, ShownHosts, "shown")
    return shown


def directory_of(plain: Any) -> DirectoryDifference | None:
    """The change of a directory decoded from plain data; ValueError if it is not valid."""
    try:
        return msgspec.convert(plain, DirectoryDifference | None)
    except msgspec.ValidationError as error:
        raise ValueError(f"no directory: {error}") from None


def orders_of(plain: Any) -> Orders:
    """The orders decoded from plain data; ValueError if they are not valid."""
    try:
        return msgspec.convert(plain, Orders)
    except msgspec.ValidationError as error:
        raise ValueError(f"no orders: {error}") from None


FOUND_LENGTH_MAX: Final = 100
"""Characters of a wrong value that a fault shows."""
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|\.(\w+)")


def _checked(plain: Any, kind: Any, name: str) -> Any:
    """Plain data as `kind`; ReportError, with the name of the field, if they are not of this type."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        # msgspec has no fields in its errors: 'Expected `int` >= 0 - at `$[0][2][5]`'.
        what, _, path = str(error).partition(" - at `")
        field, found = _place(plain, kind, _STEP.findall(path))
        expected = what.removeprefix("Expected ").partition(", got ")[0]
        raise ReportError(ReportFault(f"{name}{field}", expected, shortened(repr(found), FOUND_LENGTH_MAX))) from None


def _place(plain: Any, kind: Any, path: Sequence[tuple[str, str]]) -> tuple[str, Any]:
    """The field of `kind` to which a path leads, as in '.lives[3].heartbeat.steps', and what is there."""
    field = ""
    for index, key in path:
        members = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
        struct = next((each for each in members if issubclass(each, msgspec.Struct)), None)
        if struct is not None:
            names = struct.__struct_fields__
            name = key or names[int(index)]
            field, kind = f"{field}.{name}", hints_of(struct).get(name)
        else:
            field, kind = f"{field}[{key or index}]", _element(kind)
        try:
            plain = plain[key or int(index)]
        except (LookupError, TypeError, ValueError):  # A key, or one that msgspec does not name.
            return field, plain
    return field, plain


@cache
def hints_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of the fields of a record, with their bounds."""
    return get_type_hints(record, include_extras=True)


def _element(kind: Any) -> Any:
    """The type of the elements of a tuple, or of the values of a dict, which may be annotated, or may be missing."""
    of = next((each for each in (kind, *get_args(kind)) if get_origin(each) in (tuple, dict)), None)
    return None if of is None else get_args(of)[0 if get_origin(of) is tuple else 1]

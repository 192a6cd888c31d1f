"""The endpoint through which the hosts of a run connect to their machine's daemon.

It decides nothing: heartbeats become events, and replies go to the peer that last sent one for the life in question.
Messages from hosts of another run, whose daemon had this port before, are counted and ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from isthmus.runtime.clock import Duration
from isthmus.runtime.cores.membership_messages import PHASES
from isthmus.runtime.daemon.ground import Handler, Server
from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import Flows
from isthmus.runtime.supervision.incidents import DataSpent, Starved, raised_of
from isthmus.runtime.supervision.messages import (
    MISSING_MAX,
    Directory,
    Endpoints,
    Formed,
    Heartbeat,
    ItemRefusal,
    Missing,
    Over,
)
from isthmus.runtime.supervision.rosters import MachineRow, MetRoles, RosterDifference
from isthmus.runtime.supervision.station_events import HostSpoke, TellHosts
from isthmus.runtime.wire.control_messages import Message

REFUSED_MAX: Final = 256
"""Distinct faults of messages that are counted separately."""
HOST_MESSAGES: Final = frozenset({"hello", "heartbeat", "over", "failed"})

Shown = Mapping[str, Any]
"""A host's status for people: {published, figures}."""


@dataclass(slots=True)
class ToldMachines:
    """The machines in the roster of a host, with what it was told of each, of that directory."""

    rows: dict[str, MachineRow | None] = field(default_factory=dict)
    directory: Directory | None = None


class HostEndpoint:
    """The endpoint of one run on one machine.

    `commands` handle messages that no host sends; `spoke(event, shown)` is called with each heartbeat.
    """

    def __init__(
        self,
        serve: Callable[[Handler], Server],
        run: str,
        spoke: Callable[[HostSpoke, Shown], None],
        commands: Mapping[str, Handler],
    ) -> None:
        """Raises what `serve` raises."""
        self._run, self._spoke, self._commands = run, spoke, commands
        self._peers: dict[Member, bytes] = {}
        self._machines: dict[Member, ToldMachines] = {}
        self._server = serve(self._on_message)

    @property
    def endpoint(self) -> str:
        """The endpoint that hosts dial."""
        return self._server.endpoint

    @property
    def refused(self) -> Counter[str]:
        """Counts of messages that could not be handled, by reason."""
        return self._server.refused

    def send(self, peer: bytes, message: Message) -> None:
        """Answer a command."""
        self._server.send(peer, message)

    def tell(self, command: TellHosts, directory: Directory) -> None:
        """Send hosts what they lack of the roster and of what is known of its machines, and the run's flags."""
        flags, change = {"is_stopping": command.is_stopping}, command.roster
        roster = None if change is None else msgspec.to_builtins(change)
        forms = msgspec.to_builtins(command.forms)
        for member in command.members:
            peer = self._peers.get(member)
            if peer is None:
                continue
            message: Message = {"type": "beat", **flags}
            if change is not None:
                known = self._news_of_machines(member, change, directory)
                is_news = change.since is None or change.rows or change.gone or known or forms
                more = {"directory": known, "forms": forms} if is_news else {}
                message = {"type": "roster" if is_news else "beat", **flags, "roster": roster, **more}
            self._server.send(peer, message)
            if command.is_ending:
                self._server.send(peer, {"type": "exit", "reason": "the run is over", "is_over": True})
            if member in command.leaving:
                self._server.send(peer, {"type": "leave"})

    def _news_of_machines(self, member: Member, change: RosterDifference, directory: Directory) -> dict[str, Any]:
        """What a host was not told of the machines of its roster, by name; None of one of which nothing is known."""
        told = self._machines.setdefault(member, ToldMachines())
        if change.since is None:
            told.rows.clear()
        names = {row[3]: None for row in change.rows if row[3] not in told.rows}
        if told.directory is not directory:
            names |= dict.fromkeys(told.rows)
        told.directory, news = directory, dict[str, Any]()
        for name in names:
            row = directory.row(name)
            if row != told.rows.get(name):
                news[name] = None if row is None else msgspec.to_builtins(row[1:])
            told.rows[name] = row
        return news

    def dismiss(self, member: Member) -> None:
        """Order a host to end whose life is not the present one of its replica."""
        peer = self._peers.pop(member, None)
        self._machines.pop(member, None)
        if peer is not None:
            self._server.send(
                peer, {"type": "exit", "reason": "another incarnation has taken this place", "is_over": False}
            )

    def forget(self, member: Member) -> None:
        """Forget the peer of a life that is over."""
        self._peers.pop(member, None)
        self._machines.pop(member, None)

    def restore(self) -> None:
        """Listen again where the endpoint was deleted."""
        self._server.restore()

    def close(self) -> None:
        self._server.close()

    def _on_message(self, peer: bytes, message: Message) -> None:
        kind = message["type"]
        if kind in self._commands:
            self._commands[kind](peer, message)
        elif kind in HOST_MESSAGES:
            try:
                event, shown = _read(message, self._run)
            except (KeyError, TypeError, ValueError) as error:
                reason = shortened(f"malformed {kind}: {error}", 200)
                self.refused[reason if len(self.refused) < REFUSED_MAX or reason in self.refused else "others"] += 1
                return
            self._peers[event.member] = peer
            self._spoke(event, shown)
        else:
            self.refused["unknown type"] += 1


def _read(message: Message, run: str) -> tuple[HostSpoke, Shown]:
    """The heartbeat of a host of `run`; KeyError, TypeError or ValueError for a message that no host of ours sends."""
    if message["run"] != run:
        raise ValueError("a host of another run")
    member = Member(Replica.parse(message["replica"]), int(message["incarnation"]))
    phase = next((name for name in PHASES if name == message["phase"]), None)
    if phase is None:
        raise ValueError(f"no phase: {message['phase']!r}")
    if member.incarnation < 1:
        raise ValueError(f"no incarnation: {member.incarnation}")
    figures, published = dict(message["figures"]), dict(message["published"])
    heartbeat = Heartbeat(
        phase,
        _endpoints(message["endpoints"]),
        _count(figures, "steps"),
        Duration(_count(figures, "busy_ns")),
        Duration(_count(figures, "firing_ns")),
        str(figures.get("firing_node", "")),
        max(0.0, float(figures.get("cpu_seconds", 0.0))),
        msgspec.convert(figures.get("flows", Flows()), Flows),
        msgspec.convert(figures.get("starved"), Starved | None),
        _count(figures, "peers"),
        _count(figures, "unreached"),
        tuple(_missing(each) for each in list(figures.get("missing", []))[:MISSING_MAX]),
        msgspec.convert(figures.get("refusals", []), tuple[ItemRefusal, ...]),
        msgspec.convert(figures.get("formed", Formed()), Formed),
        _door(message.get("door")),
        max((_count(dict(each), "data_digest") for each in published.values()), default=0),
        Duration(_count(figures, "outside_ns")),
        max((_count(dict(each), "overwritten") for each in published.values()), default=0),
        next((_spent(dict(each["spent"])) for each in published.values() if "spent" in each), None),
    )
    over = None
    if message["type"] == "over":
        over = Over.of(dict(published.get("record", {})))
    failed = raised_of(message["error"]) if message["type"] == "failed" else None
    meets = None if message.get("meets") is None else msgspec.convert(message["meets"], MetRoles)
    event = HostSpoke(member, int(message["pid"]), heartbeat, failed, over, meets, _count(message, "asks"))
    return event, {"published": published, "figures": figures}


def _missing(plain: Any) -> Missing:
    replica, incarnation, silence = plain
    return Missing(Member(Replica.parse(replica), int(incarnation)), Duration(max(0, int(silence))))


def _endpoints(plain: Any) -> Endpoints | None:
    """The endpoints of a host, for control, for data, and its porter's; None for one that does not listen."""
    if not plain:
        return None
    endpoints: Endpoints = tuple(map(str, plain))
    if not 2 <= len(endpoints) <= 3:
        raise ValueError(f"no endpoints: {len(endpoints)} of them")
    return endpoints


def _door(plain: Any) -> tuple[str, str] | None:
    """The address and the token of a door; None where there is none."""
    if not plain:
        return None
    first, second = map(str, plain)
    return first, second


def _spent(plain: Mapping[str, Any]) -> DataSpent:
    """What a learner says of its own data, of which it has trained all that it may."""
    return msgspec.convert({"kind": "data-spent", **plain, "is_last": False}, DataSpent)


def _count(figures: Mapping[str, Any], name: str) -> int:
    return max(0, int(figures.get(name, 0)))

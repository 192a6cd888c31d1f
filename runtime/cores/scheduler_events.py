"""Events into a host's scheduler and commands out of it: plain frozen data, small, and complete.

Every input of a decision is in an event, and every decision is in a command, so that the tape of both is enough to
repeat a run. Items appear as handles with the *fields* that cores may see. Edges and nodes are indices of the graph,
replicas are slots of the role that the edge names.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Handle, Member, Record, Replica

Fields: TypeAlias = dict[str, Any] | None
Entry: TypeAlias = tuple[Replica, int | str | None, Handle]
"""One item that a firing takes: its producer, its key, its handle."""


class Output(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One item that a firing emitted on output port number `port`; `digest` of its payload, 0 where none was taken."""

    port: int
    handle: Handle
    fields: Fields = None
    digest: int = 0


# -- events ------------------------------------------------------------------------------------------------------------


class NodeOpened(Record, frozen=True):
    """A body has been opened; an idle one fires once immediately, without required inputs."""

    node: int
    is_idle: bool = False


class ItemsEmitted(Record, frozen=True):
    """A firing emitted `outputs` and continues."""

    node: int
    outputs: tuple[Output, ...]


class FiringEnded(Record, frozen=True):
    """The firing of a node ended.

    `is_idle`: its body takes no required inputs until something new is sampled; `is_finished`: it never fires again.
    """

    node: int
    outputs: tuple[Output, ...]
    is_idle: bool = False
    is_finished: bool = False


class BodyFailed(Record, frozen=True):
    """A body raised, when it was opened or fired; `error` is its type and line: the text stays with the host."""

    node: int
    error: str


class ItemArrived(Record, frozen=True):
    """An item arrived from another host."""

    edge: int
    source: Member
    handle: Handle
    fields: Fields = None
    digest: int = 0


class CreditGranted(Record, frozen=True):
    """A consumer on another host took `count` items of a Queue edge."""

    edge: int
    target: Member
    count: int


class ReplicaJoined(Record, frozen=True):
    """A replica of any role is live from now on (this host's own among them)."""

    member: Member


class ReplicaLeft(Record, frozen=True):
    """A replica is gone; its pairs end, and what they held is dropped."""

    member: Member


class TimerFired(Record, frozen=True):
    """A timer that was set came due."""

    timer: int


class NodesNudged(Record, frozen=True):
    """A stop of the run was requested; idle nodes fire once, so that their bodies can see it."""


Event: TypeAlias = (
    NodeOpened
    | ItemsEmitted
    | FiringEnded
    | BodyFailed
    | ItemArrived
    | CreditGranted
    | ReplicaJoined
    | ReplicaLeft
    | TimerFired
    | NodesNudged
)

# -- commands ----------------------------------------------------------------------------------------------------------


class RunBody(Record, frozen=True):
    """Fire a node: `inputs` pairs the number of an input port with what the firing takes there.

    `decision` is the quorum's, as a plain dict, for nodes that fire by Quorum.
    """

    node: int
    firing: int
    inputs: tuple[tuple[int, tuple[Entry, ...]], ...]
    decision: dict[str, Any] | None = None


class SendItem(Record, frozen=True):
    """Hand an item to the channel, for a replica on another host; on Latest edges `key` names the mailbox slot."""

    edge: int
    target: Member
    handle: Handle
    key: int | str | None = None
    fields: Fields = None


class ResendItem(Record, frozen=True):
    """Hand a kept item to the channel, for a replica that has just joined. It ends no use of the payload."""

    edge: int
    target: Member
    handle: Handle
    key: int | str | None = None
    fields: Fields = None


class GrantCredit(Record, frozen=True):
    """Tell the producer on another host that `count` items of a Queue edge were taken."""

    edge: int
    source: Member
    count: int


class ShareItem(Record, frozen=True):
    """The payload has `uses` uses (two or more); without this command, one."""

    handle: Handle
    uses: int


class DropItem(Record, frozen=True):
    """One use of a payload ended without a firing; the reason is counted."""

    handle: Handle
    reason: str


class SetTimer(Record, frozen=True):
    """Fire `timer` at `at`; setting it again moves it."""

    timer: int
    at: Instant


class CancelTimer(Record, frozen=True):
    """Forget `timer`."""

    timer: int


class EndNode(Record, frozen=True):
    """A node finished for good."""

    node: int


class FailHost(Record, frozen=True):
    """This host cannot continue."""

    node: int
    error: str


Command: TypeAlias = (
    RunBody | SendItem | ResendItem | GrantCredit | ShareItem | DropItem | SetTimer | CancelTimer | EndNode | FailHost
)


class HostRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event and the core's commands for it."""

    at: Instant
    event: Event
    commands: list[Command]


def compare(record: HostRecord, commands: list[Command]) -> None:
    """Raise InvariantError if a core that replays `record.event` returned other commands."""
    if record.commands != commands:
        raise InvariantError(
            f"replay at {record.at} ns: after {record.event} the tape has {record.commands}, this core says {commands}"
        )

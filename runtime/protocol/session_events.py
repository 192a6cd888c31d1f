"""Events that a session derives from incoming messages, for the channel to act on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.clock import Duration
from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.protocol.transfers import Shipment


class PeerUp(NamedTuple):
    """Items can be sent from now on."""


class CreditHeard(msgspec.Struct, frozen=True, gc=False):
    """The peer took `more` items of a Queue edge."""

    edge: int
    more: int


class ShipmentsEnded(msgspec.Struct, frozen=True, gc=False):
    """These have arrived, `ages` ago (0 where unknown); or, where `is_superseded`, they never will."""

    shipments: list[Shipment]
    ages: list[Duration]
    is_superseded: bool = False


class ParcelsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items (each with the sender's snapshot number) that came with one message; none of them will be sent again.

    The channel removes each item that it gives to the receiver, calls `Session.acknowledge` for each, and
    `Session.take` with `cost` after all.
    """

    parcels: deque[tuple[int, Parcel]]
    cost: int


class RelayHeard(NamedTuple):
    """A control message from `source` to `target`, one of which is the peer or this host."""

    source: Member
    target: Member
    inner: bytes


class FramesHeard(NamedTuple):
    """A data message from `source` to `target`, one of which is the peer or this host."""

    source: Member
    target: Member
    frames: Sequence[Bytes]


class UnreachableHeard(NamedTuple):
    """Messages of `source` do not reach `target`."""

    source: Member
    target: Member


class Refused(NamedTuple):
    """The peer ended the connection and gave the reason."""

    reason: str
    story: str


Event: TypeAlias = (
    PeerUp | CreditHeard | ShipmentsEnded | ParcelsArrived | RelayHeard | FramesHeard | UnreachableHeard | Refused
)

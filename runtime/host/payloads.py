"""The payloads of one host, behind handles, with the number of uses left; each is released after its last use.

Decides nothing: the core decides the use of each handle. Handles below 0 are the plan's initial items, which stay.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import Handle
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.scheduler.core import CONSTANTS_PER_EDGE


class Payload(msgspec.Struct):
    """An item with its digest and its size in bytes (both 0 if not computed), with `uses` uses left.

    `encoded` is its encoding, if it is to leave this host.
    """

    item: Any
    digest: int = 0
    size_bytes: int = 0
    encoded: Encoded | None = None
    uses: int = 1


class Payloads:
    """The payloads of the host that runs `plan`; call only in its turn."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._items: dict[Handle, Payload] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, payload: Payload) -> Handle:
        """Hold a payload for one use, unless `share` sets another number; returns its handle."""
        self._last += 1
        handle = Handle(self._last)
        self._items[handle] = payload
        return handle

    def share(self, handle: Handle, uses: int) -> None:
        """Set the number of uses of a payload."""
        self._items[handle].uses = uses

    def look(self, handle: Handle) -> Payload:
        """A held payload, without using it."""
        return self._items[handle]

    def take(self, handle: Handle) -> Payload:
        """Use a payload once; KeyError if it is not held."""
        if handle < 0:
            edge, index = divmod(-1 - handle, CONSTANTS_PER_EDGE)
            return Payload(self._plan.edges[edge].initial[index])
        payload = self._items[handle]
        payload.uses -= 1
        if payload.uses == 0:
            del self._items[handle]
        return payload

    def forget(self, handle: Handle) -> None:
        """Release a payload that the core did not accept."""
        self._items.pop(handle, None)

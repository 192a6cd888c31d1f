"""The payloads of one host, behind handles: how often each is still to be used, and gone after its last use.

Decides nothing: the core says what each handle is used for. Handles below 0 are the plan's initial items, which last.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import Handle
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.scheduler.core import CONSTANTS_PER_EDGE


class Payload(msgspec.Struct):
    """An item with its digest and its size in bytes (both 0 if none was taken), and what it is encoded as if it is to
    leave this host; to be used `uses` times more."""

    item: Any
    digest: int = 0
    size_bytes: int = 0
    encoded: Encoded | None = None
    uses: int = 1


class Payloads:
    """Those of the host that runs `plan`; only in its turn."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._items: dict[Handle, Payload] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, payload: Payload) -> Handle:
        """Hold a payload for one use, or for as many as `share` says; its handle."""
        self._last += 1
        handle = Handle(self._last)
        self._items[handle] = payload
        return handle

    def share(self, handle: Handle, uses: int) -> None:
        """A payload is to be used so often."""
        self._items[handle].uses = uses

    def look(self, handle: Handle) -> Payload:
        """A payload that is held, without using it."""
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
        """Let go of a payload that the core did not take."""
        self._items.pop(handle, None)

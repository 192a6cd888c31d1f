"""The payloads of one host, behind handles: how often each is still to be used, and gone after its last use.

Decides nothing: the core says what each handle is used for. Handles below 0 are the plan's initial items, which last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from isthmus.runtime.ids import Handle
from isthmus.runtime.lowering import Plan
from isthmus.runtime.scheduler import CONSTANTS_PER_EDGE


class Payload(NamedTuple):
    """An item with its digest (0 if none was taken) and its size in bytes."""

    item: Any
    digest: int
    size_bytes: int


class Payloads:
    """Those of the host that runs `plan`; under its lock."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._items: dict[Handle, Payload] = {}
        self._uses: dict[Handle, int] = {}
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
        self._uses[handle] = uses

    def look(self, handle: Handle) -> Payload:
        """A payload that is held, without using it."""
        return self._items[handle]

    def take(self, handle: Handle) -> Payload:
        """Use a payload once; KeyError if it is not held."""
        if handle < 0:
            edge, index = divmod(-1 - handle, CONSTANTS_PER_EDGE)
            return Payload(self._plan.edges[edge].initial[index], 0, 0)
        left = self._uses.get(handle, 1) - 1
        if left == 0:
            self._uses.pop(handle, None)
            return self._items.pop(handle)
        self._uses[handle] = left
        return self._items[handle]

    def forget(self, handle: Handle) -> None:
        """Let go of a payload that the core did not take."""
        self._items.pop(handle, None)

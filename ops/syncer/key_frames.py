"""The key-frames node: sends whole values to receivers that lack a code between their version and the incoming ones.

Decides the receivers: one that reports missing codes (`Need`) is sent the newest version, once; one that lacks none, or
holds a version newer than any here, is sent nothing. A need that arrives before there is a version is kept until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.copies import copied
from isthmus.ops.exchange.messages import Need, State, Update


class KeyFrames:
    """States of fragments and needs in; whole values out, on the port of the receiver's role, for its `slot`.

    `frame` is the key of a fragment's mailbox.
    """

    outputs = ("learner", "evaluator")
    schemas: ClassVar = {"need": schemas.NEED}

    def __init__(self) -> None:
        self._newest: dict[int, Update] = {}
        self._needs: dict[tuple[Any, int], Need] = {}

    def __call__(
        self, state: Mapping[Any, State] | None = None, need: Mapping[Any, Need] | None = None
    ) -> list[tuple[str, Any]] | None:
        """The whole values to send now."""
        for item in (state or {}).values():
            self._newest[item["fragment"]] = copied(item)
        for (replica, fragment), asked in (need or {}).items():
            self._needs.pop((replica, fragment), None)
            if asked["lacks"] and replica.role in self.outputs:
                self._needs[replica, fragment] = asked
        given: list[tuple[str, Any]] = []
        for (replica, fragment), asked in list(self._needs.items()):
            newest = self._newest.get(fragment)
            if newest is not None and newest["version"] > asked["version"]:
                del self._needs[replica, fragment]
                # A text, because numbers are the keys of codes from the same shard.
                given.append((replica.role, {**newest, "slot": replica.slot, "frame": str(fragment)}))
        return given or None

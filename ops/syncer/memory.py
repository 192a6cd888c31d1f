"""Whether fragments were ever merged, as a shard that comes back finds out before it lets anybody begin them.

Decides which fragments may begin: all, in the first life of a shard; later all as long as neither the recorder nor
anybody who holds the model knows of any fragment that was merged, once each of those that is live has said so. From
then on what has no version comes from whoever holds one, also where that is the first: beside merged fragments one that
is begun anew would make a model of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from isthmus.ops.exchange.messages import Control, Held
from isthmus.ops.syncer.hold import HOLDERS


class ShardContext(Protocol):
    """What is used of the context that a host opens a body with."""

    @property
    def member(self) -> Any:
        """This shard."""

    def members(self) -> frozenset[Any]:
        """Who is live, of any role."""


class Memory:
    """What one life of a shard has heard of earlier ones."""

    def __init__(self) -> None:
        self._merged: set[int] = set()
        self._heard: set[Any] = set()
        self._has_recorder = False

    def hear_recorder(self, control: Control) -> None:
        """Take what the recorder knows."""
        self._has_recorder = True
        self._merged.update(fragment for fragment, _, _ in control["published"])

    def hear_holders(self, held: Mapping[Any, Held] | None) -> None:
        """Take what others hold, by (replica, key)."""
        for (replica, _), item in (held or {}).items():
            self._heard.add(replica)
            self._merged.update(item["merged"])

    def fresh(self, unborn: Iterable[int], context: ShardContext) -> list[int]:
        """Those of the fragments without a version that may begin now."""
        if context.member.incarnation > 1:
            holders = {member.replica for member in context.members() if member.replica.role in HOLDERS}
            if self._merged or not self._has_recorder or not holders <= self._heard:
                return []
        return [fragment for fragment in unborn if fragment not in self._merged]

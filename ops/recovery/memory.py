"""Whether fragments were ever merged: a shard that comes back finds this out before it lets any learner begin them.

Decides which fragments may begin: all, in the first life of a shard; later all as long as neither the recorder nor any
holder of the model knows of any fragment that was merged, once each of those that is live has checked since it knows of
this life, and reported: an earlier report may be older than what reached it from the life before. A fragment whose
first version a holder has does not begin anew either: this life goes on from it. No fragment is merged before one
holder has reported all first versions (`is_kept`), so that there is one to go on from. Once a merge is known,
fragments without a version come from their holders, also where that is the first one: beside merged fragments one that
is begun anew would make a model of two. Where the hosts that knew of a merge have died since, this life is the last
that knows; it reports that to the recorder, which reports a model as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from isthmus.ops.exchange.messages import Control, Held
from isthmus.ops.recovery.hold import HOLDERS

KEPT_WAIT: Final = 1_000_000_000
"""Nanoseconds for which the first merge waits for a holder: holders check every 0.2 s, unless they are cut off."""


class ShardContext(Protocol):
    """The fields used of the context with which a host opens a body."""

    @property
    def member(self) -> Any:
        """This shard."""

    def now(self) -> int:
        """The clock of the host, nanoseconds."""

    def members(self) -> frozenset[Any]:
        """The live members of every role."""


class Memory:
    """A shard life's knowledge of earlier ones."""

    def __init__(self) -> None:
        self._merged: set[int] = set()
        self._heard: dict[Any, Held] = {}
        self._recorded: set[int] = set()
        self._has_recorder = False
        self._told: set[int] = set()
        self._kept_by: int | None = None
        self._is_kept = False

    def hear_recorder(self, control: Control) -> None:
        """Add the recorder's knowledge."""
        self._has_recorder = True
        self._recorded.update(fragment for fragment, _, _ in control["published"])
        self._merged |= self._recorded

    def hear_holders(self, held: Mapping[Any, Held] | None) -> None:
        """Add the versions that others hold, by (replica, key)."""
        for (replica, _), item in (held or {}).items():
            self._heard[replica] = item
            self._merged.update(item["merged"])

    def fresh(self, unborn: Iterable[int], context: ShardContext) -> list[int]:
        """Those of the fragments without a version that may begin now."""
        has_heard = self._has_recorder and self.has_heard_holders(context)
        if context.member.incarnation > 1 and (self._merged or not has_heard):
            return []
        kept = {fragment for item in self._living(context) for fragment in item["fragments"]}
        return [fragment for fragment in unborn if fragment not in self._merged | kept]

    def is_kept(self, fragments: Iterable[int], context: ShardContext) -> bool:
        """Whether these fragments may be merged: a live holder has reported all of them, now or before; or no holder is
        live, or KEPT_WAIT has passed since the first call."""
        if not self._is_kept:
            now, wanted = context.now(), set(fragments)
            self._kept_by = now + KEPT_WAIT if self._kept_by is None else self._kept_by
            is_held = any(wanted <= set(item["fragments"]) for item in self._living(context))
            self._is_kept = is_held or not _holders(context) or now >= self._kept_by
        return self._is_kept

    def news(self, context: ShardContext) -> list[tuple[str, Held]]:
        """A later life's reports to the recorder (port `held`): merged fragments that the recorder does not know.

        No report as long as the recorder is silent, and each only once.
        """
        unknown = self._merged - self._recorded
        if context.member.incarnation == 1 or not self._has_recorder or unknown <= self._told:
            return []
        self._told |= unknown
        return [("held", heard(context.member.replica.role, sorted(self._told)))]

    def has_heard_holders(self, context: ShardContext) -> bool:
        """Whether all live holders of the model have checked their versions for this life of the shard."""
        own = [context.member.replica.slot, context.member.incarnation]
        looked = {replica for replica, item in self._heard.items() if own in item["lives"]}
        return _holders(context) <= looked

    def _living(self, context: ShardContext) -> list[Held]:
        """The reports of live holders."""
        return [self._heard[holder] for holder in sorted(_holders(context)) if holder in self._heard]

    def totals(self) -> list[list[int]]:
        """The progress of the run in the versions held for this life of the shard, [slot, incarnation, tokens]."""
        return [row for _, item in sorted(self._heard.items()) for row in item["totals"]]

    def known(self, fragment: int) -> list[list[Any]]:
        """The held versions of a fragment, as [epoch, count, digest of the values, lengths]."""
        rows = [row[1:] for _, item in sorted(self._heard.items()) for row in item["given"] if row[0] == fragment]
        return [row for index, row in enumerate(rows) if row not in rows[:index]]


def heard(role: str, merged: list[int]) -> Held:
    """The Held of a shard of that role that holds nothing, and knows these fragments as merged."""
    return Held(
        holder=role,
        fragments=[],
        merged=merged,
        saved=[],
        totals=[],
        faults=[],
        error=None,
        store=None,
        lives=[],
        given=[],
    )


def _holders(context: ShardContext) -> set[Any]:
    return {member.replica for member in context.members() if member.replica.role in HOLDERS}

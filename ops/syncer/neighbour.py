"""What a shard has at its neighbour, the next shard: the newest state of each of its fragments, so that its next life
goes on from it with a momentum that is as new.

Decides what of a state travels, and in what form. Published values are there as at any other host, from updates, in
their codes where they are coded; momentum, and what Theta differs from published values, in codes of 8 bits. The
neighbour is a holder like the others (`ops.recovery.hold`): it says what it holds, gives the next life a copy of the
values, in case no learner has them any more, and, beside it, the rest. What it gives it takes back once that life has
published, because channels keep the last item of each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.formats import STATE_FORMAT
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import CodedState, Kept, ShardState, Update, is_withdrawn
from isthmus.ops.recovery.hold import NEIGHBOUR, Hold
from isthmus.ops.syncer.outer_step import SCALES

if TYPE_CHECKING:
    from types import ModuleType

TENSORS = ("momentum", "theta")
WAITING_MAX = 2
"""Versions of a fragment whose codes, or whose update, may wait for the other: they leave the shard together."""


@final
class StateCoder:
    """States in; what a neighbour needs of them beside the updates out.

    In a node of its own, because the outer step does not wait for it.
    """

    outputs: ClassVar[tuple[str, ...]] = ("coded",)
    collects: ClassVar[tuple[str, ...]] = ("state",)

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._fragments = fragments

    def open(self, context: Any) -> None:
        """Load the kernels that code."""
        from isthmus.ops.kernels import coding

        coding.warm_updates()
        self._coding: ModuleType = coding

    def __call__(self, state: Mapping[Any, ShardState]) -> list[tuple[str, CodedState]] | None:
        """The codes of each state that is new."""
        return [("coded", self._coded(item)) for item in state.values()] or None

    def _coded(self, state: ShardState) -> CodedState:
        p, tensors = state["fragment"], state["tensors"]
        coded: dict[str, Any] = {"fragment": p, "version": state["version"], "lengths": state["lengths"]}
        for name in [each for each in TENSORS if each in tensors]:
            if name == "theta":
                codes, _ = self._coding.advance(tensors[name], state["values"], self._fragments[p], STATE_FORMAT)
            else:
                codes = self._coding.encode(tensors[name], self._fragments[p], STATE_FORMAT)
            coded |= {name: codes.codes, name + SCALES: codes.scales}
        return coded  # type: ignore[return-value]


@final
class NeighbourHold:
    """Updates and codes of the shard before this one in; what is held of it, and what its next life is given, out.

    A version is held once its values and its codes are there; until then the one before it is. Fires when one comes,
    because what has come of a shard that is gone is not there any more, and by `tick`, to notice who lives. It is a
    `Hold` for one of the `shards` of `role`: fragment p belongs to the replica p modulo their number.
    """

    outputs: ClassVar[tuple[str, ...]] = (*Hold.outputs, "kept")
    collects: ClassVar[tuple[str, ...]] = ("update", "coded")

    @staticmethod
    def schemas(fragments: Sequence[Fragment], **_: Any) -> dict[str, Any]:
        """The forms of the messages of the shard before."""
        return {"update": Update, "coded": schemas.coded_state(fragments)}

    def __init__(self, fragments: Sequence[Fragment], *, role: str, shards: int) -> None:
        self._fragments, self._shards = fragments, shards
        self._hold = Hold(role=role, shards=shards)
        self._updates: dict[int, list[Update]] = {}
        self._codes: dict[int, list[CodedState]] = {}
        """What waits for the other part of its version, by fragment, the newest last."""
        self._rest: dict[int, CodedState] = {}
        """Of what is held."""

    def open(self, context: Any) -> None:
        """Find the shard before this one."""
        self._owner = (context.member.replica.slot - 1) % self._shards
        self._hold.open(context)

    def __call__(
        self,
        update: Mapping[Any, Update] | None = None,
        coded: Mapping[Any, CodedState] | None = None,
        tick: Any = None,
    ) -> list[tuple[str, Any]] | None:
        """Hold what is whole now, give it to a new life, and say what is held, if that is news."""
        del tick
        for item in (update or {}).values():
            self._wait(self._updates, item)
        for rest in (coded or {}).values():
            self._wait(self._codes, rest)
        self._hold.accept(self._joined())
        emitted: list[tuple[str, Any]] = []
        for copy in self._hold.copies():
            emitted += [("copy", copy), ("kept", self._kept(copy["fragment"], is_taken_back=is_withdrawn(copy)))]
        return [*emitted, *self._hold.news(holder=NEIGHBOUR, owner=self._owner)] or None

    def _wait(self, waiting: dict[int, list[Any]], item: Any) -> None:
        """Keep a part until the other is there: of the version that is held, too, which may be published again."""
        p = item["fragment"]
        if p < len(self._fragments) and p % self._shards == self._owner:
            others = [each for each in waiting.get(p, []) if each["version"] != item["version"]]
            waiting[p] = sorted([*others, item], key=lambda each: each["version"])[-WAITING_MAX:]

    def _joined(self) -> Iterable[Update]:
        """The newest state of each fragment of which both parts are there, if it is news."""
        for p in sorted(self._updates.keys() & self._codes.keys()):
            of_version = {tuple(each["version"]): each for each in self._codes[p]}
            whole = [each for each in self._updates[p] if tuple(each["version"]) in of_version]
            if not whole:
                continue
            item, held = whole[-1], self._hold.held.get(p)
            version, rest = item["version"], of_version[tuple(item["version"])]
            self._updates[p] = [each for each in self._updates[p] if each["version"] > version]
            self._codes[p] = [each for each in self._codes[p] if each["version"] > version]
            # A life that has recovered publishes what it has recovered, maybe before it has got the momentum of it.
            if held is None or version > held["version"] or item["kind"] != "recover":
                self._rest[p] = rest
                yield {**item, "lengths": rest["lengths"]}  # type: ignore[typeddict-unknown-key]

    def _kept(self, p: int, *, is_taken_back: bool) -> Kept:
        if is_taken_back:
            return Kept(fragment=p, version=[0, 0], tensors={})
        rest: Any = self._rest[p]
        names = [each for name in TENSORS for each in (name, name + SCALES) if each in rest]
        return Kept(fragment=p, version=rest["version"], tensors={name: rest[name] for name in names})

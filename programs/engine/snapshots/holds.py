"""The hold nodes of a run's home: a model that outlives every process of its run.

Decides the contents of a snapshot (`keeping` decides its time): the newest version of every fragment (`KeptHold`), the
state that all learners share (`KeptState`), or a cut of a program in lock-step (`WholeHold`), and what of it a new life
of a shard or a learner is sent. A hold that opens begins with the last snapshot: for shards and learners it is a holder
like any other, whose versions may be older than those of live hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, cast, final

import numpy as np

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    BEGINNING,
    CodedState,
    Held,
    Kept,
    Own,
    Restored,
    SenderLife,
    SenderSlot,
    ShardState,
    Update,
    WantedCut,
    WholeState,
    after,
    last_merged,
    newest,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.recovery.hold import Hold, packed, unpacked
from isthmus.programs.engine.snapshots.keeping import Keeping
from isthmus.programs.engine.snapshots.snapshots import Found
from isthmus.programs.engine.snapshots.stored import StorePlace
from isthmus.runtime.ids import LEARNER

AHEAD: Final = 2
AHEAD_MAX: Final = 64
"""Turns. A word takes some milliseconds, and the quickest turns are not shorter."""
PATIENCE_NS: Final = 5_000_000_000
"""Counts from the version on: learners of large models need time to send their parts."""

Life = tuple[int, int]
"""Slot and incarnation."""


@final
class Cuts:
    """Requests and assembles one cut at a time. Times are nanoseconds.

    A cut is the model that results from the turns up to one, with its momentum, and from every live learner the state
    that it had when it had answered that turn, before its next step. The turn is announced some turns before (`AHEAD`
    at first). A learner that receives the announcement too late has made its next step by then, and does not send; so a
    cut that is not complete a while after the version of its turn, or a later one, has arrived, is given up, and the
    next is announced twice as far ahead. No step and no merge waits for any of it.
    """

    def __init__(self) -> None:
        self._ahead = AHEAD
        self._wanted: WantedCut | None = None
        self._passed_at: int | None = None
        self._states: dict[int, ShardState] = {}
        self._own: dict[Life, Own] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether a cut is wanted, and neither whole nor given up."""
        return self._wanted is not None

    def want(self, counts: Sequence[int], last: int) -> WantedCut:
        """The next cut to request, given the counts of held versions, and `last`, the fragment merged last."""
        fragment, then = after(counts, last, self._ahead)
        self._wanted, self._passed_at = WantedCut(fragment=fragment, counts=then), None
        self._states.clear()
        self._own.clear()
        return self._wanted

    def add(self, states: Collection[ShardState], own: Collection[Own]) -> None:
        """Take parts of a cut."""
        if self._wanted is None:
            return
        counts = self._wanted["counts"]
        for state in states:
            p = state["fragment"]
            if counts[p : p + 1] == [state["version"][1]]:
                self._states.setdefault(p, state)
        for item in own:
            if [count for _, count, _, _ in item["standings"]] == counts:
                self._own[item["slot"], item["incarnation"]] = item

    def whole(self, living: Collection[Life]) -> tuple[Mapping[int, ShardState], Mapping[int, Own]] | None:
        """The cut, by fragment and by slot, once it has all of these lives; then it is over."""
        if self._wanted is None or not living or len(self._states) < len(self._wanted["counts"]):
            return None
        versions = [list(state["version"]) for _, state in sorted(self._states.items())]
        fitting = {
            life: own for life, own in self._own.items() if [list(row[:2]) for row in own["standings"]] == versions
        }
        if not fitting.keys() >= set(living):
            return None
        self._wanted, self._ahead = None, AHEAD
        return dict(self._states), {slot: fitting[slot, life] for slot, life in sorted(living)}

    def is_given_up(self, counts: Sequence[int], now: int) -> bool:
        """Whether the cut cannot be completed, given the counts of held versions; the next is then further ahead."""
        if self._wanted is None or counts[self._wanted["fragment"]] < self._wanted["counts"][self._wanted["fragment"]]:
            return False
        self._passed_at = now if self._passed_at is None else self._passed_at
        if now - self._passed_at < PATIENCE_NS:
            return False
        self._wanted, self._ahead = None, min(2 * self._ahead, AHEAD_MAX)
        return True


class KeptHold(Hold):
    """A `Hold` of fragments of `sizes` values, kept in the run folder `folder`, every `seconds` seconds."""

    outputs = (*Hold.outputs, "kept")
    schemas: ClassVar[dict[str, Any]] = {"update": ShardState}

    def __init__(
        self, folder: Path, seconds: float, place: StorePlace | None, *, role: str, shards: int, sizes: Sequence[int]
    ) -> None:
        super().__init__(role=role, shards=shards)
        self._where = folder, seconds, place
        self._sizes = sizes
        self._recalled = Totals()
        """The progress of the run, from the snapshot that it began with, and the states it gave to shards."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        super().open(context)
        self._keeping = Keeping(*self._where, self._sizes, context)
        self._recall()

    def __call__(self, update: Mapping[Any, Update] | None = None) -> list[tuple[str, Any]] | None:
        """Act as a `Hold`, and take a snapshot when it is due."""
        self._recall()
        emitted = super().__call__(update)
        now = self._context.now()
        self._keep(now)
        self._keeping.store(now)
        return emitted

    def close(self) -> None:
        """Take the last snapshot."""
        self._take_snapshot(self._context.now())
        self._keeping.close()

    def _recall(self) -> None:
        """Load the last snapshot, as soon as the disk can be read."""
        recalled = self._keeping.recall()
        if recalled is not None:
            self._recall_all(recalled)

    def _recall_all(self, recalled: Found) -> None:
        """Hold this."""
        self._held = recalled.held | self._held
        for state in recalled.held.values():
            self._recalled.raise_to(state["totals"])

    def _keep(self, now: int) -> None:
        """Take a snapshot, when it is due."""
        if self._keeping.is_due(now):
            self._take_snapshot(now)

    def _take_snapshot(self, now: int) -> None:
        """Take a snapshot, if there is a version of every fragment."""
        if len(self._held) == len(self._sizes):
            self._keeping.write(cast(dict[int, ShardState], self._held), {}, now)

    def _gifts(self, held: Update) -> list[tuple[str, Any]]:
        """A copy for learners; for the shard also its own tensors."""
        state = cast(ShardState, held)
        self._recalled.raise_to(state["totals"])
        kept = Kept(fragment=state["fragment"], version=state["version"], tensors=state["tensors"])
        return [*super()._gifts(held), *([("kept", kept)] if kept["tensors"] else [])]

    def _of_disk(self) -> dict[str, Any]:
        return {"totals": self._recalled.rows(), **self._keeping.of_disk()}


class CodedHold(KeptHold):
    """A `KeptHold` in a home that has published values from updates, and the rest of a shard's state in codes.

    A version is held once both have arrived; until then the one before it is. They leave in one firing of the shard.
    """

    collects = ("update", "coded_state")

    @staticmethod
    def schemas(*_: Any, fragments: Sequence[Fragment], **__: Any) -> dict[str, Any]:  # type: ignore[override]
        """The forms of updates, which the receive node of this host has decoded, and of coded states."""
        return {"update": Update, "coded_state": schemas.coded_state(fragments)}

    def __init__(
        self,
        folder: Path,
        seconds: float,
        place: StorePlace | None,
        *,
        role: str,
        shards: int,
        fragments: Sequence[Fragment],
    ) -> None:
        sizes = [fragment.size for fragment in fragments]
        super().__init__(folder, seconds, place, role=role, shards=shards, sizes=sizes)
        self._fragments = fragments
        self._updates: dict[int, Update] = {}
        self._codes: dict[int, CodedState] = {}

    def open(self, context: Any) -> None:
        """Load the last snapshot, and the kernel that decodes."""
        from isthmus.ops.kernels import coding

        coding.warm_updates()
        self._coding = coding
        super().open(context)

    def __call__(
        self, update: Mapping[Any, Update] | None = None, coded_state: Mapping[Any, CodedState] | None = None
    ) -> list[tuple[str, Any]] | None:
        """Act as a `KeptHold` for the versions of which everything has arrived."""
        for item in (update or {}).values():
            self._updates[item["fragment"]] = item
        for codes in (coded_state or {}).values():
            self._codes[codes["fragment"]] = codes
        arrived = [*(update or {}).values(), *(coded_state or {}).values()]
        news = sorted({item["fragment"] for item in arrived})
        return super().__call__({p: state for p in news if (state := self._state(p)) is not None})

    def _state(self, p: int) -> ShardState | None:
        """The state of a fragment, where its update and the rest are of one version."""
        update, codes = self._updates.get(p), self._codes.get(p)
        if update is None or codes is None or list(update["version"]) != list(codes["version"]):
            return None
        fragment = self._fragments[p]
        theta = self._coding.Coded(codes["theta"], codes["theta_scales"])
        tensors = {"theta": self._coding.add(update["values"], theta, fragment)}
        if "momentum" in codes:
            momentum = self._coding.Coded(codes["momentum"], codes["momentum_scales"])
            tensors["momentum"] = self._coding.add(np.zeros(fragment.size, np.float32), momentum, fragment)
        return ShardState(**update, tensors=tensors, lengths=codes["lengths"])


class KeptState:
    """States in, by timer; the newest out.

    Each state that arrives is a snapshot, because learners send one only when it is due.
    """

    outputs = ("kept", "held")
    collects = ("state",)

    def __init__(self, folder: Path, seconds: float, place: StorePlace | None) -> None:
        self._where = folder, seconds, place
        self._newest: WholeState | None = None
        self._emitted: WholeState | None = None
        self._held_sent: Held | None = None
        self._recalled: list[list[int]] = []
        """The progress of the run by the snapshot that it began with."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        self._context = context
        self._keeping = Keeping(*self._where, (), context)
        self._recall()

    def __call__(self, state: Mapping[Any, WholeState] | None = None) -> list[tuple[str, Any]] | None:
        """Emit the newest state if it is new."""
        self._recall()
        now = self._context.now()
        if (came := newest(state)) is not None:
            self._newest = came
            self._keeping.write({}, {0: came}, now)
        self._keeping.store(now)
        emitted: list[tuple[str, Any]] = []
        if self._newest is not None and self._newest is not self._emitted:
            self._emitted = self._newest
            emitted.append(("kept", self._emitted))
        own = {"holder": self._context.member.replica.role, "totals": self._recalled}
        message = cast(Held, {**_NOTHING, **own, **self._keeping.of_disk()})
        if message != self._held_sent:
            self._held_sent = message
            emitted.append(("held", message))
        return emitted or None

    def close(self) -> None:
        """Close the store."""
        self._keeping.close()

    def _recall(self) -> None:
        recalled = self._keeping.recall()
        if recalled is not None:
            state = recalled.states.get(0, BEGINNING)
            self._recalled, self._newest = state["totals"], self._newest or state


_NOTHING: Final[dict[str, list[Any]]] = {"fragments": [], "merged": [], "lives": [], "given": []}


class WholeHold(KeptHold):
    """A `KeptHold` whose learners step in lock-step. Inputs beside updates: `cut` and `own`, the parts of a cut.

    It takes a cut whenever one is due; the newest versions alone where a cut was given up. The state that only a
    learner had goes to the next life in its slot, once: that of the cut in the newest snapshot, or nothing where there
    is none.
    """

    outputs = (*KeptHold.outputs, "wanted", "restored")
    collects = ("update", "cut", "own")
    schemas: ClassVar[dict[str, Any]] = {
        "update": ShardState,
        "cut": ShardState,
        "own": Annotated[Own, {"slot": SenderSlot, "incarnation": SenderLife}],
    }

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        self._cuts, self._has_wished = Cuts(), False
        self._own: Mapping[int, Own] = {}
        self._restored: dict[int, int] = {}
        """Slot -> the last life that was sent its kept part."""
        super().open(context)

    def __call__(
        self,
        update: Mapping[Any, Update] | None = None,
        cut: Mapping[Any, ShardState] | None = None,
        own: Mapping[Any, Own] | None = None,
    ) -> list[tuple[str, Any]] | None:
        """Act as a `KeptHold`; also request the next cut, and send learners that begin their kept parts."""
        self._cuts.add([*(cut or {}).values(), *(cast(ShardState, item) for item in (update or {}).values())], ())
        self._cuts.add((), (own or {}).values())
        emitted = super().__call__(update) or []
        return [*emitted, *self._wishes(), *self._gifts_to_learners()] or None

    def close(self) -> None:
        """Close the store, without a last snapshot: it would be no cut."""
        self._keeping.close()

    def _recall_all(self, recalled: Found) -> None:
        super()._recall_all(recalled)
        self._own = {slot: _own_of(slot, state) for slot, state in recalled.states.items()}

    def _keep(self, now: int) -> None:
        """Take a snapshot of a complete cut; of the newest versions if a cut was given up, or there is no snapshot."""
        whole = self._cuts.whole(self._living())
        if whole is not None:
            held, own = whole
            with suppress(ValueError, TypeError, KeyError):  # Malformed parts are no cut.
                states = {slot: _state_of(item) for slot, item in own.items()}
                self._own = own
                self._keeping.write(held, states, now)
        elif self._cuts.is_given_up(self._counts, now):
            self._own = {}
            self._take_snapshot(now)
        elif not self._keeping.of_disk()["saved"]:
            self._take_snapshot(now)

    def _wishes(self) -> list[tuple[str, Any]]:
        """The next cut, when a snapshot is due."""
        is_due = not self._has_wished or self._keeping.is_due(self._context.now())
        if self._cuts.is_under_way or len(self._held) < len(self._sizes) or not is_due:
            return []
        self._has_wished = True
        positions = {p: held["positions"] for p, held in self._held.items()}
        wanted = self._cuts.want(self._counts, last_merged(positions, len(self._sizes)))
        self._cuts.add([cast(ShardState, held) for held in self._held.values()], ())
        return [("wanted", wanted)]

    @property
    def _counts(self) -> list[int]:
        """The counts of the held versions, by fragment."""
        return [self._held[p]["version"][1] if p in self._held else 0 for p in range(len(self._sizes))]

    def _living(self) -> set[Life]:
        members = self._context.members()
        return {(each.replica.slot, each.incarnation) for each in members if each.replica.role == LEARNER}

    def _gifts_to_learners(self) -> list[tuple[str, Any]]:
        """The kept parts of new lives' slots, once they are known."""
        if not (self._keeping.has_recalled or self._held):
            return []
        news = [(slot, life) for slot, life in sorted(self._living()) if life > max(1, self._restored.get(slot, 0))]
        self._restored |= dict(news)
        return [("restored", Restored(slot=slot, incarnation=life, own=self._own.get(slot))) for slot, life in news]


def _state_of(own: Own) -> WholeState:
    """A learner's part in the form of a snapshot; ValueError for malformed leaves."""
    return WholeState(
        tokens=sum(tokens for _, _, tokens in own["totals"]),
        steps=sum(count for _, count, _, _ in own["standings"]),
        totals=own["totals"],
        positions=[],
        streams=[],
        leaves=[unpacked(leaf) for leaf in own["leaves"]],
        standings=own["standings"],
    )


def _own_of(slot: int, state: WholeState) -> Own:
    """A learner's part in the form of a message."""
    incarnation = max((life for of, life, _ in state["totals"] if of == slot), default=1)
    leaves = [packed(leaf) for leaf in state["leaves"]]
    standings = state.get("standings", [])
    return Own(slot=slot, incarnation=incarnation, standings=standings, totals=state["totals"], leaves=leaves)

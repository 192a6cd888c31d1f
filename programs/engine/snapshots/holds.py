"""The hold nodes of a run's home: a model that outlives every process of its run.

Decides the contents of a snapshot (`keeping` decides its time): the newest version of every fragment (`KeptHold`), the
state that all learners share (`KeptState`), or a cut of a program in lock-step (`Cuts`), and what of it a new life
of a shard or a learner is sent; of a program without turns, `taken_hold`. A hold that opens begins with the last
snapshot: for shards and learners it is a holder like any other, whose versions may be older than those of live hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, cast, final

from isthmus.ops.exchange.messages import (
    BEGINNING,
    Kept,
    Own,
    Restored,
    SenderLife,
    SenderSlot,
    ShardState,
    WantedCut,
    WholeState,
    after,
    is_withdrawn,
    last_merged,
    newest,
    passed_on,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.recovery.hold import Hold, packed, unpacked
from isthmus.programs.engine.snapshots.keeping import Keeper
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


@final
class KeptHold:
    """The `Hold` of the run's home where learners step in lock-step, kept in the run folder, and in a store.

    `cut` and `own` are the parts of a cut. It takes a cut whenever one is due; the newest versions alone where a cut
    was given up. The state that only a learner had goes to the next life in its slot, once: that of the cut in the
    newest snapshot, or nothing where there is none.

    Arguments:
        folder: that of the run.
        seconds: the interval of snapshots.
        place: the store, if there is one.
        role: that of the shards.
        shards: how many there are.
        sizes: of the fragments, in values.
    """

    outputs = (*Hold.outputs, "kept", "wanted", "restored")
    collects = ("update", "cut", "own")
    schemas: ClassVar[dict[str, Any]] = {
        "update": ShardState,
        "cut": ShardState,
        "own": Annotated[Own, {"slot": SenderSlot, "incarnation": SenderLife}],
    }

    def __init__(
        self,
        folder: Path,
        seconds: float,
        place: StorePlace | None,
        *,
        role: str,
        shards: int,
        sizes: Sequence[int],
    ) -> None:
        self.hold = Hold(role=role, shards=shards)
        self._where, self._sizes = (folder, seconds, place), sizes
        self._cuts = Cuts()
        self._has_wished = False
        self._own: Mapping[int, Own] = {}
        self._restored: dict[int, int] = {}
        """Slot -> the last life that was sent its kept part."""
        self._recalled = Totals()
        """The progress of the run, from the snapshot that it began with, and the states it gave to shards."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        self._context = context
        self.hold.open(context)
        self._keeper = Keeper(*self._where, self._sizes, context)
        self._recall()

    def __call__(
        self,
        update: Mapping[Any, ShardState] | None = None,
        cut: Mapping[Any, ShardState] | None = None,
        own: Mapping[Any, Own] | None = None,
    ) -> list[tuple[str, Any]] | None:
        """Act as a `Hold`, and take a snapshot when it is due; request the next cut, and send learners that begin their
        kept parts."""
        states = (update or {}).values()
        self._recall()
        self.hold.accept(states)
        emitted = self._copies()
        emitted += self.hold.news(totals=self._recalled.rows(), **self._keeper.of_disk())
        now = self._context.now()
        self._cuts.add([*(cut or {}).values(), *states], (own or {}).values())
        self._keep_cut(now)
        self._keeper.store(now)
        return [*emitted, *self._wishes(), *self._gifts_to_learners()] or None

    def close(self) -> None:
        """Close the store; a last snapshot would be no cut."""
        self._keeper.close()

    def _recall(self) -> None:
        """Hold the last snapshot, as soon as the disk can be read."""
        recalled = self._keeper.recall()
        if recalled is not None:
            self.hold.held = recalled.held | self.hold.held
            for state in recalled.held.values():
                self._recalled.raise_to(state["totals"])
            self._own = {slot: _own_of(slot, state) for slot, state in recalled.states.items()}

    def _take_snapshot(self, now: int) -> None:
        """Take a snapshot, if there is a version of every fragment."""
        if len(self.hold.held) == len(self._sizes):
            self._keeper.write(self._held, {}, now)

    @property
    def _held(self) -> dict[int, ShardState]:
        return cast(dict[int, ShardState], self.hold.held)

    def _copies(self) -> list[tuple[str, Any]]:
        """Copies for learners; with each, for the shard, its own tensors."""
        emitted: list[tuple[str, Any]] = []
        for copy in self.hold.copies():
            emitted.append(("copy", copy))
            if not is_withdrawn(copy):
                state = self._held[copy["fragment"]]
                self._recalled.raise_to(state["totals"])
                if state["tensors"]:
                    emitted.append(("kept", passed_on(Kept, state)))
        return emitted

    def _keep_cut(self, now: int) -> None:
        """Take a snapshot of a complete cut; of the newest versions if a cut was given up, or there is no snapshot."""
        whole = self._cuts.whole(self._living())
        if whole is not None:
            held, own = whole
            with suppress(ValueError, TypeError, KeyError):  # Malformed parts are no cut.
                states = {slot: _state_of(item) for slot, item in own.items()}
                self._own = own
                self._keeper.write(held, states, now)
        elif self._cuts.is_given_up(self._counts, now):
            self._own = {}
            self._take_snapshot(now)
        elif not self._keeper.of_disk()["saved"]:
            self._take_snapshot(now)

    def _wishes(self) -> list[tuple[str, Any]]:
        """The next cut, when a snapshot is due."""
        is_due = not self._has_wished or self._keeper.is_due(self._context.now())
        if self._cuts.is_under_way or len(self._held) < len(self._sizes) or not is_due:
            return []
        self._has_wished = True
        positions = {p: held["positions"] for p, held in self._held.items()}
        wanted = self._cuts.want(self._counts, last_merged(positions, len(self._sizes)))
        self._cuts.add(self._held.values(), ())
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
        if not (self._keeper.has_recalled or self._held):
            return []
        news = [(slot, life) for slot, life in sorted(self._living()) if life > max(1, self._restored.get(slot, 0))]
        self._restored |= dict(news)
        return [("restored", Restored(slot=slot, incarnation=life, own=self._own.get(slot))) for slot, life in news]


@final
class KeptState:
    """States in, by timer; the newest out.

    Each state that arrives is a snapshot, because learners send one only when it is due. Reports as a `Hold` of no
    fragment.
    """

    outputs = ("kept", "held")
    collects = ("state",)
    schemas: ClassVar[dict[str, Any]] = {"state": WholeState}

    def __init__(self, folder: Path, seconds: float, place: StorePlace | None) -> None:
        self._where = folder, seconds, place
        self._hold = Hold(role="", shards=1)
        self._newest: WholeState | None = None
        self._emitted: WholeState | None = None
        self._recalled: list[list[int]] = []
        """The progress of the run by the snapshot that it began with."""

    def open(self, context: Any) -> None:
        """Load the last snapshot."""
        self._context = context
        self._hold.open(context)
        self._keeper = Keeper(*self._where, (), context)
        self._recall()

    def __call__(self, state: Mapping[Any, WholeState] | None = None) -> list[tuple[str, Any]] | None:
        """Emit the newest state if it is new."""
        self._recall()
        now = self._context.now()
        if (came := newest(state)) is not None:
            self._newest = came
            self._keeper.write({}, {0: came}, now)
        self._keeper.store(now)
        emitted: list[tuple[str, Any]] = []
        if self._newest is not None and self._newest is not self._emitted:
            self._emitted = self._newest
            emitted.append(("kept", self._emitted))
        return [*emitted, *self._hold.news(totals=self._recalled, **self._keeper.of_disk())] or None

    def close(self) -> None:
        """Close the store."""
        self._keeper.close()

    def _recall(self) -> None:
        recalled = self._keeper.recall()
        if recalled is not None:
            state = recalled.states.get(0, BEGINNING)
            self._recalled, self._newest = state["totals"], self._newest or state


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

"""The hold node of a program that resumes from a cut (`cuts`): with the bits of an uninterrupted run.

Decides the contents of its snapshots: a cut, whenever one is due; the newest version alone where a cut was given up,
because a learner died, or had no state to give. The state that only a learner had goes to the next life in its slot,
once: that of the cut in the newest snapshot, or nothing where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, cast

from isthmus.ops.exchange.messages import Own, Restored, ShardState, Update, WholeState, last_merged
from isthmus.ops.exchange.schemas import KEPT_OWN, STATE
from isthmus.ops.recovery.hold import packed, unpacked
from isthmus.programs.snapshots.cuts import Cuts, Life
from isthmus.programs.snapshots.kept_hold import KeptHold
from isthmus.programs.snapshots.snapshots import Found
from isthmus.runtime.ids import LEARNER


class WholeHold(KeptHold):
    """A `KeptHold` whose learners step in lock-step. Inputs beside updates: `cut` and `own`, the parts of a cut."""

    outputs = (*KeptHold.outputs, "wanted", "restored")
    schemas: ClassVar[dict[str, Any]] = {"update": STATE, "cut": STATE, "own": KEPT_OWN}

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
        self._cuts.hear([*(cut or {}).values(), *(cast(ShardState, item) for item in (update or {}).values())], ())
        self._cuts.hear((), (own or {}).values())
        emitted = super().__call__(update) or []
        return [*emitted, *self._wishes(), *self._gifts_to_learners()] or None

    def close(self) -> None:
        """Close the store, without a last snapshot: it would be no cut."""
        self._keeping.close()

    def _recall_all(self, found: Found) -> None:
        super()._recall_all(found)
        self._own = {slot: _own_of(slot, state) for slot, state in found.states.items()}

    def _keep(self, now: int) -> None:
        """Take a snapshot of a complete cut; of the newest versions if a cut was given up, or there is no snapshot."""
        whole = self._cuts.whole(self._living())
        if whole is not None:
            held, own = whole
            with suppress(ValueError, TypeError, KeyError):  # Malformed parts are no cut.
                states = {slot: _state_of(item) for slot, item in own.items()}
                self._own = own
                self._keeping.take(held, states, now)
        elif self._cuts.is_given_up(self._counts, now):
            self._own = {}
            self._take(now)
        elif not self._keeping.of_disk()["saved"]:
            self._take(now)

    def _wishes(self) -> list[tuple[str, Any]]:
        """The next cut, when a snapshot is due."""
        is_due = not self._has_wished or self._keeping.is_due(self._context.now())
        if self._cuts.is_under_way or len(self._held) < len(self._sizes) or not is_due:
            return []
        self._has_wished = True
        positions = {p: held["positions"] for p, held in self._held.items()}
        wanted = self._cuts.want(self._counts, last_merged(positions, len(self._sizes)))
        self._cuts.hear([cast(ShardState, held) for held in self._held.values()], ())
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

"""The state that one life of a learner takes over from the lives before it, and leaves for those after it.

Decides the source of that state: the cut in a snapshot (`Own`), if this life begins with exactly its versions, and then
it continues as the life that made the cut would have; else the copy on the disk of its machine (`local_copies`); else
its local leaves begin anew, and another learner's replace them, if they arrive soon (`lending`). The choice is reported
(`began`).

Theory of operation. A cut is made when an answer was captured. By then a learner had adopted a version of each
fragment, and had worked since: that work is in its parameters, and in no version. Its next life continues with both,
and includes that work in its answer (`FragmentLedger.former`). Or it had already answered, and the resulting version,
which is in the snapshot, was to be adopted some steps later: the next life adopts it after as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from isthmus.ops.exchange.kept_state import Own, Restored
from isthmus.ops.exchange.token_accounts import Odometer
from isthmus.ops.exchange.token_totals import Totals
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.learner.answers import Held
from isthmus.ops.recovery.leaves import packed, unpacked
from isthmus.ops.recovery.local_copies import LocalCopies


@final
class Inheritance:
    """The inheritance of the life that a host opens with `context`.

    `held` and `odometer` belong to the `learner`, and change here, too. `has_kept` returns whether the learner's local
    leaves, once created, are those of a former life already.
    """

    def __init__(
        self,
        context: Any,
        *,
        learner: LastingLearning,
        held: Sequence[Held | None],
        odometer: Odometer,
        alpha: float,
        has_kept: Callable[[], bool],
    ) -> None:
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._learner, self._held, self._odometer, self._has_alpha = learner, held, odometer, alpha > 0
        self._has_copies, self._has_kept = context.folder is not None and self._incarnation > 1, has_kept
        self._copies: LocalCopies | None = None
        if context.folder is not None:
            self._copies = LocalCopies(context.folder, context.disk, self._slot, self._incarnation, now=context.now)
        self._own: Own | None = None
        self._due: dict[int, int] = {}
        """Fragment -> the number of steps of this life after which its version is adopted once more."""
        self.is_awaited = self._incarnation > 1 and "restored" in context.connected
        """Whether the saved state of this slot has not arrived yet: the first step waits for it."""
        self.began: list[Any] | None = None

    # -- from earlier lives --------------------------------------------------------------------------------------------

    def give(self, restored: Restored) -> bool:
        """Store the saved state of this slot; returns whether it is for this life."""
        if (restored["slot"], restored["incarnation"]) != (self._slot, self._incarnation):
            return False
        self.is_awaited, self._own = False, restored["own"]
        return True

    @property
    def is_whole(self) -> bool:
        """Whether this life continued from a cut."""
        return self.began is not None and self.began[0] == "snapshot"

    @property
    def has_found(self) -> bool:
        """Whether this life took over any state of those before it."""
        return self.began is not None and self.began[0] in ("snapshot", "copy")

    def borrowed(self, began: list[Any] | None) -> None:
        """Record that local leaves of another learner were taken, if any were."""
        self.began = began or self.began

    def take(self) -> Totals | None:
        """Take over the state that was found, once all fragments are held and the local leaves are created anew.

        Where this life continues from a cut, returns the progress of the run as known at the cut.
        """
        own = self._own
        if self._has_kept():
            return None
        if own is not None and self._take_own(own):
            totals = Totals()  # The totals that this life has received since may exceed those at the cut.
            totals.hear(own["totals"])
            self.began = ["snapshot", own["incarnation"], sum(count for _, count, _, _ in own["standings"])]
            return totals
        if self._has_copies:
            self._take_copy()
        return None

    def _take_copy(self) -> None:
        copy = None if self._copies is None else self._copies.found()
        if copy is not None and self._learner.take_local(copy.leaves):
            self.began = ["copy", copy.incarnation, copy.step]
        else:
            self.began = ["anew", 0, 0]

    def _take_own(self, own: Own) -> bool:
        """Continue as the life that made the cut would have, if this one begins with its versions."""
        versions = [(epoch, count) for epoch, count, _, _ in own["standings"]]
        if versions != [held and held.ledger.base for held in self._held]:
            return False
        if not self._learner.take_own([unpacked(leaf) for leaf in own["leaves"]]):
            return False
        for p, (_, _, due, former) in enumerate(own["standings"]):
            ledger = self._of(p).ledger
            if due is None:
                ledger.former = [list(row) for row in former]
            else:
                ledger.answered(self._odometer.tokens)  # By the life before: what follows is overwritten.
                self._due[p] = self._odometer.steps + due
        self.adopt_due()
        return True

    def adopt_due(self) -> None:
        """Adopt the versions that are due before the next step."""
        for p in [p for p, step in self._due.items() if step <= self._odometer.steps]:
            held = self._of(p)
            self._learner.adopt(p, held.anchor)
            held.ledger.adopted(held.ledger.base, None)
            del self._due[p]

    def overtaken(self, p: int) -> None:
        """Record that another version of a fragment was adopted."""
        self._due.pop(p, None)

    # -- for later lives -----------------------------------------------------------------------------------------------

    def leave_copy(self) -> None:
        """Store a copy of the local leaves on this machine, when it is due."""
        if self._copies is not None and self._copies.is_due():
            self._copies.keep(self._odometer.steps, self._learner.local)

    def own(self, overlap: int, totals: Totals) -> Own | None:
        """The state that only this learner has, at a boundary at which it has answered.

        Answers are adopted `overlap` steps later. None if a later life could not continue with any of it.
        """
        if None in self._held:
            return None
        standings = [self._standing(p, overlap) for p in range(len(self._held))]
        is_whole = self._has_alpha or any(due is None for _, _, due, _ in standings)
        leaves = [packed(leaf) for leaf in self._learner.own(whole=is_whole)]
        return Own(
            slot=self._slot, incarnation=self._incarnation, standings=standings, totals=totals.told(), leaves=leaves
        )

    def _standing(self, p: int, overlap: int) -> list[Any]:
        held = self._of(p)
        (epoch, count), steps = held.ledger.base, self._odometer.steps
        if held.answered is not None:
            of_round, at = held.answered
            return [(of_round >> 32) + 1, count + 1, max(0, at + overlap - steps), []]
        if p in self._due:
            return [epoch, count, self._due[p] - steps, []]
        return [epoch, count, None, held.ledger.work()]

    def _of(self, p: int) -> Held:
        held = self._held[p]
        assert held is not None
        return held

"""The state that one life of a learner takes over from the lives before it and from other learners, and leaves for
those after it.

Decides the source of that state, in this order: the copy of all that a killed life had, in the memory of its machine
(`KeptWork`); the cut in a snapshot (`Own`), if this life begins with exactly its versions; the copy of its local leaves
on the disk of its machine (`LocalCopies`); leaves that another learner lends, if they arrive soon (`Lending`); else
they are initialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Loan, Moments, Own, Restored
from isthmus.ops.exchange.token_accounts import Odometer, Totals
from isthmus.ops.island.contract import Keeping, LastingLearning, local_parts
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.learner.kept_work import MODELS_IN_MEMORY, KeptWork
from isthmus.ops.learner.local_copies import READ_BYTES_MAX, LocalCopies, newest_of, own_bytes
from isthmus.ops.recovery.hold import packed, unpacked

BORROW_STEPS: Final = 64
"""After so many steps a running mean with a decay of 0.95 has forgotten its initial value by 96 %."""


@final
class Lending:
    """The loans of the life that a host opens with `context`.

    A life without local leaves of its own steps at once, and takes those of another that arrive within BORROW_STEPS
    steps; later its own are as good. It lends once it has found or borrowed some, or has made twice as many steps:
    where all begin together, none has any to lend. Leaves that have the right form but bad values lead to a loss that
    is not finite, and then they are initialized again.
    """

    def __init__(self, context: Any, learner: LastingLearning, odometer: Odometer) -> None:
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        lends = "moments" in context.connected and not isinstance(learner, Keeping)
        self._learner = learner if lends else None
        self._odometer = odometer
        self._lacks: bool | None = None
        """None before the first step."""
        self._has_taken = False
        self._to: list[int] | None = None
        self._announced: tuple[Any, ...] = ()

    def begin(self, *, is_anew: bool) -> None:
        """Record the first step, with local leaves that were initialized, or are those of a life before."""
        self._lacks, self._has_taken = is_anew, not is_anew

    def accept(self, loans: Mapping[Any, Loan]) -> list[Any] | None:
        """Take lent leaves, and requests to lend; returns ["peer", slot, step] of the life whose leaves were taken."""
        began = None
        for loan in loans.values():
            if (loan["slot"], loan["incarnation"]) != (self._slot, self._incarnation):
                continue
            self._to = loan["to"]
            if loan["by"] is not None and self._lacks and self._borrow(loan):
                began = ["peer", loan["by"][0], loan["step"]]
        return began

    def _borrow(self, loan: Loan) -> bool:
        self._lacks = False  # Leaves of another form are not requested again.
        with suppress(ValueError):
            self._has_taken = self._learner is not None and self._learner.borrow(
                [unpacked(each) for each in loan["leaves"]]
            )
        return self._has_taken

    def announcements(self, *, is_sick: bool) -> list[tuple[str, Moments]]:
        """The announcement of this life's loans, where it has changed."""
        if self._learner is None or self._lacks is None:
            return []
        self._lacks = self._lacks and self._odometer.steps < BORROW_STEPS
        lends = self._has_taken or self._odometer.steps >= 2 * BORROW_STEPS
        if self._announced == (self._lacks, lends, self._to):
            return []
        self._announced = self._lacks, lends, self._to
        leaves = self._learner.lend() if self._to is not None and lends and not is_sick else []
        moments = Moments(
            slot=self._slot,
            incarnation=self._incarnation,
            lacks=self._lacks,
            lends=lends,
            to=self._to,
            step=self._odometer.steps,
            leaves=[packed(leaf) for leaf in leaves],
        )
        return [("moments", moments)]


@final
class Inheritance:
    """The inheritance of the life that a host opens.

    Of a learner that keeps its local leaves by itself (`Keeping`) they may be those of a former life already.

    A cut is made when an answer was captured. By then a learner had adopted a version of each fragment, and had worked
    since: that work is in its parameters, and in no version. Its next life continues with both, and includes that work
    in its answer (`FragmentLedger.former`). Or it had already answered, and the resulting version, which is in the
    snapshot, was to be adopted some steps later: the next life adopts it after as many.

    Arguments:
        context: the one with which the host opens its body.
        learner: has the leaves.
        held: the learner's versions, which change here, too.
        odometer: likewise its steps and tokens.
        alpha: the share of the learner's own fragment that survives an adoption.
        fragments: those of the learner.
        reached: returns its position in its data.
        keeps_work: it steps on its own, so that its next life may go on from what it has trained.
    """

    def __init__(
        self,
        context: Any,
        *,
        learner: LastingLearning,
        held: Sequence[HeldFragment | None],
        odometer: Odometer,
        alpha: float,
        fragments: Sequence[Fragment] = (),
        reached: Callable[[], int] = lambda: 0,
        keeps_work: bool = False,
    ) -> None:
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._learner, self._held, self._odometer, self._has_alpha = learner, held, odometer, alpha > 0
        self._copies: LocalCopies | None = None
        self._often: LocalCopies | None = None
        self._kept: KeptWork | None = None
        self.lacks_memory = 0
        """Bytes that copies in memory need, where its machine lacks them."""
        self._has_room, self._model_bytes = False, 0
        if context.folder is not None:
            self._open_copies(context, fragments, reached, keeps_work=keeps_work)
        self._own: Own | None = None
        self._due: dict[int, int] = {}
        """Fragment -> the number of steps of this life after which its version is adopted once more."""
        self.is_awaited = self._incarnation > 1 and "restored" in context.connected
        """Whether the saved state of this slot has not arrived yet: the first step waits for it."""
        self.began: list[Any] | None = None

    def _open_copies(
        self, context: Any, fragments: Sequence[Fragment], reached: Callable[[], int], *, keeps_work: bool
    ) -> None:
        disk, now, model_bytes = context.disk, context.now, 4 * sum(each.size for each in fragments)
        self._model_bytes = model_bytes
        life = self._slot, self._incarnation
        self._copies = LocalCopies.on_disk(context.folder, disk, *life, now=now, model_bytes=model_bytes)
        self._copies.remove_unfinished()
        memory = disk.memory_of(context.folder, 0) if keeps_work else None
        if memory is not None:
            self._often = LocalCopies.in_memory(memory, disk, *life, now=now)
            self._often.remove_unfinished()
            self._kept = KeptWork(
                memory,
                disk,
                *life,
                now=now,
                learner=self._learner,
                fragments=fragments,
                held=self._held,
                odometer=self._odometer,
                reached=reached,
            )
            # What lives before this one have left is replaced by its own.
            there = own_bytes(memory, disk, self._slot)
            self._has_room = disk.memory_of(context.folder, max(0, MODELS_IN_MEMORY * model_bytes - there)) is not None
        self.lacks_memory = MODELS_IN_MEMORY * model_bytes if keeps_work and not self._has_room else 0

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
        return self.began is not None and self.began[0] in ("memory", "snapshot", "copy")

    @property
    def reached(self) -> int:
        """The position in its data that the life before had reached, whose work this one will go on with; else 0."""
        return 0 if self._kept is None else self._kept.position

    def borrowed(self, began: list[Any] | None) -> None:
        """Record that local leaves of another learner were taken, if any were."""
        self.began = began or self.began

    def take_over(self, steps: int, totals: Totals) -> Totals:
        """Take over the state that was found, once all fragments are held and the local leaves are initialized.

        `steps` are those of this slot that are merged: where nothing is found, its counters go on from there. Returns
        the progress of the run: `totals`, or, where this life continues from a cut, as known at the cut.
        """
        own = self._own
        if self._kept is not None and (taken := self._kept.take()) is not None:
            incarnation, step, tokens = taken
            # Others may not have heard of all that the dead life trained.
            totals.claim(self._slot, incarnation, tokens)
            if not (isinstance(self._learner, Keeping) and self._learner.has_kept):
                step = self._take_copy(steps) or step
            self.began = ["memory", incarnation, step]
            return totals
        if isinstance(self._learner, Keeping) and self._learner.has_kept:
            return totals
        if own is not None and self._take_own(own):
            at_cut = Totals()  # The totals that this life has received since may exceed those at the cut.
            at_cut.raise_to(own["totals"])
            self.began = ["snapshot", own["incarnation"], sum(count for _, count, _, _ in own["standings"])]
            return at_cut
        if self._incarnation > 1:
            self._take_copy(steps)
        return totals

    def _take_copy(self, steps: int) -> int | None:
        """Take the newest copy of local leaves; after which step it was made, None where there is none."""
        copy = newest_of((self._often, self._copies))
        if copy is not None and self._learner.take_local(copy.leaves):
            self.began = ["copy", copy.incarnation, copy.step]
            return copy.step
        self._learner.count_from(steps)
        self.began = ["anew", 0, steps] if self._copies is not None else None
        return None

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
        if self._kept is not None:
            self._kept.adopted(p)

    # -- for later lives -----------------------------------------------------------------------------------------------

    def leave_copy(self) -> None:
        """Store copies on this machine, or some more of them, when that is due; leaves are read for one at a time."""
        if self._kept is not None and self._has_room:
            self._kept.leave()
            if self._kept.has_no_room:  # Another has taken it meanwhile.
                self._has_room, self.lacks_memory = False, MODELS_IN_MEMORY * self._model_bytes
        for copies, other in ((self._often if self._has_room else None, self._copies), (self._copies, self._often)):
            is_read = other is not None and other.is_open
            if copies is not None and not is_read and copies.is_due(self._odometer.steps):
                copies.keep(self._odometer.steps, partial(local_parts, self._learner, READ_BYTES_MAX))

    def leave_last_copy(self) -> None:
        """Store the last copy of this life, after its last step."""
        if self._copies is not None:
            self._copies.keep_last(self._odometer.steps, partial(local_parts, self._learner, READ_BYTES_MAX))

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
            slot=self._slot, incarnation=self._incarnation, standings=standings, totals=totals.rows(), leaves=leaves
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

    def _of(self, p: int) -> HeldFragment:
        held = self._held[p]
        assert held is not None
        return held

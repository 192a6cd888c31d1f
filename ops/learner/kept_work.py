"""What a learner leaves in its machine's memory, so that a killed process loses seconds of its work and not an
interval: its work since the versions that it adopted, fragment by fragment, and its local leaves.

Decides what of such a copy the next life goes on with: the work that no version has, by the clock of the version which
that life adopted first. It is in the accounts as work of a former life (`FragmentLedger.former`), so that no shard
merges it twice, whatever of the dead life is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import RULES
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.token_accounts import Odometer, clock_of
from isthmus.ops.island.contract import Keeping, LastingLearning, local_parts
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.learner.local_copies import READ_BYTES_MAX, Copy, LocalCopies, Part, Standing, Told, TrainedPart

VERSIONS_MAX: Final = 4
"""Versions by which the model may have gone on meanwhile: work on an older one is worth little in the newest, as that
of an answer over more intervals (`token_accounts.STALE_INTERVALS`)."""
MODELS_IN_MEMORY: Final = 6
"""The room, in models, that copies need at most: what was trained, AdamW's two moments, and as much for the copy that
is made while the last one stays."""
LIVES_MAX: Final = 8
"""Lives in a row whose work may be together in one answer."""


@final
class KeptWork:
    """The copies of one life in memory, and the one that it `found` of a life before, until it has been taken.

    Arguments:
        copies: those of this life.
        slot: that of the learner, and `incarnation` that of the life.
        learner: has the values.
        fragments: its own, and `held` its versions of them, which change here, too.
        odometer: its steps and tokens.
        reached: returns its position in its data.
    """

    def __init__(
        self,
        copies: LocalCopies,
        slot: int,
        incarnation: int,
        *,
        learner: LastingLearning,
        fragments: Sequence[Fragment],
        held: Sequence[HeldFragment | None],
        odometer: Odometer,
        reached: Callable[[], int],
    ) -> None:
        self._copies, self._slot = copies, slot
        self._learner, self._fragments, self._held = learner, fragments, held
        self._odometer, self._reached = odometer, reached
        self._standings: list[Standing] = []
        copies.remove_unfinished()
        self.found = copies.former() if incarnation > 1 else None
        if self.found is not None and not self._fits(self.found):
            self.found = None

    def _fits(self, copy: Copy) -> bool:
        """Whether a copy is of these fragments, and has finite values."""
        standings = copy.told.standings
        if len(standings) != len(self._fragments):
            return False
        for fragment, standing, trained in zip(self._fragments, standings, copy.trained, strict=True):
            lives = [row[0] for row in standing.work]
            if len(lives) > LIVES_MAX or lives != sorted(set(lives)) or lives[-1:] not in ([], [copy.incarnation]):
                return False
            if trained is not None and (trained.size != fragment.size or not np.isfinite(trained).all()):
                return False
        return True

    def take(self) -> bool:
        """Go on with the work and the local leaves that were found, once all fragments are held and the local leaves
        are initialized; False, and nothing is changed, where none were, or they do not fit."""
        copy, self.found = self.found, None
        if copy is None:
            return False
        has_kept = isinstance(self._learner, Keeping) and self._learner.has_kept
        if not has_kept and not self._learner.take_local(copy.leaves):
            return False
        for p, (standing, trained) in enumerate(zip(copy.told.standings, copy.trained, strict=True)):
            held = self._held[p]
            if trained is None or held is None or not self._is_open(standing, held):
                continue
            if standing.base != held.ledger.base:
                self._leave_means(trained, self._fragments[p])
            self._learner.replace(p, held.anchor + trained)
            held.ledger.former = [list(row) for row in standing.work]
        self._copies.forget()
        return True

    def _is_open(self, standing: Standing, held: HeldFragment) -> bool:
        """Whether all of that work is in no version, and the version held is one that it may go on with."""
        incarnation, begin, _, _ = standing.work[0]
        clock = clock_of(held.clock, self._slot)
        behind = held.ledger.base[1] - standing.base[1]
        is_newer = standing.base <= held.ledger.base and behind <= VERSIONS_MAX
        return is_newer and (clock is None or clock <= (incarnation, begin))

    @staticmethod
    def _leave_means(trained: Vector, fragment: Fragment) -> None:
        """Of units that are means of values the newer version holds: a difference of two may lead below zero."""
        for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
            if not RULES[unit.merge].steps:
                trained[begin:end] = 0.0

    def leave(self) -> None:
        """Store what this life has, or some more of it, when that is due."""
        if self._copies.is_due(self._odometer.steps):
            self._copies.keep(self._odometer.steps, self._parts, self._told)

    def _parts(self) -> Iterator[Part]:
        """All parts, each after the steps made when it is read; with its work, told in `_standings`."""
        self._standings = []
        for p, held in enumerate(self._held):
            assert held is not None  # It has stepped.
            work, since = held.ledger.work(), held.anchor
            if held.sent is not None:  # What follows an answer is carried over the adoption of what is made of it.
                work, since = held.ledger.unanswered(), held.sent
            self._standings.append(Standing(held.ledger.base, [_row(*row) for row in work]))
            if work:
                yield TrainedPart(self._learner.extract(p), since)
        yield from local_parts(self._learner, READ_BYTES_MAX)

    def _told(self) -> Told:
        return Told(self._odometer.tokens, self._reached(), self._standings)


def _row(incarnation: int, begin: int, end: int, steps: int) -> tuple[int, int, int, int]:
    return incarnation, begin, end, steps

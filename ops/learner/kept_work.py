"""What a learner leaves in its machine's memory, so that a killed process loses seconds of its work and not an
interval: its work since the versions that it adopted, a file for each fragment.

Decides what of them the next life goes on with: the work that no version has, by the clock of the version which that
life adopted first. It is in the accounts as work of a former life (`FragmentLedger.former`), so that no shard merges it
twice, whatever of the dead life is still on its way.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import msgspec
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import RULES
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.token_accounts import Odometer, clock_of
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.learner.fragment_send import outer_gradient
from isthmus.ops.learner.local_copies import IN_MEMORY, STEP_BYTES, HostDisk, SealedFile, WorkBeside, opened
from isthmus.ops.recovery.hold import flat
from isthmus.ops.recovery.local_files import copy_path

VERSIONS_MAX: Final = 4
"""Versions by which the model may have gone on, or back, meanwhile: work on another one is worth little there, as that
of an answer over more intervals (`token_accounts.STALE_INTERVALS`)."""
MODELS_IN_MEMORY: Final = 6
"""The room, in models, that copies need at most: what was trained, AdamW's two moments, and as much for the copy that
is made while the last one stays."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
LIVES_MAX: Final = 8
"""Lives in a row whose work may be together in one answer."""

Row: TypeAlias = tuple[int, int, int, int]
"""Work of a life: its incarnation, the tokens (begin, end], and the steps in them."""


class _WorkFooter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is told of a fragment: `step`, `tokens` and the position `reached` are those of the life when it was read,
    `base` the version that it had adopted, `work` what it has trained since, by life."""

    slot: int
    incarnation: int
    fragment: int
    step: int
    tokens: int
    reached: int
    base: tuple[int, int]
    work: list[Row]


class FoundWork(NamedTuple):
    """What was found of a fragment: what is told of it, and what `work` has changed, float32[n]."""

    told: _WorkFooter
    trained: Vector


@final
class KeptWork:
    """The files of one life in `folder`, one of memory, and those `found` of a life before, by fragment.

    All fragments are read in turn, some at each step, in a pass a second at most (`IN_MEMORY`). A fragment that is
    adopted has no file until the next pass: what the dead life had dropped is not taken up again, and of a life that
    took work up and died before it left any, nothing is found, because that work may be what it died of.

    Arguments:
        slot: that of the learner, and `incarnation` that of the life.
        now: the time in nanoseconds.
        learner: has the values.
        fragments: its own, and `held` its versions of them, which change here, too.
        odometer: its steps and tokens.
        reached: returns its position in its data.
    """

    def __init__(
        self,
        folder: Path,
        disk: HostDisk,
        slot: int,
        incarnation: int,
        *,
        now: Callable[[], int],
        learner: LastingLearning,
        fragments: Sequence[Fragment],
        held: Sequence[HeldFragment | None],
        odometer: Odometer,
        reached: Callable[[], int],
    ) -> None:
        self._folder, self._disk, self._slot, self._incarnation, self._now = folder, disk, slot, incarnation, now
        self._learner, self._fragments, self._held = learner, fragments, held
        self._odometer, self._reached = odometer, reached
        self._left: list[int] = []
        """The fragments that this pass has not read."""
        self._next_at, self._next_step = 0, 0
        self._begun = self._took = 0
        self._writing: WorkBeside | None = None
        self._sealing = threading.Lock()
        self._adoptions = [0] * len(fragments)
        self.has_no_room = False
        """Whether a file had no room."""
        self.found: dict[int, FoundWork] = {}
        if incarnation > 1:
            found = {p: each for p in range(len(fragments)) if (each := self._find(p)) is not None}
            newest = max((each.told.incarnation for each in found.values()), default=0)
            self.found = {p: each for p, each in found.items() if each.told.incarnation == newest}

    # -- of a life before ----------------------------------------------------------------------------------------------

    def _path(self, p: int) -> Path:
        path = copy_path(self._folder, self._slot)
        return path.with_name(f"{path.name}.fragment-{p}")

    def _find(self, p: int) -> FoundWork | None:
        """What was left of a fragment; None where it is not whole, not of this learner, or not finite."""
        try:
            values, last = opened(memoryview(self._disk.read(self._path(p))))
            told = msgspec.msgpack.decode(last, type=_WorkFooter)
            trained = np.frombuffer(values, np.float32)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        lives = [row[0] for row in told.work]
        is_ours = (told.slot, told.fragment) == (self._slot, p) and told.incarnation < self._incarnation
        is_in_order = lives == sorted(set(lives)) and lives[-1:] == [told.incarnation] and len(lives) <= LIVES_MAX
        is_sound = trained.size == self._fragments[p].size and bool(np.isfinite(trained).all())
        return FoundWork(told, trained) if is_ours and is_in_order and is_sound else None

    @property
    def position(self) -> int:
        """The position in its data up to which what was found has trained; 0 without."""
        return max((each.told.reached for each in self.found.values()), default=0)

    def take(self) -> tuple[int, int, int] | None:
        """Go on with the work that was found, once all fragments are held: the life that did it, and its steps and
        tokens; None, and nothing is changed, where none of it may be taken."""
        found, self.found = self.found, {}
        taken = {p: each for p, each in found.items() if (held := self._held[p]) is not None and _is_open(each, held)}
        if not taken:
            return None
        for p, (told, trained) in taken.items():
            held = self._held[p]
            assert held is not None
            values = trained if told.base == held.ledger.base else _without_means(trained, self._fragments[p])
            self._learner.replace(p, held.anchor + values)
            held.ledger.former = [list(row) for row in told.work]
        of_all = [each.told for each in taken.values()]
        return of_all[0].incarnation, max(each.step for each in of_all), max(each.tokens for each in of_all)

    # -- for the next one ----------------------------------------------------------------------------------------------

    def adopted(self, p: int) -> None:
        """A version of a fragment was adopted: what was left before is of another one."""
        with self._sealing:
            self._adoptions[p] += 1
            with suppress(OSError):
                self._disk.remove(self._path(p))

    def leave(self) -> None:
        """Leave what was trained of some fragments, when that is due."""
        if self._writing is not None and self._writing.is_alive():
            return
        now, step = self._now(), self._odometer.steps
        if not self._next_at:
            self._next_at, self._next_step = now + IN_MEMORY.first_ns, step + IN_MEMORY.steps
        if not self._left:
            if now < self._next_at or step < self._next_step:
                return
            self._left, self._begun, self._took = list(range(len(self._fragments))), now, 0
        files, size = list[Callable[[], None]](), 0
        while self._left and size < STEP_BYTES:
            p = self._left.pop(0)
            if (write := self._read(p)) is not None:
                files.append(write)
                size += 4 * self._fragments[p].size
        self._took += self._now() - now
        if not self._left:
            self._next_at = self._begun + max(IN_MEMORY.every_ns, IN_MEMORY.share * self._took)
            self._next_step = step + IN_MEMORY.steps
        if files:
            self._writing = self._disk.write_beside(partial(self._write_all, files))

    def _read(self, p: int) -> Callable[[], None] | None:
        """What writes the work of a fragment, read now; None without any."""
        held = self._held[p]
        assert held is not None  # It has stepped.
        # What follows an answer is carried over the adoption of what is made of it, where its values are known.
        work = held.ledger.work() if held.sent is None else held.ledger.unanswered()
        if not work:
            return None
        told = _WorkFooter(
            self._slot,
            self._incarnation,
            p,
            self._odometer.steps,
            self._odometer.tokens,
            self._reached(),
            held.ledger.base,
            [_row(*row) for row in work],
        )
        return partial(
            self._write, p, self._adoptions[p], told, self._learner.extract(p), anchor=held.anchor, sent=held.sent
        )

    def _write(self, p: int, adoptions: int, told: _WorkFooter, values: Any, *, anchor: Vector, sent: Any) -> None:
        """Write the file of a fragment, unless another version was adopted since."""
        now = np.asarray(values, np.float32)
        trained = -outer_gradient(anchor, now, self._fragments[p]) if sent is None else now - np.asarray(sent)
        beside = self._disk.beside(self._path(p))
        try:
            with closing(self._disk.create(beside)) as file:
                sealed = SealedFile(file)
                sealed.write(flat(trained).data)
                sealed.seal(msgspec.msgpack.encode(told))
            with self._sealing:
                if self._adoptions[p] == adoptions:
                    self._disk.rename(beside, self._path(p))
        finally:
            with suppress(OSError):
                self._disk.remove(beside)

    def _write_all(self, files: Sequence[Callable[[], None]]) -> None:
        for write in files:
            try:
                write()
            except OSError as error:
                self.has_no_room |= error.errno in _NO_ROOM
                return


def _row(incarnation: int, begin: int, end: int, steps: int) -> Row:
    return incarnation, begin, end, steps


def _is_open(found: FoundWork, held: HeldFragment) -> bool:
    """Whether all of that work is in no version, and the version held is one that it may go on with."""
    told, base = found.told, held.ledger.base
    incarnation, begin, _, _ = told.work[0]
    clock = clock_of(held.clock, told.slot)
    is_near = told.base <= base and abs(base[1] - told.base[1]) <= VERSIONS_MAX
    return is_near and (clock is None or clock <= (incarnation, begin))


def _without_means(trained: Vector, fragment: Fragment) -> Vector:
    """The same without units that are means of values: a difference of two may lead below zero."""
    kept = trained.copy()
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        if not RULES[unit.merge].steps:
            kept[begin:end] = 0.0
    return kept

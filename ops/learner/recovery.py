"""The state that one life of a learner takes over from the lives before it and from other learners, and leaves for
those after it.

Decides the source of that state, in this order: the cut in a snapshot (`Own`), if this life begins with exactly its
versions; the copy of its local leaves on the disk of its machine (`LocalCopies`); leaves that another learner lends, if
they arrive soon (`Lending`); else they are initialized.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import msgspec
import numpy as np
import xxhash

from isthmus.ops.exchange.messages import Loan, Moments, Own, Restored
from isthmus.ops.exchange.token_accounts import Odometer, Totals
from isthmus.ops.island.contract import Keeping, LastingLearning, local_parts
from isthmus.ops.island.life import LeafPart
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.recovery.hold import Form, flat, form_of, formed, packed, type_of, unpacked

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


FIRST_NS: Final = 1_000_000_000
EVERY_NS: Final = 15_000_000_000
"""As between two snapshots."""
SHARE: Final = 400
FOLDER: Final = "local"


def copy_path(folder: Path, slot: int) -> Path:
    """The file of the copies of a slot, in the run's folder on its machine."""
    return folder / FOLDER / f"learner-{slot}"


_MAGIC: Final = b"isthmus local 2\n"
_DIGEST: Final = 16
_PART_BYTES: Final = 1 << 24
HELD_BYTES_MAX: Final = 32 << 20
"""Bytes of leaves that wait to be written, unless a single part is larger, or the model is."""
HELD_SHARE: Final = 3
"""Of a large model's bytes a third may wait: AdamW's moments, twice the model, are then read at six boundaries, and a
first copy is whole within ten steps that last longer than it takes to write a part of it."""
LAST_NS: Final = 5_000_000_000
"""How long a learner that leaves may write its last copy. What it has answered is on its way meanwhile."""
READ_BYTES_MAX: Final = 8 << 20
"""Bytes of a part, where a learner reads its leaves in parts."""
_LENGTH: Final = 4


class HostDisk(Protocol):
    """The operations used of a host's disk."""

    def beside(self, path: Path) -> Path: ...

    def create(self, path: Path) -> Any: ...

    def rename(self, path: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def read(self, path: Path) -> bytes: ...


Chunk: TypeAlias = tuple[list[LeafPart], bool]
"""Parts of the leaves of a copy, and whether they are its last."""


class Copy(NamedTuple):
    """A copy that was found: its life, the number of that life's steps, and the leaves."""

    incarnation: int
    step: int
    leaves: list[Any]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    incarnation: int
    step: int
    forms: list[Form]


@final
class LocalCopies:
    """The copies of one life of a slot, in the run's `folder` on this machine; `now` is in nanoseconds, `model_bytes`
    the size of the merged leaves.

    A copy is made in the background, one at a time, and so seldom that the learner spends at most a SHAREth of its time
    on it. Only some of a large state is in memory at a time; moments of different steps serve as well as those of one
    step. It is not synced: the death of a process does not touch it, and after a power failure its digest tells
    whether it is whole. If anything is wrong with it, or with the disk, the learner begins with none.
    """

    def __init__(
        self,
        folder: Path,
        disk: HostDisk,
        slot: int,
        incarnation: int,
        now: Callable[[], int],
        model_bytes: int = 0,
    ) -> None:
        self._path, self._disk = copy_path(folder, slot), disk
        self._slot, self._incarnation, self._now = slot, incarnation, now
        self._held_max = max(HELD_BYTES_MAX, model_bytes // HELD_SHARE)
        self._pause, self._next_at = FIRST_NS, 0
        self._thread: threading.Thread | None = None
        self._begun = self._took = 0
        self._parts: Iterator[LeafPart] | None = None
        """Those of the copy in progress that were not read yet, if there is one; the others are sent to the file."""

    def former(self) -> Copy | None:
        """The copy of a former life; None if there is none that can be read."""
        try:
            return self._read(memoryview(self._disk.read(self._path)))
        except (OSError, ValueError, IndexError):
            return None

    def is_due(self) -> bool:
        """Whether it is time for the next copy, or for more leaves of the one in progress."""
        now = self._now()
        if not self._next_at:
            self._next_at = now + self._pause
        if self._thread is not None and self._thread.is_alive():
            return False
        return self._parts is not None or now >= self._next_at

    def keep(self, step: int, parts: Callable[[], Iterable[LeafPart]]) -> None:
        """Copy leaves, all of whose parts are given, after `step` steps, or more of them if a copy is in progress;
        those that are read now must not change afterwards."""
        now = self._now()
        if self._parts is None:
            self._parts, self._file, self._begun, self._took = iter(parts()), self._writing(step), now, 0
            next(self._file)
        chunk, size = list[LeafPart](), 0
        while size < self._held_max and (part := next(self._parts, None)) is not None:
            chunk.append(part)
            size += part.values.nbytes
            del part
        self._took += self._now() - now
        is_whole = size < self._held_max
        if is_whole:
            self._parts, self._pause = None, min(2 * self._pause, EVERY_NS)
            self._next_at = self._begun + max(self._pause, SHARE * self._took)
        self._thread = threading.Thread(
            target=_send, args=(self._file, (chunk, is_whole)), name="local copy", daemon=True
        )
        self._thread.start()

    def keep_last(self, step: int, parts: Callable[[], Iterable[LeafPart]]) -> None:
        """Copy all leaves, or what is left of the copy in progress, and wait until they are written, LAST_NS at most:
        no step follows, at which the rest would be read."""
        until = self._now() + LAST_NS
        self.settle()
        self.keep(step, parts)
        while self._parts is not None and self._now() < until:
            self.settle()
            self.keep(step, parts)
        self.settle()

    def settle(self) -> None:
        """Wait for the end of the copy that is being made."""
        if self._thread is not None:
            self._thread.join()

    def _writing(self, step: int) -> Generator[None, Chunk, None]:
        """Append the parts that are sent to a file; with the last, rename it.

        OSError if the disk refuses anything: then the copy before stays, and nothing beside it.
        """
        beside = self._disk.beside(self._path)
        try:
            yield from self._written_to(beside, step)
        except BaseException:
            with suppress(OSError):
                self._disk.remove(beside)
            raise
        self._disk.rename(beside, self._path)

    def _written_to(self, beside: Path, step: int) -> Generator[None, Chunk, None]:
        digest, forms = xxhash.xxh3_128(), list[Form]()

        def write(data: bytes | memoryview) -> None:
            for begin in range(0, len(data), _PART_BYTES):
                part = bytes(data[begin : begin + _PART_BYTES])
                digest.update(part)
                if file.write(part) < len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        parts, is_whole = yield
        with closing(self._disk.create(beside)) as file:
            write(_MAGIC)
            while parts or not is_whole:
                while parts:
                    values, leaf = parts.pop(0)
                    forms += [] if leaf is None else [form_of(leaf)]
                    write(flat(values).data)
                    del values, leaf
                if not is_whole:
                    parts, is_whole = yield
            footer = msgspec.msgpack.encode(_Header(self._slot, self._incarnation, step, forms))
            write(footer + len(footer).to_bytes(_LENGTH, "big"))
            write(digest.digest())

    def _read(self, data: memoryview) -> Copy | None:
        digest, body = data[-_DIGEST:], data[:-_DIGEST]
        if bytes(data[: len(_MAGIC)]) != _MAGIC or xxhash.xxh3_128_digest(body) != digest:
            return None
        end = len(body) - _LENGTH
        begin = end - int.from_bytes(body[end:], "big")
        header = msgspec.msgpack.decode(body[begin:end], type=_Header)
        if header.slot != self._slot or header.incarnation >= self._incarnation:
            return None
        leaves, at = [], len(_MAGIC)
        for name, shape in header.forms:
            count = int(np.prod(shape, dtype=np.int64)) * type_of(name).itemsize
            leaves.append(formed(np.frombuffer(body[at : at + count], np.uint8), name, shape))
            at += count
        return Copy(header.incarnation, header.step, leaves)


def _send(file: Generator[None, Chunk, None], chunk: Chunk) -> None:
    with suppress(OSError, StopIteration):  # The latter at its end, and after an error.
        file.send(chunk)


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
        model_bytes: the size of the merged leaves.
    """

    def __init__(
        self,
        context: Any,
        *,
        learner: LastingLearning,
        held: Sequence[HeldFragment | None],
        odometer: Odometer,
        alpha: float,
        model_bytes: int = 0,
    ) -> None:
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self._learner, self._held, self._odometer, self._has_alpha = learner, held, odometer, alpha > 0
        self._copies: LocalCopies | None = None
        if context.folder is not None:
            self._copies = LocalCopies(
                context.folder, context.disk, self._slot, self._incarnation, now=context.now, model_bytes=model_bytes
            )
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

    def take_over(self, steps: int) -> Totals | None:
        """Take over the state that was found, once all fragments are held and the local leaves are initialized.

        `steps` are those of this slot that are merged: where nothing is found, its counters go on from there. Where
        this life continues from a cut, returns the progress of the run as known at the cut.
        """
        own = self._own
        if isinstance(self._learner, Keeping) and self._learner.has_kept:
            return None
        if own is not None and self._take_own(own):
            totals = Totals()  # The totals that this life has received since may exceed those at the cut.
            totals.raise_to(own["totals"])
            self.began = ["snapshot", own["incarnation"], sum(count for _, count, _, _ in own["standings"])]
            return totals
        if self._incarnation > 1:
            self._take_copy(steps)
        return None

    def _take_copy(self, steps: int) -> None:
        copy = None if self._copies is None else self._copies.former()
        if copy is not None and self._learner.take_local(copy.leaves):
            self.began = ["copy", copy.incarnation, copy.step]
            return
        self._learner.count_from(steps)
        self.began = ["anew", 0, steps] if self._copies is not None else None

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
        """Store a copy of the local leaves on this machine, or some more of it, when that is due."""
        if self._copies is not None and self._copies.is_due():
            self._copies.keep(self._odometer.steps, partial(local_parts, self._learner, READ_BYTES_MAX))

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

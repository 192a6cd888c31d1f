"""Whether the ranks of an island hang: none does anything, and the first does not wait for its run.

Decides when: every rank has been idle by the rule of own loops (`system.idleness`) for the bound, or waits in a
collective operation, as its stack says at two looks; and rank 0 does not wait for something that comes from the run,
such as the first model. While one rank works, the others wait for it with good reason, for as long as that lasts.

A busy wait, as NCCL's, uses a core: only where another rank has been idle for the bound are stacks looked at, of those
that are not, so the ranks of a healthy island are never asked for theirs. A rank's stack is what faulthandler prints
into its log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, final

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.system.idleness import IdleWatch, used_in
from isthmus.runtime.system.printed_stacks import PrintedFrame, ask_for_stack, threads_in, users_depth
from isthmus.runtime.system.processes import RANKS_HANG

BOUND: Final = "ISTHMUS_RANK_SECONDS"
"""The variable that has `run.rank_seconds`; 0 or absent: ranks are not watched."""
STACK_SECONDS_MAX: Final = 3.0
"""For a rank to print its stack; the handler is one of the kernel's signals, so that only a busy machine delays it."""
STACK_BYTES_MAX: Final = 1 << 18
_QUIET_SECONDS: Final = 0.2
_COLLECTIVE: Final = f"{os.sep}torch{os.sep}distributed{os.sep}"
_PASSED_THROUGH: Final = {("island.py", "_batches"), ("trainer_callback.py", "step")}
"""File and function, of ours, that a loader or a step of the user's is called by."""
_OURS: Final = tuple(f"{Path(__file__).parents[1] / package}{os.sep}" for package in ("ops", "programs", "runtime"))


class RankStack(NamedTuple):
    """Where the user's thread of a rank is: its innermost line of the user's, and what that has called."""

    place: PrintedFrame
    called: tuple[PrintedFrame, ...]

    @property
    def is_in_collective(self) -> bool:
        """Whether it waits for other ranks, in an operation of the user's or of ours."""
        return any(_COLLECTIVE in frame.file for frame in self.called)

    @property
    def is_in_run(self) -> bool:
        """Whether it is in a call of ours, and waits for no other rank: for its run."""
        return not self.is_in_collective and any(map(_is_ours, self.called))


def _is_ours(frame: PrintedFrame) -> bool:
    """Whether a line is of ours, and does not merely call the user's, as where batches are passed on."""
    place = os.path.basename(frame.file), frame.function
    return frame.file.startswith(_OURS) and place not in _PASSED_THROUGH


StackOf: TypeAlias = Callable[[int], RankStack | None]
"""The stack of a process; None where it has not printed one."""


@final
class RankWatch:
    """Watches the ranks with these pids, by their numbers."""

    def __init__(
        self, pids: Sequence[int], bound: Duration, stack_of: StackOf, say: Callable[[str], object] = sys.stderr.write
    ) -> None:
        """`say` gets a line where the watch cannot judge."""
        self._pids, self._bound, self._stack_of, self._say = dict(enumerate(pids)), bound, stack_of, say
        self._is_blind = False
        self._idle: IdleWatch[int] = IdleWatch(used_in)
        self._next = Instant(0)
        self._collective: dict[int, PrintedFrame] = {}
        """The ranks that were in a collective at the last look at stacks, and where."""

    def look(self, now: Instant) -> dict[int, RankStack | None] | None:
        """Where the ranks are, if they hang; None otherwise."""
        return self.judged(self._idle.look(self._pids, now), now)

    def judged(self, idle: Mapping[int, Duration], now: Instant) -> dict[int, RankStack | None] | None:
        """The same, of ranks that have been idle for so long."""
        waiting = {rank for rank, lasted in idle.items() if lasted >= self._bound}
        if not waiting:
            self._collective.clear()
            return None
        if now < self._next:
            return None
        # Those that work are asked first: to print its stack is work for an idle rank, which is then idle no more.
        stacks = {rank: self._stack_of(pid) for rank, pid in self._pids.items() if rank not in waiting}
        before, self._collective = self._collective, {}
        for rank, stack in stacks.items():
            if stack is not None and stack.is_in_collective:
                self._collective[rank] = stack.place
                if before.get(rank) == stack.place:
                    waiting.add(rank)
        if stacks:
            self._next = Instant(now + self._bound // 2)
        if len(waiting) < len(self._pids):
            return None
        self._next = Instant(now + self._bound // 2)
        stacks |= {rank: self._stack_of(pid) for rank, pid in self._pids.items() if rank not in stacks}
        first = stacks[0]
        if first is None and not self._is_blind:
            self._is_blind = True
            what = "the ranks do nothing, but rank 0 does not print where it is"
            self._say(f"isthmus: {what}: run.rank_seconds ends nothing\n")
        return None if first is None or first.is_in_run else dict(sorted(stacks.items()))


def stack_in(text: str) -> RankStack | None:
    """The stack of the user's thread in what faulthandler has printed of one process; None if none is in the user's
    code. Of several it is the one that waits for others, or for the run."""
    found = [stack for thread in threads_in(text) if (stack := _stack_of(thread)) is not None]
    return max(found, key=lambda stack: 2 * stack.is_in_collective + stack.is_in_run, default=None)


def _stack_of(thread: list[PrintedFrame]) -> RankStack | None:
    depth = users_depth(thread)
    return None if depth is None else RankStack(thread[depth], tuple(thread[:depth]))


def printed_stack(pid: int, output: int = 2) -> RankStack | None:
    """Have a rank print where it is into the file that it shares with this process; None where that is no file, or the
    rank prints nothing."""
    with suppress(OSError, ValueError), open(f"/proc/self/fd/{output}", "rb") as log:
        if not log.seekable():
            return None
        begin = log.seek(0, os.SEEK_END)
        if not ask_for_stack(pid):
            return None
        until, size, text = time.monotonic() + STACK_SECONDS_MAX, begin, ""
        while time.monotonic() < until:
            time.sleep(_QUIET_SECONDS)
            grown = log.seek(0, os.SEEK_END)
            if grown == size and grown > begin:
                break
            size = grown
        log.seek(begin)
        text = log.read(STACK_BYTES_MAX).decode(errors="replace")
        return stack_in(text)
    return None


def told(stacks: Mapping[int, RankStack | None], lasted: float) -> list[str]:
    """What is printed of ranks that hang, a line each, in a form that a daemon reads (`daemon.stacks`)."""
    lines = [f"{RANKS_HANG}: none of {len(stacks)} did anything for {lasted:g} s (run.rank_seconds), and it is ended"]
    for rank, stack in stacks.items():
        lines.append(f"Thread 0x{rank:x} (rank {rank}):")
        if stack is None:
            lines.append("  it has not printed where it is")
        else:
            waits = ", which waits in a collective operation" if stack.is_in_collective else ""
            place = stack.place
            lines.append(f'  File "{place.file}", line {place.line} in {place.function}, rank {rank}{waits}')
    return lines

"""What a process tells of its memory."""

from __future__ import annotations

import mmap
import os

from isthmus.runtime.system.memory import ProportionalMemory, proportional_bytes

MIB = 1 << 20


def ask(memory: ProportionalMemory) -> int:
    memory.look()
    assert memory._thread is not None
    memory._thread.join()
    return memory.peak_bytes


def test_it_is_the_most_that_was_seen_and_known_from_the_start() -> None:
    memory = ProportionalMemory()
    assert memory.peak_bytes > MIB
    before = ask(memory)
    memory._due = 0.0
    block = mmap.mmap(-1, 64 * MIB)
    for at in range(0, len(block), mmap.PAGESIZE):
        block[at] = 1
    with_block = ask(memory)
    assert with_block - before > 48 * MIB
    block.close()
    memory._due = 0.0
    assert ask(memory) == with_block


def test_the_kernel_is_not_asked_before_it_is_time() -> None:
    memory = ProportionalMemory()
    ask(memory)
    thread = memory._thread
    memory.look()
    assert memory._thread is thread


def test_a_process_that_is_not_there_has_none() -> None:
    assert proportional_bytes(1 << 30) is None
    assert (proportional_bytes(os.getpid()) or 0) > MIB

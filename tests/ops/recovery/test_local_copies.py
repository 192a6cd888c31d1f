"""Copies of what only a learner has: seldom, in the background, and taken by the next life only if they are whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.island.contract import local_parts
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LeafPart, LearnerLife
from isthmus.ops.learner import local_copies
from isthmus.ops.learner.local_copies import ON_DISK, LocalCopies, newest_of
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from tests.ops.bodies import SmallTask, fragments_of

FILE = Path("/run/local/learner-3")
LEAVES = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(7, np.int32),
    np.zeros((0, 2), np.float64),
    np.ones(3, ml_dtypes.bfloat16),
]


class Clock:
    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> int:
        return self.at


def whole(leaves: Iterable[Any]) -> Iterator[LeafPart]:
    return (LeafPart(leaf, leaf) for leaf in leaves)


def copies(disk: SimulatedDisk, life: int, clock: Clock | None = None, slot: int = 3) -> LocalCopies:
    return LocalCopies.on_disk(Path("/run"), Mount(disk), slot, life, clock or Clock())


def kept(disk: SimulatedDisk, life: int = 1, step: int = 40, leaves: Any = LEAVES) -> None:
    made = copies(disk, life)
    made.keep(step, lambda: whole(leaves))
    made.settle()


def test_the_next_life_finds_what_this_one_has_left() -> None:
    disk = SimulatedDisk("seed")
    kept(disk)
    found = copies(disk, 2).former()
    assert found is not None
    assert (found.incarnation, found.step) == (1, 40)
    for leaf, was in zip(found.leaves, LEAVES, strict=True):
        assert (leaf.dtype, leaf.shape) == (was.dtype, was.shape)
        assert leaf.tobytes() == was.tobytes()
    assert copies(disk, 1).former() is None  # Its own is of no use to a life.
    assert [path.name for path in disk.files()] == ["learner-3"]


@pytest.mark.parametrize("at", [0, 10, 18, 30, 60, -1])
def test_one_that_is_damaged_is_none(at: int) -> None:
    disk = SimulatedDisk("seed")
    kept(disk)
    content = disk.content(FILE)
    assert content is not None
    content.data[at] ^= 1
    assert copies(disk, 2).former() is None
    del content.data[at:]
    assert copies(disk, 2).former() is None


def test_what_a_full_disk_does_not_take_leaves_the_one_before() -> None:
    disk = SimulatedDisk("seed")
    assert copies(disk, 2).former() is None
    kept(disk, step=40)
    disk.troubles[0] = Trouble(lambda: None, room=30)
    kept(disk, step=80)
    disk.troubles[0] = Trouble(lambda: None, share=1.0)
    assert copies(disk, 2).former() is None
    disk.troubles.clear()
    found = copies(disk, 2).former()
    assert found is not None
    assert found.step == 40


def test_a_learner_spends_a_400th_of_its_time_at_most() -> None:
    clock, took = Clock(), 10_000_000
    made, at, spent = copies(SimulatedDisk("seed"), 1, clock), list[int](), 0

    def leaves() -> Any:
        clock.at += took
        return whole(LEAVES)

    assert not made.is_due(1)
    while len(at) < 8:
        clock.at += ON_DISK.first_ns // 4
        made.settle()
        if made.is_due(1):
            at.append(clock.at)
            made.keep(1, leaves)
            spent += took
    assert at[0] <= 2 * ON_DISK.first_ns
    assert max(after - before for before, after in pairwise(at)) <= ON_DISK.every_ns + ON_DISK.first_ns
    took = 100_000_000
    made.keep(1, leaves)
    made.settle()
    clock.at += (ON_DISK.share - 2) * took
    assert not made.is_due(1)
    clock.at += 2 * took
    assert made.is_due(1)


def test_a_learner_goes_on_with_the_moments_of_another() -> None:
    task = SmallTask()
    parts = fragments_of(task, 2)
    one, other = (Learner(task, parts, life=LearnerLife(0, 0, life)) for life in (1, 2))
    for learner in (one, other):
        learner.begin()
        learner.compile(task.batch(At(0, 0, 0)))
    for position in range(3):
        one.step(task.batch(At(0, 0, position)), 0.0)
    for p in range(len(parts)):
        other.replace(p, np.asarray(one.extract(p)))
    other.restart()
    assert other.take_local([*one.local()])
    assert not other.take_local([])
    for position in range(3, 6):
        for learner in (one, other):
            learner.step(task.batch(At(0, 0, position)), 0.0)
    # Its step is the one that was compiled before: that may take longer than all that was lost.
    assert [learner._functions.step._cache_size() for learner in (one, other)] == [1, 1]
    for p in range(len(parts)):
        assert np.array_equal(np.asarray(one.extract(p)), np.asarray(other.extract(p)))


@pytest.mark.parametrize("bytes_max", [1, 12, 1 << 20])
def test_leaves_are_read_in_parts_and_found_whole(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in between takes the memory of what was read, and what is read after it is as after it."""
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 4 * bytes_max)
    task = SmallTask()
    learner = Learner(task, fragments_of(task, 2), life=LearnerLife(0, 0, 1))
    learner.begin()
    learner.step(task.batch(At(0, 0, 0)), 0.0)
    assert max(part.values.nbytes for part in local_parts(learner, bytes_max)) <= max(8, bytes_max)
    before, disk = [*learner.local()], SimulatedDisk("seed")
    made, firings = copies(disk, 1), 0
    while copies(disk, 2).former() is None:
        made.keep(1, lambda: local_parts(learner, bytes_max))
        made.settle()
        firings += 1
    found = copies(disk, 2).former()
    assert found is not None
    assert firings > 1 or bytes_max > 12
    for leaf, was in zip(found.leaves, before, strict=True):
        assert (leaf.dtype, leaf.shape) == (was.dtype, was.shape)
        assert leaf.tobytes() == was.tobytes()
    parts = local_parts(learner, bytes_max)
    next(parts)
    learner.step(task.batch(At(0, 0, 1)), 0.0)  # It does not wait for who reads.
    assert sum(1 for _ in parts) > 0


def test_of_a_large_state_some_leaves_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are as they are after later steps, and what is found is all of them, in their order."""
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 1)
    disk, clock, state, read = SimulatedDisk("seed"), Clock(), [np.full(5, 0.0), np.full(3, 0.0)], list[int]()

    def leaves() -> Iterator[Any]:
        for k in range(len(state)):
            read.append(k)
            yield state[k].copy()

    made = copies(disk, 1, clock)
    assert not made.is_due(1)
    clock.at = ON_DISK.first_ns
    for step in range(3):
        assert made.is_due(1)
        state = [np.full(5, float(step)), np.full(3, float(step))]
        made.keep(10 + step, lambda: whole(leaves()))
        made.settle()
        assert read == list(range(min(step + 1, 2)))
        assert (copies(disk, 2).former() is not None) == (step == 2)
    assert not made.is_due(1)
    found = copies(disk, 2).former()
    assert found is not None
    assert found.step == 10
    assert [leaf.tolist() for leaf in found.leaves] == [[0.0] * 5, [1.0] * 3]


def state_of(model: int) -> Iterator[LeafPart]:
    """The moments of AdamW of a model of so many parameters, in leaves of a 20th."""
    return whole(np.full(model // 20, float(k), np.float32) for k in range(40))


def test_a_first_copy_of_a_large_state_is_whole_within_ten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 64)
    model, disk, clock, steps = 4000, SimulatedDisk("seed"), Clock(), 0
    made = LocalCopies.on_disk(Path("/run"), Mount(disk), 3, 1, clock, model_bytes=4 * model)
    while copies(disk, 2).former() is None:
        steps += 1
        clock.at += 5 * ON_DISK.first_ns
        if made.is_due(1):
            made.keep(steps, lambda: state_of(model))
            made.settle()
    assert 5 <= steps <= 10  # Not all of it at once either.


def test_the_last_copy_is_whole_whatever_was_being_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 64)
    disk = SimulatedDisk("seed")
    made = copies(disk, 1)
    made.keep(7, lambda: state_of(4000))
    made.keep_last(9, lambda: state_of(4000))
    found = copies(disk, 2).former()
    assert found is not None
    assert [leaf[0] for leaf in found.leaves] == list(range(40))


def test_the_last_copy_is_given_up_on_a_disk_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 64)
    disk, clock = SimulatedDisk("seed"), Clock()
    kept(disk, step=40)
    made, read = copies(disk, 1, clock), list[int]()

    def slow() -> Iterator[LeafPart]:
        for part in state_of(4000):
            clock.at += local_copies.LAST_NS // 4
            read.append(clock.at)
            yield part

    made.keep_last(80, slow)
    assert len(read) < 10
    found = copies(disk, 2).former()
    assert found is not None
    assert found.step == 40


def test_a_part_that_a_full_disk_does_not_take_leaves_the_copy_before(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = SimulatedDisk("seed"), Clock()
    kept(disk, step=40, leaves=LEAVES[:1])
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 1)
    for room, step in ((0, 40), (3, 40), (100, 80)):
        made = copies(disk, 1, clock)
        for part in range(len(LEAVES) + 1):
            disk.troubles[0] = Trouble(lambda: None, room=room if part == 1 else 1 << 20)
            made.keep(80, lambda: whole(LEAVES))
            made.settle()
        disk.troubles.clear()
        found = copies(disk, 2).former()
        assert found is not None
        assert found.step == step


def test_what_a_killed_writer_did_not_finish_is_removed_by_the_next_life() -> None:
    disk = SimulatedDisk("seed")
    kept(disk)
    made = LocalCopies.on_disk(Path("/run"), Mount(disk), 3, 2, Clock(), model_bytes=0)
    made._held_max = 1  # A part at a time: it is killed after the first.
    made.keep(80, lambda: whole(LEAVES))
    assert sorted(path.name for path in disk.files()) == [".learner-3.beside", "learner-3"]
    after = copies(disk, 3)
    after.remove_unfinished()
    assert [path.name for path in disk.files()] == ["learner-3"]
    found = after.former()
    assert found is not None
    assert found.step == 40


def test_of_two_places_the_newer_copy_counts() -> None:
    """A life without room in memory leaves what one before it had left there."""
    disk = SimulatedDisk("seed")
    kept(disk, life=2, step=7)
    often = LocalCopies.in_memory(Path("/memory"), Mount(disk), 3, 1, Clock())
    often.keep(90, lambda: whole(LEAVES))
    places = (LocalCopies.in_memory(Path("/memory"), Mount(disk), 3, 3, Clock()), copies(disk, 3))
    assert [each.former() is not None for each in places] == [True, True]
    found = newest_of(places)
    assert found is not None
    assert (found.incarnation, found.step) == (2, 7)
    assert newest_of((None, copies(disk, 1))) is None

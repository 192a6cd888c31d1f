"""Copies of a state in memory that outlives whoever writes them: the newest whole one, whenever the writer dies."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isthmus.programs.wings.elastic import copies
from isthmus.programs.wings.elastic.copies import Stored

LEAVES = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7], np.uint32), np.ones(5, np.float16)]
SIZE = sum(leaf.nbytes for leaf in LEAVES)


@pytest.fixture
def files() -> Iterator[tuple[int, ...]]:
    opened = copies.open_files()
    yield opened
    for file in opened:
        os.close(file)


def equal(found: list[Any], scale: int = 1) -> bool:
    return all(np.array_equal(each, leaf * scale) for each, leaf in zip(found, LEAVES, strict=True))


def put(files: tuple[int, ...], life: int, number: int, scale: int = 1) -> None:
    leaves = (leaf * scale for leaf in LEAVES)
    copies.write(copies.oldest(files), Stored(life, number, 10 * number, 1, SIZE), leaves)


def test_the_newest_copy_is_read_as_it_was_written(files: tuple[int, ...]) -> None:
    assert copies.newest(files) is None
    for number in (1, 2, 3):
        put(files, 1, number, number)
    found = copies.newest(files)
    assert found is not None
    what, file = found
    assert (what.name, what.steps, what.restarts) == ((1, 3), 30, 1)
    assert equal(copies.read(file, what, LEAVES), 3)
    assert [each.name for each, _ in sorted(copies.whole(files))] == [(1, 2), (1, 3)]
    put(files, 2, 1)
    assert copies.newest(files)[0].name == (2, 1)  # type: ignore[index]


def test_of_a_copy_that_is_not_whole_nothing_is_left_and_the_one_before_is(files: tuple[int, ...]) -> None:
    put(files, 1, 1)

    def dying() -> Iterator[Any]:
        yield LEAVES[0]
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            copies.write(copies.oldest(files), Stored(1, 2, 20, 1, SIZE), dying())
        found = copies.newest(files)
        assert found is not None
        assert equal(copies.read(found[1], found[0], LEAVES))


def test_what_nobody_goes_on_from_is_removed(files: tuple[int, ...]) -> None:
    put(files, 1, 1)
    put(files, 1, 2, 2)
    kept = copies.keep(files, (1, 1))
    assert kept is not None
    assert [each.name for each, _ in copies.whole(files)] == [(1, 1)]
    put(files, 1, 2, 5)
    assert [each.name for each, _ in sorted(copies.whole(files))] == [(1, 1), (1, 2)]
    assert copies.keep(files, (9, 9)) is None


def test_a_copy_goes_to_another_process_whole_or_not_at_all(files: tuple[int, ...]) -> None:
    others = copies.open_files()
    ours, theirs = socket.socketpair()
    put(files, 1, 4, 2)
    what, file = copies.newest(files)  # type: ignore[misc]
    sender = threading.Thread(target=copies.send, args=(file, what, ours))
    sender.start()
    assert copies.receive(copies.oldest(others), SIZE, theirs) == what
    sender.join()
    assert equal(copies.read(copies.newest(others)[1], what, LEAVES), 2)  # type: ignore[index]
    copies.send(file, what, ours)
    with pytest.raises(ValueError, match=f"expected {SIZE + 1} bytes, found {SIZE}"):
        copies.receive(copies.oldest(others), SIZE + 1, theirs)
    ours.close()
    with pytest.raises(EOFError):
        copies.receive(copies.oldest(others), SIZE, theirs)
    theirs.close()
    for each in others:
        os.close(each)


class Dying:
    """The end of a process that sends no more than so many bytes."""

    def __init__(self, other: socket.socket, bytes_max: int) -> None:
        self._other, self._bytes_max = other, bytes_max

    def sendall(self, data: bytes | memoryview) -> None:
        part = bytes(data[: self._bytes_max])
        self._bytes_max -= len(part)
        self._other.sendall(part)
        if not self._bytes_max:
            self._other.close()
            raise BrokenPipeError(errno.EPIPE, "killed")


@pytest.mark.parametrize("left", [1, SIZE])
def test_who_is_given_a_half_copy_and_who_gives_it_hear_that_the_other_is_gone(
    files: tuple[int, ...], left: int
) -> None:
    others = copies.open_files()
    ours, theirs = socket.socketpair()
    put(files, 1, 4)
    what, file = copies.newest(files)  # type: ignore[misc]
    head = 44
    with pytest.raises(BrokenPipeError):
        copies.send(file, what, Dying(ours, head + SIZE - left))
    with pytest.raises(EOFError):
        copies.receive(copies.oldest(others), SIZE, theirs)
    assert copies.newest(others) is None
    assert copies.newest(files) == (what, file)
    theirs.close()
    for each in others:
        os.close(each)


def test_a_copy_of_another_state_is_refused(files: tuple[int, ...]) -> None:
    put(files, 1, 1)
    what, file = copies.newest(files)  # type: ignore[misc]
    with pytest.raises(ValueError, match="taking up a copy"):
        copies.read(file, what, LEAVES[:2])

"""To wait for descriptors, also above those that select(2) can watch."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from isthmus.runtime.system.waiting import readable

ABOVE = 1100


@pytest.fixture
def high() -> Iterator[tuple[int, int]]:
    """The ends of a pipe, of which the one that is read has a number above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= ABOVE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ABOVE + 1, hard))
    reader, writer = os.pipe()
    os.dup2(reader, ABOVE)
    os.close(reader)
    yield ABOVE, writer
    os.close(ABOVE)
    os.close(writer)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_high_descriptor_is_watched(high: tuple[int, int]) -> None:
    reader, writer = high
    assert readable([reader], 0) == []
    os.write(writer, b".")
    assert readable([reader], None) == [reader]


def test_those_that_can_be_read_come_in_their_order() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    for _, other in pairs[1:]:
        other.send(b".")
    watched = [pair[0] for pair in pairs]
    assert readable(watched, 1) == watched[1:]
    pairs[0][1].close()  # Its end can be read.
    assert readable(watched, 1) == watched
    for pair in pairs:
        for each in pair:
            each.close()


def test_one_that_is_closed_is_an_error() -> None:
    reader, writer = os.pipe()
    for each in (reader, writer):
        os.close(each)
    for number in (reader, -1):
        with pytest.raises(OSError, match="Bad file descriptor"):
            readable([number], 0)

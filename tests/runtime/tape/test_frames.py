"""Frames: what was whole is read, whatever comes behind it; and no bytes make a reader raise."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from isthmus.runtime.tape.writing import BODY_SIZE_MAX, HEAD_SIZE, framed, frames

bodies = st.lists(st.binary(min_size=1, max_size=30), max_size=5)


@given(bodies)
def test_what_is_framed_comes_back(written: list[bytes]) -> None:
    data = framed(written)
    found = frames(data)
    assert (found.bodies, found.end, found.rest, found.is_unfinished) == (written, len(data), "", False)


@given(bodies.filter(bool), st.data())
def test_a_tape_that_is_cut_has_all_whole_records_before_the_cut(written: list[bytes], data: st.DataObject) -> None:
    whole = framed(written)
    cut = data.draw(st.integers(0, len(whole)))
    found = frames(whole[:cut])
    sizes = [HEAD_SIZE + len(body) for body in written]
    count = next(n for n in range(len(sizes), -1, -1) if sum(sizes[:n]) <= cut)
    assert found.bodies == written[:count]
    assert found.end == sum(sizes[:count])
    assert found.is_unfinished == bool(found.rest) == (found.end < cut)


@given(bodies.filter(bool), st.integers(1, 5000))
def test_zeros_behind_the_last_record_are_none(written: list[bytes], zeros: int) -> None:
    found = frames(framed(written) + bytes(zeros))
    assert found.bodies == written
    assert found.is_unfinished


@given(bodies.filter(bool), st.data())
def test_a_bit_that_changed_is_noticed(written: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(framed(written))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    found = frames(bytes(whole))
    assert found.rest
    assert found.bodies == written[: len(found.bodies)]
    assert found.end <= at


@given(st.binary(max_size=60))
def test_any_bytes_are_frames_up_to_somewhere(data: bytes) -> None:
    found = frames(data)
    assert found.end <= len(data)
    assert bool(found.rest) == (found.end < len(data))


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (b"\xff" * 20, f"a length of {0xFFFFFFFF} at byte 0, of 1 to {BODY_SIZE_MAX}"),
        (bytes(4) + b"\x01" * 8, f"a length of 0 at byte 0, of 1 to {BODY_SIZE_MAX}"),
        (b"\x00\x00\x00\x02" + bytes(4) + b"ab", "a record of 2 bytes at byte 0 with another checksum"),
    ],
    ids=["too long", "empty", "checksum"],
)
def test_damage_is_told(data: bytes, rest: str) -> None:
    found = frames(data)
    assert (found.bodies, found.rest, found.is_unfinished) == ([], rest, False)

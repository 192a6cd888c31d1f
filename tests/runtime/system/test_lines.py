"""A line between two processes: whole messages, an end that does not read, and one that has gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.system import lines
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.waiting import readable
from tests.patience import PATIENCE


@pytest.fixture
def pair() -> Iterator[tuple[ProcessLine, ProcessLine]]:
    ours, its = ProcessLine.pair()
    other = ProcessLine(its)
    yield ours, other
    ours.close()
    other.close()


def heard(line: ProcessLine, count: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    while len(found) < count:
        assert readable([line], PATIENCE)
        found += line.hear()
    return found


def test_messages_come_whole_and_in_order_both_ways(pair: tuple[ProcessLine, ProcessLine]) -> None:
    one, other = pair
    assert one.hear() == []
    for number in range(3):
        assert one.offer({"number": number})
    other.send({"text": "a\nb"})
    assert heard(other, 3) == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert heard(one, 1) == [{"text": "a\nb"}]


def test_a_message_that_comes_in_pieces_is_one() -> None:
    raw, its = socket.socketpair()
    with raw:
        line = ProcessLine(its)
        raw.sendall(b'{"a": 1}\n{"b"')
        assert line.hear() == [{"a": 1}]
        raw.sendall(b": 2}")
        assert line.hear() == []
        raw.sendall(b'\n{"c": 3}\n')
        assert line.hear() == [{"b": 2}, {"c": 3}]
        line.close()


def test_an_end_that_does_not_read_is_offered_nothing_more_until_it_has_read(
    pair: tuple[ProcessLine, ProcessLine],
) -> None:
    one, other = pair
    large = {"data": "x" * (8 << 20)}
    assert one.offer(large)  # Some of it waits here.
    assert not one.offer({"lost": True})
    found: list[dict[str, object]] = []
    while not found:
        one.offer({"next": 1})
        found += other.hear()
    assert found[0] == large
    assert {"lost": True} not in found


def test_what_is_sent_to_an_end_that_reads_late_arrives(pair: tuple[ProcessLine, ProcessLine]) -> None:
    one, other = pair
    large = {"data": "x" * (8 << 20)}
    sending = threading.Thread(target=lambda: [one.send(large), one.send({"last": 1})])
    sending.start()
    assert heard(other, 2) == [large, {"last": 1}]
    sending.join(PATIENCE)


def test_what_was_said_before_the_end_is_heard_and_then_the_end(pair: tuple[ProcessLine, ProcessLine]) -> None:
    one, other = pair
    other.offer({"unread": 1})  # So that the other end's close is one with an error.
    one.offer({"last": 1})
    one.close()
    assert other.hear() == [{"last": 1}]
    assert other.is_over
    assert other.hear() == []
    assert not other.offer({"more": "x" * (8 << 20)}) or not other.offer({"more": 2})
    with pytest.raises(BrokenPipeError):
        other.send({"more": 3})


def test_an_end_that_says_no_more_still_hears(pair: tuple[ProcessLine, ProcessLine]) -> None:
    one, other = pair
    one.end()
    assert other.hear() == []
    assert other.is_over
    other.send({"use": 1})
    assert one.hear() == [{"use": 1}]
    assert not one.is_over


def test_a_line_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1000)
    raw, its = socket.socketpair()
    with raw:
        line = ProcessLine(its)
        raw.sendall(b"x" * 2000)
        with pytest.raises(ValueError, match="1000 bytes"):
            line.hear()
        line.close()


def test_one_message_after_the_other_is_waited_for_and_those_behind_it_stay(
    pair: tuple[ProcessLine, ProcessLine],
) -> None:
    one, other = pair
    for number in range(3):
        one.send({"number": number})
    assert other.next() == {"number": 0}
    assert other.next() == {"number": 1}
    one.send({"number": 3})
    assert heard(other, 2) == [{"number": 2}, {"number": 3}]
    later = threading.Timer(0.05, lambda: one.send({"late": 1}))
    later.start()
    assert other.next() == {"late": 1}
    later.join(PATIENCE)
    one.close()
    assert other.next() is None


def test_a_line_is_a_stream_of_objects_none_of_which_is_too_long_for_the_other_end(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[ProcessLine, ProcessLine]
) -> None:
    with socket.socket() as other_kind, pytest.raises(AssertionError):
        ProcessLine(other_kind)
    one, other = pair
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    for say in (one.offer, one.send):
        with pytest.raises(AssertionError, match="bytes"):
            say({"long": "x" * 100})
        with pytest.raises(AssertionError):
            say(["no object"])  # type: ignore[arg-type]
    one.send({"text": "two\nlines"})
    assert other.next() == {"text": "two\nlines"}


def test_open_files_go_with_a_message_and_are_no_other_processes(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("first")
    (tmp_path / "two").write_text("second")
    ours, socket_there = ProcessLine.pair()
    its = ProcessLine(socket_there)
    with (tmp_path / "one").open() as one, (tmp_path / "two").open() as two:
        ours.send({"plain": True})
        ours.send({"number": 1}, [one.fileno(), two.fileno()])
        ours.send({"number": 2})
    assert its.hear() == [{"plain": True}, {"number": 1}, {"number": 2}]
    assert len(its.files) == 2
    number = its.files.popleft()
    assert not os.get_inheritable(number)
    with os.fdopen(number) as taken:
        assert taken.read() == "first"
    left = its.files[0]
    for each in (ours, its):
        each.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(left)

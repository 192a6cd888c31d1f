"""An error of a core tells the last events of what it is about: from the tape, a line each, and those alone."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import (
    CreditGranted,
    DropItem,
    FiringEnded,
    HostRecord,
    ItemArrived,
    NodesNudged,
    Output,
    ReplicaJoined,
    RunBody,
)
from isthmus.runtime.errors import CoreSubject, InvariantError, LocalProtocolError
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.tape.last_events import EVENTS_MAX, LINE_LENGTH_MAX, LastEvents, concerns, named_by
from isthmus.runtime.tape.writing import LAST_MAX, Tape, joined

HERE, THERE = Member(Replica("here", 0), 1), Member(Replica("there", 1), 2)
NODE_2 = (CoreSubject("node", 2),)


def tape_of(*records: tuple[Any, list[Any]]) -> Tape:
    """A tape of events with their commands, one a nanosecond, drained in the middle."""
    tape = Tape()
    tape.begin(lambda: b"state")
    for at, (event, commands) in enumerate(records):
        tape.append(Instant(at), event, commands)
        if at == len(records) // 2:
            tape.drain()
    return tape


def told(tape: Tape | None, *about: CoreSubject, event: Any = None) -> tuple[str, ...]:
    """The last events that an error about that tells."""
    error = InvariantError("broken", about)
    LastEvents(tape, HostRecord).add_to(error, event)
    return error.last_events


def test_an_error_tells_the_last_events_that_name_its_subject_and_their_commands() -> None:
    tape = tape_of(
        (FiringEnded(1, ()), []),
        (FiringEnded(2, ()), [RunBody(2, 1, ())]),
        (CreditGranted(5, HERE, 1), [RunBody(3, 1, ()), RunBody(2, 2, ())]),
        (FiringEnded(3, ()), [DropItem(Handle(2), "late")]),
    )
    assert told(tape, *NODE_2) == (
        f"at 1 ns: {FiringEnded(2, ())} -> {RunBody(2, 1, ())}",
        f"at 2 ns: {CreditGranted(5, HERE, 1)} -> {RunBody(2, 2, ())}",
    )
    assert told(tape, CoreSubject("edge", 5)) == (f"at 2 ns: {CreditGranted(5, HERE, 1)}",)
    assert len(told(tape)) == 4  # It is about the whole core.
    assert told(tape, CoreSubject("node", 4)) == ()


def test_a_round_is_known_by_the_fields_of_its_items_and_a_replica_by_its_members() -> None:
    vote = ItemArrived(0, THERE, Handle(1), {"round": 7})
    opening = FiringEnded(1, (Output(0, Handle(2), {"round": 7}),))
    tape = tape_of((vote, []), (ItemArrived(0, THERE, Handle(3), {"round": 8}), []), (ReplicaJoined(HERE), []))
    assert told(tape, CoreSubject("round", 7)) == (f"at 0 ns: {vote}",)
    assert told(tape, CoreSubject("replica", HERE.replica)) == (f"at 2 ns: {ReplicaJoined(HERE)}",)
    assert concerns(opening.outputs[0], [CoreSubject("round", 7)])
    assert not concerns(opening.outputs[0], [CoreSubject("round", 2)])


def test_an_error_without_a_subject_is_about_what_its_event_names() -> None:
    event = ItemArrived(4, THERE, Handle(1))
    assert named_by(event) == (CoreSubject("edge", 4), CoreSubject("replica", THERE.replica))
    assert named_by(FiringEnded(2, ())) == NODE_2
    assert named_by(None) == named_by(NodesNudged()) == ()
    tape = tape_of((CreditGranted(4, HERE, 1), []), (CreditGranted(5, HERE, 1), []), (ReplicaJoined(THERE), []))
    assert told(tape, event=event) == (
        f"at 0 ns: {CreditGranted(4, HERE, 1)}",
        f"at 2 ns: {ReplicaJoined(THERE)}",
        f"now: {event}",
    )
    assert told(None, event=event) == (f"now: {event}",)


def test_lines_are_bounded_in_number_and_in_length_and_events_without_consequences_share_one() -> None:
    many = [(FiringEnded(2, ()), [RunBody(2, number, ())]) for number in range(3 * EVENTS_MAX)]
    lines = told(tape_of(*many), *NODE_2)
    assert len(lines) == EVENTS_MAX
    assert lines[-1] == f"at {len(many) - 1} ns: {FiringEnded(2, ())} -> {RunBody(2, len(many) - 1, ())}"
    alike = [(FiringEnded(2, ()), [])] * 5
    assert told(tape_of(many[0], *alike, many[1]), *NODE_2)[1] == f"at 5 ns: {FiringEnded(2, ())}, and 4 before"
    [long] = told(tape_of((FiringEnded(2, tuple([Output(0, Handle(1))] * 1000)), [])), *NODE_2)
    assert LINE_LENGTH_MAX // 2 < len(long) <= LINE_LENGTH_MAX


def test_a_core_error_leaves_its_shell_with_its_message_first() -> None:
    tape = tape_of((FiringEnded(2, ()), []))
    with pytest.raises(LocalProtocolError) as raised, LastEvents(tape, HostRecord).told():
        raise LocalProtocolError("broken", NODE_2)
    assert str(raised.value) == f"broken\n  at 0 ns: {FiringEnded(2, ())}"
    assert raised.value.message == "broken"
    assert str(InvariantError("broken")) == "broken"


def test_a_tape_has_its_last_records_whether_they_are_drained_or_not() -> None:
    tape = Tape(segment_bytes=2000)
    tape.begin(lambda: b"state")
    appended = []
    for number in range(3 * LAST_MAX):
        tape.append(Instant(number), NodesNudged(), [])
        appended.append(Instant(number))
        if number % 500 == 0:
            joined(tape.drain())
    for _ in range(2):  # Of those drained, a few places are taken by the openings of segments.
        last = [msgspec.msgpack.decode(each, type=HostRecord).at for each in tape.last()]
        assert 0.9 * LAST_MAX <= len(last) <= LAST_MAX
        assert last == appended[-len(last) :]
        tape.drain()


def test_no_record_is_missing_while_another_thread_drains() -> None:
    tape, is_over = Tape(), threading.Event()
    tape.begin(lambda: b"state")

    def drain() -> None:
        while not is_over.is_set():
            tape.drain()

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        for number in range(LAST_MAX):
            tape.append(Instant(number), NodesNudged(), [])
            if number % 8 == 0:
                assert len(tape.last()) == number + 1
    finally:
        is_over.set()
        thread.join()

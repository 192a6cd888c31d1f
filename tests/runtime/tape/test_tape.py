"""Tapes: what is written comes back, what is damaged says where, and a recorded run replays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores import scheduler_events
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import HostRecord, compare
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape.reading import ForeignTapeError, read
from isthmus.runtime.tape.reading import joined as of_files
from isthmus.runtime.tape.writing import MARK, SEGMENT_BYTES, STATES, Piece, Tape, framed, joined
from tests.runtime.host.test_three_nodes import build, world

integers = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=5)
plain = st.recursive(
    st.none() | integers | texts | st.booleans(), lambda some: st.lists(some, max_size=3), max_leaves=5
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        of, limits = arguments
        return st.integers(limits.ge, limits.le) if of is int else values(of)
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(texts, plain, max_size=3)
    return {int: integers, str: texts, bool: st.booleans(), type(None): st.none()}[kind]


def structs(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


EVENTS = typing.get_args(scheduler_events.Event)
COMMANDS = typing.get_args(scheduler_events.Command)
records = st.tuples(
    integers.map(Instant),
    st.one_of([structs(kind) for kind in EVENTS]),
    st.lists(st.one_of([structs(kind) for kind in COMMANDS]), max_size=3),
)


def test_every_record_of_the_events_is_an_event_or_a_command() -> None:
    found = [
        kind
        for kind in vars(scheduler_events).values()
        if isinstance(kind, type) and issubclass(kind, scheduler_events.Record)
    ]
    assert set(found) - {scheduler_events.Record} == {*EVENTS, *COMMANDS}


@pytest.mark.parametrize("kind", [*EVENTS, *COMMANDS])
@given(data=st.data())
def test_every_event_and_every_command_comes_back(kind: type[Any], data: st.DataObject) -> None:
    one = data.draw(structs(kind))
    at = data.draw(integers)
    tape = begun()
    if kind in EVENTS:
        tape.append(Instant(at), one, [])
    else:
        tape.append(Instant(at), scheduler_events.NodesNudged(), [one])
    [record] = read(joined(tape.drain()), HostRecord).records
    assert record.at == at
    assert (record.event if kind in EVENTS else record.commands[0]) == one
    assert type(record.event if kind in EVENTS else record.commands[0]) is kind


@given(st.lists(records, max_size=4), st.integers(0, 4))
def test_a_tape_may_be_taken_in_pieces(written: list[tuple[Any, Any, Any]], cut: int) -> None:
    tape, whole = begun(), begun()
    data = b""
    for number, record in enumerate(written):
        if number == cut:
            data += joined(tape.drain())
        tape.append(*record)
        whole.append(*record)
    data += joined(tape.drain())
    assert [(record.at, record.event, record.commands) for record in read(data, HostRecord).records] == written
    assert data == joined(whole.drain())
    assert tape.drain() == []


def begun(segment_bytes: int = SEGMENT_BYTES, state: Callable[[], bytes] = lambda: b"state") -> Tape:
    tape = Tape(segment_bytes)
    tape.begin(state)
    return tape


def opened(*bodies: bytes) -> bytes:
    """A tape with some records, whatever they are."""
    return joined(begun().drain()) + framed(bodies)


# -- segments ----------------------------------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_another_that_begins_with_the_state() -> None:
    count = 0
    tape = begun(100, lambda: b"%d" % count)
    for at in range(40):
        count += 1
        tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    pieces = tape.drain()
    found = read(joined(pieces), HostRecord)
    assert [piece.segment for piece in pieces] == list(range(1, len(pieces) + 1))
    assert len(pieces) > 5
    assert [record.at for record in found.records] == list(range(40))
    for segment in found.segments:
        assert segment.opening.state == b"%d" % segment.opening.before
        assert segment.opening.before + len(segment.records) == segment.end
    assert (found.begins, found.missing) == (0, 0)
    later = read(joined(pieces[2:]), HostRecord)
    assert later.begins == later.missing == found.segments[2].opening.before > 0


def test_a_large_state_makes_segments_longer_so_that_tapes_do_not_consist_of_states() -> None:
    tape = begun(100, lambda: b"x" * 1000)
    for at in range(2000):
        tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    lengths = [len(piece.data) for piece in tape.drain()]
    assert len(lengths) > 2
    assert all(length > STATES * 1000 for length in lengths[:-1])


def test_after_a_loss_a_segment_begins_with_the_next_record() -> None:
    tape = begun()
    for at in range(3):
        tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    first = tape.drain()
    tape.append(Instant(3), scheduler_events.NodesNudged(), [])
    tape.drain()
    tape.renew()
    for at in range(4, 7):
        tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    second = tape.drain()
    assert [piece.is_after_loss for piece in second] == [True]
    found = read(joined([*first, *second]), HostRecord)
    assert [record.at for record in found.records] == [0, 1, 2, 5, 6]
    assert (found.segments[1].opening.before, found.missing) == (5, 2)


def test_files_that_do_not_follow_on_each_other_are_no_tape() -> None:
    tape = begun(100)
    for at in range(20):
        tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    files = [read(piece.data, HostRecord) for piece in tape.drain()]
    assert of_files(files).records == [record for file in files for record in file.records]
    assert of_files(files[1:]).begins > 0
    with pytest.raises(ValueError, match="not whole before its segment 3: 5 records are missing"):
        of_files([files[0], *files[2:]])


# -- what is no tape ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PK\x03\x04 something else", "begins with 50 4b 03 04 .*, which no tape does"),
        (framed([msgspec.msgpack.encode([5, ["NodesNudged"], []])]), "does not begin with the state of a core"),
        (framed([msgspec.msgpack.encode([MARK, 3, "what", "ever"])]), "is of version 3 of tapes, .* reads version 2$"),
        (
            framed([msgspec.msgpack.encode([MARK, 1, "what", "ever"])]),
            "is of version 1 of .* 2; commit [0-9a-f]+ reads it$",
        ),
        (framed([msgspec.msgpack.encode([MARK])]), "is of version None of tapes"),
    ],
    ids=["foreign", "no state", "future", "past", "nothing"],
)
def test_what_is_foreign_is_told(data: bytes, what: str) -> None:
    with pytest.raises(ForeignTapeError, match=what):
        read(data, HostRecord)


def test_what_is_refused_takes_no_more_memory_than_it_has_bytes() -> None:
    mark = msgspec.msgpack.encode(MARK)
    data = framed([b"\x93" + mark + b"\x03" + b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x80" * (1 << 20)])
    tracemalloc.start()
    try:
        with pytest.raises(ForeignTapeError, match="is of version 3"):
            read(data, HostRecord)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tape_or_refused(data: bytes) -> None:
    for given_ in (data, opened() + data, opened(data) if data else b"", framed([data or b"1"])):
        with suppress(ValueError):
            read(given_, HostRecord)


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\x01\x91\xa1?\x90",
        b"\x93\x01\x93\xaaBodyFailed\x01\xa2\xff\xfe\x90",
        b"\x93\x01\x92\xadNodesNudged\x01\x90",
        b"\x93\x01\x94\xabItemArrived\x00" + b"\x91" * 9000,
        msgspec.msgpack.encode((1, scheduler_events.NodesNudged(), [])) + b"\x00",
        msgspec.msgpack.encode([MARK, 2, 1, 0, False, "no bytes"]),
        msgspec.msgpack.encode([MARK, 2, 1, 0, False, b"", 1]),
    ],
    ids=["unknown tag", "no text", "a field more", "nested", "more", "no state", "opening with more"],
)
def test_a_frame_that_holds_no_record_is_damage(body: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        read(opened(body), HostRecord)


def test_deeply_nested_fields_are_damage() -> None:
    record = (1, ["ItemArrived", 0, [["there", 0], 1], 1, {"round": 0}], [])
    body = msgspec.msgpack.encode(record)
    deep = body.replace(b"\xa5round\x00", b"\xa5round" + b"\x91" * 100_000 + b"\x00")
    with pytest.raises(ValueError, match="damaged at byte"):
        read(opened(deep), HostRecord)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_replays() -> None:
    run = world(3)
    run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
    for name, data in run.tape().items():
        replica = Replica.parse(name)
        core = Scheduler(lower(build().freeze())[replica.role], Member(replica, 1))
        found = read(data, HostRecord).records
        assert len(found) > 10
        for record in found:
            compare(record, core.handle(record.event, record.at))


def test_a_core_that_says_something_else_is_found_out() -> None:
    record = HostRecord(Instant(5), scheduler_events.NodesNudged(), [scheduler_events.EndNode(1)])
    compare(record, [scheduler_events.EndNode(1)])
    with pytest.raises(InvariantError, match=r"replay at 5 ns: after NodesNudged\(\) the tape has .*node=1.*node=2"):
        compare(record, [scheduler_events.EndNode(2)])


def test_nothing_is_lost_that_is_appended_while_another_thread_takes() -> None:
    tape = begun()
    pieces: list[Piece] = []
    is_over = threading.Event()

    def take() -> None:
        while not is_over.is_set():
            pieces.extend(tape.drain())

    thread = threading.Thread(target=take)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for at in range(20_000):
            tape.append(Instant(at), scheduler_events.NodesNudged(), [])
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    pieces.extend(tape.drain())
    assert [record.at for record in read(joined(pieces), HostRecord).records] == list(range(20_000))


SCRIPT = """
import hashlib
from tests.runtime.host.test_three_nodes import world
run = world(3)
run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
print([hashlib.sha256(tape).hexdigest() for tape in run.tape().values()])
"""


@pytest.mark.process
def test_the_digest_of_a_run_is_the_same_under_any_hash_seed() -> None:
    found = []
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[3],
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    assert len(found[0]) > 64

"""Tapes: what is written comes back, what is damaged says where, and a recorded run replays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import types
import typing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import xxhash
from hypothesis import given

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.scheduler import events
from isthmus.runtime.scheduler.core import Scheduler
from isthmus.runtime.scheduler.tape import RECORD_SIZE_MAX, Record, Tape, compare, read
from tests.runtime.host.test_three_nodes import build, world

integers = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=5)
plain = st.recursive(
    st.none() | integers | texts | st.booleans(), lambda some: st.lists(some, max_size=3), max_leaves=5
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
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
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


EVENTS = typing.get_args(events.Event)
COMMANDS = typing.get_args(events.Command)
records = st.tuples(
    integers.map(Instant),
    st.one_of([structs(kind) for kind in EVENTS]),
    st.lists(st.one_of([structs(kind) for kind in COMMANDS]), max_size=3),
)


def test_every_record_of_the_events_is_an_event_or_a_command() -> None:
    found = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Record)]
    assert set(found) - {events.Record} == {*EVENTS, *COMMANDS}


@pytest.mark.parametrize("kind", [*EVENTS, *COMMANDS])
@given(data=st.data())
def test_every_event_and_every_command_comes_back(kind: type[Any], data: st.DataObject) -> None:
    one = data.draw(structs(kind))
    at = data.draw(integers)
    tape = Tape()
    if kind in EVENTS:
        tape.append(Instant(at), one, [])
    else:
        tape.append(Instant(at), events.StopRequested(), [one])
    [record] = read(tape.take())
    assert record.at == at
    assert (record.event if kind in EVENTS else record.commands[0]) == one
    assert type(record.event if kind in EVENTS else record.commands[0]) is kind


@given(st.lists(records, max_size=4), st.integers(0, 4))
def test_a_tape_may_be_taken_in_pieces(written: list[tuple[Any, Any, Any]], cut: int) -> None:
    tape, whole = Tape(), Tape()
    data = b""
    for number, record in enumerate(written):
        if number == cut:
            data += tape.take()
        tape.append(*record)
        whole.append(*record)
    data += tape.take()
    assert [(record.at, record.event, record.commands) for record in read(data)] == written
    assert data == whole.take()
    assert tape.digest() == whole.digest() == xxhash.xxh3_128(data).hexdigest()
    assert tape.take() == b""


def one_record() -> bytes:
    tape = Tape()
    output = events.Output(0, Handle(7), {"round": 3, "members": [[0, 1]]}, 99)
    sent = events.SendItem(2, Member(Replica("there", 1), 4), Handle(7), "key", {"round": 3})
    tape.append(Instant(5), events.FiringEnded(1, (output,), is_idle=True), [sent])
    return tape.take()


def test_a_torn_tape_says_where() -> None:
    record = one_record()
    for length in range(1, len(record)):
        torn = record + record[:length]
        found = read(torn)
        assert next(found) == next(read(record))
        with pytest.raises(ValueError, match=rf"^the tape is (torn|damaged) at byte {len(record)}: ."):
            next(found)


def found_in(data: bytes) -> str:
    """What is said about a tape; '' if it can be read."""
    try:
        list(read(data))
    except ValueError as error:
        return str(error) if type(error) is ValueError else repr(error)
    return ""


@given(st.integers(0, len(one_record()) - 1), st.integers(1, 255))
def test_a_damaged_tape_says_where_or_reads_something_else(at: int, change: int) -> None:
    record = bytearray(one_record())
    record[at] ^= change
    said = found_in(bytes(record))
    assert said == "" or re.match(r"the tape is (torn|damaged) at byte [0-9]+: .", said)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tape_or_damaged(data: bytes) -> None:
    for given_ in (data, framed(data)):
        said = found_in(given_)
        assert said == "" or re.match(r"the tape is (torn|damaged) at byte [0-9]+: .", said)


TOO_LONG = (RECORD_SIZE_MAX + 1).to_bytes(4, "big") + bytes(9)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (TOO_LONG, "torn at byte 0: a record of 16777217 bytes, 9 are there"),
        (bytes(4), "damaged at byte 0"),
        (framed(b"\x93\x01\x91\xa1?\x90"), "damaged at byte 0"),
        (framed(b"\x93\x01\x93\xaaBodyFailed\x01\xa2\xff\xfe\x90"), "damaged at byte 0"),
        (framed(b"\x93\x01\x92\xadStopRequested\x01\x90"), "damaged at byte 0"),
        (framed(b"\x93\x01\x94\xabItemArrived\x00" + b"\x91" * 9000), "damaged at byte 0"),
        (framed(msgspec.msgpack.encode((1, events.StopRequested(), [])) + b"\x00"), "damaged at byte 0"),
    ],
    ids=["too long", "empty", "unknown tag", "no text", "a field more", "nested", "more"],
)
def test_damage_of_every_kind(data: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        list(read(data))


def test_deeply_nested_fields_are_damage() -> None:
    record = (1, ["ItemArrived", 0, [["there", 0], 1], 1, {"round": 0}], [])
    body = msgspec.msgpack.encode(record)
    deep = body.replace(b"\xa5round\x00", b"\xa5round" + b"\x91" * 100_000 + b"\x00")
    with pytest.raises(ValueError, match="damaged at byte 0"):
        list(read(framed(deep)))


def test_a_run_replays() -> None:
    run = world(3)
    run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
    for name, data in run.tape().items():
        replica = Replica.parse(name)
        core = Scheduler(lower(build())[replica.role], Member(replica, 1))
        found = list(read(data))
        assert len(found) > 10
        for record in found:
            compare(record, core.handle(record.event, record.at))


def test_a_core_that_says_something_else_is_found_out() -> None:
    record = Record(Instant(5), events.StopRequested(), [events.EndNode(1)])
    compare(record, [events.EndNode(1)])
    with pytest.raises(InvariantError, match=r"replay at 5 ns: after StopRequested\(\) the tape has .*node=1.*node=2"):
        compare(record, [events.EndNode(2)])


def test_nothing_is_lost_that_is_appended_while_another_thread_takes() -> None:
    tape = Tape()
    pieces: list[bytes] = []
    is_over = threading.Event()

    def take() -> None:
        while not is_over.is_set():
            pieces.append(tape.take())

    thread = threading.Thread(target=take)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for at in range(20_000):
            tape.append(Instant(at), events.StopRequested(), [])
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    pieces.append(tape.take())
    assert [record.at for record in read(b"".join(pieces))] == list(range(20_000))
    assert tape.digest() == xxhash.xxh3_128(b"".join(pieces)).hexdigest()


SCRIPT = """
from tests.runtime.host.test_three_nodes import world
run = world(3)
run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
run.tape()
print([tape.digest() for tape in run.tapes.values()])
"""


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

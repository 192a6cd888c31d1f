"""The state of a core: nothing of it is forgotten, whatever fields it has; and no bytes become anything but a state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from isthmus.runtime.cores import quorum_core as quorum
from isthmus.runtime.cores.quorum_core import QuorumCore
from isthmus.runtime.cores.scheduler_core import STATE, Scheduler
from isthmus.runtime.cores.scheduler_events import HostRecord
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape import writing
from isthmus.runtime.tape.reading import read
from isthmus.runtime.tape.state import Kind
from tests.runtime.host.test_three_nodes import build, world

__module__ = "isthmus.runtime.parts"


def of_a_core(kind: type) -> type:
    """Let a class be one of a room."""
    kind.__module__ = __module__
    return kind


class Pair(NamedTuple):
    left: Any
    right: Any


class Letter(msgspec.Struct, frozen=True):
    text: str


@dataclass(slots=True)
class Slotted:
    number: int
    later: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    value: Any


class Older:
    __slots__ = ("first",)


class Younger(Older):
    __slots__ = ("second",)


class Part:
    def __init__(self) -> None:
        self.items: list[Any] = []


class Core:
    """One with a part, a callable that it was given, and whatever a test adds."""

    def __init__(self) -> None:
        self.part = Part()
        self.call = lambda: self.part.items
        self.more: Any = None


PARTS = sys.modules[__name__]
for each in (Pair, Letter, Slotted, Frozen, Older, Younger, Part, Core):
    of_a_core(each)
sys.modules[__module__] = PARTS
KIND = Kind(("parts", "ids"))


def thawed(core: Core) -> Any:
    fresh = Core()
    state = KIND.frozen(core)
    KIND.thaw(fresh, state)
    assert KIND.frozen(fresh) == state
    return fresh


def test_everything_that_a_core_may_hold_comes_back() -> None:
    core = Core()
    younger = Younger()
    younger.second = 2  # Nothing is in `first`.
    core.more = {
        1: [None, True, 1.5, "text", b"bytes", -(1 << 63), (1 << 64) - 1],
        "a": (Pair(1, [2]), Letter("x"), Frozen({"k": 1})),
        ("t", 1): deque([Slotted(1, [2]), younger]),
        Replica("learner", 1): Counter({"x": 3}),
        Letter: {3, 1, 2},
        None: frozenset(("b", "a")),
    }
    found = thawed(core).more
    assert list(found) == list(core.more)
    assert found[1] == core.more[1]
    assert found["a"] == core.more["a"]
    slotted, other = found["t", 1]
    assert (slotted, other.second, hasattr(other, "first")) == (Slotted(1, [2]), 2, False)
    assert [type(each) for each in found.values()] == [type(each) for each in core.more.values()]
    assert (found[Letter], found[None]) == ({1, 2, 3}, frozenset("ab"))


def test_what_is_one_object_stays_one_and_what_is_two_stays_two() -> None:
    core = Core()
    shared, other = [1], [1]
    core.part.items = [shared, shared, other]
    core.more = {"again": core.part, "same": shared, "in a key": {Pair(1, 2): shared}}
    shared.append(core)  # Around in a circle.
    found = thawed(core)
    first, second, third = found.part.items
    assert first is second is found.more["same"] is found.more["in a key"][Pair(1, 2)]
    assert first is not third
    assert found.more["again"] is found.part
    assert first[1] is found
    assert found.call() is found.part.items, "what the constructor bound is bound to what was restored"


@pytest.mark.parametrize("place", ["in the core", "in a part", "in a slotted part"])
def test_a_field_that_somebody_adds_is_part_of_the_state(place: str) -> None:
    core = Core()
    if place == "in the core":
        core.new_field = 1  # type: ignore[attr-defined]
    elif place == "in a part":
        core.more = Part()
        core.more.new_field = 1
    else:
        core.more = Slotted(1, ["new"])
    state = KIND.frozen(core)
    if place == "in the core":
        core.new_field = 2  # type: ignore[attr-defined]
    elif place == "in a part":
        core.more.new_field = 2
    else:
        core.more.later = ["newer"]
    assert KIND.frozen(core) != state


def every_object(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """All that hangs on an object, found without the code that is tested."""
    if id(value) not in found and not isinstance(value, str | int | float | bytes | type | None):
        found[id(value)] = value
        held = [getattr(value, name) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        held += list(vars(value).values()) if hasattr(value, "__dict__") else []
        if isinstance(value, dict):
            held += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | deque):
            held += list(value)
        for each in held:
            every_object(each, found)
    return found


def test_every_number_and_flag_of_a_scheduler_is_part_of_its_state() -> None:
    run = world(3)
    run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
    core = next(iter(run.hosts.values())).scheduler
    state, changed = STATE.frozen(core), 0
    for each in every_object(core, {}).values():
        if not type(each).__module__.startswith("isthmus.runtime.cores."):
            continue
        names = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in [*names, *getattr(each, "__dict__", ())]:
            before = getattr(each, name)
            if isinstance(before, int) and not hasattr(type(each), "__struct_fields__"):
                object.__setattr__(each, name, before + 1)
                assert STATE.frozen(core) != state, f"{type(each).__name__}.{name} is forgotten"
                object.__setattr__(each, name, before)
                changed += 1
    assert changed > 20
    assert STATE.frozen(core) == state


def test_an_object_from_elsewhere_is_refused_and_named() -> None:
    core = Core()
    core.more = Path("x")
    with pytest.raises(InvariantError, match=r"the state of a core has a pathlib.*Path; it may have: parts, ids"):
        KIND.frozen(core)


def test_a_state_of_another_version_of_a_class_is_refused() -> None:
    core = Core()
    core.more = Slotted(1)
    classes, plain = msgspec.msgpack.decode(KIND.frozen(core))
    for changed, what in (
        ([[name, [*fields, "new"]] for name, fields in classes], "has the fields .*'new'"),
        ([[f"{name}Old", fields] for name, fields in classes], "does not know"),
    ):
        with pytest.raises(ValueError, match=what):
            KIND.thaw(Core(), msgspec.msgpack.encode([changed, plain]))
    del core.call
    with pytest.raises(ValueError, match="other fields of Core"):
        KIND.thaw(Core(), KIND.frozen(core))
    with pytest.raises(ValueError, match=r"no state of a Scheduler|does not know"):
        STATE.thaw(Scheduler(lower(build().freeze())["here"], Member(Replica("here", 0), 1)), KIND.frozen(Core()))


def sample() -> bytes:
    core = Core()
    core.more = [Slotted(1, [2]), {1: Pair(1, 2)}, Counter("ab"), {1, 2}]
    return KIND.frozen(core)


@given(st.data())
def test_bytes_that_are_no_state_are_refused_or_become_one(data: st.DataObject) -> None:
    state = bytearray(sample())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(state) - 1))
        state[at] = data.draw(st.integers(0, 255))
    for given_ in (bytes(state), bytes(state[: data.draw(st.integers(0, len(state)))])):
        with suppress(ValueError):
            KIND.thaw(Core(), given_)


def test_nested_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="no state of a QuorumCore"):
        quorum.STATE.thaw(QuorumCore(), msgspec.msgpack.encode([[], 1]).replace(b"\x01", b"\x91" * 100_000 + b"\x01"))


SCRIPT = """
import hashlib
from tests.runtime.host.test_three_nodes import world
run = world(3)
run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
print([hashlib.sha256(host.scheduler.saved()).hexdigest() for host in run.hosts.values()])
"""


@pytest.mark.process
def test_a_state_is_the_same_under_any_hash_seed() -> None:
    found = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[3]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, cwd=root, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_scheduler_comes_by_itself_to_every_state_on_its_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "STATES", 0)
    run = world(3)
    for tape in run.tapes.values():
        tape._segment_bytes = 500
    run.run(lambda: ("there/0", "collect") in run.ended, seconds_max=1.0)
    for name, data in run.tape().items():
        replica = Replica.parse(name)
        core = Scheduler(lower(build().freeze())[replica.role], Member(replica, 1))
        segments = read(data, HostRecord).segments
        assert len(segments) > 3
        for segment in segments:
            assert core.saved() == segment.opening.state
            for record in segment.records:
                core.handle(record.event, record.at)

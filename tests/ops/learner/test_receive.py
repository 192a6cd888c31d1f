"""Coded updates: whatever is lost, late, or sent to one that joins, equal versions have equal bits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.messages import Need, withdrawn
from isthmus.ops.learner.receive import Receive
from isthmus.ops.syncer.outer_step import CHAIN, KeyFrames, OuterStep
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.effort import examples
from tests.ops.bodies import Context, SmallTask, fragments_of

PARTS = fragments_of(SmallTask(), 2)
SYNCER = Replica("syncer", 0)
COUNT = len(PARTS)


class Shard:
    """An outer step and its key frames, with the bits of every version that it has published."""

    def __init__(self, form: Any = "int4", epoch: int = 1) -> None:
        self.outer, self.frames = OuterStep(PARTS, lr=0.5, momentum=0.9, update=form), KeyFrames()
        self.outer.open(Context("syncer"))
        self.bits: dict[tuple[int, int, int], bytes] = {}
        self.versions: dict[int, list[int]] = {}
        self.epoch, self.rng = epoch, np.random.default_rng(epoch)
        self.asked = "float32"
        """What rounds ask for, where the format follows the links."""

    def begin(self, p: int, kind: str = "initial", version: Any = (1, 0), values: Any = None) -> dict[str, Any]:
        values = self.rng.standard_normal(PARTS[p].size).astype(np.float32) if values is None else values
        return self._fire(p, kind, list(version), values)

    def step(self, p: int, kind: str = "merge") -> dict[str, Any]:
        version = [self.epoch, self.versions[p][1] + 1]
        return self._fire(p, kind, version, self.rng.standard_normal(PARTS[p].size).astype(np.float32))

    def again(self, p: int, kind: str = "merge") -> dict[str, Any]:
        return self._fire(p, kind, self.versions[p], None, refused=[[3, "already merged"]])

    def _fire(self, p: int, kind: str, version: Any, direction: Any, refused: Any = ()) -> dict[str, Any]:
        merging = {"refused": list(refused), "voters": [], "asked": {"update": self.asked}}
        ones = np.ones(len(PARTS[p].units), np.float32)
        told = {"fragment": p, "round": 1, "kind": kind, "version": version, "direction": direction, "scale": ones}
        more = {"clock": [], "positions": [], "totals": [], "lives": [[3, 1]], "lengths": [], "merging": merging}
        emitted = self.outer(gradient={**told, **more})  # type: ignore[typeddict-item]
        self.versions[p] = version
        self.bits[p, version[0], version[1]] = emitted["state"]["values"].tobytes()
        return emitted


class Line:
    """A Latest edge to one receiver: a newer item of a key takes the place of the one that waits."""

    def __init__(self, kept: dict[Any, Any]) -> None:
        self.waiting: dict[Any, Any] = dict(kept)

    def put(self, key: Any, item: Any) -> None:
        self.waiting[key] = item

    def take(self, count: int) -> dict[Any, Any]:
        return {(SYNCER, key): self.waiting.pop(key) for key in list(self.waiting)[:count]}


class World:
    """A shard and its receivers, each of which takes so many items in a thousand steps."""

    def __init__(self, form: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard = Shard(form)
        self.kept: dict[Any, Any] = {}
        self.receivers: dict[int, tuple[Receive, Line, float]] = {}
        self.told: dict[int, dict[int, Any]] = {}
        self.needs: dict[Any, Any] = {}
        self.frames_given = self.bytes_given = 0

    def join(self, slot: int, speed: float) -> None:
        receive = Receive(PARTS)
        receive.open(Context("learner"))
        self.receivers[slot], self.told[slot] = (receive, Line(self.kept), speed), {}
        self.needs = {of: need for of, need in self.needs.items() if of[0].slot != slot}

    def publish(self, emitted: dict[str, Any]) -> None:
        item = emitted["update"]
        self.kept.pop(item["place"], None)
        self.kept[item["place"]] = item
        for _, line, _ in self.receivers.values():
            line.put(item["place"], item)
        self.give({(SYNCER, item["fragment"]): emitted["state"]}, {})

    def give(self, published: Any, needs: Any) -> None:
        for role, frame in self.shard.frames(state=published, need=needs) or ():
            assert role == "learner"
            self.frames_given += 1
            self.receivers[frame["slot"]][1].put(frame["frame"], frame)

    def receive(self, slot: int, count: int) -> None:
        receive, line, _ = self.receivers[slot]
        taken = line.take(count)
        self.bytes_given += sum(item["values"].nbytes for item in taken.values())
        for port, item in (receive(update=taken) if taken else None) or ():
            if port == "need":
                self.needs[Replica("learner", slot), item["fragment"]] = item
            else:
                self.check(slot, item)

    def check(self, slot: int, item: Any) -> None:
        p, version = item["fragment"], item["version"]
        assert "scales" not in item
        assert version >= self.told[slot].get(p, [0, 0])
        assert item["values"].tobytes() == self.shard.bits[p, version[0], version[1]]
        self.told[slot][p] = version

    def pass_on_needs(self) -> None:
        needs, self.needs = self.needs, {}
        self.give({}, needs)

    def settle(self) -> None:
        for _ in range(8):
            for slot in self.receivers:
                self.receive(slot, 1000)
            self.pass_on_needs()


@pytest.mark.parametrize("form", [*CODED, "auto"])
def test_all_that_is_received_has_the_bits_that_were_published(form: Any) -> None:
    world = World(form, seed=1)
    for slot, speed in enumerate([1.0, 1.0, 0.3, 0.05]):
        world.join(slot, speed)
    for p in range(COUNT):
        world.publish(world.shard.begin(p))
    # In fewer steps hardly a receiver is as far behind as to be given whole versions: 200 steps have 13 to 26 of
    # them, 40 have none to 7.
    for number in range(max(examples(4000), 200)):
        p = world.rng.randrange(COUNT)
        if form == "auto" and world.rng.random() < 0.1:
            world.shard.asked = world.rng.choice(["float32", "bf16", "int4"])
        world.publish(world.shard.again(p) if world.rng.random() < 0.05 else world.shard.step(p))
        for slot, (_, _, speed) in list(world.receivers.items()):
            if world.rng.random() < speed:
                world.receive(slot, world.rng.choice([1, 2, 50]))
        if world.rng.random() < 0.5:
            world.pass_on_needs()
        if number % 97 == 50:
            world.join(world.rng.randrange(6), world.rng.choice([1.0, 0.1]))
    world.settle()
    for slot in world.receivers:
        assert world.told[slot] == world.shard.versions
    assert world.frames_given > 10
    world.shard.asked = "int4"
    for p in range(COUNT):
        world.publish(world.shard.step(p))
        theta, published = world.shard.outer._theta[p], world.shard.outer._published(p)
        assert 0 < np.abs(theta - published).max() < 0.5 * np.abs(theta).max()


def test_of_whole_versions_a_slow_receiver_is_sent_the_newest_alone() -> None:
    world = World("auto", seed=5)
    world.join(0, 1.0)
    world.publish(world.shard.begin(0))
    for _ in range(9):
        world.publish(world.shard.step(0))
    assert len(world.receivers[0][1].waiting) == 1
    world.receive(0, 1)
    assert world.told[0] == world.shard.versions
    theta = world.shard.outer._theta[0]
    assert world.shard.outer._published(0).tobytes() == theta.tobytes()


def test_codes_follow_whole_versions_and_whole_versions_codes() -> None:
    world = World("auto", seed=6)
    world.join(0, 1.0)
    world.publish(world.shard.begin(0))
    for asked in ("int4", "int4", "float32", "bf16", "float32", "int4"):
        world.shard.asked = asked
        emitted = world.shard.step(0)
        assert ("base" in emitted["update"]) == (asked != "float32")
        world.publish(emitted)
        world.receive(0, 99)
        world.pass_on_needs()
    assert world.told[0] == world.shard.versions
    assert world.frames_given == 0


def test_who_keeps_up_is_given_each_code_once_and_no_whole_value() -> None:
    world = World("int4", seed=2)
    world.join(0, 1.0)
    world.publish(world.shard.begin(0))
    world.receive(0, 99)
    world.bytes_given = 0
    for _ in range(50):
        world.publish(world.shard.step(0))
        world.receive(0, 99)
        world.pass_on_needs()
    assert world.frames_given == 0
    assert world.bytes_given == 50 * sum(-(-unit.size // 2) for unit in PARTS[0].units)


def test_who_is_as_far_behind_as_a_chain_needs_no_whole_value_and_one_further_does() -> None:
    for behind, frames in ((CHAIN, 0), (CHAIN + 1, 1)):
        world = World("int4", seed=3)
        world.join(0, 1.0)
        world.publish(world.shard.begin(0))
        world.receive(0, 99)
        for _ in range(behind):
            world.publish(world.shard.step(0))
        world.settle()
        assert world.frames_given == frames
        assert world.told[0] == world.shard.versions


def test_codes_of_a_shard_that_came_back_follow_the_version_that_it_goes_on_from_only() -> None:
    world = World("int8", seed=4)
    world.join(0, 1.0)
    world.join(1, 1.0)
    world.publish(world.shard.begin(0))
    world.publish(world.shard.step(0))
    base = world.shard.outer._published(0)
    world.receive(0, 99)
    world.receive(1, 99)
    world.publish(world.shard.step(0))  # Only one of them hears of this version, and the shard is gone.
    world.receive(1, 99)
    bits, world.kept = world.shard.bits, {}
    world.shard = Shard("int8", epoch=2)
    world.shard.bits |= bits
    world.receivers[0] = world.receivers[0][0], Line({}), 1.0
    world.publish(world.shard.begin(0, "recover", (1, 1), base))
    world.publish(world.shard.step(0))
    world.receive(0, 99)
    world.receive(1, 99)
    assert world.told == {0: {0: [2, 2]}, 1: {0: [1, 2]}}
    world.settle()
    assert world.told == {0: {0: [2, 2]}, 1: {0: [2, 2]}}
    assert world.frames_given == 1


def received(*updates: Any, pulls: Iterable[Any] = (), receive: Receive | None = None) -> tuple[Receive, list[Any]]:
    if receive is None:
        receive = Receive(PARTS)
        receive.open(Context("learner"))
    found = receive(
        update={(SYNCER, number): item for number, item in enumerate(updates)},
        pull={(SYNCER, number): item for number, item in enumerate(pulls)},
    )
    return receive, found or []


def test_pulls_follow_the_updates_that_came_before_them() -> None:
    shard = Shard()
    updates = [shard.begin(0)["update"], shard.step(0)["update"]]
    _, found = received(*updates, pulls=[{"fragment": 0, "round": 1}])
    assert [port for port, _ in found] == ["update", "pull"]
    assert found[0][1]["version"] == [1, 1]


def test_a_version_that_is_published_again_is_told_again_with_what_is_new_of_it() -> None:
    shard = Shard()
    receive, _ = received(shard.begin(0)["update"], shard.step(0)["update"])
    _, [(port, item)] = received(shard.again(0, "final")["update"], receive=receive)
    assert (port, item["kind"], item["refused"]) == ("update", "final", [[3, 1]])
    assert item["values"].tobytes() == shard.bits[0, 1, 1]


@pytest.mark.parametrize("change", [{"scales": np.float32(np.nan)}, {"scales": np.float32(-1)}, {"scales": None}])
def test_codes_that_no_shard_sends_are_left_aside_and_what_lacks_then_is_asked_for(change: Any) -> None:
    shard = Shard()
    receive, _ = received(shard.begin(0)["update"])
    wrong = shard.step(0)["update"]
    if change["scales"] is None:
        del wrong["scales"]
    else:
        wrong["scales"] = np.full_like(wrong["scales"], change["scales"])
    assert received(wrong, receive=receive)[1] == []
    _, found = received(shard.step(0)["update"], receive=receive)
    assert found == [("need", {"fragment": 0, "version": [1, 0], "lacks": True})]
    _, found = received({**shard.step(0)["state"], "slot": 0, "frame": "0"}, receive=receive)
    assert [port for port, _ in found] == ["update", "need"]
    assert found[1][1]["lacks"] is False


def test_a_copy_is_taken_and_one_that_is_withdrawn_is_left_aside() -> None:
    shard = Shard()
    copy = {**shard.begin(0)["state"], "kind": "copy"}
    receive, [(port, item)] = received(copy)
    assert (port, item["kind"], item["version"]) == ("update", "copy", [1, 0])
    assert received(withdrawn(0), receive=receive)[1] == []
    _, [(_, item)] = received(shard.step(0)["update"], receive=receive)
    assert item["version"] == [1, 1]


def test_in_turns_copies_are_for_those_who_hold_nothing_and_a_key_frame_stands_for_codes() -> None:
    shard, receive = Shard(), Receive(PARTS, in_turns=True)
    receive.open(Context("learner"))
    _, [(_, item)] = received({**shard.begin(0)["state"], "kind": "copy"}, receive=receive)
    assert (item["kind"], item["version"]) == ("copy", [1, 0])
    missed = {**shard.step(0)["state"], "kind": "copy"}
    assert received(missed, receive=receive)[1] == []
    code = shard.step(0)["update"]
    _, found = received(code, receive=receive)
    assert found == [("need", {"fragment": 0, "version": [1, 0], "lacks": True})]
    _, found = received({**missed, "slot": 0, "frame": "0"}, receive=receive)
    assert [port for port, _ in found] == ["update", "need"]
    assert (found[0][1]["kind"], found[0][1]["version"]) == ("merge", [1, 2])
    _, [(_, item)] = received({**shard.step(0)["state"], "kind": "copy", "slot": 0, "frame": "0"}, receive=receive)
    assert (item["kind"], item["version"]) == ("merge", [1, 3])
    assert item["values"].tobytes() == shard.bits[0, 1, 3]


def test_a_need_that_comes_before_any_version_is_met_once_there_is_one() -> None:
    shard, asks = Shard(), {"fragment": 0, "version": [0, 0], "lacks": True}
    learner = Replica("learner", 2)
    assert shard.frames(need={(learner, 0): asks}) is None
    first = shard.begin(0)["state"]
    [(port, frame)] = shard.frames(state={(SYNCER, 0): first}) or []
    assert (port, frame["slot"], frame["version"]) == ("learner", 2, [1, 0])
    assert shard.frames(state={(SYNCER, 0): shard.step(0)["state"]}) is None
    assert shard.frames(need={(learner, 0): {**asks, "version": [1, 1]}}) is None  # It has the newest that is here.
    assert shard.frames(need={(learner, 0): {**asks, "version": [1, 1], "lacks": False}}) is None
    assert shard.frames(state={(SYNCER, 0): shard.step(0)["state"]}) is None


@pytest.mark.parametrize("form", CODED)
def test_updates_follow_their_schema(form: Any) -> None:
    shard, sender = Shard(form), Member(SYNCER, 1)
    check = compiled(Receive.schemas(PARTS)["update"])
    first, second = shard.begin(0)["update"], shard.step(0)["update"]
    for item in (first, second, withdrawn(0), {**shard.step(0)["state"], "slot": 0, "frame": "0"}):
        assert check(item, item, sender) is None
    wrong = {**second, "values": np.tile(second["values"], 2)}
    assert check(wrong, wrong, sender) is not None
    asked: Any = {"fragment": 0, "version": [1], "lacks": True}
    assert compiled(Need)(asked, asked, sender) is not None


@pytest.mark.parametrize("is_copy_first", [True, False])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_that_a_version_is_final_is_not_lost_beside_a_copy_of_it(is_copy_first: bool, is_at_once: bool) -> None:
    """Who joins at the end is given codes that it cannot use, of which the last says so, and the values as a copy."""
    shard, receive = Shard(), Receive(PARTS)
    receive.open(Context("evaluator"))
    shard.begin(0)
    codes = [shard.step(0)["update"], shard.step(0, "final")]
    state = codes[-1]["state"]
    codes[-1] = codes[-1]["update"]
    assert "base" in codes[-1]
    given = [{**state, "kind": "copy"}]
    items = [*given, *codes] if is_copy_first else [*codes, *given]
    batches = [items] if is_at_once else [[item] for item in items]
    told = []
    for batch in batches:
        told += receive(update={(SYNCER, number): item for number, item in enumerate(batch)}) or []
    [*_, last] = [item for port, item in told if port == "update"]
    assert (last["kind"], last["version"]) == ("final", [1, 2])
    assert last["values"].tobytes() == shard.bits[0, 1, 2]

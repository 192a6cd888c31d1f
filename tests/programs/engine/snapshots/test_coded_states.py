"""A home that has published values from updates, and the rest of a shard's state in codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.schemas import coded_state
from isthmus.ops.learner.receive import Receive
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs import decoupled
from isthmus.programs.engine.recorder.roles import with_recorder
from isthmus.programs.engine.snapshots.holds import KeptHold
from isthmus.runtime.graph.verify import verify
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from tests.ops.bodies import Context
from tests.ops.syncer.test_merge_and_outer_step import PARTS
from tests.ops.syncer.test_momentum_kept import gradient, step
from tests.programs.engine.recorder.test_recorder_graph import JOB

PART = PARTS[:1]


class Home:
    """A shard with coded updates, and the nodes of its home that hold its model."""

    def __init__(self) -> None:
        self.outer = OuterStep(PARTS, lr=0.25, momentum=0.5, update="int4")
        context = Context("syncer")
        context.connected = frozenset({"coded_state"})
        self.outer.open(context)
        self.receive = Receive(PARTS)
        self.receive.open(Context("recorder"))
        self.hold = KeptHold(Path("/run"), 15.0, None, role="syncer", shards=1, sizes=[PARTS[0].size], coded=PART)
        self.context: Any = Context("recorder")
        self.context.disk = Mount(SimulatedDisk("home"))
        self.hold.open(self.context)

    def fire(self, *, update: Any = None, state: Any = None) -> list[tuple[str, Any]]:
        """What the hold emits for an update as it was sent, and a coded state."""
        told: dict[str, Any] = {}
        if update is not None:
            [decoded] = [item for port, item in self.receive(update={(Replica("syncer", 0), 0): update}) or []]
            told["update"] = {(Replica("syncer", 0), 0): decoded}
        if state is not None:
            told["coded_state"] = {(Replica("syncer", 0), 0): state}
        return self.hold(**told) or []

    def kept(self) -> Any:
        """What the next life of the shard is given."""
        self.context.live = {Member(Replica("syncer", 0), 2), Member(Replica("learner", 0), 1)}
        [kept] = [item for port, item in self.fire() if port == "kept"]
        return kept


def test_a_shard_is_given_what_it_had_up_to_the_codes_and_learners_the_bits_that_were_published() -> None:
    home = Home()
    check = compiled(coded_state(PARTS))
    for emitted in (home.outer(gradient=gradient("initial", [1, 0], 1.0)), *(step(home.outer, 1, n) for n in (1, 2))):
        assert check(emitted["coded_state"], {}, None) is None
        assert "values" not in emitted["coded_state"]
        home.fire(update=emitted["update"], state=emitted["coded_state"])
    whole, kept = emitted["state"], home.kept()
    assert kept["version"] == [1, 2]
    for name in ("momentum", "theta"):
        exact, coded = whole["tensors"][name], kept["tensors"][name]
        np.testing.assert_allclose(coded, exact, atol=1.01 / 254 * np.abs(exact).max())
    assert (
        np.abs(kept["tensors"]["theta"] - whole["tensors"]["theta"]).max()
        < np.abs(whole["values"] - whole["tensors"]["theta"]).max() / 100
    ), "of the coding error of the update, which is in the next, a hundredth is left"
    [held] = home.hold.hold.held.values()
    assert held["values"].tobytes() == whole["values"].tobytes()


@pytest.mark.parametrize("first", ["update", "state"])
def test_a_version_is_held_once_all_of_it_has_arrived_and_until_then_the_one_before(first: str) -> None:
    home = Home()
    begun = home.outer(gradient=gradient("initial", [1, 0], 1.0))
    home.fire(update=begun["update"], state=begun["coded_state"])
    emitted = step(home.outer, 1, 1)
    parts = {"update": {"update": emitted["update"]}, "state": {"state": emitted["coded_state"]}}
    home.fire(**parts.pop(first))
    assert home.hold.hold.held[0]["version"] == [1, 0]
    [last] = parts.values()
    home.fire(**last)
    assert home.hold.hold.held[0]["version"] == [1, 1]


def test_codes_are_less_than_a_fourth_of_the_state_and_sent_only_where_a_home_takes_them() -> None:
    home = Home()
    emitted = home.outer(gradient=gradient("initial", [1, 0], 1.0))
    codes = emitted["coded_state"]
    assert codes["momentum"].nbytes + codes["theta"].nbytes <= 2 * PARTS[0].size
    alone = OuterStep(PARTS, lr=0.25, momentum=0.5, update="int4")
    alone.open(Context("syncer"))
    assert "coded_state" not in alone(gradient=gradient("initial", [1, 0], 1.0))


def test_the_home_of_a_program_with_coded_updates_takes_codes_and_no_whole_state() -> None:
    graph = with_recorder(decoupled.build(JOB, update="int4").freeze(), JOB)
    verify(graph)
    crossing = {
        f"{edge.source.node.name}.{edge.source.name}" for edge in graph.edges if edge.target.node.role == "recorder"
    }
    assert {"outer-step.update", "outer-step.coded_state"} <= crossing
    assert "outer-step.state" not in crossing

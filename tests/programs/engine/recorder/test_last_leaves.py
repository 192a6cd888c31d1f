"""A recorder that compares what users' loops have in their leaves with the last model that it has written."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from isthmus.ops.exchange import last_digests
from isthmus.programs.engine.recorder.books import Books, go_on, load
from isthmus.programs.engine.recorder.node import SETTLE_NS, Recorder
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from isthmus.runtime.supervision.messages import Over
from tests.programs.engine.recorder.recorder_story import FOLDER, SECOND, SIZES, TICK, Context, made, report

VERSION = (1, 9)
VALUES = [np.arange(size, dtype=np.float32) for size in SIZES]
DIGESTS = [last_digests.digest_of([values]) for values in VALUES]
OTHER = [DIGESTS[0], DIGESTS[1] + 1]
AT = 20 * TICK + SECOND


class Life:
    """A recorder at the end of a run, whose model it gets now."""

    def __init__(self, disk: SimulatedDisk | None = None, **settings: Any) -> None:
        self.disk = SimulatedDisk("leaves") if disk is None else disk
        self.context = Context(Mount(self.disk), AT)
        self.context.live = {Member(Replica("learner", slot), 1) for slot in range(2)}
        self.recorder: Recorder = made(tokens=300, has_evaluator=False, **settings)
        self.recorder.open(self.context)

    def fire(self, *reports: dict[str, Any], has_final: bool = True) -> None:
        self.context.at += TICK
        cuts = {0: {"a": VALUES[0][:100], "b": VALUES[0][100:]}, 1: {"c": VALUES[1].reshape(10, 10)}}
        finals = {p: {"fragment": p, "version": list(VERSION), "tensors": cuts[p]} for p in (0, 1) if has_final}
        self.recorder(
            progress={(Replica("learner", each["slot"]), None): each for each in reports},
            final={(Replica("syncer", 0), p): each for p, each in finals.items()},
        )


def last(slot: int, digests: list[int] | None, leaf: str = "", **more: Any) -> dict[str, Any]:
    """The last report of a learner; of a user's loop where there are digests."""
    told = {} if digests is None else {"last": {"digests": digests, "leaf": leaf}}
    return report(slot, AT, phase="final", version=VERSION, **told, **more)


def test_loops_with_the_last_model_let_a_run_end_at_once() -> None:
    life = Life()
    life.fire(last(0, DIGESTS), last(1, DIGESTS))
    assert life.recorder.is_finished
    assert (life.context.status["unlike"], life.context.status["error"]) == ([], None)


def test_a_loop_with_other_leaves_is_named_with_the_first() -> None:
    life = Life()
    life.fire(last(0, DIGESTS), last(1, OTHER, "c"))
    assert life.context.status["unlike"] == [[1, "c"]]
    assert Over.of(life.context.status).unlike == ((1, "c"),)


def test_other_digests_are_enough_and_so_is_a_leaf_that_it_names_itself() -> None:
    for digests, leaf in ((OTHER, ""), (DIGESTS, "a")):
        life = Life()
        life.fire(last(0, DIGESTS), last(1, digests, leaf))
        assert life.context.status["unlike"] == [[1, leaf]]


@pytest.mark.parametrize("before", [(1, 8), (2, 9)])
def test_a_loop_without_the_last_version_is_not_compared(before: tuple[int, int]) -> None:
    life = Life()
    life.fire(last(0, DIGESTS), {**last(1, OTHER), "versions": [list(VERSION), list(before)]})
    assert life.recorder.is_finished
    assert life.context.status["unlike"] == []


def test_a_loop_without_digests_is_awaited_for_a_while_and_a_tasks_learner_is_not() -> None:
    life = Life()
    life.fire(last(0, None), last(1, []))
    assert not life.recorder.is_finished
    for _ in range(SETTLE_NS // TICK + 1):
        life.fire(has_final=False)
    assert life.recorder.is_finished
    assert life.context.status["unlike"] == []


def test_the_next_recorder_knows_the_digests_and_a_run_that_goes_on_forgets_them() -> None:
    life = Life()
    life.fire(last(0, DIGESTS), last(1, []))
    life.recorder.close()
    memory = load(FOLDER, Mount(life.disk))
    assert memory is not None
    assert memory.final_digests == {p: [*VERSION, digest] for p, digest in enumerate(DIGESTS)}
    later = Life(life.disk)
    later.fire(last(1, OTHER), has_final=False)
    assert later.context.status["unlike"] == [[1, ""]]
    go_on(FOLDER, Mount(life.disk), 300)
    memory = load(FOLDER, Mount(life.disk))
    assert memory is not None
    assert memory.final_digests == {}


def test_losses_that_are_not_finite_are_summed_over_lives_and_known_of_bodies_that_count_them() -> None:
    books = Books(sizes=SIZES)
    for slot, life, more in ((0, 1, {"not_finite": 3}), (0, 2, {"not_finite": 1}), (1, 1, {"not_finite": 0})):
        books.add_report(cast(Any, report(slot, AT, incarnation=life, metrics=[], **more)), AT)
    figures = books.figures(2)
    assert figures["losses_not_finite"] == 4
    assert [figures["learners"][slot]["not_finite"] for slot in (0, 1)] == [1, 0]
    books.add_report(cast(Any, report(1, AT, incarnation=2, metrics=[])), AT)
    assert "not_finite" not in books.figures(2)["learners"][1]

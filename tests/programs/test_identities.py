"""Programs of the family that are the same algorithm at some setting: the same bits, in virtual time.

Durations have no jitter, learners one speed. The optimizers follow no schedule: the learning rate's progress is known
to learners by messages, which come at other moments in another program.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from isthmus import Program
from isthmus.ops.data.batches import At
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.recovery.hold import ShardMemory
from isthmus.ops.syncer import merge as merge_node
from isthmus.ops.syncer.merge import Merge
from isthmus.programs.command import beginning
from isthmus.programs.wings.simulation import virtual_run
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.clock import milliseconds
from isthmus.runtime.sim.world import World
from tests.programs.family import ADAM, SGD, final_model, recorded

STEPS = 48
FRAGMENTS = 12
"""At least four round trips of two steps: the pacer lengthens a shorter interval."""
OUTER = {"outer_lr": 0.7, "outer_momentum": 0.5}


def _delays(monkeypatch: pytest.MonkeyPatch, answer_ms: float) -> None:
    """Let answers travel for `answer_ms`, and everything else for a millisecond."""

    class Uneven(World):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            def delay(edge: str, size_bytes: int) -> Any:
                return milliseconds(answer_ms if edge.startswith("fragment-send.answer") else 1.0)

            super().__init__(*arguments, **{**keywords, "delay": delay})

    monkeypatch.setattr(virtual_run, "World", Uneven)


def _run(world: Worlds, program: str, task: Any = ADAM, steps: int = STEPS, **settings: Any) -> WorldResult:
    result = world.run(Program(program, **settings), task=task, learners=4, steps=steps, jitter=0.0)
    assert result.summary["contributors_mean"] in (0.0, 4.0)  # 0 where there is no syncer.
    return result


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("overlap", "answer_ms"), [pytest.param(1, 4.0, marks=pytest.mark.soak), (2, 9.0)])
def test_decoupled_is_streaming_where_everybody_is_waited_for(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, overlap: int, answer_ms: float
) -> None:
    """A pull reaches the learners within a step of the report that it follows from, and an update within the tau-th
    step after the capture. With H = P both programs capture fragment p after p + 1 steps, and then every H; the first
    merge waits for no holder of the model, as learners would step meanwhile in one of the programs."""
    _delays(monkeypatch, answer_ms)
    monkeypatch.setattr(ShardMemory, "is_kept", lambda *_: True)
    settings = {"fragments": FRAGMENTS, "interval": FRAGMENTS, "overlap": overlap, "merge": "rda", "alpha": 0.0}
    with recorded() as decoupled:
        assert _run(world, "decoupled-diloco", quorum=4, push="float32", carry=False, **settings, **OUTER).waits == 0
    with recorded() as streaming:
        _run(world, "streaming-diloco", **settings, **OUTER)
    sweeps = STEPS // FRAGMENTS - 1
    for p in range(FRAGMENTS):
        ours, theirs = streaming.updates[p], decoupled.updates[p]
        assert min(len(ours), len(theirs)) > sweeps
        assert ours[: sweeps + 1] == theirs[: sweeps + 1]  # The first version, too.
        for slot in range(4):
            assert streaming.answers[slot, p][:sweeps] == decoupled.answers[slot, p][:sweeps]
    assert len(set(streaming.updates[0])) > sweeps  # Every version differs from every other.


@pytest.mark.further
@pytest.mark.slow
def test_what_is_summed_before_rounds_close_changes_no_bit_of_a_run(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners of four speeds, rounds that close by a quorum, and late answers, in codes."""

    def run() -> Any:
        program = Program("decoupled-diloco", quorum=2, push="int4", fragments=4, interval=12, **OUTER)
        with recorded() as record:
            world.run(program, task=SGD, learners=5, steps=48, jitter=0.5, speeds=[1.0, 0.9, 0.7, 0.5, 0.5])
        return record.updates

    plain, early = run(), 0
    take_early = Merge._take_early

    def counted(merge: Merge, answer: Any) -> None:
        nonlocal early
        early += 1
        take_early(merge, answer)

    monkeypatch.setattr(merge_node, "EARLY_SIZE_MIN", 1)
    monkeypatch.setattr(Merge, "_take_early", counted)
    assert run() == plain
    assert early > 40


@pytest.mark.long
@pytest.mark.slow
def test_what_follows_links_that_carry_everything_is_float32(world: Worlds) -> None:
    """The same bits as where nothing follows anything, though updates take another way, through `receive`."""
    with recorded() as following:
        settings = {"push": "auto", "update": "auto", "interval": "auto"}
        result = _run(world, "decoupled-diloco", steps=2 * STEPS, quorum=4, **settings, **OUTER)
    assert result.summary["changes"] == 0
    with recorded() as fixed:
        _run(world, "decoupled-diloco", steps=2 * STEPS, quorum=4, push="float32", interval=24, **OUTER)
    assert len(fixed.updates[0]) > 3
    assert following.updates == fixed.updates
    assert following.answers == fixed.answers


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"push": "float32", "fragments": "tensor"}, {"push": "int4"}])
def test_what_is_carried_over_is_merged_and_nothing_is_overwritten(world: Worlds, settings: Any) -> None:
    """At equal speeds every token comes into the model."""
    figures = [_run(world, "decoupled-diloco", carry=carry, **settings, **OUTER).summary for carry in (False, True)]
    overwritten = [summary["tokens_overlapped"] for summary in figures]
    assert overwritten[0] > 0 == overwritten[1]
    assert figures[0]["merged_share"] < figures[1]["merged_share"] == 1.0


@pytest.mark.long
@pytest.mark.slow
def test_another_overlap_is_another_algorithm(world: Worlds) -> None:
    """What the test above compares is not the same whatever happens."""
    settings = {"fragments": FRAGMENTS, "interval": FRAGMENTS, "merge": "rda", "alpha": 0.0}
    with recorded() as first:
        _run(world, "streaming-diloco", overlap=1, **settings, **OUTER)
    with recorded() as second:
        _run(world, "streaming-diloco", overlap=2, **settings, **OUTER)
    assert first.updates[0][:2] == second.updates[0][:2]
    assert first.updates[0][2] != second.updates[0][2]


@pytest.mark.long
@pytest.mark.parametrize("merge", ["average", "rda"])
def test_streaming_in_one_fragment_is_diloco(world: Worlds, merge: str) -> None:
    with recorded() as streaming:
        one = {"fragments": 1, "overlap": 0, "alpha": 0.0}
        first = _run(world, "streaming-diloco", interval=12, merge=merge, **one, **OUTER)
    with recorded() as diloco:
        second = _run(world, "diloco", interval=12, merge=merge, **OUTER)
    assert len(diloco.updates[0]) == STEPS // 12  # The first version, and all but the last merge.
    assert (streaming.updates, streaming.answers) == (diloco.updates, diloco.answers)
    assert first.eval_loss == second.eval_loss
    for name, tensor in final_model(second.folder).items():
        assert np.array_equal(final_model(first.folder)[name], tensor)


@pytest.mark.parametrize("interval", [5, 12])
def test_one_learner_that_keeps_what_it_has_is_a_plain_loop(world: Worlds, interval: int) -> None:
    """What is published is rounded once, theta - (theta - w), and the learner goes on with its own w."""
    settings = {"interval": interval, **beginning.ALONE}
    result = world.run(Program(beginning.ALONE_BY, **settings), task=ADAM, learners=1, steps=STEPS, jitter=0.0)
    assert result.summary["merged_share"] == 1.0
    learner = Learner(ADAM, (), life=LearnerLife(0, 0, 1))
    learner.begin()
    for position in range(STEPS):
        learner.step(ADAM.batch(At(0, 0, position)), 0.0)
    names = [name for name, _ in named_leaves(ADAM.init(jax.random.key(0)))]
    plain = dict(zip(names, learner.whole(), strict=False))
    found = final_model(result.folder)
    assert found.keys() == plain.keys()
    largest = max(float(np.abs(tensor).max()) for tensor in plain.values())
    for name, tensor in plain.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2.0**-23 * largest)
    # Were it given what is published, every rounding would go into the steps that follow: half of them would differ.
    differing = sum(int((found[name] != tensor).sum()) for name, tensor in plain.items())
    assert differing < 0.05 * sum(tensor.size for tensor in plain.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("program", ["data-parallel", "elastic-data-parallel"])
def test_diloco_of_one_step_is_data_parallel(world: Worlds, program: str) -> None:
    """theta - (theta - (theta - lr g)) is theta - lr g but for the rounding of each step."""
    steps = 20
    diloco = _run(world, "diloco", SGD, steps, interval=1, outer_lr=1.0, outer_momentum=0.0)
    parallel = _run(world, program, SGD, steps)
    assert [slot.steps for slot in diloco.slots.values()] == [slot.steps for slot in parallel.slots.values()]
    ours, theirs = final_model(diloco.folder), final_model(parallel.folder)
    assert ours.keys() == theirs.keys()
    largest = max(float(np.abs(tensor).max()) for tensor in theirs.values())
    difference = max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)
    assert difference <= steps * 2.0**-23 * largest
    first = final_model(_run(world, program, SGD, 1).folder)
    moved = max(float(np.abs(first[name] - theirs[name]).max()) for name in theirs)
    assert moved > 1000 * steps * 2.0**-23 * largest  # They did learn something.

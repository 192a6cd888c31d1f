"""The learner of a user's own loop in jax: the suite for learners, and which buffers are the loop's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.contract import LoopLearning, evaluation_of
from isthmus.ops.island.jax_loop import LoopState, StateEvaluation, StateLearner
from isthmus.ops.island.learner_conformance import FIRST, LearnerConformance, Specimen
from isthmus.ops.island.life import LearnerLife
from tests.ops.bodies import SmallTask
from tests.patience import PATIENCE

SMALL = SmallTask()
SHAPES: dict[str, tuple[int, ...]] = {"w": (4, 3), "inner/b": (3,), "inner/s": ()}
RULES = (("params/**", "rda"), ("**", "local"))
RULES_OF_ONE = (("w", "rda"), ("**", "local"))
OPTIMIZER = optax.adam(0.03)


def first_state(seed: int) -> dict[str, Any]:
    params = SMALL.init(jax.random.key(seed))
    return {"params": params, "moments": OPTIMIZER.init(params), "key": jax.random.key(1)}


def _step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], Any]:
    value, gradient = jax.value_and_grad(SMALL.loss)(state["params"], batch)
    updates, moments = OPTIMIZER.update(gradient, state["moments"], state["params"])
    key, _ = jax.random.split(state["key"])
    return {"params": optax.apply_updates(state["params"], updates), "moments": moments, "key": key}, value


STEP = jax.jit(_step, donate_argnums=0)


class Looped:
    """A learner, and the loop that makes its steps: it is called as any other learner."""

    def __init__(self, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> None:
        self.state = LoopState(first_state(life.seed), RULES)
        named = [
            Fragment(
                each.index,
                tuple(Unit(f"params/{unit.tensor}", unit.start, unit.stop, unit.shape) for unit in each.units),
            )
            for each in fragments
        ]
        self.learner = StateLearner(self.state, named, life=life, alpha=alpha)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def step(self, arrays: Any, progress: float) -> Mapping[str, Any]:
        self.learner.open_step(progress)
        state, loss = STEP(self.state.tree, arrays)
        self.state.take(state)
        self.learner.record(8, {"loss": loss})
        assert self.learner.made_tokens() == 8
        return self.learner.step(None, progress)

    def tree(self, leaves: Any) -> Any:
        return {name.removeprefix("params/"): leaf for name, leaf in self.learner.tree(leaves).items()}

    def adopt_tree(self, tree: Any) -> None:
        self.learner.adopt_tree({f"params/{name}": leaf for name, leaf in tree.items()})


class TestLoop(LearnerConformance):
    @pytest.fixture
    def specimen(self) -> Specimen:
        spoilt = {name: np.full_like(array, np.nan) for name, array in SMALL.batch(At(0, 0, 0)).items()}
        return Specimen(Looped, SHAPES, SMALL.batch, spoilt, lambda seed: evaluation_of(SMALL, seed))

    def test_merged_leaves_are_zeros_before_it_begins(self, specimen: Specimen) -> None:
        learner = specimen.learner()
        for value, leaf in zip(specimen.values(learner), specimen.values(specimen.learner(steps=0)), strict=True):
            np.testing.assert_array_equal(value, leaf)  # They are the loop's, until they are replaced.


def test_it_is_a_loop_s_learner_whose_scalars_wait_for_nobody() -> None:
    looped = Looped((), FIRST, 0.0)
    assert isinstance(looped.learner, LoopLearning)
    assert looped.learner.device_kind == "cpu"
    (loss,) = looped.step(SMALL.batch(At(0, 0, 0)), 0.0).values()
    assert isinstance(loss, jax.Array)


def test_what_was_adopted_or_is_on_its_way_is_not_the_loop_s_to_donate() -> None:
    looped = Looped((Fragment(0, (Unit("inner/b", 0, 3, (3,)),)),), FIRST, 0.0)
    on_its_way, held = looped.extract(0), looped.state.tree
    looped.adopt(0, np.ones(3, np.float32))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(held))  # What the loop holds beside it stays whole.
    looped.step(SMALL.batch(At(0, 0, 0)), 0.0)
    assert held["params"]["w"].is_deleted()
    np.testing.assert_array_equal(np.asarray(on_its_way), first_state(FIRST.seed)["params"]["inner"]["b"])
    assert looped.state.taken_away is None


def test_keys_are_each_life_s_own_and_what_began_anew_is_as_at_first_but_for_counters() -> None:
    lives = [LearnerLife(7, 0, 1), LearnerLife(7, 1, 1), LearnerLife(7, 0, 2)]
    keys = []
    for life in lives:
        looped = Looped((), life, 0.0)
        looped.restart()
        keys += [tuple(jax.random.key_data(looped.state.tree["key"]).tolist())]
        looped.step(SMALL.batch(At(0, 0, 0)), 0.0)
        looped.restart()
        keys += [tuple(jax.random.key_data(looped.state.tree["key"]).tolist())]
    assert len({*keys}) == 6
    moments = looped.state.tree["moments"]
    assert not any(leaf.any() for leaf in jax.tree.leaves(moments[0].mu))
    assert int(moments[0].count) == 0  # It corrects the bias of moments that began anew.


def test_a_counter_goes_on_and_is_found_where_a_life_lacks_it() -> None:
    def learner() -> tuple[LoopState, StateLearner]:
        state = LoopState({"w": jnp.ones(4), "mean": 0.5, "step": 0}, (("w", "rda"), ("**", "local")))
        return state, StateLearner(state, (), life=FIRST, alpha=0.0)

    state, one = learner()
    one.restart()
    one.open_step(0.0)
    state.take({"w": jnp.ones(4), "mean": 0.7, "step": 3})
    one.restart()
    assert {name: float(leaf) for name, leaf in state.tree.items() if name != "w"} == {"mean": 0.5, "step": 3.0}
    state, one = learner()
    one.restart()
    one.count_from(40)
    assert int(state.tree["step"]) == 40
    assert state.tree["step"].dtype == np.int32


def test_first_values_of_moments_take_no_memory() -> None:
    state = LoopState({"w": jnp.ones(4), "m": jnp.zeros((512, 512)), "k": jnp.arange(4.0)}, RULES_OF_ONE)
    learner = StateLearner(state, (), life=FIRST, alpha=0.0)
    firsts = {state.names[i]: first for i, first in learner._first.items()}
    assert firsts["m"].strides == (0, 0)
    np.testing.assert_array_equal(firsts["k"], np.arange(4.0))


def test_leaves_of_half_precision_are_adopted_as_their_own_type_and_kept_as_such() -> None:
    state = LoopState({"w": jnp.ones((4, 2), jnp.bfloat16), "m": jnp.ones(3, jnp.bfloat16)}, RULES_OF_ONE)
    learner = StateLearner(state, (Fragment(0, (Unit("w", 0, 4, (4, 2)),)),), life=FIRST, alpha=0.0)
    learner.adopt(0, np.full(8, 0.5, np.float32))
    assert state.tree["w"].dtype == jnp.bfloat16
    assert np.asarray(learner.extract(0)).dtype == np.float32
    (kept,) = learner.local()
    assert learner.take_local([kept])
    assert state.tree["m"].dtype == jnp.bfloat16


def test_an_evaluation_is_of_the_state_with_the_whole_run_s_values() -> None:
    state = LoopState(first_state(7), RULES)
    evaluation = StateEvaluation(state, lambda tree: {"loss": tree["params"]["w"].sum(), "key": 1})
    tensors = {name: np.full(shape.shape, 2.0, np.float32) for name, shape in state.shapes().items()}
    assert evaluation.metrics(tensors) == {"loss": 24.0, "key": 1.0}
    assert StateEvaluation(state, lambda tree: 3).metrics(tensors) == {"loss": 3.0}
    with pytest.raises(TypeError, match=r"evaluate\(state\) returns a loss"):
        StateEvaluation(state, lambda tree: {"accuracy": 1.0}).metrics(tensors)


def test_beside_a_learner_an_evaluation_leaves_the_state_as_it_is() -> None:
    state = LoopState(first_state(7), RULES)
    before = list(state.leaves)
    tensors = {name: np.full(shape.shape, 2.0, np.float32) for name, shape in state.shapes().items()}
    evaluation = StateEvaluation(state, lambda tree: tree["params"]["w"].sum(), is_beside=True)
    assert evaluation.metrics(tensors) == {"loss": 24.0}
    assert all(one is other for one, other in zip(before, state.leaves, strict=True))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.jax_loop import LoopState, StateLearner
from isthmus.ops.island.life import LearnerLife

mesh = Mesh(np.array(jax.devices()), ("data",))
lies = NamedSharding(mesh, P("data"))
tree = {"w": jax.device_put(jnp.arange(16.0).reshape(8, 2), lies), "m": jax.device_put(jnp.zeros((8, 2)), lies)}
state = LoopState(tree, (("w", "rda"), ("**", "local")))
fragments = [Fragment(0, (Unit("w", 0, 4, (8, 2)),)), Fragment(1, (Unit("w", 4, 8, (8, 2)),))]
learner = StateLearner(state, fragments, life=LearnerLife(0, 0, 1), alpha=0.0)
learner.compile(None)
assert np.asarray(learner.extract(1)).tolist() == list(range(8, 16))
learner.adopt(0, np.full(8, -1.0, np.float32))
assert learner.take_local(list(learner.local()))
learner.open_step(0.0)
learner.restart()
assert np.asarray(state.tree["w"]).sum() == -8 + sum(range(8, 16))
assert all(leaf.sharding == lies for leaf in state.leaves), [leaf.sharding for leaf in state.leaves]
print("good")
"""


@pytest.mark.process
def test_leaves_on_several_devices_stay_where_they_lie() -> None:
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SHARDED]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "good\n", done.stderr

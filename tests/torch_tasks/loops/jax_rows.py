"""The loops of the table in JAX: a state that goes from step to step, in the forms that libraries give it.

    jax_rows.py NAMES SEED STEPS [alone]

Several are trained side by side in one process: a part of the state of each, and a step of each before `island.step`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.torch_tasks.loops.ground import (
    CONTEXT,
    INNER,
    SAMPLES,
    SYMBOLS,
    TOKENS,
    WIDTH,
    Ground,
    Row,
    batches,
    draw,
    held_out,
    main,
    merge_rules,
)

ROWS: dict[str, Row] = {}
RATE = 1e-2


def row(title: str) -> Callable[[Any], Any]:
    """Add a row to the table."""

    def add(make: Any) -> Any:
        ROWS[re.sub(r"(?<!^)(?=[A-Z])", "_", make.__name__).lower()] = Row(title, make)
        return make

    return add


def cross_entropy(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def first_parameters(key: Any) -> dict[str, Any]:
    keys = jax.random.split(key, 3)
    inner = CONTEXT * WIDTH
    return {
        "embedding": jax.random.normal(keys[0], (SYMBOLS, WIDTH)),
        "body": {"w": jax.random.normal(keys[1], (inner, INNER)) / inner**0.5, "b": jnp.zeros(INNER)},
        "head": {"w": jax.random.normal(keys[2], (INNER, SYMBOLS)) / INNER**0.5, "b": jnp.zeros(SYMBOLS)},
    }


def logits_of(parameters: Any, x: Any) -> Any:
    inner = parameters["embedding"][x].reshape(len(x), -1) @ parameters["body"]["w"] + parameters["body"]["b"]
    return jax.nn.gelu(inner) @ parameters["head"]["w"] + parameters["head"]["b"]


class Loop:
    """The loop of a row: its state, its rules, its data, and its step. This is the plain one."""

    merge: ClassVar[dict[str, str]] = {"params/**": "rda", "**": "local"}

    def __init__(self, ground: Ground, optimizer: Any = None) -> None:
        self.ground = ground
        self.optimizer = optax.adamw(RATE) if optimizer is None else optimizer
        parameters = first_parameters(jax.random.key(ground.seed))
        self.state: Any = {"params": parameters, "moments": self.optimizer.init(parameters)}
        self.step = jax.jit(self._step, donate_argnums=0)

    def data(self) -> Iterator[tuple[Any, Any]]:
        """Batches; called inside of the `with`."""
        yield from batches(self.ground.data_seed)

    def _step(self, state: Any, x: Any, y: Any) -> Any:
        """Train on a batch: the state behind it, and the loss."""
        loss, gradient = jax.value_and_grad(lambda params: cross_entropy(logits_of(params, x), y))(state["params"])
        updates, moments = self.optimizer.update(gradient, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    def held_out_loss(self, state: Any, x: Any, y: Any) -> Any:
        """Of what its user keeps."""
        return cross_entropy(logits_of(state["params"], x), y)


def train(ground: Ground, names: list[str]) -> None:
    """The loop around the steps of these rows."""
    loops = {name: ROWS[name].make(ground) for name in names}
    merge, is_one = merge_rules({name: loop.merge for name, loop in loops.items()}), len(loops) == 1
    state = loops[names[0]].state if is_one else {name: loop.state for name, loop in loops.items()}
    with ground.open(state, merge=merge) as island:
        ground.begins()
        state = island.state
        data = [loop.data() for loop in loops.values()]
        for drawn in island(zip(*data, strict=True)):
            losses = []
            for (name, loop), (x, y) in zip(loops.items(), drawn, strict=True):
                stepped, loss = loop.step(state if is_one else state[name], x, y)
                state = stepped if is_one else {**state, name: stepped}
                losses.append(loss)
            state = island.step(state, loss=sum(losses) / len(losses), tokens=TOKENS * len(losses))
            ground.pace()
    state = state if ground.is_alone else island.state
    x, y = held_out()
    ends = {name: float(loop.held_out_loss(state if is_one else state[name], x, y)) for name, loop in loops.items()}
    ground.end(ends)


@row("the plain loop in JAX, with a donated state")
class PlainJax(Loop):
    pass


class LinenNet(nn.Module):
    """Symbols -> logits, with BatchNorm."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        x = nn.Dense(INNER)(nn.Embed(SYMBOLS, WIDTH)(x).reshape(len(x), -1))
        return nn.Dense(SYMBOLS)(nn.gelu(nn.BatchNorm(use_running_average=not train, momentum=0.95)(x)))


class LinenState(TrainState):  # type: ignore[no-untyped-call]
    """With statistics."""

    batch_stats: Any


@row("Flax linen, `TrainState`, with BatchNorm")
class Linen(Loop):
    merge: ClassVar[dict[str, str]] = {"params/**": "rda", "batch_stats/**": "mean", "**": "local"}

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        net = LinenNet()
        made = net.init(jax.random.key(ground.seed), jnp.zeros((2, CONTEXT), jnp.int32), train=False)
        self.state = LinenState.create(apply_fn=net.apply, tx=self.optimizer, **made)

    def _step(self, state: Any, x: Any, y: Any) -> Any:
        def compute(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, changed = state.apply_fn(variables, x, train=True, mutable=["batch_stats"])
            return cross_entropy(logits, y), changed["batch_stats"]

        (loss, stats), gradient = jax.value_and_grad(compute, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradient).replace(batch_stats=stats), loss

    def held_out_loss(self, state: Any, x: Any, y: Any) -> Any:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return cross_entropy(state.apply_fn(variables, x, train=False), y)


class NnxNet(nnx.Module):
    """Symbols -> logits, with dropout."""

    def __init__(self, rngs: Any) -> None:
        self.embedding = nnx.Embed(SYMBOLS, WIDTH, rngs=rngs)
        self.body = nnx.Linear(CONTEXT * WIDTH, INNER, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(INNER, SYMBOLS, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.dropout(nnx.gelu(self.body(self.embedding(x).reshape(len(x), -1)))))


@row("Flax NNX, by `nnx.split` and `nnx.merge`, with dropout")
class FlaxNnx(Loop):
    merge: ClassVar[dict[str, str]] = {"params/**": "rda", "**": "local"}

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        model = NnxNet(nnx.Rngs(ground.seed))
        self._moments_graph, moments = nnx.split(nnx.Optimizer(model, self.optimizer, wrt=nnx.Param))
        self._graph, params, rest = nnx.split(model, nnx.Param, ...)
        self.state = {"params": params, "rest": rest, "moments": moments}

    def _step(self, state: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(self._graph, state["params"], state["rest"])
        optimizer = nnx.merge(self._moments_graph, state["moments"])
        loss, gradient = nnx.value_and_grad(lambda model: cross_entropy(model(x), y))(model)
        optimizer.update(model, gradient)
        _, params, rest = nnx.split(model, nnx.Param, ...)
        return {"params": params, "rest": rest, "moments": nnx.state(optimizer)}, loss

    def held_out_loss(self, state: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(self._graph, state["params"], state["rest"])
        model.eval()
        return cross_entropy(model(x), y)


class EquinoxNet(eqx.Module):
    """Symbols -> logits."""

    embedding: eqx.nn.Embedding
    body: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.embedding = eqx.nn.Embedding(SYMBOLS, WIDTH, key=keys[0])
        self.body = eqx.nn.Linear(CONTEXT * WIDTH, INNER, key=keys[1])
        self.head = eqx.nn.Linear(INNER, SYMBOLS, key=keys[2])

    def __call__(self, x: Any) -> Any:
        return self.head(jax.nn.gelu(self.body(jax.vmap(self.embedding)(x).reshape(-1))))


@row("Equinox, by `eqx.partition` and `eqx.combine`")
class Equinox(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        params, self._static = eqx.partition(EquinoxNet(jax.random.key(ground.seed)), eqx.is_array)
        self.state = {"params": params, "moments": self.optimizer.init(params)}

    def _step(self, state: Any, x: Any, y: Any) -> Any:
        def compute(params: Any) -> Any:
            return cross_entropy(jax.vmap(eqx.combine(params, self._static))(x), y)

        loss, gradient = jax.value_and_grad(compute)(state["params"])
        updates, moments = self.optimizer.update(gradient, state["moments"], state["params"])
        return {"params": eqx.apply_updates(state["params"], updates), "moments": moments}, loss

    def held_out_loss(self, state: Any, x: Any, y: Any) -> Any:
        return cross_entropy(jax.vmap(eqx.combine(state["params"], self._static))(x), y)


@row("`optax.chain`, with clipping and a schedule")
class Chain(Loop):
    def __init__(self, ground: Ground) -> None:
        schedule = optax.warmup_cosine_decay_schedule(0.0, 2 * RATE, 10, ground.steps, RATE / 5)
        clipped = optax.clip_by_global_norm(1.0)
        super().__init__(ground, optax.chain(clipped, optax.scale_by_adam(), optax.scale_by_learning_rate(schedule)))


@row("`optax.multi_transform`")
class SeveralTransforms(Loop):
    def __init__(self, ground: Ground) -> None:
        labels = {"embedding": "slow", "body": "quick", "head": "quick"}
        super().__init__(
            ground, optax.multi_transform({"slow": optax.adam(RATE / 2), "quick": optax.adamw(RATE)}, labels)
        )


@row("`optax.MultiSteps`")
class ManySteps(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, optax.MultiSteps(optax.adamw(RATE), every_k_schedule=2).gradient_transformation())


@row("`optax.inject_hyperparams`")
class Injected(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, optax.inject_hyperparams(optax.adamw)(learning_rate=RATE))


@row("`optax.contrib.schedule_free`")
class ScheduleFreeJax(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, optax.contrib.schedule_free_adamw(RATE, warmup_steps=10))

    def held_out_loss(self, state: Any, x: Any, y: Any) -> Any:
        params = optax.contrib.schedule_free_eval_params(state["moments"], state["params"])
        return cross_entropy(logits_of(params, x), y)


class Samples:
    """A source of samples for grain."""

    def __init__(self, seed: int, count: int) -> None:
        self._x, self._y = draw(np.random.default_rng(seed), count)

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self._x[number], self._y[number]


@row("loaders of grain, shuffled by `island.seed`")
class GrainLoader(Loop):
    def data(self) -> Iterator[tuple[Any, Any]]:
        seed = self.ground.data_seed % (1 << 31)
        samples = grain.MapDataset.source(Samples(seed, SAMPLES * self.ground.steps)).shuffle(seed)
        yield from samples.repeat(None).batch(SAMPLES).to_iter_dataset()


if __name__ == "__main__":
    main(train)

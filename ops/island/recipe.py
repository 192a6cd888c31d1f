"""A task in the form that a learner uses, the same for tasks defined by a loss and by a step.

A *model* is the result of the task's `init`, a *state* the value that a learner carries from step to step. A task of a
loss has its parameters as the model, and the optimizer's state beside them in the state; in a task of a step the two
are one. Every leaf of a model has a path, which determines its *kind*: how it is merged, or that it is *local* and
never leaves the learner. Everything in a state beside its model is local.

Decides names and kinds of leaves, and the recipes of the two forms. Does not jit, place or move anything
(`jax_learner`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, use_abstract_mesh

from isthmus.ops.exchange.merge_rules import DEFAULT, FROZEN, LOCAL, RULES
from isthmus.ops.exchange.parameter_trees import Rules, first_match, matches, named_leaves
from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, STAGE, Axes, MeshShape, Shard

Kind: TypeAlias = str


class Now(NamedTuple):
    """The context of a step: a jax random key that no other step of the run has, and the run's progress.

    `progress` is the share in [0, 1] of the run's token budget that has been trained, float32.
    """

    key: Any
    progress: Any


class Trained(NamedTuple):
    """The state of a task of a loss."""

    model: Any
    optimizer: Any


class Leaf(NamedTuple):
    """A leaf of a model: its path, its shape and dtype, and its kind, None if no rule covers it.

    `is_stacked` tells whether each of its rows is a unit of its own: the layers of a stack.
    """

    name: str
    shape: jax.ShapeDtypeStruct
    kind: Kind | None
    is_stacked: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether a fragment may have some of its rows."""
        rule = RULES.get(self.kind or "")
        return self.is_stacked or (rule is not None and rule.cuts_rows)


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """The functions of a task; those on states are traced, `load` is called directly.

    - `init(key)`: the initial model. `state_of(model)`: the state with which a learner begins; `model_of(state)`: its
      model.
    - `step(state, batch, now)`: the state after a step, and scalars by name, 'loss' among them.
    - `count(state, batch, now)`: a state whose counters are as a step leaves them; its other leaves mean nothing.
    - `evaluate(model, batch)`: scalars by name, 'loss' among them.
    - `restart(state, key)`: a state with the local leaves with which a life begins; None for those of `state_of`.
    - `load(path, shape)`: the initial value of a merged leaf, or None for that of `init`; None where nothing is loaded.
    - `loss(params, batch)`: the value that a task of a loss minimises, and its scalars by name, 'loss' among them; with
      `optimizer`, for programs that average gradients.
    - `mesh`, `shard`: the arrangement of an island's devices, and the division of leaves over them; `stacked`: patterns
      of the leaves whose rows are units.
    """

    init: Callable[[Any], Any]
    state_of: Callable[[Any], Any]
    model_of: Callable[[Any], Any]
    step: Callable[[Any, Any, Now], tuple[Any, Mapping[str, Any]]]
    count: Callable[[Any, Any, Now], Any]
    evaluate: Callable[[Any, Any], Mapping[str, Any]]
    rules: Rules[Kind]
    restart: Callable[[Any, Any], Any] | None = None
    load: Callable[[str, Any], Any] | None = None
    loss: Callable[[Any, Any], tuple[Any, Mapping[str, Any]]] | None = None
    optimizer: Any = None
    mesh: Axes = AXES_DEFAULT
    shard: Rules[Shard] = ()
    stacked: tuple[str, ...] = ()

    def leaves(self) -> list[Leaf]:
        """The leaves of the model, in the order of `jax.tree.leaves`; no device is needed."""
        return [
            Leaf(name, shape, first_match(self.rules, name), any(matches(pattern, name) for pattern in self.stacked))
            for name, shape in named_leaves(self.shapes())
        ]

    def shapes(self) -> Any:
        """The model, as shapes and dtypes; no device is needed."""
        return jax.eval_shape(self.init, abstract_key())


def has_stages(recipe: Recipe, mesh: MeshShape, batch: Any) -> bool:
    """Whether a step takes its layers through the stages of a mesh: traced, on devices that need not be here.

    ShardingError if layers or batch do not divide.
    """
    there = AbstractMesh(tuple(mesh.sizes.values()), tuple(mesh.sizes))
    state = jax.eval_shape(recipe.state_of, recipe.shapes())
    lying = jax.tree.map(lambda leaf: leaf.update(sharding=NamedSharding(there, PartitionSpec())), state)  # type: ignore[no-untyped-call]
    with use_abstract_mesh(there):
        step = jax.make_jaxpr(recipe.step)(lying, batch, Now(abstract_key(), jnp.float32(0.0)))
    return any(_cuts_stages(each) for each in _equations(step))


def _cuts_stages(equation: Any) -> bool:
    return equation.primitive.name == "ppermute" and STAGE in equation.params["axis_name"]


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a traced function, and of those that it calls."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _equations(inner)


def abstract_key() -> Any:
    """The shape of a random key."""
    return jax.eval_shape(partial(jax.random.key, 0))


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a random key, or an array of them."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def with_scalars(loss: Callable[[Any, Any], Any], params: Any, batch: Any) -> tuple[Any, Mapping[str, Any]]:
    """The value that a loss minimises, and its scalars by name.

    These are the scalars that the loss returns beside its value, and the value itself as 'loss' unless one has that
    name.
    """
    result = loss(params, batch)
    value, scalars = result if isinstance(result, tuple) else (result, {})
    return value, {"loss": value, **scalars}


def trained_part(model: Any, rules: Rules[Kind]) -> Any:
    """A model of parameters with None, which is no leaf, in the place of frozen ones; itself if there are none."""
    kinds = [first_match(rules, name) for name, _ in named_leaves(model)]
    if FROZEN not in kinds:
        return model
    leaves, treedef = jax.tree.flatten(model)
    trained = [None if kind == FROZEN else leaf for leaf, kind in zip(leaves, kinds, strict=True)]
    return jax.tree.unflatten(treedef, trained)


def with_part(model: Any, part: Any) -> Any:
    """A model with the leaves of its trained part."""
    leaves, treedef = jax.tree.flatten(model, is_leaf=_is_none)
    chosen = zip(leaves, jax.tree.leaves(part, is_leaf=_is_none), strict=True)
    return jax.tree.unflatten(treedef, [own if new is None else new for own, new in chosen])


def _is_none(leaf: Any) -> bool:
    return leaf is None


def of_loss(
    init: Callable[[Any], Any],
    loss: Callable[[Any, Any], Any],
    optimizer: optax.GradientTransformation,
    rules: Rules[Kind] = (("**", DEFAULT),),
    load: Callable[[str, Any], Any] | None = None,
) -> Recipe:
    """The recipe of a task that is a loss: a step of the optimizer along the gradient.

    An optimizer that takes extra arguments gets `progress=`.
    """
    transformation = optax.with_extra_args_support(optimizer)
    scalars = partial(with_scalars, loss)

    def step(state: Trained, batch: Any, now: Now) -> tuple[Trained, Mapping[str, Any]]:
        trained = trained_part(state.model, rules)

        def objective(part: Any) -> tuple[Any, Mapping[str, Any]]:
            return scalars(with_part(state.model, part), batch)

        gradient, reported = jax.grad(objective, has_aux=True)(trained)
        updates, moments = transformation.update(gradient, state.optimizer, trained, progress=now.progress)
        return Trained(with_part(state.model, optax.apply_updates(trained, updates)), moments), reported

    def count(state: Trained, batch: Any, now: Now) -> Trained:
        trained = trained_part(state.model, rules)
        nothing = jax.tree.map(jnp.zeros_like, trained)
        return Trained(state.model, transformation.update(nothing, state.optimizer, trained, progress=now.progress)[1])

    return Recipe(
        init=init,
        state_of=lambda model: Trained(model, transformation.init(trained_part(model, rules))),
        model_of=lambda state: state.model,
        step=step,
        count=count,
        evaluate=lambda model, batch: scalars(model, batch)[1],
        rules=rules,
        load=load,
        loss=scalars,
        optimizer=transformation,
    )


def of_step(
    init: Callable[[Any], Any],
    step: Callable[[Any, Any, Now], tuple[Any, Mapping[str, Any]]],
    evaluate: Callable[[Any, Any], Mapping[str, Any]],
    rules: Rules[Kind],
    restart: Callable[[Any, Any], Any] | None = None,
    load: Callable[[str, Any], Any] | None = None,
) -> Recipe:
    """The recipe of a task that brings its own step: its state is its model."""
    return Recipe(
        init=init,
        state_of=lambda model: model,
        model_of=lambda state: state,
        step=step,
        count=lambda state, batch, now: step(state, batch, now)[0],
        evaluate=evaluate,
        rules=rules,
        restart=restart,
        load=load,
    )


def counters(named: Sequence[tuple[str, Any]], merged: Sequence[int], local: Sequence[int]) -> list[int]:
    """The places in `local` of the integers that go on where the other local leaves begin anew: a schedule's count.

    `named` are the paths and shapes of all leaves of the state, `merged` and `local` places in it. An integer that an
    optimizer keeps beside its moments, in one state with them, begins anew with them: it corrects their bias.
    """
    shapes = [shape.shape for _, shape in named]
    paths = [tuple(name.split("/")) for name, _ in named]
    beside = {
        _home(paths[i], [paths[j] for j in merged if shapes[j] == shapes[i]]) for i in local if _is_moment(named[i])
    }
    # A state in which parameters lie, too, is no optimizer's.
    beside -= {paths[j][:end] for j in merged for end in range(len(paths[j]) + 1)}
    return [k for k, i in enumerate(local) if is_integer(named[i][1]) and paths[i][:-1] not in beside]


def _home(path: tuple[str, ...], parameters: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The state in which a moment lies: its path without the name of the moment and the path of its parameter; None if
    there is no such parameter."""
    if not parameters:
        return None
    ends = max(
        next((n for n in range(len(path)) if path[-n - 1 :] != each[-n - 1 :]), len(path)) for each in parameters
    )
    return path[: max(0, len(path) - ends - 1)]


def _is_moment(leaf: tuple[str, Any]) -> bool:
    return bool(jnp.issubdtype(leaf[1].dtype, jnp.inexact))


def is_integer(leaf: Any) -> bool:
    """Whether a leaf holds integers."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.integer))


def lent(recipe: Recipe, leaves: Sequence[Leaf], named: Sequence[tuple[str, Any]], local: Sequence[int]) -> list[int]:
    """The places in `local`, which are places in the state, of leaves that a learner lends to one without its own.

    `leaves` are those of the model, `named` the paths and shapes of all of the state. Random keys are not lent, or two
    learners would draw the same numbers. Nor is a parameter that a task of a loss declares local, with the leaves that
    belong to it alone: leaves of the state whose path ends with its own. Of a task of a step every other local leaf is
    lent: moments, counters, averages of weights.
    """
    own = [leaf.name for leaf in leaves if leaf.kind == LOCAL] if recipe.loss is not None else []
    return [
        k
        for k, (name, shape) in enumerate(named[i] for i in local)
        if not is_key(shape) and not any(name == path or name.endswith(f"/{path}") for path in own)
    ]

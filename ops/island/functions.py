"""The compiled functions of a learner: one set for all learners of a process that train one task.

Decides how a state is laid out as leaves, and how a fragment is converted between the leaves on devices and the flat
payload on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.merge_rules import FROZEN, RULES, is_merged
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.gang import mesh_layout
from isthmus.ops.gang.mesh_devices import coded, levels_of
from isthmus.ops.gang.mesh_layout import Crossing, StateLayout, lying
from isthmus.ops.island.compiling import compile_all, lowered
from isthmus.ops.island.life import DeviceCall, LearnerLife
from isthmus.ops.island.recipe import Leaf, Now, Recipe, abstract_key, counters, is_integer, is_key, lent


@final
class FragmentFunctions:
    """The compiled functions of one fragment, on the leaves that it touches, by place.

    `extract(leaves)` reads it; `adopt(leaves, values)` and `replace`, which donate the leaves, write it. `put` turns a
    payload into the values to adopt. `code[push](leaves, anchor, levels)` codes its outer gradient
    (`gang.mesh_devices`), from an anchor that was `put`. `carry(leaves, values, since)`, None where there is a layout,
    adopts what the leaves have gained since a payload, too, and donates the leaves.
    """

    def __init__(
        self,
        fragment: Fragment,
        places: dict[str, int],
        alpha: float,
        layout: StateLayout | None,
        leaves: Any,
        *,
        donates: bool = True,
    ) -> None:
        """`leaves` are the shardings of the touched leaves, where there is a layout, or where they have any of their
        own. Unless it `donates`, what is written are new leaves."""
        donated = 0 if donates else ()
        self.fragment = fragment
        self._units = None if layout is None else layout.of_fragment(fragment)
        self._processes = 1 if layout is None else layout.processes
        if self._units is None:
            self.extract: jax.stages.Wrapped = jax.jit(partial(_extract, fragment, places))
            adopt = partial(_adopt, fragment, places, 0.0)
            self.replace: jax.stages.Wrapped = jax.jit(adopt, donate_argnums=donated, out_shardings=leaves)
        else:
            shapes = [unit.shape for unit in self._units]
            out = [unit.leaves for unit in self._units]
            self.extract = jax.jit(partial(_units, fragment, places, shapes), out_shardings=out)
            adopt = partial(_adopt_crossed, fragment, places, self._processes, 0.0)
            self.replace = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)
        whole = None if layout is None else layout.replicated
        self.code: dict[str, jax.stages.Wrapped] = {
            push: jax.jit(partial(_code, fragment, places, push, whole), out_shardings=whole) for push in CODED
        }
        self.carry: jax.stages.Wrapped | None = None
        if self._units is None:
            self.carry = jax.jit(partial(_carry, fragment, places), donate_argnums=donated, out_shardings=leaves)
        self.adopt = self.replace
        if alpha and layout is None:
            adopt = partial(_adopt, fragment, places, alpha)
            self.adopt = jax.jit(adopt, donate_argnums=donated, out_shardings=leaves)
        elif alpha:
            adopt = partial(_adopt_crossed, fragment, places, self._processes, alpha)
            self.adopt = jax.jit(adopt, donate_argnums=0, out_shardings=leaves)

    def put(self, values: Vector | None) -> Any:
        """A payload float32[n] in the form that `adopt` takes; its memory may be used for ever.

        None where another process of the island brings it.
        """
        if self._units is None:
            return values
        if self._processes == 1:
            return jax.device_put(_cut(self.fragment, values), [unit.arrives for unit in self._units])
        parts = [None] * len(self._units) if values is None else _cut(self.fragment, values)
        return [self._brought(unit, part) for unit, part in zip(self._units, parts, strict=True)]

    def _brought(self, unit: Crossing, values: Any) -> jax.Array:
        """One unit on several processes' devices, of which this process brings `values`, or nothing."""
        shape = (1, *unit.shape)
        own = np.broadcast_to(np.float32(0), shape) if values is None else values.reshape(shape)

        def part(index: Any) -> Any:
            return own[(slice(None), *index[1:])]

        return jax.make_array_from_callback((self._processes, *unit.shape), unit.arrives, part)

    def shapes(self) -> Any:
        """The shapes of the result of `put`."""
        if self._units is None:
            return lying(np.broadcast_to(np.float32(0), self.fragment.size))
        ahead = () if self._processes == 1 else (self._processes,)
        return [lying(np.broadcast_to(np.float32(0), (*ahead, *unit.shape)), unit.arrives) for unit in self._units]

    def payload(self, extracted: Any) -> Any:
        """The result of `extract`, as an object that NumPy converts to a payload float32[n]."""
        return extracted if self._units is None else Pieces(self.fragment, extracted, self._units)


@final
class Pieces:
    """The units of a fragment, in parts on several devices; converted to one array on demand.

    On one device a payload is made there, as one array. On several no device holds a whole fragment: each unit leaves
    with its sharding, each device gives its part, and the host puts the parts in their places, in C order, so that the
    payload is the same for any mesh. On the way back each device gets its part. Where the devices belong to several
    processes, the first process reads all and brings all, and the devices pass on to each other the parts that they
    need.
    """

    def __init__(self, fragment: Fragment, units: Sequence[jax.Array], crossings: Sequence[Crossing]) -> None:
        self._fragment, self._units, self._crossings = fragment, units, crossings

    def copy_to_host_async(self) -> None:
        """Start the transfer of the parts to the host."""
        for unit in self._units:
            for shard in unit.addressable_shards:
                if shard.replica_id == 0:
                    shard.data.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The payload, float32[n] in new memory."""
        del copy
        payload = np.empty(self._fragment.size, np.float32)
        for place, unit, crossing in zip(_cut(self._fragment, payload), self._units, self._crossings, strict=True):
            crossed = place.reshape(crossing.shape)
            for shard in unit.addressable_shards:
                if shard.replica_id == 0:
                    crossed[shard.index] = shard.data
        return payload if dtype is None else payload.astype(dtype, copy=False)


def _cut(fragment: Fragment, payload: Any) -> list[Any]:
    """The units of a payload, each in its shape; views of it."""
    parts = zip(fragment.units, pairwise(fragment.offsets), strict=True)
    return [payload[begin:end].reshape(unit.values_shape) for unit, (begin, end) in parts]


def _extract(fragment: Fragment, places: dict[str, int], leaves: list[Any]) -> jax.Array:
    """The flat float32 payload of a fragment."""
    return jnp.concatenate([jnp.ravel(_rows(unit, leaves[places[unit.tensor]])) for unit in fragment.units]).astype(
        jnp.float32
    )


def _units(
    fragment: Fragment, places: dict[str, int], shapes: Sequence[tuple[int, ...]], leaves: list[Any]
) -> list[jax.Array]:
    """The units of a fragment in these shapes, float32.

    They are copies, because jit returns an argument itself where a function leaves it unchanged.
    """
    units = [jnp.copy(_rows(unit, leaves[places[unit.tensor]])).astype(jnp.float32) for unit in fragment.units]
    return [unit.reshape(shape) for unit, shape in zip(units, shapes, strict=True)]


def _adopt(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], values: Any) -> list[Any]:
    """The touched leaves with a fragment's payload written into them."""
    return _adopt_units(fragment, places, alpha, leaves, _cut(fragment, values))


def _adopt_crossed(
    fragment: Fragment, places: dict[str, int], processes: int, alpha: float, leaves: list[Any], units: Any
) -> list[Any]:
    """The touched leaves with the arrived units written into them: of several processes, those of the first."""
    firsts = units if processes == 1 else [unit[0] for unit in units]
    shaped = [first.reshape(unit.values_shape) for first, unit in zip(firsts, fragment.units, strict=True)]
    return _adopt_units(fragment, places, alpha, leaves, shaped)


def _adopt_units(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], units: Any) -> list[Any]:
    """The touched leaves with a fragment's units written into them."""
    result = list(leaves)
    for unit, values in zip(fragment.units, units, strict=True):
        place = places[unit.tensor]
        leaf = result[place]
        new = values.astype(leaf.dtype)
        if alpha:
            new = alpha * _rows(unit, leaf) + (1.0 - alpha) * new
        result[place] = leaf.at[unit.start : unit.stop].set(new) if unit.is_split else new
    return result


def _carry(fragment: Fragment, places: dict[str, int], leaves: list[Any], values: Any, since: Any) -> list[Any]:
    """The touched leaves with values written into them, plus what they have gained since a payload; float32 between.

    Units that are means of values are replaced: a difference of two variances may be below zero.
    """
    result = list(leaves)
    for unit, new, then in zip(fragment.units, _cut(fragment, values), _cut(fragment, since), strict=True):
        leaf = result[places[unit.tensor]]
        if RULES[unit.merge].steps:
            # Of an anchor what the leaf's dtype took away was not trained.
            rounded = then.astype(leaf.dtype).astype(jnp.float32)
            new = new + (_rows(unit, leaf).astype(jnp.float32) - rounded)
        new = new.astype(leaf.dtype)
        result[places[unit.tensor]] = leaf.at[unit.start : unit.stop].set(new) if unit.is_split else new
    return result


def _code(
    fragment: Fragment,
    places: dict[str, int],
    push: str,
    everywhere: Any,
    leaves: list[Any],
    anchor: Any,
    levels: Any,
) -> list[jax.Array]:
    """The codes, scales and squares of a fragment's outer gradient."""
    anchors = anchor if isinstance(anchor, list) else _cut(fragment, anchor)
    values = [_rows(unit, leaves[places[unit.tensor]]) for unit in fragment.units]
    return coded(fragment, push, values, anchors, levels, everywhere)


def _rows(unit: Unit, leaf: Any) -> Any:
    return leaf[unit.start : unit.stop] if unit.is_split else leaf


def compute_in_the_calling_thread() -> None:
    """Let XLA's CPU computations run in the calling thread, not in one of XLA's own.

    The caller waits for the result anyway, and two threads would pass the core to each other twice a step. jax reads
    this setting when it creates its first device: later calls, or calls in a process that has used one, have no effect.
    Source: docs/decisions/0017.
    """
    config: Any = jax.config
    config.update("jax_cpu_enable_async_dispatch", False)


class Functions:
    """The compiled functions of one (task, fragments, alpha), on these devices; on jax's default for None.

    A state is two lists of leaves: the merged ones, in the model's order, and all others, which are local. Fragments
    are read from and written to the first list, by place. Random keys are held as their data, like any other array; a
    step's key is derived from seed, slot, incarnation and the number of the step, in the jitted step: where a task does
    not use it, jit drops it.

    On jax's one default device no function specifies a sharding. On any other, and on several, every function specifies
    the sharding of its result (`StateLayout`): the state keeps its layout through every step and exchange, and each
    function is compiled once.
    """

    def __init__(
        self, task: Any, fragments: tuple[Fragment, ...], alpha: float, devices: tuple[Any, ...] | None
    ) -> None:
        self.recipe: Recipe = task.recipe()
        self._compiled: set[Any] = set()
        leaves = self.recipe.leaves()
        model = self.recipe.shapes()
        state = jax.eval_shape(self.recipe.state_of, model)
        self.model_treedef, self._treedef = jax.tree.structure(model), jax.tree.structure(state)
        self._shapes = jax.tree.leaves(state)
        self.merged = [i for i, leaf in enumerate(leaves) if is_merged(leaf.kind)]
        self._local = sorted(set(range(len(self._shapes))) - set(self.merged))
        frozen = {i: leaf.name for i, leaf in enumerate(leaves) if leaf.kind == FROZEN}
        self.frozen = {k: frozen[i] for k, i in enumerate(self._local) if i in frozen}
        self.kept = [k for k in range(len(self._local)) if k not in self.frozen]
        self._model_size, self.has_local_model = len(leaves), len(self.merged) < len(leaves)
        self.names = [leaves[i].name for i in self.merged]
        self.lent = self._unfrozen(lent(self.recipe, leaves, named_leaves(state), self._local))
        self.counters = self._unfrozen(counters(named_leaves(state), self.merged, self._local))
        self.shapes = [leaves[i].shape for i in self.merged]
        self.layout = None if devices is None else self._layout(devices, leaves, state)
        merged, local, all_devices = (
            (None, None, None)
            if self.layout is None
            else (self.layout.merged, self.layout.local, self.layout.replicated)
        )
        self.first: jax.stages.Wrapped = jax.jit(self._first, out_shardings=merged)
        kept = None if self.layout is None else [self.layout.local[k] for k in self.kept]
        self.fresh: jax.stages.Wrapped = jax.jit(self._fresh, out_shardings=kept)
        self.counted: jax.stages.Wrapped = jax.jit(self._counted, out_shardings=all_devices)
        stepped = None if self.layout is None else ((merged, local), all_devices)
        self.step: jax.stages.Wrapped = jax.jit(self._step, donate_argnums=0, out_shardings=stepped)
        self.copy: jax.stages.Wrapped = jax.jit(
            lambda leaves: [jnp.copy(leaf) for leaf in leaves], out_shardings=merged
        )
        self.whole: jax.stages.Wrapped = jax.jit(list, out_shardings=all_devices)
        index = {name: i for i, name in enumerate(self.names)}
        self.touched = [sorted({index[unit.tensor] for unit in fragment.units}) for fragment in fragments]
        self.fragments = []
        for fragment, touched in zip(fragments, self.touched, strict=True):
            places = {self.names[i]: place for place, i in enumerate(touched)}
            lie = None if merged is None else [merged[i] for i in touched]
            self.fragments.append(FragmentFunctions(fragment, places, alpha, self.layout, lie))

    def _unfrozen(self, places: Sequence[int]) -> list[int]:
        return [k for k in places if k not in self.frozen]

    def _layout(self, devices: tuple[Any, ...], leaves: Sequence[Leaf], state: Any) -> StateLayout:
        """The layout of the whole state on devices. Random keys are held as their data, whole on every device."""
        recipe = self.recipe
        model = [
            mesh_layout.StateLeaf(leaf.name, leaf.shape.shape, leaf.has_rows, leaf.is_stacked)
            for leaf in (leaves[i] for i in self.merged)
        ]
        named = named_leaves(state)
        others = []
        for i in self._local:
            of_model = leaves[i] if i < len(leaves) else None
            path = named[i][0] if of_model is None else of_model.name
            shape = () if is_key(self._shapes[i]) else self._shapes[i].shape
            is_stacked = of_model is not None and of_model.is_stacked and not is_key(self._shapes[i])
            others.append(mesh_layout.StateLeaf(path, shape, is_stacked=is_stacked))
        return StateLayout(devices, recipe.mesh, recipe.shard, model, others)

    @property
    def platform(self) -> str:
        """That of the devices."""
        return str(jax.local_devices()[0].platform) if self.layout is None else self.layout.platform

    def codes_on(self, *, is_apart: bool) -> bool:
        """Whether learners code outer gradients on these devices, which may have memory of their own.

        Not on an island of several processes, all of which would take part.
        """
        return is_apart and (self.layout is None or self.layout.processes == 1)

    def trace(self, batch: Any) -> None:
        """Trace every function that the learners will call: the work that can be done before a device is there."""
        for call in self.calls(batch):
            call.function.trace(*call.arguments)
        if self.recipe.load is None:
            self.first.trace(abstract_key())

    def compile(
        self, batch: Any, *, is_step_alone: bool = False, codes: Sequence[str] = (), carries: bool = False
    ) -> None:
        """Compile these functions, or only the step, for arguments of these shapes; nothing is computed.

        Once for all learners of a process.
        """
        leaves, treedef = jax.tree.flatten(batch)
        shapes = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
        request = (treedef, shapes, is_step_alone, tuple(codes), carries)
        if request in self._compiled:
            return
        calls = self.calls(batch, codes, carries=carries)
        programs = lowered(each for each in calls if each.is_step or not is_step_alone)
        # Processes of an island compile together: of two islands that await each other's programs neither would end.
        compile_all(programs, is_alone=self.layout is not None and self.layout.processes > 1)
        self._compiled.add(request)

    def calls(self, batch: Any, codes: Sequence[str] = (), *, carries: bool = False) -> Iterator[DeviceCall]:
        """The functions that every learner calls while it steps, for batches like this one.

        `codes`: the formats in which outer gradients are coded on the devices; `carries`: adoptions keep work.
        """
        life: Any = words_of(LearnerLife(0, 0, 1))
        merged = self._lying(self.shapes, "merged")
        key = abstract_key() if self.has_local_model else None
        if self.layout is not None:
            life = lying(life, self.layout.replicated)
            batch = jax.tree.map(lying, jax.tree.map(np.asarray, batch), self.layout.of_batch(batch))
        held = [self._shapes[self._local[k]] for k in self.frozen]
        fresh = jax.eval_shape(self._fresh, self.shapes, held, key, life, np.uint32(0))
        local = self._lying(self.with_frozen(fresh, held), "local")
        yield DeviceCall("fresh", self.fresh, (merged, [local[k] for k in self.frozen], key, life, np.uint32(0)))
        arguments = ((merged, local), batch, np.float32(0.0), life, np.uint32(0))
        yield DeviceCall("step", self.step, arguments, is_step=True, batch=1)
        yield DeviceCall("copy", self.copy, (merged,))
        for number, (functions, touched) in enumerate(zip(self.fragments, self.touched, strict=True)):
            leaves = [merged[i] for i in touched]
            yield DeviceCall(f"extract/{number}", functions.extract, (leaves,))
            for push in codes:
                arguments_of_code = leaves, functions.shapes(), levels_of(functions.fragment, push)
                yield DeviceCall(f"code/{push}/{number}", functions.code[push], arguments_of_code)
            yield DeviceCall(f"replace/{number}", functions.replace, (leaves, functions.shapes()))
            if carries and functions.carry is not None:
                yield DeviceCall(f"carry/{number}", functions.carry, (leaves, functions.shapes(), functions.shapes()))
            if functions.adopt is not functions.replace:
                yield DeviceCall(f"adopt/{number}", functions.adopt, (leaves, functions.shapes()))

    def put_batch(self, batch: Any) -> Any:
        """A batch with the sharding that the step expects; ShardingError if it does not divide."""
        return batch if self.layout is None else self.layout.put(batch, self.layout.of_batch(batch))

    def put(self, leaves: Sequence[Any]) -> list[Any]:
        """Merged leaves on their devices."""
        if self.layout is None:
            return jax.device_put(list(leaves))  # type: ignore[no-any-return]
        return self.layout.put(list(leaves), self.layout.merged)  # type: ignore[no-any-return]

    def stages(self) -> AbstractContextManager[Any]:
        """The context in which the functions of the task are traced that have stages."""
        return nullcontext() if self.layout is None else self.layout.stages()

    def _lying(self, shapes: Sequence[Any], what: Literal["merged", "local"]) -> list[Any]:
        """Shapes of leaves, with their shardings."""
        if self.layout is None:
            return list(shapes)
        return list(map(lying, shapes, getattr(self.layout, what)))

    def first_leaves(self, seed: int) -> list[Any]:
        """The initial merged leaves, a buffer each: those that the task loads, for the others the values of `init`."""
        load = self.recipe.load
        if load is None:
            return self.first(jax.random.key(seed))  # type: ignore[no-any-return]
        loaded = [load(name, shape) for name, shape in zip(self.names, self.shapes, strict=True)]
        initial = loaded if all(leaf is not None for leaf in loaded) else self.first(jax.random.key(seed))
        chosen = zip(initial, loaded, self.shapes, strict=True)
        leaves = [own if own_leaf is None else np.asarray(own_leaf, shape.dtype) for own, own_leaf, shape in chosen]
        return self.copy(self.put(leaves))  # type: ignore[no-any-return]

    def frozen_leaves(self, seed: int) -> dict[str, np.ndarray[Any, Any]]:
        """The frozen leaves, by name, on the host: those that the task loads, for the others the values of `init`.

        `init` runs on the CPU, whatever the devices of the island are, so that its values are the same elsewhere.
        """
        load, names = self.recipe.load, list(self.frozen.values())
        shapes = [self._shapes[self._local[k]] for k in self.frozen]
        loaded = [None if load is None else load(name, shape) for name, shape in zip(names, shapes, strict=True)]
        leaves = {
            name: np.asarray(value, shape.dtype)
            for name, value, shape in zip(names, loaded, shapes, strict=True)
            if value is not None
        }
        if missing := {name: k for k, name in self.frozen.items() if name not in leaves}:

            def made(key: Any) -> list[Any]:
                first = self.local_of_model(key)
                return [first[k] for k in missing.values()]

            with jax.default_device(_cpu()):
                leaves |= dict(zip(missing, map(np.asarray, jax.jit(made)(jax.random.key(seed))), strict=True))
        return leaves

    def put_frozen(self, leaves: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """Frozen leaves on their devices, in the order of `frozen`."""
        arrays = [leaves[name] for name in self.frozen.values()]
        if self.layout is None:
            return list(jax.device_put(arrays))
        return list(self.layout.put(arrays, [self.layout.local[k] for k in self.frozen]))

    def with_frozen(self, kept: Sequence[Any], frozen: Sequence[Any]) -> list[Any]:
        """All local leaves, of those that are kept and those that are frozen."""
        leaves = dict(zip(self.kept, kept, strict=True)) | dict(zip(self.frozen, frozen, strict=True))
        return [leaves[k] for k in sorted(leaves)]

    def model(self, merged: Sequence[Any], others: Sequence[Any]) -> Any:
        """The model of merged leaves and its local ones."""
        return jax.tree.unflatten(self.model_treedef, self._joined(merged, others, self._model_size))

    def local_of_model(self, key: Any) -> list[Any]:
        """The local leaves of an initial model, with random keys as their data."""
        leaves = [_at_rest(leaf) for leaf in jax.tree.leaves(self.recipe.init(key))]
        return [leaves[i] for i in self._local if i < len(leaves)]

    def _first(self, key: Any) -> list[Any]:
        """The merged leaves of an initial model."""
        leaves = jax.tree.leaves(self.recipe.init(key))
        return _apart([leaves[i] for i in self.merged])

    def _fresh(
        self, merged: list[Any], frozen: list[Any], key: Any, life: Any, number: Any, counts: list[Any] | None = None
    ) -> list[Any]:
        """The local leaves of a state that begins with these merged and frozen leaves; the frozen ones are left out.

        They have the values that `init` gives for the seed's `key`, except that random keys among them are this life's
        own, and that counters have the values `counts`, if given; then the task's `restart` is applied.
        """
        own = key_of(life, number)
        others = self.local_of_model(key) if self.has_local_model else []
        for k, leaf in zip(self.frozen, frozen, strict=True):
            others[k] = leaf
        model = jax.tree.map(partial(folded, jax.random.bits(own)), self.model(merged, others))
        state = self.recipe.state_of(model)
        if counts is not None:
            leaves = jax.tree.leaves(state)
            for k, count in zip(self.counters, counts, strict=True):
                leaves[self._local[k]] = count
            state = jax.tree.unflatten(self._treedef, leaves)
        if self.recipe.restart is not None:
            state = self.recipe.restart(state, own)
        leaves = [_at_rest(leaf) for leaf in jax.tree.leaves(state)]
        return _apart([leaves[self._local[k]] for k in self.kept])

    def _counted(self, key: Any, life: Any, steps: Any, batch: Any) -> list[Any]:
        """The counters after so many steps. Nothing else of a step is computed, because nothing else is used."""
        state = jax.tree.leaves(self.recipe.state_of(self.recipe.init(key)))
        now = Now(key_of(life, np.uint32(0)), jnp.float32(0.0))
        places = [i for i in self._local if is_integer(self._shapes[i])]  # One may depend on another.

        def values(leaves: list[Any]) -> list[Any]:
            return [jnp.asarray(leaves[i], self._shapes[i].dtype) for i in places]

        def count(_: Any, counts: list[Any]) -> list[Any]:
            leaves = list(state)
            for i, value in zip(places, counts, strict=True):
                leaves[i] = value
            return values(jax.tree.leaves(self.recipe.count(jax.tree.unflatten(self._treedef, leaves), batch, now)))

        counted = dict(zip(places, jax.lax.fori_loop(0, steps, count, values(state)), strict=True))
        return [counted[self._local[k]] for k in self.counters]

    def _step(self, state: tuple[Any, Any], batch: Any, progress: Any, life: Any, number: Any) -> Any:
        """One inner step: (merged leaves, local leaves) -> the same, and its scalars."""
        whole = jax.tree.unflatten(self._treedef, self._joined(*state, len(self._shapes)))
        with self.stages():
            stepped, metrics = self.recipe.step(whole, batch, Now(key_of(life, number), progress))
        leaves = [_at_rest(leaf) for leaf in jax.tree.leaves(stepped)]
        local = [state[1][k] if k in self.frozen else leaves[i] for k, i in enumerate(self._local)]
        return ([leaves[i] for i in self.merged], local), dict(metrics)

    def _joined(self, merged: Sequence[Any], local: Sequence[Any], count: int) -> list[Any]:
        """The first `count` leaves of a state, in its order, with random keys as such."""
        leaves = dict(zip(self.merged, merged, strict=True)) | dict(zip(self._local, local, strict=False))
        return [jax.random.wrap_key_data(leaves[i]) if is_key(self._shapes[i]) else leaves[i] for i in range(count)]


def _cpu() -> Any:
    """The CPU; None, for jax's default device, if its configured platforms exclude the CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def words_of(life: LearnerLife) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A life as the words from which its random keys are derived."""
    return np.array([life.seed & 0xFFFF_FFFF, life.seed >> 32, life.slot, life.incarnation], np.uint32)


def key_of(life: Any, number: Any) -> Any:
    """The random key of one step of a life."""
    key = jax.random.key(life[0])
    for word in (*life[1:], number):
        key = jax.random.fold_in(key, word)
    return key


def folded(bits: Any, leaf: Any) -> Any:
    """A leaf of a model; random keys folded with `bits`."""
    if not is_key(leaf):
        return leaf
    keys = jax.vmap(lambda key: jax.random.fold_in(key, bits))(jnp.ravel(leaf))
    return keys.reshape(leaf.shape)


def _apart(leaves: Sequence[Any]) -> list[Any]:
    """Leaves of a jitted function's result, a buffer each.

    Without this, jit returns an argument itself where a leaf is that argument, and one buffer for two equal leaves;
    donation would then give a buffer away twice.
    """
    return [jnp.copy(leaf) for leaf in leaves]


def _at_rest(leaf: Any) -> Any:
    """A leaf in the form in which it is held: random keys as their data."""
    leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def functions_of(
    task: Any, fragments: tuple[Fragment, ...], alpha: float, devices: tuple[Any, ...] | None = None
) -> Functions:
    """The functions of a task, the same object for the same arguments; on jax's default device for None."""
    return _kept(task, fragments, alpha, devices)


@lru_cache(maxsize=16)
def _kept(task: Any, fragments: tuple[Fragment, ...], alpha: float, devices: tuple[Any, ...] | None) -> Functions:
    """The same. A cache tells an argument that is left out from its default, so that here all are given."""
    return Functions(task, fragments, alpha, devices)

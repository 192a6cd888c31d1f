"""The device side of inner-step: the jitted functions, and the state that only they modify.

State. A learner holds the leaves of its state in two lists: the merged ones, in the model's order, and all others,
which are local. Fragments are read from and written to the first list, by place. Random keys are held as their data,
like any other array.

Buffers. The state is donated to every step, so nothing outside may hold one of its leaves. A fragment leaves through
its own jitted `extract`, dispatched before the next step by the thread that owns the state; its result is a new array.
An update enters through `adopt`, which donates the leaves it replaces; the update's own buffer is never written again,
because JAX may alias it for ever. All learners of a process that train one task share the compiled functions.

Devices. On jax's one default device no function specifies a sharding. On any other, and on several, every function
specifies the sharding of its result (`StateLayout`): the state keeps its layout through every step and exchange, and
each function is compiled once.

Random numbers. A step's key is derived from seed, slot, incarnation and the number of the step, in the jitted step:
where a task does not use it, jit drops it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.kept_state import Taken
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.core_turns import CORES
from isthmus.ops.island.device_call import DeviceCall
from isthmus.ops.island.life import Life
from isthmus.ops.island.pieces import FragmentFunctions
from isthmus.ops.island.recipe import LOCAL, Leaf, Now, Recipe, abstract_key, is_key, lent
from isthmus.ops.mesh import state_layout
from isthmus.ops.mesh.device_codes import DeviceCodes, levels_of
from isthmus.ops.mesh.island import Island
from isthmus.ops.mesh.island_devices import devices_of, unless_usual
from isthmus.ops.mesh.state_layout import StateLayout, lying
from isthmus.ops.mesh.unused_memory import give_back

_COMPILING = threading.Lock()
"""Learners of one process would each compile the same function if they called it at the same time."""
WHOLE_BYTES_MAX: Final = 64 << 20
"""Of leaves that a device holds whole at once, beside its state, while that is copied: as much as makes a collective
operation worth its latency, and little beside a state that needs several devices."""
_KEYS: Final = 6
"""Numbers that say which random keys come next."""
_RESTARTS: Final = 1 << 31
"""The key numbers of restarts begin here, beyond those of steps."""


def compute_in_the_calling_thread() -> None:
    """Let XLA's CPU computations run in the calling thread, not in one of XLA's own.

    The caller waits for the result anyway, and two threads would pass the core to each other twice a step. jax reads
    this setting when it creates its first device: later calls, or calls in a process that has used one, have no effect.
    Source: docs/decisions/0017.
    """
    config: Any = jax.config
    config.update("jax_cpu_enable_async_dispatch", False)


class Functions:
    """The compiled functions of one (task, fragments, alpha), on these devices; on jax's default for None."""

    def __init__(
        self, task: Any, fragments: tuple[Fragment, ...], alpha: float, devices: tuple[Any, ...] | None
    ) -> None:
        self.recipe: Recipe = task.recipe()
        leaves = self.recipe.leaves()
        model = self.recipe.shapes()
        state = jax.eval_shape(self.recipe.state_of, model)
        self.model_treedef, self._treedef = jax.tree.structure(model), jax.tree.structure(state)
        self._shapes = jax.tree.leaves(state)
        self.merged = [i for i, leaf in enumerate(leaves) if leaf.kind != LOCAL]
        self._local = sorted(set(range(len(self._shapes))) - set(self.merged))
        self._model_size, self.has_local_model = len(leaves), len(self.merged) < len(leaves)
        self.names = [leaves[i].name for i in self.merged]
        self.lent = lent(self.recipe, leaves, named_leaves(state), self._local)
        self.shapes = [leaves[i].shape for i in self.merged]
        self.layout = None if devices is None else self._layout(devices, leaves, state)
        merged, local, all_devices = (
            (None, None, None)
            if self.layout is None
            else (self.layout.merged, self.layout.local, self.layout.replicated)
        )
        self.first: jax.stages.Wrapped = jax.jit(self._first, out_shardings=merged)
        self.fresh: jax.stages.Wrapped = jax.jit(self._fresh, out_shardings=local)
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

    def _layout(self, devices: tuple[Any, ...], leaves: Sequence[Leaf], state: Any) -> StateLayout:
        """The layout of the whole state on devices. Random keys are held as their data, whole on every device."""
        recipe = self.recipe
        model = [state_layout.Leaf(leaves[i].name, leaves[i].shape.shape, leaves[i].has_rows) for i in self.merged]
        named = named_leaves(state)
        others = []
        for i in self._local:
            path = leaves[i].name if i < len(leaves) else named[i][0]
            others.append(state_layout.Leaf(path, () if is_key(self._shapes[i]) else self._shapes[i].shape))
        return StateLayout(devices, recipe.mesh, recipe.shard, model, others)

    def trace(self, batch: Any) -> None:
        """Trace every function that the learners will call: the work that can be done before a device is there."""
        for call in self.calls(batch):
            call.function.trace(*call.arguments)

    def compile(self, batch: Any, *, is_step_alone: bool = False, codes: Sequence[str] = ()) -> None:
        """Compile these functions, or only the step, for arguments of these shapes; nothing is computed."""
        for call in [each for each in self.calls(batch, codes) if each.is_step or not is_step_alone]:
            call.function.lower(*call.arguments).compile()

    def calls(self, batch: Any, codes: Sequence[str] = ()) -> Iterator[DeviceCall]:
        """The functions that every learner calls while it steps, for batches like this one.

        `codes`: the formats in which outer gradients are coded on the devices.
        """
        life: Any = _words(Life(0, 0, 1))
        merged = self._lying(self.shapes, "merged")
        key = abstract_key() if self.has_local_model else None
        if self.layout is not None:
            life = lying(life, self.layout.replicated)
            batch = jax.tree.map(lying, jax.tree.map(np.asarray, batch), self.layout.of_batch(batch))
        local = self._lying(jax.eval_shape(self._fresh, self.shapes, key, life, np.uint32(0)), "local")
        yield DeviceCall("fresh", self.fresh, (merged, key, life, np.uint32(0)))
        arguments = ((merged, local), batch, np.float32(0.0), life, np.uint32(0))
        yield DeviceCall("step", self.step, arguments, is_step=True, batch=1)
        yield DeviceCall("copy", self.copy, (merged,))
        for number, (functions, touched) in enumerate(zip(self.fragments, self.touched, strict=True)):
            leaves = [merged[i] for i in touched]
            yield DeviceCall(f"extract/{number}", functions.extract, (leaves,))
            for push in codes:
                given = leaves, functions.shapes(), levels_of(functions.fragment, push)
                yield DeviceCall(f"code/{push}/{number}", functions.code[push], given)
            yield DeviceCall(f"replace/{number}", functions.replace, (leaves, functions.shapes()))
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
        made = loaded if all(leaf is not None for leaf in loaded) else self.first(jax.random.key(seed))
        chosen = zip(made, loaded, self.shapes, strict=True)
        leaves = [own if given is None else np.asarray(given, shape.dtype) for own, given, shape in chosen]
        return self.copy(self.put(leaves))  # type: ignore[no-any-return]

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

    def _fresh(self, merged: list[Any], key: Any, life: Any, number: Any) -> list[Any]:
        """The local leaves of a state that begins with these merged leaves.

        They have the values that `init` gives for the seed's `key`, except that random keys among them are this life's
        own; then the task's `restart` is applied.
        """
        own = _key_of(life, number)
        others = self.local_of_model(key) if self.has_local_model else []
        model = jax.tree.map(partial(_folded, jax.random.bits(own)), self.model(merged, others))
        state = self.recipe.state_of(model)
        if self.recipe.restart is not None:
            state = self.recipe.restart(state, own)
        leaves = [_at_rest(leaf) for leaf in jax.tree.leaves(state)]
        return _apart([leaves[i] for i in self._local])

    def _step(self, state: tuple[Any, Any], batch: Any, progress: Any, life: Any, number: Any) -> Any:
        """One inner step: (merged leaves, local leaves) -> the same, and its scalars."""
        whole = jax.tree.unflatten(self._treedef, self._joined(*state, len(self._shapes)))
        stepped, metrics = self.recipe.step(whole, batch, Now(_key_of(life, number), progress))
        leaves = [_at_rest(leaf) for leaf in jax.tree.leaves(stepped)]
        return ([leaves[i] for i in self.merged], [leaves[i] for i in self._local]), dict(metrics)

    def _joined(self, merged: Sequence[Any], local: Sequence[Any], count: int) -> list[Any]:
        """The first `count` leaves of a state, in its order, with random keys as such."""
        found = dict(zip(self.merged, merged, strict=True)) | dict(zip(self._local, local, strict=False))
        return [jax.random.wrap_key_data(found[i]) if is_key(self._shapes[i]) else found[i] for i in range(count)]


def _forms(leaves: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Shapes and types of leaves."""
    return [(leaf.shape, leaf.dtype) for leaf in leaves]


def _some(leaves: Sequence[Any]) -> Iterator[list[Any]]:
    """Leaves in groups, each a single leaf or no larger than WHOLE_BYTES_MAX."""
    group: list[Any] = []
    for leaf in leaves:
        if group and sum(each.nbytes for each in group) + leaf.nbytes > WHOLE_BYTES_MAX:
            yield group
            group = []
        group.append(leaf)
    yield group


def _words(life: Life) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A life as the words from which its random keys are derived."""
    return np.array([life.seed & 0xFFFF_FFFF, life.seed >> 32, life.slot, life.incarnation], np.uint32)


def _key_of(life: Any, number: Any) -> Any:
    """The random key of one step of a life."""
    key = jax.random.key(life[0])
    for word in (*life[1:], number):
        key = jax.random.fold_in(key, word)
    return key


def _folded(bits: Any, leaf: Any) -> Any:
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


@lru_cache(maxsize=16)
def functions_of(
    task: Any, fragments: tuple[Fragment, ...], alpha: float, devices: tuple[Any, ...] | None = None
) -> Functions:
    """The functions of a task, the same object for the same arguments; on jax's default device for None."""
    return Functions(task, fragments, alpha, devices)


class Learner:
    """The state of one learner, on the device.

    The merged leaves are zeros before `begin`, or until all have been adopted: then `restart` completes the state.
    """

    def __init__(
        self,
        task: Any,
        fragments: Sequence[Fragment],
        *,
        life: Life,
        alpha: float = 0.0,
        island: Island | None = None,
        pushes: Sequence[str] = (),
    ) -> None:
        """Create it on an island, or all devices of this process; ShardingError if the task's mesh does not fit.

        `pushes`: the formats in which outer gradients may leave; `codes`: those that it codes on its devices.
        """
        compute_in_the_calling_thread()
        self._devices = devices_of(island)
        with _COMPILING:
            self._functions = functions_of(task, tuple(fragments), alpha, unless_usual(self._devices))
        layout = self._functions.layout
        self._seed = life.seed
        self._life = jax.device_put(_words(life)) if layout is None else layout.put(_words(life), layout.replicated)
        self._step_number = self._restarts = 0
        shapes = self._functions.shapes
        self._leaves: list[Any] = self._functions.put([np.zeros(each.shape, each.dtype) for each in shapes])
        self._local: list[Any] = []
        self.restart()
        self._shares_cores = self._devices[0].platform == "cpu"
        self.codes: tuple[str, ...] = tuple(pushes) if self._codes_here() else ()
        CORES.join()
        self._under_way: Mapping[str, jax.Array] | None = None

    def begin(self) -> None:
        """Create the task's initial merged leaves, the same for the same seed, and the local leaves."""
        self._leaves = []
        self._local = []  # The memory of both is free before the new leaves take theirs.
        self._leaves = self._functions.first_leaves(self._seed)
        self.restart()

    def compile(self, batch: Any) -> None:
        """Compile every function that this learner will call."""
        with _COMPILING:
            self._functions.compile(batch, codes=self.codes)
        give_back()

    def compile_step(self, batch: Any) -> None:
        """Compile the step, which it calls most; the rest is compiled at its first call."""
        with _COMPILING:
            self._functions.compile(batch, is_step_alone=True)

    def step(self, batch: Any, progress: float) -> Mapping[str, jax.Array]:
        """Perform one inner step; the result is its scalars.

        On the CPU the step takes a turn on the cores until it is computed. Otherwise it is dispatched, and the step
        before it is awaited, so that at most one is in progress.
        """
        if not self._shares_cores:
            before, self._under_way = self._under_way, self.dispatch(batch, progress)
            if before is not None:
                before["loss"].block_until_ready()
            return self._under_way
        if not CORES.is_needed:
            return self._computed(batch, progress)
        with CORES:
            return self._computed(batch, progress)

    def dispatch(self, batch: Any, progress: float) -> Mapping[str, jax.Array]:
        """Dispatch one inner step; the result is its scalars."""
        state, number = (self._leaves, self._local), np.uint32(self._step_number)
        batch = self._functions.put_batch(batch)
        stepped, metrics = self._functions.step(state, batch, np.float32(progress), self._life, number)
        self._leaves, self._local = stepped
        self._step_number += 1
        return metrics  # type: ignore[no-any-return]

    def _computed(self, batch: Any, progress: float) -> Mapping[str, jax.Array]:
        """Perform one inner step and wait until its scalars are computed."""
        metrics = self.dispatch(batch, progress)
        loss: Any = metrics["loss"]
        if not loss.is_ready():  # This process had a device before: XLA computes in threads of its own.
            loss.block_until_ready()
        return metrics

    def extract(self, fragment: int) -> Any:
        """The values of a fragment after the steps dispatched so far, on their way to the host: float32[n] to NumPy."""
        functions, touched = self._functions.fragments[fragment], self._functions.touched[fragment]
        values = functions.payload(functions.extract([self._leaves[i] for i in touched]))
        if not self._shares_cores:
            values.copy_to_host_async()
        return values

    def code(self, fragment: int, anchor: Vector, push: str) -> DeviceCodes:
        """The outer gradient of a fragment after the steps dispatched so far, in one of `codes`, on its way to us.

        `anchor`: float32[n], whose memory jax may alias for ever.
        """
        functions, touched = self._functions.fragments[fragment], self._functions.touched[fragment]
        leaves = [self._leaves[i] for i in touched]
        made = functions.code[push](leaves, functions.put(anchor), levels_of(functions.fragment, push))
        return DeviceCodes(functions.fragment, push, made)

    def _codes_here(self) -> bool:
        """Whether outer gradients are coded on the devices.

        Not on CPUs, whose memory is the host's, nor on an island of several processes, all of which would take part.
        """
        layout = self._functions.layout
        return not self._shares_cores and (layout is None or layout.processes == 1)

    def adopt(self, fragment: int, values: Vector | None) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`, float32[n].

        `values` is None where another process of the island has them.
        """
        self._write(fragment, self._functions.fragments[fragment].adopt, values)

    def replace(self, fragment: int, values: Vector | None) -> None:
        """Replace a fragment by `values`, float32[n], regardless of alpha; None as for `adopt`."""
        self._write(fragment, self._functions.fragments[fragment].replace, values)

    def _write(self, fragment: int, adopt: jax.stages.Wrapped, values: Vector | None) -> None:
        touched, given = self._functions.touched[fragment], self._functions.fragments[fragment].put(values)
        for i, leaf in zip(touched, adopt([self._leaves[i] for i in touched], given), strict=True):
            self._leaves[i] = leaf

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""
        given = dict(named_leaves(parameters))
        leaves = [jnp.array(given[name]) for name in self._functions.names]
        self._leaves = leaves if self._functions.layout is None else self._functions.put(leaves)

    def copy(self) -> list[jax.Array]:
        """A copy of all merged leaves after the steps dispatched so far."""
        return self._functions.copy(self._leaves)  # type: ignore[no-any-return]

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Merged leaves as the task's tree, or by name where that has local leaves; in NumPy arrays of their own."""
        arrays, functions = [np.array(leaf) for leaf in leaves], self._functions
        if functions.recipe.loss is None or functions.has_local_model:
            return dict(zip(functions.names, arrays, strict=True))
        return jax.tree.unflatten(functions.model_treedef, arrays)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of steps and restarts of this state: random keys follow from them."""
        return self._step_number, self._restarts

    @property
    def shapes(self) -> list[Any]:
        """The shapes and dtypes of all leaves of the state, merged ones first."""
        return [*self._leaves, *self._local]

    def whole(self) -> Iterator[np.ndarray[Any, Any]]:
        """All leaves of the state, merged ones first, on the host."""
        return self._gathered(self.shapes)

    def _gathered(self, leaves: Sequence[Any]) -> Iterator[np.ndarray[Any, Any]]:
        """Leaves on the host, some at a time: no device holds more than these whole.

        On an island of several processes each has to call this for the same leaves, and to read them all.
        """
        layout = self._functions.layout
        for group in _some(leaves):
            yield from map(
                np.asarray, group if layout is None or layout.processes == 1 else self._functions.whole(group)
            )

    def take(self, leaves: Sequence[np.ndarray[Any, Any]], counts: tuple[int, int]) -> None:
        """Continue from a state in the form that `whole` returns, after `counts` steps and restarts."""
        functions, count = self._functions, len(self._leaves)
        self._leaves = functions.copy(functions.put(leaves[:count]))
        local = list(leaves[count:])
        layout = functions.layout
        self._local = jax.device_put(local) if layout is None else layout.put(local, layout.local)
        self._step_number, self._restarts = counts

    def restart(self) -> None:
        """Create the local leaves anew, for the present merged leaves."""
        functions, number = self._functions, np.uint32(_RESTARTS + self._restarts)
        key = jax.random.key(self._seed) if functions.has_local_model else None
        self._local = []  # Its memory is free before the new leaves take theirs.
        self._local = functions.fresh(self._leaves, key, self._life, number)
        self._restarts += 1
        give_back()

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, in NumPy arrays of their own, each after the steps dispatched when it is read.

        On an island of several processes all are read at once, because each process has to take part.
        """
        layout = self._functions.layout
        if layout is not None and layout.processes > 1:
            return [np.array(leaf) for leaf in self._gathered(self._local)]
        return (np.array(self._local[k]) for k in range(len(self._local)))

    def forms(self, what: Taken) -> list[Any]:
        """The shapes and dtypes of leaves that can be taken from another life."""
        if what == "lent":
            return [self._local[k] for k in self._functions.lent]
        ahead = [] if what == "local" else [np.empty(_KEYS, np.int64)]
        return [*ahead, *self._local, *(self._leaves if what == "whole" else [])]

    def fits(self, what: Taken, leaves: Sequence[Any]) -> bool:
        """Whether leaves of another life have these shapes and dtypes; False for lent ones if there are none."""
        return (what != "lent" or len(leaves) > 0) and _forms(leaves) == _forms(self.forms(what))

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Place `leaves`, in the form that `local` returns, as the local leaves; False if their forms differ."""
        return self.fits("local", leaves) and self._take_at(range(len(self._local)), leaves)

    def _take_at(self, places: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Place leaves at these indices among the local ones; True."""
        layout = self._functions.layout
        for place, leaf in zip(places, leaves, strict=True):
            # A copy on the device, because a step donates its arguments; placed as those of `restart` are, or the step
            # would be compiled again for it.
            copied = jnp.array(leaf)
            self._local[place] = copied if layout is None else layout.put(copied, layout.local[place])
        return True

    def lend(self) -> list[np.ndarray[Any, Any]]:
        """The local leaves with which another learner can continue (`lent`), in NumPy arrays of their own."""
        return [np.array(leaf) for leaf in self._gathered([self._local[k] for k in self._functions.lent])]

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `lend` returns; False if empty or of another form."""
        return self.fits("lent", leaves) and self._take_at(self._functions.lent, leaves)

    def own(self, *, whole: bool) -> list[np.ndarray[Any, Any]]:
        """`local`, preceded by int64[6]: the words of the life whose keys are drawn, its steps and its restarts.

        If `whole`, the merged leaves follow.
        """
        keys = np.array([*np.asarray(self._life).tolist(), *self.counts], np.int64)
        return [keys, *self.local(), *([np.array(leaf) for leaf in self._gathered(self._leaves)] if whole else [])]

    def take_own(self, leaves: Sequence[Any]) -> bool:
        """Continue from leaves in the form that `own` returns, with the random keys that would have come next."""
        if not self.fits("own", leaves) and not self.fits("whole", leaves):
            return False
        count = len(self._local) + 1
        self.take_local(leaves[1:count])
        if len(leaves) > count:
            self._leaves = self._functions.copy(self._functions.put(list(leaves[count:])))
        *words, self._step_number, self._restarts = (int(each) for each in leaves[0])
        life, layout = np.array(words, np.uint32), self._functions.layout
        self._life = jax.device_put(life) if layout is None else layout.put(life, layout.replicated)
        return True

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        return str(self._devices[0].device_kind)

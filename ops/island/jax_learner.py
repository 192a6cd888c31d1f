"""The device side of inner-step: the state of one learner, which only the jitted functions (`functions`) modify.

Buffers. The state is donated to every step, so nothing outside may hold one of its leaves. A fragment leaves through
its own jitted `extract`, dispatched before the next step by the thread that owns the state; its result is a new array.
An update enters through `adopt`, which donates the leaves it replaces; the update's own buffer is never written again,
because JAX may alias it for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.messages import Taken, Vector
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.gang.mesh_devices import DeviceCodes, devices_of, levels_of, unless_usual
from isthmus.ops.gang.mesh_island import LearnerDevices
from isthmus.ops.island.functions import compute_in_the_calling_thread, functions_of, words_of
from isthmus.ops.island.heap import give_back, keep_no_large_blocks
from isthmus.ops.island.host_waits import HostWaits
from isthmus.ops.island.jax_device import reach
from isthmus.ops.island.life import CORES, LeafPart, LearnerLife

_COMPILING = threading.Lock()
"""Learners of one process would each compile the same function if they called it at the same time."""
WHOLE_BYTES_MAX: Final = 64 << 20
"""Of leaves that a device holds whole at once, beside its state, while that is copied: as much as makes a collective
operation worth its latency, and little beside a state that needs several devices."""
_KEYS: Final = 6
"""Numbers that say which random keys come next."""
_RESTARTS: Final = 1 << 31
"""The key numbers of restarts begin here, beyond those of steps."""


def _forms(leaves: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Shapes and types of leaves."""
    return [(leaf.shape, leaf.dtype) for leaf in leaves]


def _nothing_like(leaf: Any) -> Any:
    """Zeros of the form of a leaf, without memory of their own."""
    return np.broadcast_to(np.zeros((), np.asarray(leaf).dtype), np.shape(leaf))


def _some(leaves: Sequence[Any]) -> Iterator[list[Any]]:
    """Leaves in groups, each a single leaf or no larger than WHOLE_BYTES_MAX."""
    group: list[Any] = []
    for leaf in leaves:
        if group and sum(each.nbytes for each in group) + leaf.nbytes > WHOLE_BYTES_MAX:
            yield group
            group = []
        group.append(leaf)
    yield group


class Learner:
    """The state of one learner, on the device.

    The merged leaves are zeros before `begin`, or until all have been adopted: then `restart` completes the state.
    """

    def __init__(
        self,
        task: Any,
        fragments: Sequence[Fragment],
        *,
        life: LearnerLife,
        alpha: float = 0.0,
        island: LearnerDevices | None = None,
        pushes: Sequence[str] = (),
        carries: bool = False,
    ) -> None:
        """Create it on an island, or all devices of this process; ShardingError if the task's mesh does not fit.

        `pushes`: the formats in which outer gradients may leave; `codes`: those that it codes on its devices. With
        `carries` adoptions keep work, and `carry` is compiled with the rest.
        """
        self._carries = carries
        compute_in_the_calling_thread()
        self._devices = devices_of(island)
        self._device = reach(self._devices)
        with _COMPILING:
            self._functions = functions_of(task, tuple(fragments), alpha, unless_usual(self._devices))
        layout = self._functions.layout
        self._seed = life.seed
        self._life = jax.device_put(words_of(life)) if layout is None else layout.put(words_of(life), layout.replicated)
        self._step_number = self._restarts = 0
        self._batch: Any = None
        shapes = self._functions.shapes
        keep_no_large_blocks(sum(4 * each.size for each in shapes))
        self._leaves: list[Any] = self._functions.put([np.zeros(each.shape, each.dtype) for each in shapes])
        self._local: list[Any] = []
        frozen = self._functions.frozen_leaves(life.seed)
        self._digests = digests_of(frozen)
        self._begin_anew(None, self._functions.put_frozen(frozen))
        self.codes: tuple[str, ...] = tuple(pushes) if self._functions.codes_on(is_apart=self._device.is_apart) else ()
        CORES.join()
        self._under_way: Any = None
        size_bytes = 4 * sum(fragment.size for fragment in fragments)
        self._keeps_anchors = bool(self.codes) and layout is None and self._device.has_room(size_bytes)
        self._anchors = dict[int, tuple[Vector, Any]]()
        """By fragment what was adopted last, on the host and, float32[n], on the device."""

    def begin(self) -> None:
        """Create the task's initial merged leaves, the same for the same seed, and the local leaves."""
        frozen = self._held_frozen()
        self._leaves = []
        self._local = []  # The memory of both is free before the new leaves take theirs.
        self._leaves = self._functions.first_leaves(self._seed)
        self._begin_anew(None, frozen)

    def compile(self, batch: Any) -> None:
        """Compile every function that this learner will call."""
        self._batch = jax.tree.map(_nothing_like, batch)
        with _COMPILING:
            self._functions.compile(batch, codes=self.codes, carries=self._carries)
        give_back()

    def compile_step(self, batch: Any) -> None:
        """Compile the step, which it calls most; the rest is compiled at its first call."""
        self._batch = jax.tree.map(_nothing_like, batch)
        with _COMPILING:
            self._functions.compile(batch, is_step_alone=True)

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """Perform one inner step; the result is its scalars.

        On the CPU the step takes a turn on the cores until it is computed. Otherwise it is dispatched, and the step
        before it is awaited, so that at most one is in progress.
        """
        if self._device.is_apart:
            metrics = self.dispatch(batch, progress)
            before, self._under_way = self._under_way, metrics["loss"]
            leaving = {name: self._device.leave(value, "scalars") for name, value in metrics.items()}
            if before is not None:
                self._device.wait(before, "step")
            return leaving
        if not CORES.is_needed:
            return self._computed(batch, progress)
        with CORES:
            return self._computed(batch, progress)

    def dispatch(self, batch: Any, progress: float) -> Mapping[str, jax.Array]:
        """Dispatch one inner step; the result is its scalars."""
        state, number = (self._leaves, self._local), np.uint32(self._step_number)
        batch = self._functions.put_batch(batch)
        arguments = state, batch, np.float32(progress), self._life, number
        stepped, metrics = self._device.run(self._functions.step, *arguments)
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
        extracted = self._device.run(functions.extract, [self._leaves[i] for i in touched])
        return self._device.leave(functions.payload(extracted), "answer")

    def code(self, fragment: int, anchor: Vector, push: str) -> DeviceCodes:
        """The outer gradient of a fragment after the steps dispatched so far, in one of `codes`, on its way to us.

        `anchor`: float32[n], whose memory jax may alias for ever.
        """
        functions, touched = self._functions.fragments[fragment], self._functions.touched[fragment]
        leaves = [self._leaves[i] for i in touched]
        levels = levels_of(functions.fragment, push)
        codes = self._device.run(functions.code[push], leaves, self._anchor_of(fragment, anchor), levels)
        return DeviceCodes(functions.fragment, push, [self._device.leave(each, "answer") for each in codes])

    def _anchor_of(self, fragment: int, anchor: Vector) -> Any:
        """An anchor as functions take it; it need not arrive again, where it is there since it was adopted."""
        here, there = self._anchors.get(fragment, (None, None))
        return there if here is anchor else self._functions.fragments[fragment].put(anchor)

    def adopt(self, fragment: int, values: Vector | None) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`, float32[n].

        `values` is None where another process of the island has them.
        """
        self._write(fragment, self._functions.fragments[fragment].adopt, values)

    def replace(self, fragment: int, values: Vector | None) -> None:
        """Replace a fragment by `values`, float32[n], regardless of alpha; None as for `adopt`."""
        self._write(fragment, self._functions.fragments[fragment].replace, values)

    def carry(self, fragment: int, values: Vector, since: Any) -> bool:
        """Replace a fragment by `values`, float32[n], plus itself minus `since`, on the device.

        `since` is an `extract` or an anchor of it. False, and nothing is done, where the devices are several.
        """
        functions = self._functions.fragments[fragment]
        if functions.carry is None:
            return False
        arguments = self._touched(fragment), self._arrived(fragment, values), self._device.there(since)
        self._put(fragment, self._device.run(functions.carry, *arguments))
        return True

    def _write(self, fragment: int, adopt: jax.stages.Wrapped, values: Vector | None) -> None:
        self._put(fragment, self._device.run(adopt, self._touched(fragment), self._arrived(fragment, values)))

    def _arrived(self, fragment: int, values: Vector | None) -> Any:
        """A version that is adopted, as functions take it; where there is room it stays there, as the anchor."""
        if not self._keeps_anchors or values is None:
            return self._functions.fragments[fragment].put(values)
        self._anchors.pop(fragment, None)  # Its memory is free before the new one takes its own.
        arrived = self._device.arrive(values)
        self._anchors[fragment] = values, arrived
        return arrived

    def _touched(self, fragment: int) -> list[Any]:
        """The leaves that a fragment touches."""
        return [self._leaves[i] for i in self._functions.touched[fragment]]

    def _put(self, fragment: int, leaves: Sequence[Any]) -> None:
        """Replace the leaves that a fragment touches."""
        for i, leaf in zip(self._functions.touched[fragment], leaves, strict=True):
            self._leaves[i] = leaf

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""
        tensors = dict(named_leaves(parameters))
        leaves = [jnp.array(tensors[name]) for name in self._functions.names]
        self._leaves = leaves if self._functions.layout is None else self._functions.put(leaves)

    def copy(self) -> list[jax.Array]:
        """A copy of all merged leaves after the steps dispatched so far."""
        return self._functions.copy(self._leaves)  # type: ignore[no-any-return]

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Merged leaves as the task's tree, or by name where that has local leaves; in NumPy arrays of their own."""
        arrays, functions = [np.array(self._device.read(leaf)) for leaf in leaves], self._functions
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
            is_here = layout is None or layout.processes == 1
            yield from map(self._device.read, group if is_here else self._functions.whole(group))

    def restore(self, leaves: Sequence[np.ndarray[Any, Any]], counts: tuple[int, int]) -> None:
        """Continue from a state in the form that `whole` returns, after `counts` steps and restarts."""
        functions, count = self._functions, len(self._leaves)
        self._leaves = functions.copy(functions.put(leaves[:count]))
        local = list(leaves[count:])
        layout = functions.layout
        self._local = jax.device_put(local) if layout is None else layout.put(local, layout.local)
        self._step_number, self._restarts = counts

    def restart(self) -> None:
        """Initialize the local leaves for the present merged leaves, but for counters, which go on."""
        # Before the first step there is nothing to go on from.
        counted = [self._local[k] for k in self._functions.counters] if self._step_number else []
        self._begin_anew(counted or None)

    def count_from(self, steps: int) -> None:
        """Initialize them for a life that goes on after so many steps of its slot."""
        functions = self._functions
        if functions.counters:
            counted = functions.counted(jax.random.key(self._seed), self._life, np.int32(steps), self._batch)
            self._begin_anew(counted)

    def _begin_anew(self, counted: list[Any] | None, frozen: list[Any] | None = None) -> None:
        functions, number = self._functions, np.uint32(_RESTARTS + self._restarts)
        key = jax.random.key(self._seed) if functions.has_local_model else None
        frozen = self._held_frozen() if frozen is None else frozen
        self._local = []  # Its memory is free before the new leaves take theirs.
        arguments = [self._leaves, frozen, key, self._life, number]
        kept = functions.fresh(*arguments) if counted is None else functions.fresh(*arguments, counted)
        self._local = functions.with_frozen(kept, frozen)
        self._restarts += 1
        give_back()

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, in NumPy arrays of their own, each after the steps dispatched when it is read.

        On an island of several processes all are read at once, because each process has to take part.
        """
        layout = self._functions.layout
        if layout is not None and layout.processes > 1:
            return [np.array(leaf) for leaf in self._gathered(self._kept)]
        return (np.array(self._device.read(self._local[k])) for k in self._functions.kept)

    def local_parts(self, bytes_max: int) -> Iterator[LeafPart]:
        """What `local` returns, in parts where a leaf lies in this process's memory."""
        if self._device.is_apart or self._functions.layout is not None:
            yield from (LeafPart(leaf, leaf) for leaf in self.local())
            return
        for k in self._functions.kept:
            like = _nothing_like(self._local[k])
            each = max(1, bytes_max // like.itemsize)
            for at in range(0, max(1, like.size), each):
                values = np.array(np.asarray(self._local[k]).reshape(-1)[at : at + each])
                yield LeafPart(values, None if at else like)

    @property
    def _kept(self) -> list[Any]:
        """The local leaves that are not frozen."""
        return [self._local[k] for k in self._functions.kept]

    def _held_frozen(self) -> list[Any]:
        """The frozen leaves: a step returns what it was given."""
        return [self._local[k] for k in self._functions.frozen]

    def frozen(self) -> Digests:
        """The digests of the frozen leaves, as they were made."""
        return self._digests

    def forms(self, what: Taken) -> list[Any]:
        """The shapes and dtypes of leaves that can be taken from another life."""
        if what == "lent":
            return [self._local[k] for k in self._functions.lent]
        ahead = [] if what == "local" else [np.empty(_KEYS, np.int64)]
        return [*ahead, *self._kept, *(self._leaves if what == "whole" else [])]

    def fits(self, what: Taken, leaves: Sequence[Any]) -> bool:
        """Whether leaves of another life have these shapes and dtypes; False for lent ones if there are none."""
        return (what != "lent" or len(leaves) > 0) and _forms(leaves) == _forms(self.forms(what))

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Place `leaves`, in the form that `local` returns, as the local leaves; False if their forms differ."""
        return self.fits("local", leaves) and self._take_at(self._functions.kept, leaves)

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
        count = len(self._kept) + 1
        self.take_local(leaves[1:count])
        if len(leaves) > count:
            self._leaves = self._functions.copy(self._functions.put(list(leaves[count:])))
        *words, self._step_number, self._restarts = (int(each) for each in leaves[0])
        life, layout = np.array(words, np.uint32), self._functions.layout
        self._life = jax.device_put(life) if layout is None else layout.put(life, layout.replicated)
        return True

    @property
    def host_waits(self) -> HostWaits:
        """What this host waits for on its devices."""
        return self._device.waits

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        return str(self._devices[0].device_kind)

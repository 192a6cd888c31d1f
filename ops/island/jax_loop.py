"""The device side of inner-step for a loop of the user's own in jax, which makes the steps itself.

A `LoopState` is the tree of arrays that the loop carries from step to step, as leaves by path. The loop gives it after
each step and gets it back, with what was adopted. In between it is the loop's alone, which may donate it: so nothing
here reads a leaf outside of a boundary, and nothing that leaves is one of the loop's buffers. Nor are the loop's leaves
donated here: what is adopted is written into new ones, and whatever else the loop holds stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.merge_rules import FROZEN, LOCAL, is_merged
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.parameter_trees import Rules, first_match, named_leaves
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.contract import scalars_of
from isthmus.ops.island.functions import FragmentFunctions, folded, key_of, words_of
from isthmus.ops.island.host_waits import HostWaits
from isthmus.ops.island.jax_device import JaxDevice, LeavingArray, reach
from isthmus.ops.island.life import LearnerLife, Tensors
from isthmus.ops.island.recipe import counters, is_key

_KEYS: Final = 6
"""Numbers that name a life, and how many steps and restarts it has made."""


class LeafForm(NamedTuple):
    """Shape and dtype of a leaf."""

    shape: tuple[int, ...]
    dtype: Any


@final
class LoopState:
    """A tree of arrays, as its leaves: `names`, `kinds` and `leaves` by place, in the order of `jax.tree.leaves`.

    A leaf that is a number, or NumPy's, becomes one of jax.
    """

    def __init__(self, tree: Any, rules: Rules[Any]) -> None:
        """TypeError, with its name, for a leaf that is no array, or not all in this process."""
        named = named_leaves(tree)
        self.names = [name for name, _ in named]
        self.kinds = [first_match(rules, name) for name in self.names]
        self.leaves = [_array_of(name, leaf) for name, leaf in named]
        self._treedef = jax.tree.structure(tree)
        self._forms = _forms(self.leaves)
        self.merged = [i for i, kind in enumerate(self.kinds) if is_merged(kind)]
        self.local = [i for i, kind in enumerate(self.kinds) if kind == LOCAL]
        self.frozen = [i for i, kind in enumerate(self.kinds) if kind == FROZEN]

    @property
    def tree(self) -> Any:
        """The leaves as the tree that the loop has."""
        return jax.tree.unflatten(self._treedef, self.leaves)

    def take(self, tree: Any) -> None:
        """Go on with a tree of the same form; TypeError, with the first leaf in which it differs."""
        flat: Any = jax.tree.flatten(tree)
        (leaves, treedef), names = flat, self.names
        if treedef != self._treedef:  # In what it has beside arrays, or in its leaves.
            names = [name for name, _ in named_leaves(tree)]
            for here, there in zip_longest(self.names, names):
                if here != there:
                    raise TypeError(f"{there or 'nothing'!r} where {here or 'nothing'!r} was")
        leaves = [_array_of(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        for name, leaf, form in zip(names, leaves, self._forms, strict=True):
            if (leaf.shape, leaf.dtype) != form:
                raise TypeError(f"{name!r} {leaf.dtype}{list(leaf.shape)}, which was {form[1]}{list(form[0])}")
        self.leaves, self._treedef = leaves, treedef

    @property
    def taken_away(self) -> str | None:
        """The name of a leaf that the loop has donated since; None if it has none."""
        return next((n for n, leaf in zip(self.names, self.leaves, strict=True) if leaf.is_deleted()), None)

    def write(self, tensors: Tensors) -> None:
        """Replace all merged leaves by arrays, by name."""
        for i in self.merged:
            self.put(i, tensors[self.names[i]])

    def put(self, place: int, array: Any) -> None:
        """Replace a leaf by an array, on the same devices; random keys come as their data."""
        leaf = self.leaves[place]
        if is_key(leaf):
            self.leaves[place] = jax.random.wrap_key_data(jnp.array(array), impl=jax.random.key_impl(leaf))
            return
        copied = jnp.array(np.asarray(array), leaf.dtype)
        # A leaf that lies where jax puts what is not told to lie elsewhere stays such a one, or the loop's functions
        # would be compiled again for it.
        self.leaves[place] = jax.device_put(copied, leaf.sharding) if leaf.committed else copied

    def array(self, place: int) -> np.ndarray[Any, Any]:
        """A leaf, in a NumPy array of its own; of random keys their data."""
        leaf = self.leaves[place]
        return np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf)

    def shapes(self) -> dict[str, Any]:
        """The `shape` and `dtype` of the merged leaves by name."""
        return {self.names[i]: LeafForm(*self._forms[i]) for i in self.merged}

    def digests(self) -> Digests:
        """The digests of the frozen leaves."""
        return digests_of((self.names[i], self.array(i)) for i in self.frozen)

    def size_bytes(self, places: Iterable[int]) -> int:
        """Bytes of leaves."""
        return int(sum(self.leaves[i].nbytes for i in places))


def _array_of(name: str, leaf: Any) -> Any:
    """A leaf as an array of jax; TypeError if it is none."""
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"{name!r} in a function that jax traces")
    if not isinstance(leaf, jax.Array):
        if not isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(f"{name!r}, a {type(leaf).__name__}")
        return jnp.asarray(leaf)
    if not leaf.is_fully_addressable:
        raise TypeError(f"{name!r} on devices of several processes")
    if leaf.is_deleted():
        raise TypeError(f"{name!r}, which was donated")
    return leaf


def _forms(leaves: Iterable[Any]) -> list[tuple[Any, Any]]:
    return [(leaf.shape, leaf.dtype) for leaf in leaves]


@jax.jit
def _is_constant(leaf: Any) -> Any:
    return jnp.all(leaf == jnp.ravel(leaf)[0])


@final
class StateLearner:
    """The state of a loop (`SoleLearning`, `LoopLearning`); `progress` is that of the step that may be made now.

    Local leaves that begin anew have the values that the loop began with, but for counters, which go on, and random
    keys, which are folded with the life and its restarts. Counters are found by `recipe.counters`; where a life goes on
    after steps of former ones, each that is one number is set as if every step had raised it by one.
    """

    def __init__(self, state: LoopState, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> None:
        self._state = state
        place = {state.names[i]: i for i in state.merged}
        self._touched = [sorted({place[unit.tensor] for unit in fragment.units}) for fragment in fragments]
        self._functions = [
            FragmentFunctions(
                fragment,
                {state.names[i]: at for at, i in enumerate(touched)},
                alpha,
                None,
                _shardings([state.leaves[i] for i in touched]),
                donates=False,
            )
            for fragment, touched in zip(fragments, self._touched, strict=True)
        ]
        counting = counters(list(zip(state.names, state.leaves, strict=True)), state.merged, state.local)
        self._counters = [state.local[k] for k in counting]
        self._keys = [i for i in state.local if is_key(state.leaves[i])]
        self._lent = [i for i in state.local if i not in self._keys]
        self._first = {i: self._first_of(i) for i in state.local}
        self._words = words_of(life).tolist()
        self._step_number = self._restarts = 0
        self._may_step = False
        self._tokens, self._scalars = 0, dict[str, Any]()
        self._device = reach(list(state.leaves[state.merged[0]].devices()))
        self._under_way: Any = None
        self.progress = 0.0

    @property
    def host_waits(self) -> HostWaits:
        """What this host waits for on its devices."""
        return self._device.waits

    def _first_of(self, place: int) -> Any:
        """The first value of a local leaf, for the host to keep: of most moments it is one number."""
        leaf = self._state.leaves[place]
        if not is_key(leaf) and leaf.size > 1 and bool(_is_constant(leaf)):
            return np.broadcast_to(np.asarray(leaf[(0,) * leaf.ndim]), leaf.shape)
        return self._state.array(place)

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        leaf = self._state.leaves[self._state.merged[0]]
        return str(next(iter(leaf.devices())).device_kind)

    def begin(self) -> None:
        """No-op: the first values are those that the loop has brought."""

    def compile(self, batch: Any) -> None:
        """Compile every function that will be called; the step is the loop's."""
        for functions, touched in zip(self._functions, self._touched, strict=True):
            leaves = [self._state.leaves[i] for i in touched]
            functions.extract.lower(leaves).compile()
            functions.replace.lower(leaves, functions.shapes()).compile()
            if functions.adopt is not functions.replace:
                functions.adopt.lower(leaves, functions.shapes()).compile()

    # -- fragments -----------------------------------------------------------------------------------------------------

    def extract(self, fragment: int) -> Any:
        """The values of a fragment after the steps so far, on their way to the host: float32[n] to NumPy."""
        leaves = [self._state.leaves[i] for i in self._touched[fragment]]
        return self._device.leave(self._device.run(self._functions[fragment].extract, leaves), "answer")

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`, float32[n]."""
        self._write(fragment, self._functions[fragment].adopt, values)

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, float32[n], regardless of its present values."""
        self._write(fragment, self._functions[fragment].replace, values)

    def _write(self, fragment: int, adopt: jax.stages.Wrapped, values: Vector) -> None:
        touched, leaves = self._touched[fragment], self._state.leaves
        written = self._device.run(adopt, [leaves[i] for i in touched], self._functions[fragment].put(values))
        for i, leaf in zip(touched, written, strict=True):
            leaves[i] = leaf

    def frozen(self) -> Digests:
        """The digests of the frozen leaves."""
        return self._state.digests()

    # -- whole trees ---------------------------------------------------------------------------------------------------

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""
        self._state.write(parameters)

    def copy(self) -> dict[str, Any]:
        """A copy of all merged leaves after the steps so far, by path."""
        return {self._state.names[i]: jnp.copy(self._state.leaves[i]) for i in self._state.merged}

    def tree(self, leaves: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """A copy in NumPy arrays of its own, by path."""
        return {path: np.array(leaf) for path, leaf in leaves.items()}

    # -- local leaves --------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Initialize the local leaves, but for counters; before the first step random keys alone, which are this
        life's own from then on."""
        anew = set(self._state.local) - set(self._counters) if self._may_step else self._keys
        self._begin_anew(sorted(anew))

    def count_from(self, steps: int) -> None:
        """Initialize them, with counters as after `steps` steps of the slot in its lives before."""
        self._begin_anew(self._state.local)
        for i in self._counters:
            first = self._first[i]
            if first.size == 1:
                self._state.put(i, (first + steps).astype(first.dtype))

    def _begin_anew(self, places: Iterable[int]) -> None:
        number, self._restarts = np.uint32((1 << 31) + self._restarts), self._restarts + 1
        words = np.array(self._words, np.uint32)
        for i in places:
            self._state.put(i, self._first[i])
            if i in self._keys:
                leaves = self._state.leaves
                leaves[i] = folded(jax.random.bits(key_of(words, number)), leaves[i])

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, in NumPy arrays of their own, each after the steps made when it is read."""
        return (self._state.array(i) for i in self._state.local)

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `local` returns; False if their forms differ."""
        return self._take_at(self._state.local, leaves)

    def lend(self) -> list[np.ndarray[Any, Any]]:
        """The local leaves but random keys, in NumPy arrays of their own."""
        return [self._state.array(i) for i in self._lent]

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """Replace these by `leaves`, in the form that `lend` returns; False if empty or of another form."""
        return bool(leaves) and self._take_at(self._lent, leaves)

    def own(self, *, whole: bool) -> list[np.ndarray[Any, Any]]:
        """`local`, preceded by int64[6]: the words of the life whose keys are drawn, its steps and its restarts.

        If `whole`, the merged leaves follow.
        """
        keys = np.array([*self._words, self._step_number, self._restarts], np.int64)
        return [keys, *self.local(), *map(self._state.array, self._state.merged if whole else ())]

    def take_own(self, leaves: Sequence[Any]) -> bool:
        """Continue from leaves in the form that `own` returns, with the random keys that would have come next."""
        if not leaves or _forms(leaves[:1]) != [((_KEYS,), np.dtype(np.int64))]:
            return False
        is_whole = len(leaves) > 1 + len(self._state.local)
        if not self._take_at([*self._state.local, *(self._state.merged if is_whole else ())], leaves[1:]):
            return False
        *self._words, self._step_number, self._restarts = (int(each) for each in leaves[0])
        return True

    def _take_at(self, places: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Place leaves at these places; False, and nothing is placed, if their forms differ."""
        if _forms(leaves) != [_form_at_rest(self._state.leaves[i]) for i in places]:
            return False
        for i, leaf in zip(places, leaves, strict=True):
            self._state.put(i, leaf)
        return True

    # -- the user's step -----------------------------------------------------------------------------------------------

    def open_step(self, progress: float) -> None:
        """Let the user's code make a step, at this share of the budget."""
        self._may_step, self.progress = True, progress
        self._tokens, self._scalars = 0, {}

    def record(self, tokens: int, scalars: Mapping[str, Any]) -> None:
        """Take the tokens and the scalars, 'loss' among them, of the step that was made, whose result the state is."""
        self._tokens, self._scalars = tokens, {name: read_later(value, self._device) for name, value in scalars.items()}

    def made_tokens(self) -> int:
        """The tokens of the step that was made; 0 where none was."""
        return self._tokens

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """The scalars of the step that was made."""
        self._step_number += 1
        before, self._under_way = self._under_way, self._scalars.get("loss")
        if isinstance(before, LeavingArray):  # No more than one step is queued.
            self._device.wait(before.array, "step")
        return self._scalars


def _shardings(leaves: Sequence[Any]) -> list[Any] | None:
    """How leaves lie that are adopted into; None where jax may decide, because each is on one device."""
    if all(len(leaf.devices()) == 1 for leaf in leaves):
        return None
    return [leaf.sharding if leaf.committed else None for leaf in leaves]


def _form_at_rest(leaf: Any) -> tuple[Any, Any]:
    """The form of the array that `LoopState.array` gives of a leaf."""
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return data.shape, data.dtype


def read_later(value: Any, device: JaxDevice | None = None) -> Any:
    """A scalar as a number; one of jax, which may still be computed, is not waited for."""
    if not isinstance(value, jax.Array):
        return float(value)
    scalar = value.reshape(()) if value.ndim else value
    return (reach(list(scalar.devices())) if device is None else device).leave(scalar, "scalars")


@final
class StateEvaluation:
    """The evaluation that a script brings: `evaluate(state)` is a loss, or scalars by name with a 'loss' among them.

    Local leaves are those that the state has. Where it `is_beside` a learner, the state is as before afterwards; its
    merged leaves are there twice meanwhile.
    """

    def __init__(self, state: LoopState, evaluate: Callable[[Any], Any], *, is_beside: bool = False) -> None:
        self._state, self._evaluate, self._is_beside = state, evaluate, is_beside

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The scalars of these merged leaves; TypeError if the script's are none."""
        leaves = list(self._state.leaves)
        self._state.write(tensors)
        try:
            return scalars_of(self._evaluate(self._state.tree), "evaluate(state)")
        finally:
            if self._is_beside:
                self._state.leaves = leaves

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Assembled:
        """The merged leaves that the fragments make up, in NumPy arrays, each made when it is asked for."""
        return Assembled(fragments, values, self._state.shapes())

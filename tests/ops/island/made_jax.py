"""Jax on a made device: what a learner dispatches is computed at once by the CPU, and timed on a virtual clock.

A function that is given arrays of NumPy has them copied behind all that was dispatched before, as `jax_device` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.host_waits import HostWaits, WaitedFor
from tests.made_device import H200_LIKE, MadeDevice, Mark, Memory, Table
from tests.ops.bodies import SmallTask, Spec

SMALL_BYTES: Final = 256
"""What is larger counts as `scale` times as large."""
DISPATCH_SECONDS: Final = 2e-4
"""Of the host, for a jitted function with some hundred arguments."""
KEPT: Final = 1 << 12
"""Arrays of which it is known when they are computed."""


@final
class MadeJax:
    """A `JaxDevice`. `step` is the function that takes the table's seconds of a step; any other takes what it moves.

    What arrives does so behind all that is dispatched, in memory that is allocated as it arrives; with
    `allocates_ahead`, for which jax has no call, in memory that was there before the newest step (decision 0100).
    """

    is_apart = True

    def __init__(self, table: Table = H200_LIKE, *, allocates_ahead: bool = False) -> None:
        self.made = MadeDevice(table)
        self._allocates_ahead = allocates_ahead
        self._allocated = self.made.mark(self.made.computing)
        self.scale = 1.0
        self.step: Any = None
        self.waits = HostWaits(lambda: round(self.made.host.now * 1e9))
        self._out, self._in = self.made.lane("out"), self.made.lane("in")
        self._known: dict[int, tuple[Any, Mark]] = {}
        self._order: deque[int] = deque()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        made = self.made
        given = sum(self._size(each) for each in jax.tree.leaves(arguments) if isinstance(each, np.ndarray))
        made.works(DISPATCH_SECONDS)
        if given:
            self._arrive(given)
        if function is self.step:
            self._allocated = made.mark(made.computing)
        result = function(*arguments)
        moved = sum(map(self._size, jax.tree.leaves(result)))
        made.launch(made.table.step if function is self.step else 2 * moved / made.table.memory_bytes_second)
        for each in jax.tree.leaves(result):
            self._note(each, made.mark(made.computing))
        return result

    def arrive(self, values: Any) -> Any:
        self._arrive(self._size(values))
        return jax.device_put(values)

    def _arrive(self, size: float) -> None:
        made = self.made
        made.order(self._in, self._allocated if self._allocates_ahead else made.mark(made.computing))
        with made.on(self._in):
            made.copy(size, to_host=False)
        made.order(made.computing, made.mark(self._in))

    def has_room(self, size_bytes: int) -> bool:
        return True

    def wait(self, array: Any, what: WaitedFor) -> None:
        with self.waits.during(what):
            self.made.wait_for(self._mark(array))

    def leave(self, value: Any, what: WaitedFor) -> MadeLeaving:
        return MadeLeaving(value, self._copied(value), self, what)

    def there(self, value: Any) -> Any:
        return value.array if isinstance(value, MadeLeaving) else value

    def read(self, array: Any) -> np.ndarray[Any, Any]:
        with self.waits.during("leaves"):
            self.made.wait_for(self._copied(array), is_copy=True)
        return np.asarray(array)

    def _copied(self, value: Any) -> Mark:
        made = self.made
        made.order(self._out, self._mark(value))
        with made.on(self._out):
            made.copy(self._size(value), to_host=True, reads=[Memory("compute")])
        return made.mark(self._out)

    def _mark(self, array: Any) -> Mark:
        found = self._known.get(id(array))
        return found[1] if found is not None and found[0] is array else Mark(0.0, {})

    def _note(self, array: Any, mark: Mark) -> None:
        self._known[id(array)] = array, mark
        self._order.append(id(array))
        if len(self._order) > KEPT:
            self._known.pop(self._order.popleft(), None)

    def _size(self, array: Any) -> float:
        size = float(np.prod(np.shape(array))) * np.dtype(array.dtype).itemsize
        return size * self.scale if size > SMALL_BYTES else size


@final
class MadeLeaving:
    """An array on its way to the host."""

    def __init__(self, array: Any, mark: Mark, device: MadeJax, what: WaitedFor) -> None:
        self.array = array
        self._mark, self._device, self._what = mark, device, what

    def is_ready(self) -> bool:
        return self._device.made.is_done(self._mark)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        with self._device.waits.during(self._what):
            self._device.made.wait_for(self._mark)
        return np.array(self.array, dtype)


@dataclass(frozen=True)
class DeepTask(SmallTask):
    """Some layers of the same size."""

    layers: int = 8
    width: int = 64

    def init(self, key: Any) -> Any:
        keys = jax.random.split(key, self.layers)
        return {f"layer{i}": jax.random.normal(each, (self.width, self.width)) / 8 for i, each in enumerate(keys)}

    def loss(self, params: Any, batch: Any) -> Any:
        x = jnp.tile(batch["x"], (1, self.width // 4))
        for layer in params.values():
            x = jnp.tanh(x @ layer)
        return jnp.mean((x[:, :3] - batch["y"]) ** 2)

    def fragments(self) -> tuple[Fragment, ...]:
        """One for each layer."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return partition([Spec(name, tuple(leaf.shape)) for name, leaf in named_leaves(shapes)], self.layers)

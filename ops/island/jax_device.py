"""The border between a host and its devices in jax: what is dispatched, what leaves, and who waits.

Jax itself queues: a dispatched function returns at once, and what leaves is copied on a queue of its own and waits for
nothing but its own array. What arrives is copied behind all that was dispatched before, whoever asks when: on a GPU
jax's allocator gives memory that what is dispatched may still use (XLA's `kComputeSynchronized`). So a function that is
given an array of NumPy leaves the device idle for as long as that takes to arrive. This decides when a copy to the host
begins, as early as its array is dispatched, and counts who waits for what; what has arrived once need not arrive again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

import jax
import numpy as np

from isthmus.ops.island.host_waits import HostWaits, WaitedFor

ROOM_SHARE: Final = 16
"""Of a device's memory, what may be held there to save copies: an H200 holds the anchors of 2 billion parameters."""


class JaxDevice(Protocol):
    """The devices of an island as a learner reaches them."""

    is_apart: bool
    """Whether they have memory and queues of their own."""
    waits: HostWaits

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Dispatch a jitted function."""

    def arrive(self, values: Any) -> Any:
        """A vector of the host as an array there, for functions that are dispatched from now on."""

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be held there that need not be, but saves copies."""

    def wait(self, array: Any, what: WaitedFor) -> None:
        """Wait until an array is computed."""

    def leave(self, value: Any, what: WaitedFor) -> Any:
        """An array, or parts of one, on its way to the host: something that NumPy converts."""

    def there(self, value: Any) -> Any:
        """The array itself, of one that it lets leave, for a function that is given it."""

    def read(self, array: Any) -> np.ndarray[Any, Any]:
        """An array on the host, after all that computes it; the memory may be jax's."""


@final
class HostMemory:
    """A CPU: what is asked of it is done when the call returns."""

    is_apart = False

    def __init__(self) -> None:
        self.waits = HostWaits()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def arrive(self, values: Any) -> Any:
        return values

    def has_room(self, size_bytes: int) -> bool:
        return False

    def wait(self, array: Any, what: WaitedFor) -> None:
        array.block_until_ready()

    def leave(self, value: Any, what: WaitedFor) -> Any:
        return value

    def there(self, value: Any) -> Any:
        return value

    def read(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)


@final
class Dispatching:
    """Accelerators."""

    is_apart = True

    def __init__(self, devices: Sequence[Any] = ()) -> None:
        self.waits = HostWaits()
        limits = [(each.memory_stats() or {}).get("bytes_limit", 0) for each in devices]
        self._room_bytes = min(limits, default=0) // ROOM_SHARE

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def arrive(self, values: Any) -> Any:
        return jax.device_put(values)

    def has_room(self, size_bytes: int) -> bool:
        return size_bytes <= self._room_bytes

    def wait(self, array: Any, what: WaitedFor) -> None:
        if not array.is_ready():
            with self.waits.during(what):
                array.block_until_ready()

    def leave(self, value: Any, what: WaitedFor) -> LeavingArray:
        value.copy_to_host_async()
        return LeavingArray(value, self.waits, what)

    def there(self, value: Any) -> Any:
        return value.array if isinstance(value, LeavingArray) else value

    def read(self, array: Any) -> np.ndarray[Any, Any]:
        with self.waits.during("leaves"):
            return np.asarray(array)


@final
class LeavingArray:
    """An array on its way to the host; NumPy waits for its own copy."""

    def __init__(self, array: Any, waits: HostWaits, what: WaitedFor) -> None:
        self.array = array
        self._waits, self._what = waits, what
        self._here: np.ndarray[Any, Any] | None = None

    def is_ready(self) -> bool:
        """Whether it is computed."""
        return self._here is not None or bool(self.array.is_ready())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self._here is None:
            with self._waits.during(self._what):
                self._here = np.asarray(self.array)
        here = self._here
        return np.array(here, dtype) if copy else here.astype(here.dtype if dtype is None else dtype, copy=False)


HOST: Final = HostMemory()
_REACHED: Final[dict[tuple[Any, ...], Dispatching]] = {}


def reach(devices: Sequence[Any]) -> JaxDevice:
    """Devices as this process reaches them: the same object for the same devices."""
    if devices[0].platform == "cpu":
        return HOST
    return _REACHED.get(tuple(devices)) or _REACHED.setdefault(tuple(devices), Dispatching(devices))

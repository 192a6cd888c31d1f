"""The border between a host and the device of a module in PyTorch: what crosses it, on which queue, and who waits.

Decides that the queue on which a device computes is never emptied by us. What leaves is captured there, by a copy on
the device, and copied to the host on a queue of its own; what arrives is copied on a third one, which waits for nothing
that is computed. A host waits for marks (events), never inside of a copy, and each wait is counted by name.

Memory. The caching allocator of a device gives memory back to the queue that it was allocated on, which does not know
of other queues: so whatever another queue uses is kept until that queue has passed it (`record_stream`). Pinned memory
is cached, too, and its allocator itself waits for the copies that were queued from and to it. What leaves is there
twice on the device until it is copied, and what arrives until it is adopted: a fragment each. Of a whole model that
arrives no more than ARRIVING_BYTES_MAX, or two fragments, is on its way at a time: then a host waits. One that leaves
is there twice as a whole until it is copied.

On a CPU nothing is queued: everything here is then what it would be without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, final

import ml_dtypes
import numpy as np
import torch

from isthmus.ops.island.host_waits import HostWaits, WaitedFor

ARRIVING_BYTES_MAX: Final = 256 << 20
"""Bytes that a device holds of what has arrived and is not adopted, unless two fragments are more."""


class QueueDriver(Protocol):
    """What is used of a device's framework: `torch.cuda`, for one device."""

    def queue(self) -> Any:
        """A new queue."""

    def computing(self) -> Any:
        """The queue on which this thread's operations compute."""

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        """Operations meanwhile are put on a queue."""

    def mark(self, queue: Any) -> Any:
        """A mark behind all that a queue has."""

    def order(self, queue: Any, mark: Any) -> None:
        """Have a queue begin what it gets from now on once a mark is reached; the host goes on."""

    def is_reached(self, mark: Any) -> bool:
        """Whether a host would not wait."""

    def wait(self, mark: Any) -> None:
        """Have the host wait until a mark is reached."""

    def keep(self, tensor: torch.Tensor, queue: Any) -> None:
        """Leave the memory of a tensor alone until a queue has done all that it has when the tensor is gone."""

    def room(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """New memory of the device, on the present queue."""

    def pinned(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """New memory of the host that a device copies from and to by itself."""

    def now(self) -> int:
        """The host's clock, in nanoseconds."""


class TorchDevice(Protocol):
    """A device as learners reach it."""

    is_apart: bool
    """Whether it has memory and a queue of its own."""
    waits: HostWaits

    def room(self, size: int) -> torch.Tensor:
        """New memory on the device, float32[size]."""

    def leave(self, values: torch.Tensor, what: WaitedFor) -> Any:
        """Values on their way to the host, as something that NumPy converts, in memory of their own. Nothing may write
        them from now on."""

    def scalar(self, value: torch.Tensor) -> Any:
        """The same of one number: a float where nothing has to be waited for."""

    def arrive(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the host, for what computes from now on; they may be written once this returns."""

    def expect(self, size_bytes: int) -> None:
        """Let so much arrive without a wait."""

    def read(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Copy values, after all that computes them, into memory of the host; it waits."""

    def mark(self) -> Any:
        """A mark behind all that is queued."""

    def wait(self, mark: Any, what: WaitedFor) -> None:
        """Wait until a mark is reached."""


@final
class Direct:
    """A device without queues of which we know: a CPU, which computes in the calling thread. Each copy blocks."""

    is_apart = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.waits = HostWaits()

    def room(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=self._device)

    def leave(self, values: torch.Tensor, what: WaitedFor) -> Any:
        return array_in(values.cpu())

    def scalar(self, value: torch.Tensor) -> float:
        return float(value)

    def arrive(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._device)

    def expect(self, size_bytes: int) -> None:
        return

    def read(self, values: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(values)

    def mark(self) -> None:
        return None

    def wait(self, mark: Any, what: WaitedFor) -> None:
        return


@final
class Queued:
    """A device with queues: one that computes, one that copies to the host, and one that copies from it."""

    is_apart = True

    def __init__(self, driver: QueueDriver) -> None:
        self._driver = driver
        self._out, self._in = driver.queue(), driver.queue()
        self.waits = HostWaits(driver.now)
        self._arriving_max = ARRIVING_BYTES_MAX
        self._arriving = deque[tuple[Any, int]]()
        """Bytes that have arrived, and a mark behind what adopts them: of the last ones it is not queued yet."""
        self._arriving_bytes = self._newest_bytes = 0
        self._making_room = threading.Lock()
        """Learners of one process reach a device by the same object."""

    def room(self, size: int) -> torch.Tensor:
        return self._driver.room(size, torch.float32)

    def leave(self, values: torch.Tensor, what: WaitedFor) -> Leaving:
        driver = self._driver
        driver.order(self._out, driver.mark(driver.computing()))
        copied = driver.pinned(values.shape, values.dtype)
        with driver.on(self._out):
            copied.copy_(values, non_blocking=True)
        driver.keep(values, self._out)
        return Leaving(copied, driver.mark(self._out), self, what)

    def scalar(self, value: torch.Tensor) -> Leaving:
        # A view would be of what the next step may write: an operation of it is not.
        return self.leave(value.detach().reshape(()).clone(), "scalars")

    def arrive(self, values: torch.Tensor) -> torch.Tensor:
        driver, computing = self._driver, self._driver.computing()
        with self._making_room:
            self._make_room(values.numel() * values.element_size())
        staged = driver.pinned(values.shape, values.dtype)
        staged.copy_(values)
        with driver.on(
            self._in
        ):  # Its memory, too, is of that queue: of the other one it would wait for what computes.
            arrived = driver.room(values.shape, values.dtype)
            arrived.copy_(staged, non_blocking=True)
        driver.order(computing, driver.mark(self._in))
        driver.keep(arrived, computing)
        return arrived

    def expect(self, size_bytes: int) -> None:
        self._arriving_max = max(size_bytes, self._arriving_max)

    def _make_room(self, size_bytes: int) -> None:
        """Have so many bytes arrive; wait until others are adopted, if they are too many."""
        if self._newest_bytes:
            self._arriving.append((self.mark(), self._newest_bytes))
        self._newest_bytes = size_bytes
        self._arriving_bytes += size_bytes
        while self._arriving:
            mark, passed = self._arriving[0]
            if self._arriving_bytes > self._arriving_max:
                self.wait(mark, "arrivals")
            elif not self.is_reached(mark):
                return
            self._arriving.popleft()
            self._arriving_bytes -= passed

    def read(self, values: torch.Tensor, out: torch.Tensor) -> None:
        driver = self._driver
        staged = driver.pinned(values.shape, values.dtype)
        driver.order(self._out, driver.mark(driver.computing()))
        with driver.on(self._out):
            staged.copy_(values, non_blocking=True)
        mark = driver.mark(self._out)
        # Not by another thread either may the values be written, or their memory be given away, before.
        driver.order(driver.computing(), mark)
        self.wait(mark, "leaves")
        out.copy_(staged)

    def mark(self) -> Any:
        return self._driver.mark(self._driver.computing())

    def wait(self, mark: Any, what: WaitedFor) -> None:
        if not self._driver.is_reached(mark):
            with self.waits.during(what):
                self._driver.wait(mark)

    def is_reached(self, mark: Any) -> bool:
        """Whether a host would not wait for a mark."""
        return self._driver.is_reached(mark)


@final
class Leaving:
    """Values on their way to the host; NumPy waits for their own copy, and for nothing that was asked for after it."""

    def __init__(self, copied: torch.Tensor, mark: Any, device: Queued, what: WaitedFor) -> None:
        self._copied, self._mark, self._device, self._what = copied, mark, device, what
        self._is_here = False

    def is_ready(self) -> bool:
        """Whether NumPy would not wait."""
        return self._is_here or self._device.is_reached(self._mark)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if not self._is_here:
            self._device.wait(self._mark, self._what)
            self._is_here = True
        array = array_in(self._copied)
        return np.array(array, dtype) if copy else array.astype(array.dtype if dtype is None else dtype, copy=False)


@final
class StepBound:
    """The bound on what is queued: at most one step behind the one that is computed."""

    def __init__(self, device: TorchDevice) -> None:
        self._device = device
        self._newest: Any = None

    def queued(self) -> None:
        """A step was queued; wait until the one before it is computed, and not for this one."""
        if self._device.is_apart:
            before, self._newest = self._newest, self._device.mark()
            if before is not None:
                self._device.wait(before, "step")


@final
class CudaDriver:
    """The driver of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def queue(self) -> Any:
        return torch.cuda.Stream(self._device)

    def computing(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(queue)  # type: ignore[no-any-return]

    def mark(self, queue: Any) -> Any:
        event = torch.cuda.Event(blocking=True)  # Else whoever waits takes a core meanwhile.
        event.record(queue)
        return event

    def order(self, queue: Any, mark: Any) -> None:
        queue.wait_event(mark)

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def keep(self, tensor: torch.Tensor, queue: Any) -> None:
        tensor.record_stream(queue)

    def room(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def pinned(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def now(self) -> int:
        return time.perf_counter_ns()


DRIVERS: Final[dict[str, Callable[[torch.device], QueueDriver]]] = {"cuda": CudaDriver}
"""By the type of a device: those that have queues."""
_REACHED: Final[dict[torch.device, TorchDevice]] = {}
"""Of a test that has made one, that one."""


def reach(device: torch.device) -> TorchDevice:
    """A device as this process reaches it: the same object for one device."""
    found = _REACHED.get(device)
    if found is None:
        make = DRIVERS.get(device.type)
        found = _REACHED[device] = Direct(device) if make is None else Queued(make(device))
    return found


def array_in(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array in the memory of a tensor of the host."""
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())

"""PyTorch on a made device: tensors of the CPU that count as the device's, and every operation on them is timed.

A `TorchDispatchMode` sees each operation of ATen, of the backward pass, too: one on memory of the device is put on the
current lane; a copy between it and other memory is one by the engine, which blocks unless it may not and the host's
memory is pinned; and a value that is read (`item()`) blocks until all that the lane has is done. What a copy to the
host writes is there once a host has waited for it; before, it is not a number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isthmus.ops.island import torch_device
from isthmus.ops.island.torch_model import Model
from tests.made_device import H200_LIKE, Lane, MadeDevice, Mark, Memory, Table

SMALL_BYTES: Final = 256
"""What is larger counts as `scale` times as large."""
_NO_WORK: Final = frozenset(
    [
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "expand",
        "permute",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "split",
        "unbind",
        "as_strided",
        "split_with_sizes",
        "_reshape_alias",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "lift_fresh",
        "_record_function_enter_new",
        "_record_function_exit",
        "set_",
        "resize_",
        "is_same_size",
        "unfold",
        "diagonal",
        "chunk",
    ]
)

_PRODUCTS: Final = frozenset(["mm", "addmm", "bmm", "baddbmm"])


@contextmanager
def made_torch(table: Table = H200_LIKE, *, scale: float = 1.0) -> Iterator[MadeTorch]:
    """A made device in the place of the CPU: learners that are made meanwhile reach it as they reach a GPU."""
    mode = MadeTorch(MadeDevice(table), scale=scale)
    device, before, make = torch.device("cpu"), dict(torch_device._REACHED), Model.__init__

    def adopting(model: Model, *given: Any, **named: Any) -> None:
        make(model, *given, **named)
        mode.adopt(list(model.leaves.values()))

    torch_device._REACHED[device] = torch_device.Queued(mode)
    Model.__init__ = adopting  # type: ignore[method-assign]
    try:
        with mode:
            yield mode
    finally:
        Model.__init__ = make  # type: ignore[method-assign]
        torch_device._REACHED.clear()
        torch_device._REACHED.update(before)


@final
class MadeTorch(TorchDispatchMode):
    """The mode; `with` it, what is done to tensors of the device is timed. `adopt` makes tensors the device's."""

    def __init__(self, made: MadeDevice, *, scale: float = 1.0) -> None:
        super().__init__()
        self.made, self.scale = made, scale
        self.product = 0.0
        """The device's seconds for each product of matrices. All else takes what it moves in memory."""
        self._products, self._moving = 0, 0.0
        self._memory: dict[int, Memory] = {}
        self._pinned: dict[int, Memory] = {}
        self._late: list[tuple[Mark, Callable[[], None]]] = []

    def let_take(self, seconds: float, make: Callable[[int], None]) -> None:
        """Let a step take so long, by its products; `make` makes two, of which the first is another one."""
        make(0)
        products, moving = self._products, self._moving
        make(1)
        self.product = (seconds - (self._moving - moving)) / max(1, self._products - products)

    def adopt(self, tensors: Any) -> None:
        """Let these tensors lie on the device."""
        for each in tree_leaves(tensors):
            if isinstance(each, torch.Tensor):
                self._register(each, self._memory)

    def pinned(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """New pinned memory of the host."""
        room = torch.empty(shape, dtype=dtype)
        self._register(room, self._pinned)
        return room

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return _key(tensor) in self._memory

    def keep(self, tensor: torch.Tensor, lane: Lane) -> None:
        """Let memory not be given back before what this lane has been given by then is done."""
        self._memory[_key(tensor)].kept.add(lane.name)

    def _arrived(self, mark: Mark) -> None:
        """A host has waited for a mark: what was copied to it by then is there."""
        due = [each for each in self._late if each[0].at <= mark.at]
        self._late = [each for each in self._late if each[0].at > mark.at]
        for _, write in due:
            write()

    def _register(self, tensor: torch.Tensor, among: dict[int, Memory]) -> Memory:
        key = _key(tensor)
        if key not in among:
            memory = among[key] = self.made.memory()
            weakref.finalize(tensor.untyped_storage(), self._forget, key, among, memory).atexit = False
        return among[key]

    def _forget(self, key: int, among: dict[int, Memory], memory: Memory) -> None:
        if among.get(key) is memory:
            del among[key]
            if among is self._memory:
                self.made.given_back(memory)

    # -- the driver (`torch_device.QueueDriver`) -------------------------------------------------------------------

    def queue(self) -> Lane:
        return self.made.lane("copies")

    def computing(self) -> Lane:
        return self.made.computing

    def on(self, queue: Lane) -> AbstractContextManager[Any]:
        return self.made.on(queue)

    def mark(self, queue: Lane) -> Mark:
        return self.made.mark(queue)

    def order(self, queue: Lane, mark: Mark) -> None:
        self.made.order(queue, mark)

    def is_reached(self, mark: Mark) -> bool:
        is_done = self.made.is_done(mark)
        if is_done:
            self._arrived(mark)
        return is_done

    def wait(self, mark: Mark) -> None:
        self.made.wait_for(mark)
        self._arrived(mark)

    def room(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        room = torch.empty(shape, dtype=dtype)
        self.adopt(room)
        return room

    def now(self) -> int:
        return round(self.made.host.now * 1e9)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation.__name__.partition(".")[0]
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if not any(map(self.is_on_device, given)):
            if name == "copy_" and any(_key(each) in self._pinned for each in given):
                self.made.works(self._size(given[0]) / self.made.table.host_bytes_second)
            return operation(*args, **kwargs)
        if name in ("_local_scalar_dense", "equal"):
            self.made.copy(SMALL_BYTES, to_host=True, reads=self._of(given), blocks=True)
            return operation(*args, **kwargs)
        if name == "copy_" and not all(map(self.is_on_device, args[:2])):
            return self._crossing(operation, args, kwargs)
        result = operation(*args, **kwargs)
        if name in _NO_WORK:
            if name.startswith(("empty", "new_empty")):
                self.adopt(result)
            return result
        written = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        written += given if not written else []  # As of the operations on lists in place.
        self.adopt(written)
        moving = sum(map(self._size, [*given, *written])) / self.made.table.memory_bytes_second
        is_product = name in _PRODUCTS
        self._products, self._moving = self._products + is_product, self._moving + moving
        self.made.launch(moving + self.product * is_product, reads=self._of(given), writes=self._of(written))
        return result

    def _crossing(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """A copy between the device and the host."""
        target, source = args[:2]
        to_host = self.is_on_device(source)
        may_go_on = bool((args[2:] or (kwargs.get("non_blocking", False),))[0])
        is_pinned = _key(target if to_host else source) in self._pinned
        blocks = not (may_go_on and is_pinned)
        reads = self._of([source]) if to_host else []
        writes = [] if to_host else self._of([target])
        self.made.copy(self._size(source), to_host=to_host, reads=reads, writes=writes, blocks=blocks)
        if blocks or not to_host:
            return operation(*args, **kwargs)
        values = source.detach().clone()
        operation(target, torch.full_like(values, float("nan") if values.dtype.is_floating_point else 85))
        late = target.detach()
        self._late.append((self.made.mark(self.made.current), lambda: _write(late, values)))
        return target

    def _size(self, tensor: torch.Tensor) -> float:
        size = tensor.numel() * tensor.element_size()
        return size * self.scale if size > SMALL_BYTES else size

    def _of(self, tensors: list[torch.Tensor]) -> list[Memory]:
        return [self._memory[key] for each in tensors if (key := _key(each)) in self._memory]


def _write(target: torch.Tensor, values: torch.Tensor) -> None:
    target.copy_(values)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)

"""A module of PyTorch as a learner and an evaluation use it: its leaves by path, and arrays in and out.

A leaf is a parameter or a buffer. Its path is its name with `/` for `.`, without the segments that `torch.compile`
adds; a tied weight is one leaf, under its first name. A parameter has the kind that the task's rules say; one that
needs no gradient is frozen, unless it is local. A buffer that is saved with the module and is floating-point is a
`mean`, unless a rule says that it is local or frozen; all other buffers are local.

Where a leaf's values lie is not known here: `LeafAccess` reads and writes them, in this process or in several.

Random numbers come from torch's own generators, of which a process has one for each device. So what draws does it in a
`drawing` block: it seeds them first, and no other thread draws from them meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, Self, final

import ml_dtypes
import numpy as np
import torch

from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.merge_rules import FROZEN, LOCAL, MEAN, is_merged
from isthmus.ops.exchange.parameter_trees import Rules, first_match, matches

_COMPILED: Final = "_orig_mod"
"""The name under which a compiled module has the module that it was made of."""
_SEED_MAX: Final = (1 << 64) - 1
_DRAWING: Final = threading.Lock()
"""Held by the thread that draws from the generators of this process."""


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Let this thread alone draw from torch's generators, which begin at `seed`, of which they take 64 bits.

    Every step does it. `torch.manual_seed` would do the same, but takes half a millisecond where no GPU is used: it
    keeps a stack trace for the day when one is.
    """
    with _DRAWING:
        torch.default_generator.manual_seed(seed & _SEED_MAX)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed & _SEED_MAX)
        yield


class ModuleTask(Protocol):
    """What is used here of a task."""

    @property
    def build(self) -> Callable[[], Any]:
        """Makes the module, with first values from torch's generator."""

    @property
    def loss(self) -> Callable[[Any, Any], Any]:
        """(module, batch) -> the scalar to minimise, or a pair of it and other scalars by name."""

    @property
    def optimizer(self) -> Any:
        """(module) -> its optimizer."""

    @property
    def rate(self) -> Callable[[float], float] | None:
        """(progress) -> the factor of the learning rate."""

    @property
    def rules(self) -> Rules[Any]:
        """Patterns and kinds, of parameters."""

    def evaluation_batches(self, seed: int) -> Iterator[Any]:
        """The batches of the evaluation."""


class LeafAccess(Protocol):
    """How values of leaves are read and written, which may lie in several processes that call this together.

    In all but the leading process of several, arguments have the right shape and dtype, and no values.
    """

    def fetch(self, leaf: torch.Tensor, out: torch.Tensor, rows: slice | None = None) -> None:
        """Copy the values of a leaf, or those of some rows, into `out`, on the CPU."""

    def store(self, leaf: torch.Tensor, values: torch.Tensor, rows: slice | None = None, *, alpha: float = 0.0) -> None:
        """Replace a leaf, or some rows, by alpha times itself and 1 - alpha times `values`, where it lies."""

    def share(self, array: Any) -> Any:
        """A NumPy array with values that every process needs."""

    def form(self, value: torch.Tensor) -> torch.Tensor:
        """Zeros of the form of a value, without memory of their own; `torch.empty_like` makes a tensor of it."""

    def size_bytes(self, leaf: torch.Tensor) -> int:
        """The bytes of a leaf in this process."""


@final
class SoleAccess:
    """Access to leaves of which this process has all."""

    def fetch(self, leaf: torch.Tensor, out: torch.Tensor, rows: slice | None = None) -> None:
        out.copy_(leaf.detach() if rows is None else leaf.detach()[rows])

    def store(self, leaf: torch.Tensor, values: torch.Tensor, rows: slice | None = None, *, alpha: float = 0.0) -> None:
        mix(leaf.detach() if rows is None else leaf.detach()[rows], values, alpha)

    def share(self, array: Any) -> Any:
        return array

    def form(self, value: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)

    def size_bytes(self, leaf: torch.Tensor) -> int:
        return int(leaf.numel()) * int(leaf.element_size())


SOLE: Final = SoleAccess()


def mix(values: torch.Tensor, new: torch.Tensor, alpha: float) -> None:
    """Replace values, where they lie, by alpha times themselves and 1 - alpha times new ones of any dtype."""
    new = new.to(values.device)
    values.copy_(alpha * values.to(new.dtype) + (1.0 - alpha) * new if alpha else new)


@final
class Model:
    """A module with its leaves by path, in the module's order: `merged`, `local` and `frozen` ones."""

    def __init__(self, module: Any, rules: Rules[Any], device: torch.device, access: LeafAccess = SOLE) -> None:
        """The leaves of a module, all of which lie on a device."""
        self.module: Any = module
        self.device = device
        self.access = access
        kinds = dict(_kinds(_bare(module), rules))
        self.leaves: dict[str, Any] = {path: tensor for path, tensor, _ in _named(_bare(module))}
        self.kinds: dict[str, str | None] = kinds
        self.merged = {path: tensor for path, tensor in self.leaves.items() if is_merged(kinds[path])}
        self.local = {path: tensor for path, tensor in self.leaves.items() if kinds[path] == LOCAL}
        self.frozen = {path: tensor for path, tensor in self.leaves.items() if kinds[path] == FROZEN}
        for tensor in self.frozen.values():
            tensor.requires_grad_(requires_grad=False)
        self.paths = {id(tensor): path for path, tensor in self.leaves.items()}

    @classmethod
    def built(cls, task: ModuleTask, seed: int, device: torch.device) -> Self:
        """Build the module of a task on the CPU, with the same first values on every device, and move it to `device`.

        TypeError if the task builds something else.
        """
        with drawing(seed):
            torch.manual_seed(seed & _SEED_MAX)  # Of GPUs that `build` is the first to use, too.
            module = task.build()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"build() returns a torch.nn.Module, not a {type(module).__name__}")
        return cls(module.to(device), task.rules, device)

    def places(self) -> list[tuple[dict[str, Any], str, str]]:
        """Where the module has each merged leaf: a dict of one of its parts, the key in that, and the leaf's path."""
        found = list[tuple[dict[str, Any], str, str]]()
        for part in self.module.modules():
            for tensors in (part._parameters, part._buffers):
                named = ((name, self.paths.get(id(tensor))) for name, tensor in tensors.items())
                found += [(tensors, name, path) for name, path in named if path in self.merged]
        return found

    def digests(self) -> Digests:
        """The digests of the frozen leaves."""
        return digests_of((path, self.array(leaf)) for path, leaf in self.frozen.items())

    def array(self, leaf: torch.Tensor) -> np.ndarray[Any, Any]:
        """The values of a leaf, or of a state of an optimizer, in a NumPy array of its own."""
        copied = torch.empty(leaf.shape, dtype=leaf.dtype)
        self.access.fetch(leaf, copied)
        return array_in(copied)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Replace all merged leaves by arrays, where they lie."""
        for path, leaf in self.merged.items():
            self.access.store(leaf, tensor_of(tensors[path]).reshape(leaf.shape))


def _bare(module: Any) -> Any:
    """The module itself, of one that is wrapped for several processes."""
    inner = getattr(module, _COMPILED, module)
    return inner.module if isinstance(inner, torch.nn.parallel.DistributedDataParallel) else module


def _named(module: Any) -> Iterator[tuple[str, Any, bool]]:
    """(path, tensor, whether it is a parameter) of every leaf of a module, each once."""
    for name, parameter in module.named_parameters():
        yield _path(name), parameter, True
    for name, buffer in module.named_buffers():
        yield _path(name), buffer, False


def _path(name: str) -> str:
    return "/".join(part for part in name.split(".") if part != _COMPILED)


def _kinds(module: Any, rules: Rules[Any]) -> Iterator[tuple[str, str | None]]:
    """(path, kind) of every leaf."""
    saved = {_path(name) for name in module.state_dict()}
    for path, tensor, is_parameter in _named(module):
        if is_parameter:
            kind = first_match(rules, path)
            yield path, kind if tensor.requires_grad or kind == LOCAL else FROZEN
        elif path in saved and tensor.dtype.is_floating_point:
            ruled = (kind for pattern, kind in rules if kind in (MEAN.name, LOCAL, FROZEN) and matches(pattern, path))
            yield path, next(ruled, MEAN.name)
        else:
            yield path, LOCAL


def device_of(slot: int) -> torch.device:
    """The device of the learner in a slot: of several GPUs that this process sees, one after the other."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", slot % torch.cuda.device_count())


def dtype_name(tensor: Any) -> str:
    """The name of a tensor's dtype, as NumPy and ml_dtypes have it."""
    return str(tensor.dtype).removeprefix("torch.")


class ArrayForm(NamedTuple):
    """Shape and NumPy dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def form_of(value: Any) -> ArrayForm:
    """The form of the array that has the values of a tensor, or a number; no values are read."""
    if not isinstance(value, torch.Tensor):
        return ArrayForm((), np.array(value).dtype)
    return ArrayForm(tuple(value.shape), array_of(torch.empty(0, dtype=value.dtype)).dtype)


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor in the memory of a NumPy array, which must only be read: the array may be read-only.

    Torch has no read-only tensors, and warns where it makes a tensor of such an array.
    """
    array = np.require(array, requirements="C")
    if array.dtype == ml_dtypes.bfloat16:
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable:
        array = np.asarray(_Writeable(array))
    return torch.from_numpy(array)


@final
class _Writeable:
    """The memory of an array, as if it could be written."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array  # Keeps the memory.
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor, in a NumPy array of its own."""
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    copied.copy_(tensor.detach())
    return array_in(copied)


def array_in(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array in the memory of a tensor on the CPU."""
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch of dicts, lists and tuples with each NumPy array as a tensor of its own on a device."""
    if isinstance(batch, Mapping):
        return {name: on_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [on_device(value, device) for value in batch]
        return values if isinstance(batch, list) else tuple(values)
    if isinstance(batch, np.ndarray | np.generic):
        return tensor_of(np.array(batch)).to(device)
    return batch


def with_scalars(loss: Callable[[Any, Any], Any], module: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The value that a loss minimises, and its scalars by name: 'loss' is the value, unless one has that name."""
    result = loss(module, batch)
    value, scalars = result if isinstance(result, tuple) else (result, {})
    return value, {"loss": value, **scalars}


@final
class OptimizerState:
    """The state of an optimizer as arrays.

    Optimizers make their state in the step that first needs it. So its form is found by a step along zeros, at a rate
    of 0, which leaves no trace: `optimizer` has then made no step. Of each parameter it is told whether it has a state
    yet, because that is not zeros in every optimizer (NAdam's begins with ones).
    """

    def __init__(self, optimizer: Any, model: Model) -> None:
        """TypeError for something else than an optimizer over parameters of the module, or for one that keeps what is
        neither a tensor nor a number."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"a {type(optimizer).__name__}, which is no torch.optim.Optimizer")
        if any(id(each) not in model.paths for group in optimizer.param_groups for each in group["params"]):
            raise TypeError("an optimizer of other parameters than the module's")
        self.optimizer: Any = optimizer
        self._model = model
        self._forms = self._forms_kept()

    def begin(self, optimizer: Any = None) -> None:
        """Forget what the optimizer has kept; go on with another one of its kind, if it is given."""
        self.optimizer = self.optimizer if optimizer is None else optimizer
        self.optimizer.state.clear()

    @property
    def size_bytes(self) -> int:
        """Bytes of the state in this process, once it is made."""
        tensors = [each for form in self._forms.values() for each in form.values() if isinstance(each, torch.Tensor)]
        return sum(map(self._model.access.size_bytes, tensors))

    def arrays(self, *, of_merged: bool = False) -> Iterator[np.ndarray[Any, Any]]:
        """For each parameter 1 where it has a state, uint8[n]; then the states, in NumPy arrays of their own.

        None at all where the optimizer keeps nothing. `of_merged`: of merged parameters only.
        """
        parameters = self._parameters(of_merged=of_merged)
        if not parameters:
            return
        yield np.array([bool(self.optimizer.state.get(each)) for _, each in parameters], np.uint8)
        for path, parameter in parameters:
            state = self.optimizer.state.get(parameter) or {}
            for key, form in self._forms[path].items():
                value = state.get(key, form)
                yield self._model.array(value) if isinstance(value, torch.Tensor) else np.array(value)

    def forms(self, *, of_merged: bool = False) -> list[ArrayForm]:
        """Shapes and dtypes of `arrays`."""
        parameters = self._parameters(of_merged=of_merged)
        forms = [form_of(each) for path, _ in parameters for each in self._forms[path].values()]
        return [ArrayForm((len(parameters),), np.dtype(np.uint8)), *forms] if parameters else []

    def take(self, arrays: list[Any], *, of_merged: bool = False) -> None:
        """Replace the states by such arrays, which have these forms."""
        left = iter(arrays)
        parameters = self._parameters(of_merged=of_merged)
        flags = self._model.access.share(next(left)) if parameters else ()
        for (path, parameter), has_state in zip(parameters, flags, strict=True):
            taken = {key: next(left) for key in self._forms[path]}
            self.optimizer.state.pop(parameter, None)
            if has_state:
                state = {key: self._value(form, taken[key]) for key, form in self._forms[path].items()}
                self.optimizer.state[parameter] = state

    def _value(self, form: Any, array: Any) -> Any:
        """A value of the state of this form, from an array, in memory of its own."""
        access = self._model.access
        if not isinstance(form, torch.Tensor):
            return type(form)(np.asarray(access.share(array)).item())
        value = torch.empty_like(form)
        access.store(value, tensor_of(array).reshape(form.shape))
        return value

    def _parameters(self, *, of_merged: bool) -> list[tuple[str, Any]]:
        """(path, parameter) of those with a state, in the order of the optimizer's groups."""
        every = [each for group in self.optimizer.param_groups for each in group["params"]]
        named = [(self._model.paths[id(each)], each) for each in every]
        return [(path, each) for path, each in named if self._forms[path] and not (of_merged and self._is_local(path))]

    def _is_local(self, path: str) -> bool:
        return path in self._model.local

    def _forms_kept(self) -> dict[str, dict[str, Any]]:
        """By path and key what the optimizer keeps: zeros of the form of a tensor, or a number."""
        optimizer, forms = self.optimizer, dict[str, dict[str, Any]]()
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        kept, gradients = dict(optimizer.state), [each.grad for each in parameters]
        settings = [dict(group) for group in optimizer.param_groups]
        optimizer.state.clear()
        try:
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            optimizer.step()
            for parameter in parameters:
                state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}
                odd = [key for key, value in state.items() if not isinstance(value, torch.Tensor | bool | int | float)]
                if odd:
                    raise TypeError(f"the optimizer keeps {odd[0]!r}, which is neither a tensor nor a number")
                forms[self._model.paths[id(parameter)]] = {key: self._form(state[key]) for key in sorted(state)}
        finally:
            optimizer.state.clear()
            optimizer.state.update(kept)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            for group, setting in zip(optimizer.param_groups, settings, strict=True):
                group.update(setting)
        return forms

    def _form(self, value: Any) -> Any:
        return self._model.access.form(value) if isinstance(value, torch.Tensor) else type(value)()


@final
class GroupRates:
    """The learning rates of an optimizer's groups, as it was made with them, times a factor that follows progress."""

    def __init__(self, optimizer: Any, factor: Callable[[float], float] | None) -> None:
        self._optimizer, self._factor = optimizer, factor
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def follow(self, progress: float) -> None:
        """Set the learning rate of every group for this share of the budget."""
        if self._factor is None:
            return
        factor = float(self._factor(progress))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

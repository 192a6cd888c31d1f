"""A module of PyTorch as a learner and an evaluation use it: its leaves by path, and arrays in and out.

A leaf is a parameter or a buffer. Its path is its name with `/` for `.`, without the segments that `torch.compile`
adds; a tied weight is one leaf, under its first name. A parameter has the kind that the task's rules say; one that
needs no gradient is frozen, unless it is local, or, in a loop of the user's own, a rule names it: then it takes part
also while it needs none (`is_named`). A buffer that is saved with the module and is floating-point is a `mean`, unless
a rule says that it is local or frozen; all other buffers are local.

Where a leaf's values lie is not known here: `LeafAccess` reads and writes them, in this process or in several.

Random numbers come from torch's own generators, of which a process has one for each device. So what draws does it in a
`drawing` block: it seeds them first, and no other thread draws from them meanwhile.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, Self, final

import ml_dtypes
import numpy as np
import torch

from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.merge_rules import FROZEN, LOCAL, MEAN, is_merged
from isthmus.ops.exchange.parameter_trees import EVERYTHING, Rules, first_match, matches
from isthmus.ops.island.torch_device import array_in, reach

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


class LeafCut(NamedTuple):
    """A leaf, or some rows of it; of a vector of several of them, `where` its values are there, in which shape."""

    leaf: torch.Tensor
    rows: slice | None
    where: slice = slice(0)
    shape: tuple[int, ...] = ()


class LeafAccess(Protocol):
    """How values of leaves are read and written, which may lie in several processes that call this together.

    In all but the leading process of several, arguments have the right shape and dtype, and no values.
    """

    def fetch(self, leaf: torch.Tensor, out: torch.Tensor, rows: slice | None = None) -> None:
        """Copy the values of a leaf, or those of some rows, into `out`, on the CPU."""

    def store(self, leaf: torch.Tensor, values: torch.Tensor, rows: slice | None = None, *, alpha: float = 0.0) -> None:
        """Replace a leaf, or some rows, by alpha times itself and 1 - alpha times `values`, where it lies."""

    def gather(self, cuts: Sequence[LeafCut], size: int) -> Any:
        """Values of several leaves in one vector, float32[size] to NumPy, on their way from devices that are apart to
        the leading process; None where `fetch` is the way."""

    def whole(self, leaf: torch.Tensor, rows: slice | None = None) -> torch.Tensor | None:
        """The values of a leaf, or those of some rows, where they lie; None where they are not all in this process, or
        are another one's to read."""

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
        reach(leaf.device).read(self.whole(leaf, rows), out)

    def store(self, leaf: torch.Tensor, values: torch.Tensor, rows: slice | None = None, *, alpha: float = 0.0) -> None:
        mix(self.whole(leaf, rows), reach(leaf.device).arrive(values), alpha)

    def gather(self, cuts: Sequence[LeafCut], size: int) -> Any:
        return None

    def whole(self, leaf: torch.Tensor, rows: slice | None = None) -> torch.Tensor:
        return leaf.detach() if rows is None else leaf.detach()[rows]

    def share(self, array: Any) -> Any:
        return array

    def form(self, value: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)

    def size_bytes(self, leaf: torch.Tensor) -> int:
        return int(leaf.numel()) * int(leaf.element_size())


SOLE: Final = SoleAccess()


def mix(values: torch.Tensor, new: torch.Tensor, alpha: float) -> None:
    """Replace values, where they lie, by alpha times themselves and 1 - alpha times new ones there, of any dtype."""
    values.copy_(alpha * values.to(new.dtype) + (1.0 - alpha) * new if alpha else new)


@final
class Model:
    """A module with its leaves by path, in the module's order: `merged`, `local` and `frozen` ones."""

    def __init__(
        self,
        module: Any,
        rules: Rules[Any],
        device: torch.device,
        access: LeafAccess = SOLE,
        *,
        names_take_part: bool = False,
    ) -> None:
        """The leaves of a module, all of which lie on a device; with `names_take_part` those that a rule names."""
        self.module: Any = module
        self.device = device
        self.access = access
        self.rules, self._names_take_part = rules, names_take_part
        kinds = self.kinds_now()
        self.leaves: dict[str, Any] = self.leaves_now()
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

    def may_need_gradient(self, path: str) -> bool:
        """Whether a leaf is a parameter that is trained, now or later."""
        leaf = self.leaves[path]
        return bool(leaf.requires_grad) or (path in self.merged and isinstance(leaf, torch.nn.Parameter))

    def leaves_now(self) -> dict[str, Any]:
        """The leaves that the module has now, by path: `leaves`, unless the module was changed since."""
        return {path: tensor for path, tensor, _ in _named(_bare(self.module))}

    def kinds_now(self) -> dict[str, str | None]:
        """The kinds of these, by path."""
        return dict(_kinds(_bare(self.module), self.rules, names_take_part=self._names_take_part))

    def follow(self, path: str, tensor: Any) -> None:
        """Go on with another tensor as a local leaf, of the same form."""
        del self.paths[id(self.leaves[path])]
        self.leaves[path] = self.local[path] = tensor
        self.paths[id(tensor)] = path

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


def is_named(rules: Rules[Any], path: str) -> bool:
    """Whether the rule of a path is another one than that of everything else."""
    return next((pattern for pattern, _ in rules if matches(pattern, path)), EVERYTHING) != EVERYTHING


def _kinds(module: Any, rules: Rules[Any], *, names_take_part: bool) -> Iterator[tuple[str, str | None]]:
    """(path, kind) of every leaf."""
    saved = {_path(name) for name in module.state_dict()}
    for path, tensor, is_parameter in _named(module):
        if is_parameter:
            kind = first_match(rules, path)
            takes_part = tensor.requires_grad or kind == LOCAL or (names_take_part and is_named(rules, path))
            yield path, kind if takes_part else FROZEN
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


def own_part(leaf: torch.Tensor) -> Any:
    """The values of a leaf in this process, where they lie."""
    values: Any = leaf.detach()
    return values.to_local() if hasattr(values, "to_local") else values


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor, in a NumPy array of its own."""
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    reach(tensor.device).read(tensor.detach(), copied)
    return array_in(copied)


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch of dicts, lists and tuples with each NumPy array as a tensor of its own on a device."""
    if isinstance(batch, Mapping):
        return {name: on_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [on_device(value, device) for value in batch]
        return values if isinstance(batch, list) else tuple(values)
    if isinstance(batch, np.ndarray | np.generic):
        return reach(device).arrive(tensor_of(np.array(batch)))
    return batch


def with_scalars(loss: Callable[[Any, Any], Any], module: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The value that a loss minimises, and its scalars by name: 'loss' is the value, unless one has that name."""
    result = loss(module, batch)
    value, scalars = result if isinstance(result, tuple) else (result, {})
    return value, {"loss": value, **scalars}


class _StateRow(NamedTuple):
    """A parameter, and by key the forms of what an optimizer keeps for it."""

    parameter: Any
    forms: Mapping[str, Any]


def _parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, in the order of its groups."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def optimizers_in(given: Any) -> Iterator[Any]:
    """The optimizers in what a loop steps: one; a list or dict of them; or an object around some, such as one that
    steps Muon and AdamW, or a scaler's wrapper. TypeError for something else.

    An object of the user's that has groups, a state and a step of its own is an optimizer, too.
    """
    if isinstance(given, Mapping | list | tuple):
        for each in given.values() if isinstance(given, Mapping) else given:
            yield from optimizers_in(each)
        return
    inner = _inside(given)
    if hasattr(given, "step_was_skipped") and len(inner) == 1:  # Of accelerate: its step may be none.
        yield from optimizers_in(inner[0])
        return
    is_wrapper = isinstance(given, torch.optim.Optimizer) and any(given.state is each.state for each in inner)
    if inner and not is_wrapper:
        for each in inner:
            yield from optimizers_in(each)
    elif isinstance(given, torch.optim.Optimizer) or _acts_as_one(given):
        yield given
    else:
        raise TypeError(f"a {type(given).__name__}, which is no torch.optim.Optimizer")


def has_curvature(given: Any) -> bool:
    """Whether what a loop steps is, or has inside, an optimizer that compares parameters of several steps."""
    inner = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    every = [given, *inner, *_inside(given)]
    return any(isinstance(each, torch.optim.LBFGS) for each in every)


def lazy_leaf(module: Any) -> str | None:
    """The path of the first leaf that has no shape yet; None if all have one."""
    every = (*module.named_parameters(), *module.named_buffers())
    return next((_path(name) for name, leaf in every if torch.nn.parameter.is_lazy(leaf)), None)


def _inside(given: Any) -> list[Any]:
    """The optimizers that an object has in its attributes, or in lists and dicts there."""
    found: dict[int, Any] = {}
    for held in vars(given).values() if hasattr(given, "__dict__") else ():
        values = held.values() if isinstance(held, Mapping) else held if isinstance(held, list | tuple) else (held,)
        found |= {id(each): each for each in values if isinstance(each, torch.optim.Optimizer)}
    return list(found.values())


def _acts_as_one(given: Any) -> bool:
    has_groups = isinstance(getattr(given, "param_groups", None), list)
    return has_groups and isinstance(getattr(given, "state", None), Mapping) and callable(getattr(given, "step", None))


def _step_along_zeros(optimizer: Any, parameters: Sequence[Any]) -> None:
    """Let an optimizer make its state, along gradients that are zeros: dense ones, or sparse ones where it takes no
    others. TypeError if its step raises."""
    needed = [each for each in inspect.signature(optimizer.step).parameters.values() if _is_needed(each)]
    arguments = [lambda: torch.zeros(())] if len(needed) == 1 else []  # What has to be given is the closure.
    try:
        try:
            optimizer.step(*arguments)
        except RuntimeError:
            optimizer.state.clear()
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad = torch.zeros_like(parameter).to_sparse()
            optimizer.step(*arguments)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise TypeError(f"{type(optimizer).__name__}, whose step along zeros raises {raised}") from error


def _is_needed(parameter: inspect.Parameter) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in kinds and parameter.default is inspect.Parameter.empty


@final
class OptimizerState:
    """The state of one optimizer, or of several, as arrays.

    Optimizers make their state in the step that first needs it. So its form is found by a step along zeros, at a rate
    of 0, which leaves no trace: an optimizer has then made no step. Of each parameter it is told whether it has a state
    yet, because that is not zeros in every optimizer (NAdam's begins with ones).
    """

    def __init__(self, optimizer: Any, model: Model) -> None:
        """`optimizer` is one, or several (`optimizers_in`). TypeError for something else than optimizers over
        parameters of the module, each in one, or for one that keeps what is neither a tensor nor a number."""
        several = tuple(optimizers_in(optimizer))
        owners: dict[str, Any] = {}
        for each in several:
            for parameter in _parameters_of(each):
                if (path := model.paths.get(id(parameter))) is None:
                    raise TypeError("an optimizer of other parameters than the module's")
                if (other := owners.setdefault(path, each)) is not each:
                    raise TypeError(f"{path} in {type(other).__name__} and {type(each).__name__}")
        if not several or len(several) > len({id(each) for each in several}):
            raise TypeError("one optimizer twice" if several else "no optimizer")
        self.optimizers: tuple[Any, ...] = several
        self._model = model
        self._forms = [self._forms_kept(each) for each in several]

    @property
    def optimizer(self) -> Any:
        """The first optimizer: of a task the only one."""
        return self.optimizers[0]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of parameters of all optimizers, with their settings."""
        return [group for each in self.optimizers for group in each.param_groups]

    def begin(self, optimizer: Any = None) -> None:
        """Forget what the optimizers have kept; go on with another one of its kind, if it is given."""
        self.optimizers = self.optimizers if optimizer is None else (optimizer,)
        for each in self.optimizers:
            each.state.clear()

    @property
    def size_bytes(self) -> int:
        """Bytes of the state in this process, once it is made."""
        forms = [form for forms in self._forms for form in forms.values()]
        tensors = [each for form in forms for each in form.values() if isinstance(each, torch.Tensor)]
        return sum(map(self._model.access.size_bytes, tensors))

    def arrays(self, *, of_merged: bool = False) -> Iterator[np.ndarray[Any, Any]]:
        """For each parameter 1 where it has a state, uint8[n]; then the states, in NumPy arrays of their own. So of
        each optimizer, one after the other.

        None at all of an optimizer that keeps nothing. `of_merged`: of merged parameters only.
        """
        for optimizer, rows in self._rows(of_merged=of_merged):
            yield np.array([bool(optimizer.state.get(row.parameter)) for row in rows], np.uint8)
            for row in rows:
                state = optimizer.state.get(row.parameter) or {}
                for key, form in row.forms.items():
                    value = state.get(key, form)
                    yield self._model.array(value) if isinstance(value, torch.Tensor) else np.array(value)

    def forms(self, *, of_merged: bool = False) -> list[ArrayForm]:
        """Shapes and dtypes of `arrays`."""
        forms: list[ArrayForm] = []
        for _, rows in self._rows(of_merged=of_merged):
            forms.append(ArrayForm((len(rows),), np.dtype(np.uint8)))
            forms += [form_of(each) for row in rows for each in row.forms.values()]
        return forms

    def take(self, arrays: list[Any], *, of_merged: bool = False) -> None:
        """Replace the states by such arrays, which have these forms."""
        left = iter(arrays)
        for optimizer, rows in self._rows(of_merged=of_merged):
            flags = self._model.access.share(next(left))
            for row, has_state in zip(rows, flags, strict=True):
                taken = {key: next(left) for key in row.forms}
                optimizer.state.pop(row.parameter, None)
                if has_state:
                    state = {key: self._value(form, taken[key]) for key, form in row.forms.items()}
                    optimizer.state[row.parameter] = state

    def _value(self, form: Any, array: Any) -> Any:
        """A value of the state of this form, from an array, in memory of its own."""
        access = self._model.access
        if not isinstance(form, torch.Tensor):
            return type(form)(np.asarray(access.share(array)).item())
        value = torch.empty_like(form)
        access.store(value, tensor_of(array).reshape(form.shape))
        return value

    def _rows(self, *, of_merged: bool) -> Iterator[tuple[Any, list[_StateRow]]]:
        """Each optimizer that keeps something, and for which parameters, in the order of its groups."""
        for optimizer, forms in zip(self.optimizers, self._forms, strict=True):
            named = [(self._model.paths[id(each)], each) for each in _parameters_of(optimizer)]
            rows = [
                _StateRow(parameter, forms[path])
                for path, parameter in named
                if forms[path] and not (of_merged and path in self._model.local)
            ]
            if rows:
                yield optimizer, rows

    def _forms_kept(self, optimizer: Any) -> dict[str, dict[str, Any]]:
        """By path and key what an optimizer keeps: zeros of the form of a tensor, or a number."""
        forms = dict[str, dict[str, Any]]()
        parameters = _parameters_of(optimizer)
        kept, gradients = dict(optimizer.state), [each.grad for each in parameters]
        settings = [dict(group) for group in optimizer.param_groups]
        optimizer.state.clear()
        try:
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            for parameter in parameters:
                is_trained = self._model.may_need_gradient(self._model.paths[id(parameter)])
                parameter.grad = torch.zeros_like(parameter) if is_trained else None
            _step_along_zeros(optimizer, parameters)
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

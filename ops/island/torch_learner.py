"""The device side of inner-step for a task in PyTorch: the state of one learner, and the evaluation of merged leaves.

Leaves stay where the module has them: a fragment leaves by one copy, into a payload of its own, and enters by one copy,
into the parameters. Local leaves are the optimizer's state and the module's local leaves.

Random numbers (dropout) are a function of seed, slot, incarnation and the number of the step: before each step torch's
generator gets a seed that is a digest of these. So what a life draws depends on no other learner of its process, and a
state continues with the numbers that would have come next. Learners of one process step one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import torch
import xxhash

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.life import LearnerLife, Tensors, lower_priority
from isthmus.ops.island.torch_model import (
    ArrayForm,
    Model,
    ModuleTask,
    OptimizerState,
    array_of,
    device_of,
    drawing,
    form_of,
    on_device,
    tensor_of,
    with_scalars,
)

_KEYS: Final = 5
"""Numbers that say which random numbers come next."""
_WORD: Final = 0xFFFF_FFFF


@final
class TorchLearner:
    """The state of one learner of a module (`SoleLearning`). Merged leaves are zeros before `begin`."""

    def __init__(self, task: ModuleTask, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> None:
        """Build the module, and find the form of its optimizer's state; TypeError if the task makes something else."""
        lower_priority()  # Before torch makes its threads, which inherit it.
        self._task, self._fragments, self._alpha, self._seed = task, tuple(fragments), alpha, life.seed
        self._model = Model(task, life.seed, device_of(life.slot))
        self._model.module.train()
        self._first_local = {path: tensor.detach().clone() for path, tensor in self._model.local.items()}
        self._moments = OptimizerState(task, self._model)
        self._words = [life.seed & _WORD, life.seed >> 32, life.slot, life.incarnation]
        self._step_number = 0
        self._under_way: Any = None
        with torch.no_grad():
            for leaf in self._model.merged.values():
                leaf.zero_()
        self.restart()

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        device = self._model.device
        return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type

    def begin(self) -> None:
        """Create the task's initial merged leaves, the same for the same seed, and the local leaves."""
        first = Model(self._task, self._seed, torch.device("cpu"))
        with torch.no_grad():
            for path, leaf in self._model.merged.items():
                leaf.copy_(first.merged[path])
        self.restart()

    def compile(self, batch: Any) -> None:
        """No-op: what `torch.compile` compiles it compiles in the first step."""

    # -- the step ------------------------------------------------------------------------------------------------------

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """Perform one inner step; the result is its scalars, of which a GPU may still compute."""
        optimizer = self._moments.optimizer
        with drawing(self._seed_of(self._step_number)):
            self._moments.set_rate(progress)
            value, scalars = with_scalars(self._task.loss, self._model.module, on_device(batch, self._model.device))
            value.backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # Gradients take no memory while fragments are exchanged.
        self._step_number += 1
        reported = {name: scalar.detach() if torch.is_tensor(scalar) else scalar for name, scalar in scalars.items()}
        if self._model.device.type == "cpu":
            return {name: float(scalar) for name, scalar in reported.items()}
        before, self._under_way = self._under_way, reported["loss"]
        if before is not None:
            before.item()  # At most one step is under way.
        return {name: _Scalar(scalar) for name, scalar in reported.items()}

    def _seed_of(self, number: int) -> int:
        """The seed of torch's generators for a step of this life."""
        return int(xxhash.xxh3_64_intdigest(np.array([*self._words, number], np.int64).tobytes()))

    # -- fragments -----------------------------------------------------------------------------------------------------

    def extract(self, fragment: int) -> Vector:
        """The values of a fragment after the steps so far, float32[n], in memory of their own."""
        values = np.empty(self._fragments[fragment].size, np.float32)
        payload = torch.from_numpy(values)
        with torch.no_grad():
            for unit, part in self._parts(fragment, payload):
                part.copy_(self._rows(unit))
        return values

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`."""
        with torch.no_grad():
            for unit, part in self._parts(fragment, tensor_of(values)):
                rows = self._rows(unit)
                new = part.to(rows.device)
                rows.copy_(self._alpha * rows.to(new.dtype) + (1.0 - self._alpha) * new if self._alpha else new)

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, regardless of its present values."""
        with torch.no_grad():
            for unit, part in self._parts(fragment, tensor_of(values)):
                self._rows(unit).copy_(part)

    def _parts(self, fragment: int, payload: torch.Tensor) -> Iterator[tuple[Unit, torch.Tensor]]:
        """The units of a fragment, with the parts of its payload, in their shape."""
        cut = self._fragments[fragment]
        for unit, (begin, end) in zip(cut.units, pairwise(cut.offsets), strict=True):
            yield unit, payload[begin:end].view(unit.values_shape)

    def _rows(self, unit: Unit) -> torch.Tensor:
        leaf: torch.Tensor = self._model.merged[unit.tensor]
        return leaf[unit.start : unit.stop] if unit.is_split else leaf

    # -- whole trees ---------------------------------------------------------------------------------------------------

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""
        self._model.write(parameters)

    def copy(self) -> dict[str, torch.Tensor]:
        """A copy of all merged leaves after the steps so far, by path."""
        return {path: leaf.detach().clone() for path, leaf in self._model.merged.items()}

    def tree(self, leaves: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
        """A copy in NumPy arrays of its own, by path."""
        return {path: array_of(leaf) for path, leaf in leaves.items()}

    # -- local leaves --------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Make the optimizer anew at the present merged leaves, and the module's local leaves as `build` makes them.

        No counters go on: a rate follows the run's progress, and what counts an optimizer's steps corrects the bias of
        moments that begin anew.
        """
        with torch.no_grad():
            for path, leaf in self._model.local.items():
                leaf.copy_(self._first_local[path])
        self._moments.begin()

    def count_from(self, steps: int) -> None:
        """Initialize the local leaves; there are no counters."""

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, in NumPy arrays of their own, each after the steps made when it is read."""
        yield from self._moments.arrays()
        for leaf in self._model.local.values():
            yield array_of(leaf)

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `local` returns; False if their forms differ."""
        if _forms(leaves) != self._forms():
            return False
        count = len(leaves) - len(self._model.local)
        self._moments.take(list(leaves[:count]))
        _write(self._model.local, leaves[count:])
        return True

    def lend(self) -> list[np.ndarray[Any, Any]]:
        """The optimizer's state of merged parameters, in NumPy arrays of their own; empty if it keeps none."""
        return list(self._moments.arrays(of_merged=True))

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """Replace that state by `leaves`, in the form that `lend` returns; False if empty or of another form."""
        if not leaves or _forms(leaves) != self._moments.forms(of_merged=True):
            return False
        self._moments.take(list(leaves), of_merged=True)
        return True

    def own(self, *, whole: bool) -> list[np.ndarray[Any, Any]]:
        """`local`, preceded by int64[5]: the words of the life whose numbers are drawn, and its steps.

        If `whole`, the merged leaves follow.
        """
        keys = np.array([*self._words, self._step_number], np.int64)
        return [keys, *self.local(), *(map(array_of, self._model.merged.values()) if whole else ())]

    def take_own(self, leaves: Sequence[Any]) -> bool:
        """Continue from leaves in the form that `own` returns, with the random numbers that would have come next."""
        merged = list(map(form_of, self._model.merged.values()))
        own = [ArrayForm((_KEYS,), np.dtype(np.int64)), *self._forms()]
        if _forms(leaves) not in (own, [*own, *merged]):
            return False
        self.take_local(leaves[1 : len(own)])
        if len(leaves) > len(own):
            _write(self._model.merged, leaves[len(own) :])
        *self._words, self._step_number = (int(each) for each in leaves[0])
        return True

    def _forms(self) -> list[ArrayForm]:
        """Forms of `local`."""
        return [*self._moments.forms(), *map(form_of, self._model.local.values())]


def _forms(arrays: Sequence[Any]) -> list[ArrayForm]:
    return [ArrayForm(tuple(array.shape), array.dtype) for array in arrays]


def _write(leaves: Mapping[str, Any], arrays: Sequence[Any]) -> None:
    """Replace leaves by arrays, where they lie."""
    with torch.no_grad():
        for leaf, array in zip(leaves.values(), arrays, strict=True):
            leaf.copy_(tensor_of(array).reshape(leaf.shape))


@final
class _Scalar:
    """A number that a GPU may still compute; NumPy waits for it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(float(self._value), dtype)


@final
class TorchEvaluation:
    """The mean scalars of a task over its evaluation batches, on the CPU; local leaves are as `build` makes them."""

    def __init__(self, task: ModuleTask, seed: int) -> None:
        lower_priority()
        self._task, self._seed = task, seed
        self._model = Model(task, seed, torch.device("cpu"))
        self._model.module.eval()
        self._batches = list(task.evaluation_batches(seed))

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The mean scalars of these merged leaves, in the task's own units: 'loss', and others that it evaluates."""
        self._model.write(tensors)
        scalars = [self._metrics_of(batch) for batch in self._batches]
        return {name: float(np.mean([each[name] for each in scalars])) for name in scalars[0]}

    def _metrics_of(self, batch: Any) -> dict[str, float]:
        with drawing(self._seed), torch.no_grad():
            _, scalars = with_scalars(self._task.loss, self._model.module, on_device(batch, self._model.device))
        return {name: float(scalar) for name, scalar in scalars.items()}

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Assembled:
        """The merged leaves that the fragments make up, in NumPy arrays, each made when it is asked for."""
        shapes = {path: form_of(leaf) for path, leaf in self._model.merged.items()}
        return Assembled(fragments, values, shapes)

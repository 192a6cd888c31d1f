"""A task in PyTorch: a module, a loss and an optimizer as a script has them, as plain functions.

Users import it as `isthmus.torch.Task`. It brings its learner (`ops.island.torch_learner`), and answers all that is
asked of a task itself; no process in which it is the task imports jax.

The process that prepares a request builds the model, once for its layout and once for its first step: PyTorch has no
shapes without values that every model takes. What is large is built and not run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Final, final

import numpy as np
import torch

from isthmus.ops.data.batches import At, first_batch
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.parameter_trees import matches, named_leaves
from isthmus.ops.island.life import LearnerLife, Tensors
from isthmus.ops.island.torch_learner import TorchEvaluation, TorchLearner
from isthmus.ops.island.torch_model import (
    Model,
    OptimizerState,
    array_of,
    device_of,
    drawing,
    dtype_name,
    on_device,
    with_scalars,
)
from isthmus.programs.task import METRICS_MAX, ModelLeaf, OwnTask, call_faults
from isthmus.programs.user_calls import call
from isthmus.runtime.errors import ConfigError, Fault

PARAMETERS_MAX: Final = 1 << 24
BATCH_BYTES_MAX: Final = 1 << 22
"""Beyond either the first step is left to the learners: here it would take seconds of one core."""
_CPU: Final = torch.device("cpu")
_BUILD: Final = "task.build()"
_LOSS: Final = "task.loss(module, batch)"
_OPTIMIZER: Final = "task.optimizer(module)"
_RATE: Final = "task.rate(progress)"


@final
@dataclass(frozen=True, slots=True)
class TorchTask(OwnTask):
    """A training task in PyTorch. ConfigError, with every fault, for arguments that break these rules.

    - `build()`: the `torch.nn.Module`, made anew at each call, with first values from torch's generator, which is
      seeded before; it may be the result of `torch.compile`.
    - `loss(module, batch)`: a scalar tensor to minimise, or a pair of it and other scalars by name, which are reported
      beside it. The arrays of the batch are tensors on the module's device; the module trains, or evaluates.
    - `batch(at)`: a tree of numpy arrays; a pure function of `at`, and of one structure, shape and dtype. With
      `at.split == "evaluation"` it is held-out data.
    - `optimizer(module)`: a `torch.optim.Optimizer` of the module's parameters, in groups or not.
    - `rate(progress)`: the factor of each group's learning rate at this share in [0, 1] of the run's token budget;
      without it rates stay as they are.

    A path in `merge` is the name of a parameter or buffer with `/` for `.`; a tied weight has its first name. A buffer
    of floating-point values that is saved with the module is merged as a `mean`, unless a rule says that it is local;
    other buffers are local. A parameter that needs no gradient is frozen. The other arguments are those of every task
    (`TaskTerms`).
    """

    evaluates_sets: ClassVar[bool] = True
    build: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    batch: Callable[[At], Any]
    _: KW_ONLY
    optimizer: Callable[[Any], Any] | None = None
    rate: Callable[[float], float] | None = None

    def _function_faults(self) -> Iterator[Fault]:
        if isinstance(self.build, torch.nn.Module):
            do = "Pass a function that makes it: each learner has a module of its own."
            yield Fault("Making a Task", "a function build()", f"a module, {type(self.build).__name__}", do)
        calls = {"build": "build()", "loss": "loss(module, batch)", "batch": "batch(at)"}
        optional = {} if self.rate is None else {"rate": "rate(progress)"}
        yield from call_faults(self, **calls, optimizer="optimizer(module)", **optional)

    # -- what learners are made of -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Import what the first step of an optimizer imports."""
        import torch._dynamo  # noqa: F401

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> TorchLearner:
        """A learner, created in the thread that will call it."""
        return TorchLearner(self, fragments, life=life, alpha=alpha)

    def evaluator(self, seed: int) -> TorchEvaluation:
        """An evaluation of merged leaves."""
        return TorchEvaluation(self, seed)

    def site_evaluator(self, seed: int, batches: Mapping[str, Sequence[Any]], slot: int) -> TorchEvaluation:
        """An evaluation by the learner in a slot on batches by set, on its device."""
        return TorchEvaluation(self, seed, batches, device_of(slot))

    # -- what a request asks -------------------------------------------------------------------------------------------

    def leaves(self, seed: int) -> list[ModelLeaf]:
        """All leaves of the module, in its order."""
        model = self._built(seed)
        return [
            ModelLeaf(path, tuple(leaf.shape), dtype_name(leaf), model.kinds[path], self._is_stacked(path))
            for path, leaf in model.leaves.items()
        ]

    def frozen(self, seed: int) -> Digests:
        """The digests of the parameters that need no gradient, and of leaves that a rule freezes."""
        return self._built(seed).digests()

    def _is_stacked(self, path: str) -> bool:
        return any(matches(pattern, path) for pattern in self.stacked)

    def _built(self, seed: int) -> Model:
        return call(_BUILD, self.build, partial(Model.built, self, seed, _CPU), ConfigError)  # type: ignore[no-any-return]

    def check_first_step(self, batch: Any, seed: int, *, computes: bool) -> tuple[Fault, ...]:
        """Warnings: parameters without a gradient. ConfigError unless loss, optimizer and rate are as they should be.

        The loss is computed for a small model only.
        """
        model = self._built(seed)
        self._moments(model)
        self._check_rate()
        if not any(leaf.requires_grad for leaf in model.leaves.values()):
            do = "Let requires_grad be true for what is to be trained."
            raise ConfigError(f"Running {_BUILD}", "a parameter that is trained", "all of them frozen", do)
        size = sum(leaf.numel() for leaf in model.leaves.values())
        size_bytes = sum(np.asarray(leaf).nbytes for _, leaf in named_leaves(batch, "batch"))
        if not computes or size > PARAMETERS_MAX or size_bytes > BATCH_BYTES_MAX:
            return ()
        return self._first_step(model, batch, seed)

    def _first_step(self, model: Model, batch: Any, seed: int) -> tuple[Fault, ...]:
        def run() -> tuple[Any, dict[str, Any]]:
            with drawing(seed):
                return with_scalars(self.loss, model.module.train(), on_device(batch, _CPU))

        value, scalars = call(_LOSS, self.loss, run)
        if faults := list(_scalar_faults(value, scalars)):
            raise ConfigError.of(faults)
        found = float(value.detach())
        if not math.isfinite(found):
            odd = [path for path, leaf in model.leaves.items() if not bool(torch.isfinite(leaf.detach()).all())]
            where = f", and not finite either: {', '.join(map(repr, odd))}" if odd else ""
            do = "Look at what loss divides by, and takes roots and logarithms of; no step can mend this."
            raise ConfigError(f"Running {_LOSS} on the first batch", "a finite loss", f"{found}{where}", do)
        call(f"the gradient of {_LOSS}", self.loss, value.backward)
        bare = [path for path, leaf in model.merged.items() if leaf.requires_grad and leaf.grad is None]
        if not bare:
            return ()
        do = "They stay as build makes them. Freeze them (requires_grad_(False)), or let the loss depend on them."
        names = ", ".join(map(repr, bare))
        return (Fault(f"Running the gradient of {_LOSS}", "one for every parameter", f"none for {names}", do),)

    def _moments(self, model: Model) -> OptimizerState:
        assert self.optimizer is not None
        make = self.optimizer
        return call(_OPTIMIZER, make, lambda: OptimizerState(make(model.module), model))  # type: ignore[no-any-return]

    def _check_rate(self) -> None:
        for progress in (0.0, 1.0) if self.rate is not None else ():
            assert self.rate is not None
            factor = call(_RATE, self.rate, partial(self.rate, progress))
            if not isinstance(factor, int | float) or not math.isfinite(factor):
                do = "Return the factor by which learning rates are multiplied, 1.0 for what the optimizer has."
                raise ConfigError(f"Running task.rate({progress})", "a finite number", repr(factor), do)

    def learner_bytes(self) -> int:
        """Bytes of the module, of its gradients, and of the optimizer's state."""
        model = self._built(0)
        sizes = [(int(leaf.numel() * leaf.element_size()), bool(leaf.requires_grad)) for leaf in model.leaves.values()]
        return sum(size * (1 + is_trained) for size, is_trained in sizes) + self._moments(model).size_bytes

    def digests(self, seed: int) -> Mapping[str, Any]:
        """The module's first leaves, the loss of the first batch, the optimizer's kind and settings, and some rates."""
        model = self._built(seed)
        first = {path: _digest(leaf) for path, leaf in model.leaves.items()}
        optimizer = self._moments(model).optimizer
        groups = [
            {key: repr(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        with drawing(seed), torch.no_grad():
            value, _ = with_scalars(self.loss, model.module.train(), on_device(first_batch(self, seed), _CPU))
        rates = None if self.rate is None else [self.rate(share / 8) for share in range(9)]
        return {
            "build": first,
            "loss": float(value),
            "optimizer": [type(optimizer).__qualname__, groups],
            "rate": rates,
        }

    def model(self, tensors: Tensors, seed: int) -> Any:
        """The module with these merged leaves, for evaluation; local leaves are as `build` makes them."""
        model = self._built(seed)
        model.write(tensors)
        return model.module.eval()


def _scalar_faults(value: Any, scalars: Mapping[str, Any]) -> Iterator[Fault]:
    doing = f"Running {_LOSS}"
    if not torch.is_tensor(value) or value.dim() != 0 or not value.dtype.is_floating_point:
        found = f"{dtype_name(value)}{list(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        do = "Return the mean over the batch; beside it a dict of scalars, or nothing."
        yield Fault(doing, "one scalar tensor of a floating dtype", found, do)
    elif value.grad_fn is None:
        do = "Compute it from the module, without no_grad and detach."
        yield Fault(doing, "a loss that depends on parameters", "one without a gradient", do)
    if len(scalars) > METRICS_MAX:
        do = "Return those that are to be plotted."
        yield Fault(doing, f"at most {METRICS_MAX} scalars", str(len(scalars)), do)
    for name, scalar in scalars.items():
        is_number = isinstance(scalar, int | float) or (torch.is_tensor(scalar) and not scalar.dim())
        if name != "loss" and not is_number:
            do = "Return a mean over the batch, or leave it out."
            yield Fault(doing, f"one number for {name!r}", type(scalar).__name__, do)


def _digest(leaf: Any) -> str:
    array = array_of(leaf)
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"

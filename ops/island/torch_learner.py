"""The device side of inner-step for a task in PyTorch, and the evaluation of merged leaves.

Random numbers (dropout) are a function of seed, slot, incarnation and the number of the step: before each step torch's
generator gets a seed that is a digest of these. So what a life draws depends on no other learner of its process, and a
state continues with the numbers that would have come next. Learners of one process step one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import torch
import xxhash

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.evaluation_time import whole
from isthmus.ops.island.life import LearnerLife, Tensors, lower_priority
from isthmus.ops.island.scores import Parts, batches_by_set, parts_by_set
from isthmus.ops.island.torch_device import StepBound
from isthmus.ops.island.torch_model import (
    GroupRates,
    Model,
    ModuleTask,
    OptimizerState,
    device_of,
    drawing,
    form_of,
    on_device,
    with_scalars,
)
from isthmus.ops.island.torch_state import TorchState

CPU: Final = torch.device("cpu")


@final
class TorchLearner(TorchState):
    """The state of one learner of a module (`SoleLearning`). Merged leaves are zeros before `begin`."""

    def __init__(self, task: ModuleTask, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> None:
        """Build the module, and find the form of its optimizer's state; TypeError if the task makes something else."""
        lower_priority()  # Before torch makes its threads, which inherit it.
        self._task, self._seed = task, life.seed
        model = Model.built(task, life.seed, device_of(life.slot))
        super().__init__(model, OptimizerState(task.optimizer(model.module), model), fragments, life=life, alpha=alpha)
        model.module.train()
        self._bound = StepBound(self._device)
        with torch.no_grad():
            for leaf in model.merged.values():
                leaf.zero_()
        self.restart()

    def begin(self) -> None:
        """Create the task's initial merged leaves, the same for the same seed, and the local leaves."""
        first = Model.built(self._task, self._seed, torch.device("cpu"))
        with torch.no_grad():
            for path, leaf in self._model.merged.items():
                leaf.copy_(first.merged[path])
        self.restart()

    def restart(self) -> None:
        """Make the optimizer anew at the present merged leaves, and the module's local leaves as `build` makes them."""
        self._restart_module()
        optimizer = self._task.optimizer(self._model.module)
        self._moments.begin(optimizer)
        self._rates = GroupRates(optimizer, self._task.rate)

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """Perform one inner step; the result is its scalars, of which a GPU may still compute."""
        optimizer = self._moments.optimizer
        with drawing(self._seed_of(self._step_number)):
            self._rates.follow(progress)
            value, scalars = with_scalars(self._task.loss, self._model.module, on_device(batch, self._model.device))
            value.backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # Gradients take no memory while fragments are exchanged.
        self._step_number += 1
        reported = {name: self._scalar(value) for name, value in scalars.items()}
        self._bound.queued()
        return reported

    def _scalar(self, value: Any) -> Any:
        return self._device.scalar(value.detach()) if torch.is_tensor(value) else float(value)

    def _seed_of(self, number: int) -> int:
        """The seed of torch's generators for a step of this life."""
        return int(xxhash.xxh3_64_intdigest(np.array([*self._words, number], np.int64).tobytes()))


@final
class TorchEvaluation:
    """The mean scalars of a task over its evaluation batches, or others, by set; on the CPU, or another device; local
    leaves are as `build` makes them."""

    def __init__(
        self,
        task: ModuleTask,
        seed: int,
        batches: Mapping[str, Sequence[Any]] | None = None,
        device: torch.device = CPU,
    ) -> None:
        lower_priority()
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdigit() and int(threads):
            torch.set_num_threads(int(threads))  # A fork server loads torch before they are set for this process.
        self._task, self._seed = task, seed
        self._model = Model.built(task, seed, device)
        self._model.module.eval()
        self._batches = batches_by_set(task, task.evaluation_batches(seed)) if batches is None else batches

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The mean scalars of these merged leaves, in the task's own units: 'loss', and others that it evaluates."""
        return whole(self.parts(tensors))

    @property
    def count(self) -> int:
        """The number of batches."""
        return sum(map(len, self._batches.values()))

    def parts(self, tensors: Tensors) -> Parts:
        """The same, a batch after the other."""
        self._model.write(tensors)
        return (yield from parts_by_set(self._batches, self._metrics_of))

    def model(self, tensors: Tensors) -> Any:
        """The module with these merged leaves, for evaluation."""
        self._model.write(tensors)
        return self._model.module

    def _metrics_of(self, batch: Any) -> dict[str, float]:
        with drawing(self._seed), torch.no_grad():
            _, scalars = with_scalars(self._task.loss, self._model.module, on_device(batch, self._model.device))
        return {name: float(scalar) for name, scalar in scalars.items()}

    def frozen(self) -> Digests:
        """The digests of the frozen leaves."""
        return self._model.digests()

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Assembled:
        """The merged leaves that the fragments make up, in NumPy arrays, each made when it is asked for."""
        shapes = {path: form_of(leaf) for path, leaf in self._model.merged.items()}
        return Assembled(fragments, values, shapes)

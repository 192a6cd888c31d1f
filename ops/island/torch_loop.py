"""The device side of inner-step for a loop of the user's own in PyTorch, which makes the steps itself.

The module, the optimizer and the random numbers are the user's; what is exchanged is what they have made of the
parameters between two boundaries.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, final

import numpy as np
import torch

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.contract import scalars_of
from isthmus.ops.island.life import LearnerLife, Tensors
from isthmus.ops.island.torch_device import StepBound, reach
from isthmus.ops.island.torch_model import Model, OptimizerState, form_of, own_part
from isthmus.ops.island.torch_state import TorchState


@final
class LoopLearner(TorchState):
    """The state of a loop's module and optimizer (`SoleLearning`, `LoopLearning`).

    `progress` is that of the step that may be made now.
    """

    def __init__(
        self, model: Model, moments: OptimizerState, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float
    ) -> None:
        super().__init__(model, moments, fragments, life=life, alpha=alpha)
        self._may_step = False
        self._tokens, self._scalars = 0, dict[str, Any]()
        self._kept: Sequence[Any] = ()
        self._bound = StepBound(self._device)
        self._found: KeptStates | None = None
        self.progress = 0.0

    def begin(self) -> None:
        """No-op: the first values are those that the module has had since before the first boundary."""

    def restart(self) -> None:
        """Forget the moments, but for those that the user's optimizer has begun with, and the module's local leaves."""
        if self._may_step:
            self._restart_module()
            self._moments.begin()

    # -- what else is the user's ---------------------------------------------------------------------------------------

    def keep(self, kept: Sequence[Any]) -> None:
        """Keep with the local leaves what has `state_dict` and `load_state_dict`; give it what a former life kept.

        The settings of the optimizers' groups, their rates among them, go with it: schedulers count on them. ValueError
        if the former life kept something else.
        """
        found, self._kept = self._found, tuple(kept)
        if found is None or not found.states:
            return
        if len(found.states) != len(kept):
            raise ValueError(f"{len(found.states)} were kept before")
        for each, state in zip(kept, found.states, strict=True):
            each.load_state_dict(state)
        for group, settings in zip(self._moments.groups, found.groups, strict=True):
            group.update(settings)

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, and then uint8[n]: what else is kept."""
        yield from super().local()
        yield KeptStates.of(self._kept, self._moments.groups).array()

    def take_local(self, leaves: Sequence[Any]) -> bool:
        if not leaves or leaves[-1].dtype != np.uint8 or leaves[-1].ndim != 1 or not super().take_local(leaves[:-1]):
            return False
        self._found = KeptStates.read(self._model.access.share(leaves[-1]))
        return True

    @property
    def _count(self) -> int:
        return super()._count + 1

    # -- the user's step -----------------------------------------------------------------------------------------------

    def open_step(self, progress: float) -> None:
        """Let the user's code make a step, at this share of the budget."""
        self._may_step, self.progress = True, progress
        self._tokens, self._scalars = 0, {}

    def record(self, tokens: int, scalars: Mapping[str, Any]) -> None:
        """Take the tokens and the scalars, 'loss' among them, of the step that was made; tensors may be on a device."""
        self._tokens = tokens
        self._scalars = {name: read_later(value) for name, value in scalars.items()}

    def made_tokens(self) -> int:
        """The tokens of the step that was made; 0 where none was."""
        return self._tokens

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """The scalars of the step that was made."""
        self._step_number += 1
        self._bound.queued()
        return self._scalars


@final
class LoopEvaluation:
    """The evaluation that a script brings: `evaluate(module)` is a loss, or scalars by name with a 'loss' among them.

    Local leaves are those that the module has. Where it `is_beside` a learner of this module, that has its own values
    again afterwards, modes and random numbers included; they are copied meanwhile. `settle` makes the module have its
    own leaves, which it may have put others in the place of as it was called.
    """

    def __init__(
        self, model: Model, evaluate: Callable[[Any], Any], *, settle: Callable[[], None], is_beside: bool = False
    ) -> None:
        self._model, self._evaluate = model, evaluate
        self._settle, self._is_beside = settle, is_beside

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The scalars of these merged leaves; TypeError if the script's are none."""
        with self._kept() if self._is_beside else nullcontext():
            self._model.write(tensors)
            try:
                found, device = self._evaluate(self._model.module), reach(self._model.device)
                with device.waits.during("evaluation") if device.is_apart else nullcontext():
                    return scalars_of(found, "evaluate(model)")
            finally:
                self._settle()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep what this process has of the module, and of torch's random numbers."""
        leaves = [own_part(leaf) for leaf in (*self._model.merged.values(), *self._model.local.values())]
        values = [leaf.clone() for leaf in leaves]
        modes = [(part, part.training) for part in self._model.module.modules()]
        numbers = torch.get_rng_state()
        on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        try:
            yield
        finally:
            for leaf, value in zip(leaves, values, strict=True):
                leaf.copy_(value)
            for part, mode in modes:
                part.training = mode
            torch.set_rng_state(numbers)
            if on_gpus:
                torch.cuda.set_rng_state_all(on_gpus)

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Assembled:
        """The merged leaves that the fragments make up, in NumPy arrays, each made when it is asked for."""
        return Assembled(fragments, values, {path: form_of(leaf) for path, leaf in self._model.merged.items()})


class KeptStates(NamedTuple):
    """The states of what a loop keeps, and the settings of each group of its optimizers."""

    states: list[Any]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, kept: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> KeptStates:
        """Those of the present moment, of the optimizers' groups; nothing, where nothing is kept."""
        settings = [{name: each[name] for name in each if name != "params"} for each in groups]
        return cls([each.state_dict() for each in kept], settings if kept else [])

    @classmethod
    def read(cls, array: Any) -> KeptStates:
        """From `array()`."""
        return cls(*torch.load(io.BytesIO(np.asarray(array).tobytes()), map_location="cpu", weights_only=True))

    def array(self) -> np.ndarray[Any, Any]:
        """The same in bytes, uint8[n]."""
        file = io.BytesIO()
        torch.save(tuple(self), file)
        return np.frombuffer(file.getbuffer(), np.uint8)


def fault_of_kept(kept: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """Why this cannot be kept; empty if it can."""
    for each in kept:
        if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
            return f"a {type(each).__name__}, which lacks them"
        try:
            KeptStates.read(KeptStates.of([each], groups).array())
        except Exception as error:  # Of the user's classes, or of what torch reads without running code.
            return f"a {type(each).__name__}, of which this cannot be read back: {str(error).splitlines()[0]}"
    return ""


def read_later(value: Any) -> Any:
    """A scalar as a number; one that a GPU may still compute is not waited for."""
    if not isinstance(value, torch.Tensor):
        return value if hasattr(value, "__array__") else float(value)
    return reach(value.device).scalar(value.detach())

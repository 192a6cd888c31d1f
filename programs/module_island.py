"""The model of a loop in PyTorch: a module, and the optimizers that the loop steps; on one rank, or on several."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.island import torch_model
from isthmus.ops.island.announced import Unannounced
from isthmus.ops.island.contract import Evaluating, SoleRank
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.torch_announced import AnnouncedModule, shared_memory
from isthmus.ops.island.torch_loop import LoopEvaluation, LoopLearner, fault_of_kept, read_later
from isthmus.ops.island.torch_model import SOLE, LeafAccess
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, shortened

_MAKING: Final = "Making an island"


@final
class ModuleModel:
    """A module, and its optimizer or optimizers (`LoopModel`)."""

    step_call = "island.step(loss, tokens=)"

    def __init__(self, module: Any, optimizer: Any, merge: tuple[tuple[str, str], ...]) -> None:
        """ConfigError unless they are what a loop trains, on one device."""
        self.merge = merge
        self.ranks = _rank_of(module, os.environ)
        self._model = _checked_model(module, merge, self.ranks.access)
        self._moments = _checked_moments(self._model, optimizer)
        if not self.ranks.is_same((self.leaves(), self._moments.forms())):
            do = "Make the same module in every rank, and an optimizer whose state lies as its parameters do."
            raise ConfigError(_MAKING, "one module and one optimizer in all ranks", "others in some of them", do)
        self._announced = AnnouncedModule(self._model, self._moments)

    def leaves(self) -> list[ModelLeaf]:
        model = self._model
        return [
            ModelLeaf(path, tuple(leaf.shape), torch_model.dtype_name(leaf), model.kinds[path])
            for path, leaf in model.leaves.items()
        ]

    def learner_bytes(self) -> int:
        size_of = self._model.access.size_bytes
        model = self._model
        sizes = [size_of(leaf) * (1 + model.may_need_gradient(path)) for path, leaf in model.leaves.items()]
        return int(self.ranks.total(int(sum(sizes) + self._moments.size_bytes)))

    def frozen(self) -> Digests:
        return self._model.digests()

    @property
    def state(self) -> Any:
        return self._model.module

    def watch(self) -> None:
        self._announced.watch()

    def unwatch(self) -> None:
        self._announced.unwatch()

    def after(self, stepped: Any, loss: Any) -> Any:
        """`stepped` or `loss` is the loss. ConfigError if what takes part is not what was announced, or if the loss is
        not one number."""
        doing, loss = f"Calling {self.step_call}", stepped if loss is None else loss
        _refuse(doing, self._announced.after_step())
        is_number = isinstance(loss, int | float) and not isinstance(loss, bool)
        is_scalar = hasattr(loss, "dtype") and getattr(loss, "numel", lambda: 0)() == 1 and not loss.dtype.is_complex
        if not is_number and not is_scalar:
            do = "Pass the loss of this step: a scalar tensor, or a number."
            raise ConfigError(doing, "a loss that is one number", shortened(repr(loss), 60), do)
        return loss

    def stepped(self) -> None:
        self._announced.after_boundary()

    def check_last(self) -> None:
        _refuse(f"Calling {self.step_call}", self._announced.frozen.change())

    def check_end(self) -> None:
        """No-op: a module keeps its tensors."""

    def fault_of_kept(self, kept: Sequence[Any]) -> str:
        return fault_of_kept(kept, self._moments.groups)

    def read_later(self, scalar: Any) -> Any:
        return read_later(scalar)

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> LoopLearner:
        return LoopLearner(self._model, self._moments, fragments, life=life, alpha=alpha)

    def host(self, make: Callable[[], Any], *, make_learner: Callable[..., Any], judge: Evaluating | None) -> Any:
        return self.ranks.host(make, model=self._model, make_learner=make_learner, judge=judge)

    def evaluator(self, evaluate: Callable[[Any], Any], *, is_beside: bool) -> Evaluating:
        return LoopEvaluation(self._model, evaluate, settle=self.ranks.settle, is_beside=is_beside)


def _refuse(doing: str, change: Unannounced | None) -> None:
    if change is not None:
        raise ConfigError(doing, change.expected, change.found, change.do)


class _Place(NamedTuple):
    """This process among those of its script."""

    rank: int
    size: int
    is_initialized: bool


def _place(environment: Mapping[str, str]) -> _Place:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _Place(distributed.get_rank(), distributed.get_world_size(), is_initialized=True)
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    is_one = rank.isdecimal() and size.isdecimal()
    return _Place(int(rank) if is_one else 0, int(size) if is_one else 1, is_initialized=False)


def _rank_of(module: Any, environment: Mapping[str, str]) -> Any:
    """This process among the ranks of its island. ConfigError where the ranks cannot exchange the module."""
    place = _place(environment)
    if place.size > 1 and not place.is_initialized:
        do = "Call torch.distributed.init_process_group() before, in every rank."
        raise ConfigError(_MAKING, f"a process group of the {place.size} ranks that were started", "none", do)
    if not place.is_initialized:
        return SoleRank(SOLE)
    from isthmus.ops.island.torch_ranks import Ranks, fault_of_ranks

    if fault := fault_of_ranks(module):
        do = "Shard it by torch.distributed.fsdp.fully_shard, or wrap it in DistributedDataParallel."
        raise ConfigError(_MAKING, "a module of DDP or FSDP2, or one without either", fault, do)
    return Ranks(module)


def _checked_model(module: Any, merge: tuple[tuple[str, str], ...], access: LeafAccess) -> torch_model.Model:
    leaves = [*module.parameters(), *module.buffers()]
    if (lazy := torch_model.lazy_leaf(module)) is not None:
        do = "Call the module on a batch before isthmus.island(...), and make the optimizer after that."
        raise ConfigError(_MAKING, f"a shape of {lazy!r}", "none yet: its module is a lazy one", do)
    devices = sorted({str(leaf.device) for leaf in leaves})
    if len(devices) != 1:
        do = "Move the module to one device before: model.to(device)."
        raise ConfigError(_MAKING, "a module with parameters, all on one device", ", ".join(devices) or "none", do)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        do = "Let requires_grad be true for what is to be trained."
        raise ConfigError(_MAKING, "a parameter that is trained", "all of them frozen", do)
    model = torch_model.Model(module, merge, leaves[0].device, access, names_take_part=True)
    if (pair := shared_memory(model.merged)) is not None:
        do = "Tie weights by one parameter, as in model.head.weight = model.embedding.weight."
        raise ConfigError(_MAKING, f"{pair[0]!r} in memory of its own", f"in that of {pair[1]!r}", do)
    return model


def _checked_moments(model: torch_model.Model, optimizer: Any) -> torch_model.OptimizerState:
    if torch_model.has_curvature(optimizer):
        do = "Step by an optimizer such as AdamW in the loop; LBFGS may go on from the run's model after the with."
        found = "LBFGS, whose directions come from differences between its last parameters: each merge replaces these"
        raise ConfigError(_MAKING, "an optimizer whose state means something after a merge", found, do)
    try:
        return torch_model.OptimizerState(optimizer, model)
    except TypeError as error:
        do = (
            "Pass the optimizer that the loop steps, made of this module's parameters; where there are several, a list "
            "of them, each parameter in one."
        )
        raise ConfigError(_MAKING, "an optimizer of this module's parameters", str(error), do) from error

"""`isthmus.torch.LightningCallback`: the Trainer of Lightning as a learner.

    Trainer(..., callbacks=[isthmus.torch.LightningCallback()]).fit(module, loader)    # under: isthmus train --loop

Decides what of a Trainer is an island's: a batch after which an optimizer has stepped ends a step, by automatic or
manual optimization, the loss is what `training_step` returns, and the token budget of the run ends the training. A
schedule that would take longer than the run is led by the run's progress. Lightning is a package of two names; the
callback is one of that which the script has imported.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, final

import torch

from isthmus.programs.led_schedule import LedSchedule
from isthmus.programs.loop_ways import is_first_slot
from isthmus.programs.trainer_island import Rules, TrainerIsland, tokens_in

_NAMES: Final = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Lightning, by the name by which it was imported, or else by which it is installed."""
    imported = [name for name in _NAMES if name in sys.modules]
    installed = [name for name in _NAMES if find_spec(name.partition(".")[0]) is not None]
    return import_module((imported or installed)[0])


pl: Any = _lightning()


@final
class LightningCallback(pl.Callback):  # type: ignore[misc]  # It is not installed where types are checked.
    """Makes a Trainer's `fit` the loop of an island.

    `tokens(batch)` are the tokens, or samples, of a batch; by default its "labels" that are not -100, and of a batch
    without labels its examples. The other arguments are those of `isthmus.island`. Schedulers, and the scaler of a
    mixed precision, are kept for the next life of the slot. Only slot 0 writes checkpoints and logs.
    """

    def __init__(
        self,
        *,
        tokens: Callable[[Any], Any] | None = None,
        merge: Rules = (("**", "rda"),),
        tokens_most: int | None = None,
        evaluate: Any = None,
    ) -> None:
        self._tokens_in = tokens_in if tokens is None else tokens
        self._island = TrainerIsland("Lightning", torch.mean, merge=merge, tokens_most=tokens_most, evaluate=evaluate)
        self._backward: list[torch.Tensor] = []
        self._has_stepped = False
        self._hooks: list[Any] = []

    @property
    def slot(self) -> int:
        """The number of this island, once the training has begun."""
        return self._island.slot

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Draw the order of the data, and dropout, otherwise in each life of each slot."""
        if stage != "fit":
            return
        if not isinstance(trainer.strategy, pl.strategies.SingleDeviceStrategy):
            do = 'Write Trainer(devices=1) and strategy="auto": each island is a process of its own.'
            found = f"{type(trainer.strategy).__name__} of {trainer.world_size}"
            self._island.refuse("one process on one device", found, do)
        if any(isinstance(each, pl.callbacks.StochasticWeightAveraging) for each in trainer.callbacks):
            do = "Leave it out, or use WeightAveraging: it begins at a share of max_epochs, which the run ends before."
            self._island.refuse("callbacks that go by steps", "StochasticWeightAveraging", do)
        others = [each for each in trainer.callbacks if each is not self]
        if not is_first_slot(self._island.way):
            trainer.loggers = [pl.loggers.logger.DummyLogger() for _ in trainer.loggers]
            others = [each for each in others if _writes_nothing(each)]
        # First: what others do at the end, as with an average of their own, they do with the run's last model.
        trainer.callbacks = [self, *others]
        if (seed := self._island.seed(int(os.environ.get("PL_GLOBAL_SEED", 0)))) is not None:
            pl.seed_everything(seed, verbose=False)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join the run: the module has its present values then."""
        self._island.check_resumed("ckpt_path", trainer.global_step)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._island.begin(
            pl_module, list(trainer.optimizers), _schedules(trainer, pl_module), [] if scaler is None else [scaler]
        )
        self._hooks = [each.register_step_post_hook(self._on_step) for each in trainer.optimizers]

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Note the loss of a manual optimization, which need not be returned."""
        if not pl_module.automatic_optimization:
            self._backward.append(loss.detach())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note a batch; where the optimizer has stepped, count that, with all tokens since the last."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if pl_module.automatic_optimization and loss is not None:
            loss = loss.detach() * trainer.accumulate_grad_batches  # By which Lightning has divided it.
        elif loss is None and self._backward:
            loss = torch.stack(self._backward).sum()
        self._backward = []
        self._island.note(loss, self._tokens_in(batch))
        if self._has_stepped:
            self._has_stepped = False
            self._island.count()
        if self._island.is_over:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # They are for other ends.

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the run; if it is over, the module has its last values then."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the run by the exception that has ended the training."""
        self._end(exception)

    def _on_step(self, *_: Any) -> None:
        self._has_stepped = True

    def _end(self, error: BaseException | None = None) -> None:
        for each in self._hooks:
            each.remove()
        self._hooks = []
        self._island.end(error)


def _schedules(trainer: Any, module: Any) -> list[LedSchedule]:
    """The schedules of a fit. The Trainer's own end is theirs where they have none, if the Trainer steps them."""
    batches = trainer.estimated_stepping_batches
    is_bounded = module.automatic_optimization and 0 < batches < math.inf
    each_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches
    led = []
    for config in trainer.lr_scheduler_configs:
        is_by_step, units = config.interval == "step", batches
        if not is_by_step and each_epoch < math.inf:
            units = batches / math.ceil(each_epoch)
        has_end = is_bounded and (is_by_step or each_epoch < math.inf)  # A stream has no epochs.
        led.append(LedSchedule(config.scheduler, math.ceil(units) // config.frequency if has_end else None))
    return led


def _writes_nothing(callback: Any) -> bool:
    """Whether a callback writes no checkpoints from now on; what cannot be told that is left out."""
    if isinstance(callback, pl.callbacks.ModelCheckpoint):
        callback.save_top_k, callback.save_last = 0, False
        if hasattr(callback, "save_on_exception"):
            callback.save_on_exception = False
        return True
    return not isinstance(callback, pl.callbacks.Checkpoint)

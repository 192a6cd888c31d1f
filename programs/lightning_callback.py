"""`isthmus.torch.LightningCallback`: the Trainer of Lightning as a learner.

    Trainer(..., callbacks=[isthmus.torch.LightningCallback()]).fit(module, loader)    # under: isthmus train --loop

Decides what of a Trainer is an island's: its optimizer's steps are the steps, the loss is what `training_step` returns,
and the token budget of the run ends the training. Lightning is a package of two names; the callback is one of that
which the script has imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, final

import torch

from isthmus.programs.island import IGNORED, Island, island
from isthmus.programs.loop_ways import LoopWay, answering, is_first_slot, seed_of_life, way_of
from isthmus.runtime.errors import ConfigError

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
        merge: Mapping[str, str] | Sequence[tuple[str, str]] = (("**", "rda"),),
        tokens_most: int | None = None,
        evaluate: Any = None,
    ) -> None:
        self._tokens_in = tokens_in if tokens is None else tokens
        self._options = {"merge": merge, "tokens_most": tokens_most, "evaluate": evaluate}
        self._way: LoopWay | None = None
        self._island: Island | None = None
        self._losses: list[torch.Tensor] = []
        self._tokens: list[Any] = []
        self._steps = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Draw the order of the data, and dropout, otherwise in each life of each slot."""
        if stage != "fit":
            return
        self._way = way = way_of(os.environ)
        if trainer.world_size > 1:
            do = "Write Trainer(devices=1): each island is a process of its own."
            with answering(way):
                raise ConfigError("Reading the Trainer", "one process", f"{trainer.world_size}", do)
        if not is_first_slot(way):
            trainer.loggers = []
            trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, pl.callbacks.Checkpoint)]
        if (seed := seed_of_life(int(os.environ.get("PL_GLOBAL_SEED", 0)), way)) is not None:
            pl.seed_everything(seed, verbose=False)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join the run: the module has its present values then."""
        if len(trainer.optimizers) != 1:
            do = "Return one from configure_optimizers, of all parameters that are trained."
            with answering(self._way):
                raise ConfigError("Reading the Trainer", "one optimizer", f"{len(trainer.optimizers)}", do)
        self._island = island(pl_module, trainer.optimizers[0], **self._options)
        self._island.__enter__()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        kept = [each.scheduler for each in trainer.lr_scheduler_configs] + ([] if scaler is None else [scaler])
        if kept:
            self._island.keep(*kept)
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note a batch; where the optimizer has stepped, count that, with all tokens since the last."""
        assert self._island is not None
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            # Lightning has divided it by the number of batches between two steps.
            shares = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(loss.detach() * shares)
            self._tokens.append(self._tokens_in(batch))
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if not self._losses:
            do = "Return the loss from training_step."
            with answering(self._way):
                raise ConfigError("Counting a step of the Trainer", "a loss", "none", do)
        loss, tokens = torch.stack(self._losses).mean(), sum(self._tokens)
        self._losses, self._tokens = [], []
        if not self._island.is_over:  # A Trainer makes a first step of a run that was over before it began.
            self._island.step(loss, tokens=tokens)
        trainer.should_stop = trainer.should_stop or self._island.is_over

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the run; if it is over, the module has its last values then."""
        if self._island is not None:
            self._island.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the run by the exception that has ended the training."""
        if self._island is not None:
            self._island.__exit__(type(exception), exception, exception.__traceback__)


def tokens_in(batch: Any) -> Any:
    """The labels of a batch that are trained on, where it has "labels"; else its examples."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
        return tokens_in(list(batch.values())) if labels is None else (labels != IGNORED).sum()
    return tokens_in(batch[0]) if isinstance(batch, list | tuple) and batch else 1

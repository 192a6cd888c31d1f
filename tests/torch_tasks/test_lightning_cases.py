"""What people ask of a Trainer of Lightning, each in the process of the test, with an island without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers

from isthmus.runtime.errors import ConfigError, RunError
from tests.torch_tasks.lone_island import LoneIsland, begin

if find_spec("lightning") is None:
    pytest.skip("it needs Lightning", allow_module_level=True)

import lightning
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.tuner import Tuner

import isthmus.torch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Lightning has advice for a toy.

STEPS = 24
PEAK = 1e-2
X = torch.randn(88, 8, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
"""Eleven batches of eight an epoch."""


class Plain(lightning.LightningModule):  # type: ignore[misc]
    """By automatic optimization, under a cosine of 2000 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.returned: list[float] = []
        self.clipped = 0

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        loss = F.mse_loss(self.head(torch.tanh(self.body(x))), y)
        self.returned.append(loss.item())
        return loss

    def training_step(self, batch: Any, number: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, number: int) -> None:
        x, y = batch
        self.log("val_loss", F.mse_loss(self.head(torch.tanh(self.body(x))), y))

    def configure_gradient_clipping(self, *given: Any, **more: Any) -> None:
        self.clipped += 1
        super().configure_gradient_clipping(*given, **more)

    def scheduler(self, optimizer: Any) -> Any:
        return {"scheduler": schedulers.CosineAnnealingLR(optimizer, 2000), "interval": "step"}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=PEAK)
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer)}


class Named(Plain):
    def training_step(self, batch: Any, number: int) -> Any:
        return {"loss": self.loss(batch), "x": batch[0]}


class Skipping(Plain):
    def training_step(self, batch: Any, number: int) -> Any:
        return None if number % 3 == 1 else self.loss(batch)


class EachEpoch(Plain):
    def scheduler(self, optimizer: Any) -> Any:
        return {"scheduler": schedulers.CosineAnnealingLR(optimizer, 100), "interval": "epoch"}


class Estimated(Plain):
    def scheduler(self, optimizer: Any) -> Any:
        steps = self.trainer.estimated_stepping_batches
        return {"scheduler": schedulers.OneCycleLR(optimizer, PEAK, total_steps=steps), "interval": "step"}


class OfEpochs(Plain):
    def scheduler(self, optimizer: Any) -> Any:
        function = schedulers.LambdaLR(optimizer, lambda epoch: max(0.0, 1.0 - epoch / 1000))
        return {"scheduler": function, "interval": "epoch"}


class Manual(Plain):
    """By manual optimization: a body and a head, in turns, each with its optimizer; it returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            self.manual_backward(self.loss(batch))
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self) -> Any:
        body = torch.optim.AdamW(self.body.parameters(), lr=PEAK)
        head = torch.optim.SGD(self.head.parameters(), lr=PEAK, momentum=0.9)
        return [body, head], [schedulers.CosineAnnealingLR(body, 3000), schedulers.CosineAnnealingLR(head, 500)]


class Bare(Plain):
    """By manual optimization, with torch's own optimizer, which steps every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        optimizer = self.optimizers(use_pl_optimizer=False)
        loss = self.loss(batch)
        self.manual_backward(loss / 2)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            self.lr_schedulers().step()
        return loss


EMA = of_lightning.EMAWeightAveraging
WORKS: dict[str, tuple[Callable[[], Plain], dict[str, Any], set[int]]] = {
    "a loss": (Plain, {}, {8}),
    "a dict": (Named, {}, {8}),
    "batches left out": (Skipping, {}, {8}),
    "uneven accumulation": (Plain, {"accumulate_grad_batches": 3}, {16, 24}),
    "accumulation by epochs": (
        Plain,
        {"callbacks": [of_lightning.GradientAccumulationScheduler({0: 1, 1: 2})]},
        {8, 16},
    ),
    "a schedule of epochs": (EachEpoch, {}, {8}),
    "a function of epochs": (OfEpochs, {}, {8}),
    "the Trainer's estimate": (Estimated, {}, {8}),
    "the same, accumulated": (Estimated, {"accumulate_grad_batches": 3}, {16, 24}),
    "two optimizers": (Manual, {}, {8}),
    "torch's optimizer": (Bare, {}, {16, 24}),
    "clipping": (Plain, {"gradient_clip_val": 0.5}, {8}),
    "bf16": (Plain, {"precision": "bf16-mixed"}, {8}),
    "float64": (Plain, {"precision": "64-true"}, {8}),
    "without an end": (Plain, {"max_epochs": -1}, {8}),
    "steps": (Plain, {"max_epochs": -1, "max_steps": 50_000}, {8}),
    "a time": (Plain, {"max_time": "00:01:00:00"}, {8}),
    "no end before": (Plain, {"min_epochs": 500, "min_steps": 10_000}, {8}),
    "few batches": (Plain, {"limit_train_batches": 5}, {8}),
    "the same batches": (Plain, {"overfit_batches": 3}, {8}),
    "validation": (Plain, {"val_check_interval": 4}, {8}),
    "an average": (Plain, {"callbacks": [EMA(decay=0.9)]}, {8}),
    "a rate that is looked for": (
        Plain,
        {"callbacks": [of_lightning.LearningRateFinder(num_training_steps=8, update_attr=False)]},
        {8},
    ),
    "barebones": (Plain, {"barebones": True}, {8}),
}


def trainer_of(**more: Any) -> Any:
    usual = {"max_epochs": 1000, "accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 0}
    if not more.get("barebones"):
        usual |= {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [*more.pop("callbacks", []), isthmus.torch.LightningCallback()]
    return lightning.Trainer(**{**usual, **more}, callbacks=callbacks)


def loader() -> Any:
    return torch.utils.data.DataLoader(DATA, 8, shuffle=True)


def fitted(module: Any, **more: Any) -> Any:
    trainer = trainer_of(**more)
    trainer.fit(module, loader(), torch.utils.data.DataLoader(DATA, 44))
    return trainer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(made: list[LoneIsland], trainer: Any) -> LoneIsland:
    """The one island, that has made its steps, under schedules that end with them."""
    (one,) = made
    assert (len(one.losses), one.is_left) == (STEPS, True)
    for optimizer in trainer.optimizers:
        assert optimizer.param_groups[0]["lr"] <= 0.01 * PEAK
    assert max(map(max, one.rates)) == pytest.approx(PEAK, rel=0.05)
    assert max(one.rates[-1]) <= 0.12 * PEAK  # The last of few steps: a tenth of the run is not known yet.
    return one


@pytest.mark.parametrize("case", WORKS)
def test_a_module_works_as_an_island(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, more, tokens = WORKS[case]
    made, module = begin(monkeypatch, steps=STEPS), make()
    trainer = fitted(module, **more)
    one = checked(made, trainer)
    assert set(one.tokens) == tokens
    if case == "two optimizers":  # What it passed to backward, of both.
        pairs = [one + other for one, other in zip(module.returned[::2], module.returned[1::2], strict=True)]
        assert one.losses == pytest.approx(pairs)
        assert [type(each).__name__ for each in one.optimizers] == ["AdamW", "SGD"]
    elif tokens == {8} and case not in ("a rate that is looked for", "batches left out"):
        assert one.losses == pytest.approx(module.returned[:STEPS])  # Without what is read ahead of the end.
    elif case == "uneven accumulation":
        assert one.losses[0] == pytest.approx(sum(module.returned[:3]) / 3)
        assert one.losses[3] == pytest.approx(sum(module.returned[9:11]) / 2)
    if case == "clipping":
        assert module.clipped == STEPS


class Stream(torch.utils.data.IterableDataset[Any]):
    """Samples without an end, and without a length."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from DATA


@pytest.mark.parametrize("module", [Plain, EachEpoch])
def test_a_stream_has_no_epochs(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, trainer = begin(monkeypatch, steps=STEPS), trainer_of(max_epochs=-1, max_steps=50_000)
    trainer.fit(module(), torch.utils.data.DataLoader(Stream(), 8))
    (one,) = made
    assert (len(one.losses), one.is_left) == (STEPS, True)


def test_why_an_island_cannot_join_is_what_its_user_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, steps=STEPS)

    def cannot_join(self: LoneIsland) -> Any:
        raise RunError("nobody is there")

    def was_not_joined(self: LoneIsland, *error: Any) -> Any:
        raise AssertionError("it is left, and was never joined")

    monkeypatch.setattr(LoneIsland, "__enter__", cannot_join)
    monkeypatch.setattr(LoneIsland, "__exit__", was_not_joined)
    with pytest.raises(RunError, match="nobody is there"):
        fitted(Plain())


def test_a_module_that_stops_early_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    fitted(Plain(), callbacks=[of_lightning.EarlyStopping("val_loss", patience=0, min_delta=1e3)])
    (one,) = made
    assert (len(one.losses), one.is_left) == (22, True)  # At the second validation.


def test_a_plateau_follows_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Plain):
        def scheduler(self, optimizer: Any) -> Any:
            return {
                "scheduler": schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9),
                "monitor": "val_loss",
            }

    made = begin(monkeypatch, steps=STEPS)
    fitted(Waiting())
    assert made[0].rates[-1][0] == pytest.approx(PEAK / 100)  # After two validations, of which none is good enough.


def test_what_others_do_at_the_end_they_do_with_the_last_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average is what the module has afterwards, though its callback stands before the island's."""
    left: list[bool] = []

    class Late(lightning.Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, module: Any) -> None:
            left.append(LoneIsland.made[0].is_left)

    begin(monkeypatch, steps=STEPS)
    fitted(Plain(), callbacks=[Late()])
    assert left == [True]


@pytest.mark.parametrize("slot", [0, 1])
def test_only_slot_0_writes_checkpoints_and_logs(slot: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Logging(Plain):
        def on_train_start(self) -> None:
            self.logger.log_metrics({"mine": 1.0})  # Also where nothing is logged.

    made = begin(monkeypatch, steps=STEPS, slot=slot)
    kept = of_lightning.ModelCheckpoint(here / "kept", monitor="val_loss", save_last=True, save_top_k=2)
    logger = lightning.pytorch.loggers.CSVLogger(here / "logs")
    trainer = fitted(Logging(), callbacks=[kept], logger=logger, log_every_n_steps=1)
    checked(made, trainer)
    assert bool(trainer.checkpoint_callback.best_model_path) == (slot == 0)
    assert bool(list(here.rglob("*.ckpt"))) == bool(list(here.rglob("metrics.csv"))) == (slot == 0)


def test_a_tuner_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made, trainer, module = begin(monkeypatch, steps=STEPS), trainer_of(), Plain()
    Tuner(trainer).lr_find(module, loader(), num_training=8, update_attr=False)
    assert made == []
    trainer.fit(module, loader())
    checked(made, trainer)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another strategy": ({"strategy": "ddp"}, "DDPStrategy"),
    "SWA": ({"callbacks": [of_lightning.StochasticWeightAveraging(1e-3)]}, "StochasticWeightAveraging"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_island_cannot_do_is_refused_by_name(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more, found = REFUSED[case]
    made = begin(monkeypatch, steps=STEPS)
    with pytest.raises(ConfigError, match=found):
        fitted(Plain(), **more)
    torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
    assert made == []


def test_batches_without_a_loss_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Plain):
        def training_step(self, batch: Any, number: int) -> None:
            return None

    begin(monkeypatch, steps=STEPS)
    with pytest.raises(ConfigError, match="training_step"):
        fitted(Silent())


def test_a_checkpoint_is_gone_on_from_by_later_lives_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that says ckpt_path="last" finds one after a kill: that must not end the run."""
    kept = of_lightning.ModelCheckpoint(here / "kept", save_last=True)
    for incarnation in (1, 1, 2):
        made = begin(monkeypatch, steps=STEPS, incarnation=incarnation)
        has_one = (here / "kept" / "last.ckpt").exists()
        trainer = trainer_of(callbacks=[kept])
        if incarnation == 1 and has_one:
            with pytest.raises(ConfigError, match="ckpt_path"):
                trainer.fit(Plain(), loader(), ckpt_path="last")
        else:
            trainer.fit(Plain(), loader(), ckpt_path="last")
            assert [len(one.losses) for one in made] == [STEPS]

"""A loop with accelerate as a learner: what it has prepared, and the example of the documents in real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.programs.island import _loop_model
from isthmus.programs.led_schedule import LedSchedule
from isthmus.programs.module_island import ModuleModel
from tests.programs.engine.run.process_run import Run
from tests.torch_tasks.test_torch_runs import reports

if find_spec("accelerate") is None:
    pytest.skip("it needs accelerate", allow_module_level=True)

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "accelerate_loop.py"


@pytest.fixture
def fresh() -> Iterator[None]:
    """accelerate has one state a process."""
    yield
    for each in (AcceleratorState, GradientState, PartialState):
        each._reset_state()


class OverflowingScaler:
    """As a GradScaler that finds infinite gradients in its first step, and leaves that out."""

    def __init__(self) -> None:
        self.calls = 0

    def step(self, optimizer: Any, closure: Any = None) -> None:
        self.calls += 1
        if self.calls > 1:
            optimizer.step()

    def update(self) -> None:
        """No-op."""


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_what_accelerate_has_prepared_is_an_island(precision: str, fresh: None) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    module = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    prepared, wrapped, scheduled = accelerator.prepare(module, optimizer, scheduler)
    model, led = _loop_model(prepared, wrapped, (("**", "rda"),)), LedSchedule(scheduled, told=lambda _: None)
    assert isinstance(model, ModuleModel)
    assert model._moments.optimizers == (optimizer,)
    assert not model.fault_of_kept([led])
    model.watch()
    for batch in range(8):
        with accelerator.accumulate(prepared):
            loss = prepared(torch.ones(2, 4)).square().sum()
            accelerator.backward(loss)
            wrapped.step()
            led.step(batch / 8)
            wrapped.zero_grad()
        if accelerator.sync_gradients:
            model.after(loss, None)
            model.stepped()
    model.unwatch()
    assert (scheduler.last_epoch, optimizer.state[module.weight]["step"]) == (875, 4)


def test_the_form_of_an_optimizers_state_is_found_though_its_first_step_would_be_left_out(fresh: None) -> None:
    accelerator, module = Accelerator(cpu=True), torch.nn.Linear(4, 1)
    wrapped = accelerator.prepare(torch.optim.AdamW(module.parameters()))
    wrapped.scaler = OverflowingScaler()
    model = _loop_model(module, wrapped, (("**", "rda"),))
    assert isinstance(model, ModuleModel)
    assert len(list(model._moments.arrays())) == 1 + 2 * 3
    assert wrapped.scaler.calls == 0


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example_trains_as_two_islands(ranks: int, tmp_path: Path) -> None:
    script = "--save-every", "10", "--precision", "bf16"
    options = ("--ranks", str(ranks)) if ranks > 1 else ()
    run = Run(tmp_path, "--loop", str(EXAMPLE), *options, tokens=600 * 128 * ranks, after=("--", *script))
    try:
        run.finish("done")
        for slot in (0, 1):
            rows = [line for line in reports(run, slot) if line["loss"] is not None]
            assert rows
            assert all(not line["tokens"] % 64 for line in rows)
            (rate,) = re.findall(r"at a rate of (\S+)", (run.folder / "logs" / f"learner-{slot}.log").read_text())
            assert float(rate) <= 0.01 * 3e-3
        assert (tmp_path / "accelerate_state" / "model.safetensors").exists()
    finally:
        run.close()

"""A scheduler that a run leads: it ends when the run does, and rises as the script says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from transformers import get_cosine_schedule_with_warmup, get_wsd_schedule

from isthmus.programs.led_schedule import Course, LedSchedule, course_of

pytestmark = pytest.mark.torch

STEPS = 350
"""Of this island, in the run."""
PEAK = 1e-2


def optimizer_of() -> Any:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)


def risen(optimizer: Any) -> Any:
    rise = schedulers.LinearLR(optimizer, 0.01, total_iters=20)
    return schedulers.SequentialLR(optimizer, [rise, schedulers.CosineAnnealingLR(optimizer, 5000)], [20])


def chained(optimizer: Any) -> Any:
    rise = schedulers.LinearLR(optimizer, 0.01, total_iters=20)
    return schedulers.ChainedScheduler([rise, schedulers.CosineAnnealingLR(optimizer, 5000)])


ENDING: dict[str, tuple[Callable[[Any], Any], Course, int]] = {
    "cosine": (lambda each: schedulers.CosineAnnealingLR(each, 2000), Course(2000), 0),
    "one cycle": (lambda each: schedulers.OneCycleLR(each, PEAK, total_steps=5000), Course(4999), STEPS * 3 // 10),
    "one cycle, just longer": (lambda each: schedulers.OneCycleLR(each, PEAK, total_steps=400), Course(399), 105),
    "a rise, and a cosine": (risen, Course(5020, 20), 20),
    "chained": (chained, Course(5000, 20), 20),
    "of transformers": (lambda each: get_cosine_schedule_with_warmup(each, 30, 10_000), Course(10_000, 30), 30),
    "with a long rise": (lambda each: get_cosine_schedule_with_warmup(each, 900, 10_000), Course(10_000, 900), 35),
    "of a stable part": (lambda each: get_wsd_schedule(each, 30, 3000, num_stable_steps=7000), Course(10_030, 30), 30),
    "a function": (lambda each: schedulers.LambdaLR(each, lambda step: 1 - step / 10_000), Course(10_000), 0),
    "a function that rises": (
        lambda each: schedulers.LambdaLR(each, lambda step: min(step / 25, 1 - step / 10_000)),
        Course(10_000, 25),
        25,
    ),
}


def run(scheduler: Any, led: LedSchedule, *, steps: int = STEPS) -> list[float]:
    """The rates of the steps of a run, whose progress is heard of every third step; and that after the last one."""
    rates = []
    for step in range(steps):
        rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        led.step(step // 3 * 3 / steps)
    led.follow(1.0)
    return [*rates, float(scheduler.optimizer.param_groups[0]["lr"])]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ENDING)
def test_a_schedule_ends_when_the_run_does(kind: str) -> None:
    make, course, highest = ENDING[kind]
    scheduler, told = make(optimizer_of()), list[str]()
    led = LedSchedule(scheduler, 10_000, told=told.append)
    assert led.course == course
    rates = run(scheduler, led)
    assert rates[-1] <= 1e-5 * PEAK
    assert max(rates) == pytest.approx(PEAK, rel=2e-2)
    assert abs(rates.index(max(rates)) - highest) <= 3
    assert rates[-2] <= (0.1 if kind == "of a stable part" else 0.01) * PEAK  # Of the last step that was made.
    assert len(told) == 1


def test_a_schedule_that_is_shorter_than_the_run_is_left_alone() -> None:
    bare, scheduler = (schedulers.CosineAnnealingLR(optimizer_of(), 100) for _ in range(2))
    told = list[str]()
    rates = run(scheduler, LedSchedule(scheduler, told=told.append))
    for rate in rates[:-1]:
        assert rate == bare.optimizer.param_groups[0]["lr"]
        bare.optimizer.step()
        bare.step()
    assert told == []


@pytest.mark.parametrize(
    "make",
    [
        lambda each: schedulers.CyclicLR(each, 1e-4, PEAK, cycle_momentum=False),
        lambda each: schedulers.CosineAnnealingWarmRestarts(each, 50),
        lambda each: schedulers.LambdaLR(each, lambda step: 0.999**step),
    ],
)
def test_what_has_no_end_goes_by_its_own_steps_and_that_is_told(make: Any) -> None:
    scheduler, told = make(optimizer_of()), list[str]()
    run(scheduler, LedSchedule(scheduler, told=told.append), steps=60)
    assert (scheduler.last_epoch, len(told)) == (60, 1)


def test_what_decays_without_an_end_takes_that_of_the_trainer() -> None:
    for make in (
        lambda each: schedulers.ExponentialLR(each, 0.9995),
        lambda each: schedulers.MultiplicativeLR(each, lambda _: 0.9995),
    ):
        scheduler = make(optimizer_of())
        assert run(scheduler, LedSchedule(scheduler, 10_000, told=lambda _: None))[-1] == pytest.approx(
            PEAK * 0.9995**10_000
        )


def test_a_measured_loss_is_what_a_plateau_follows() -> None:
    optimizer = optimizer_of()
    assert course_of(schedulers.ReduceLROnPlateau(optimizer), 10_000) is None


@pytest.mark.parametrize("make", [ENDING["a rise, and a cosine"][0], ENDING["chained"][0]])
def test_a_later_life_goes_on_where_the_former_was(make: Any) -> None:
    scheduler = make(optimizer_of())
    led = LedSchedule(scheduler, told=lambda _: None)
    for step in range(100):
        scheduler.optimizer.step()
        led.step(step / STEPS)
    state, groups = led.state_dict(), scheduler.optimizer.param_groups
    later = make(optimizer_of())
    other = LedSchedule(later, told=lambda _: None)
    other.load_state_dict(state)
    later.optimizer.param_groups[0]["lr"] = groups[0]["lr"]  # As the island gives back the settings of groups.
    for step in range(100, STEPS):
        for each, follower in ((scheduler, led), (later, other)):
            each.optimizer.step()
            follower.step(step / STEPS)
        assert later.optimizer.param_groups[0]["lr"] == pytest.approx(scheduler.optimizer.param_groups[0]["lr"])

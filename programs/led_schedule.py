"""A scheduler of PyTorch that a run leads: it ends when the run does, however many steps it was made for.

A trainer's schedule is made for so many steps, or epochs, of one process, which are more than one island makes of its
run. So a share of them is behind, at least, as large as that of the run's tokens; where the script's own steps are
ahead of that, as in a schedule that is shorter than the run, these are what counts. A rise at the beginning keeps its
own steps, for a tenth of the run at most.

What is led has an end: of its own, as a cosine with its T_max, or that which the trainer has. What goes round in
cycles, or follows a measured loss, is not led.
"""

from __future__ import annotations

import copy
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import torch
from torch.optim import lr_scheduler as schedulers

RISE_SHARE_MAX: Final = 0.1
"""The share of a run that a rise of few steps may take: a longer one would leave too little of a short run."""
RISE_STEPS_MAX: Final = 100_000
"""So many steps of an unknown function are asked for a rise, in some .02 s."""
_CLOSED: Final = {
    schedulers.StepLR,
    schedulers.MultiStepLR,
    schedulers.ConstantLR,
    schedulers.LinearLR,
    schedulers.ExponentialLR,
    schedulers.PolynomialLR,
    schedulers.CosineAnnealingLR,
}
"""Their rates follow from the number of the step; so do these, by `get_lr`:"""
_OF_THE_STEP: Final = {schedulers.LambdaLR, schedulers.OneCycleLR}
_IN_CYCLES: Final = (schedulers.CyclicLR, schedulers.CosineAnnealingWarmRestarts)


class Course(NamedTuple):
    """The steps of a schedule from its beginning to its end, and how many of them rise first."""

    steps: int
    rise: int = 0


@final
class LedSchedule:
    """A scheduler, and where it is led; it is kept with what the scheduler keeps (`island.keep`).

    Arguments:
        scheduler: of torch.optim.lr_scheduler, or a wrapper that has one as its `scheduler`.
        steps: the steps that it takes as the script has it, where it has no end of its own.
        rise: how many of them rise first, where that is known better than its own arguments say.
        told: receives a line once what it follows is known; by default stderr does.
    """

    def __init__(
        self,
        scheduler: Any,
        steps: int | None = None,
        *,
        rise: int | None = None,
        told: Callable[[str], object] | None = None,
    ) -> None:
        self._wrapper = scheduler
        self._scheduler = scheduler = getattr(scheduler, "scheduler", scheduler)
        self._told = told
        course = course_of(scheduler, steps)
        self.course: Final = course if course is None or rise is None else Course(course.steps, rise)
        self.begun = 0.0
        """The run's progress at the end of the rise."""
        self._own = self._place = _place_of(scheduler)
        self._can_jump = self.course is not None and _jumps(scheduler)
        self._saved: tuple[Any, list[dict[str, Any]]] | None = None
        self._save()
        self._is_told = False

    def step(self, progress: float, *arguments: Any) -> None:
        """Step the scheduler, and bring it to where the run is: in place of `scheduler.step()`."""
        self._wrapper.step(*arguments)
        self.follow(progress)

    def follow(self, progress: float) -> None:
        """Bring the scheduler to where the run is, if its own steps, which may just have been made, are behind."""
        scheduler = self._scheduler
        if self.course is None:
            if not self._is_told and not isinstance(scheduler, schedulers.ReduceLROnPlateau):
                self._tell(f"{type(scheduler).__name__} goes by its own steps: no end of it is known")
            return
        self._own += _place_of(scheduler) - self._place
        place = max(self._own, self._led(progress), self._place)
        if place > self._own and not self._is_told:
            name = type(scheduler).__name__
            self._tell(
                f"the learning rate follows the run, which takes fewer steps than the {self.course.steps} of {name}"
            )
        if place != _place_of(scheduler):
            self._move(place)
        self._place = place
        self._save()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's, and the own steps that it counts as led."""
        return {"scheduler": self._wrapper.state_dict(), "begun": self.begun, "own": self._own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a former life was."""
        self._wrapper.load_state_dict(state["scheduler"])
        self.begun, self._own = state["begun"], state["own"]
        self._place = _place_of(self._scheduler)
        self._save()

    def _tell(self, line: str) -> None:
        self._is_told = True
        (self._told or sys.stderr.write)(f"isthmus: {line}\n")

    def _led(self, progress: float) -> int:
        """The step that the schedule is at, at least, at this share of the run."""
        assert self.course is not None
        steps, rise = self.course
        if self._place < rise < steps:
            risen = rise * progress / max(RISE_SHARE_MAX, rise / steps)
            if max(risen, self._own) < rise:
                self.begun = progress
                return int(risen)
            self.begun = min(self.begun, progress)
        if rise >= steps:
            rise = 0
        share = (progress - self.begun) / (1.0 - self.begun) if self.begun < 1.0 else 1.0
        return rise + int(max(0.0, share) * (steps - rise))

    def _move(self, place: int) -> None:
        scheduler = self._scheduler
        if self._can_jump:
            _jump(scheduler, place)
            return
        if place < _place_of(scheduler):  # The script has stepped it beyond; what changes step by step has no way back.
            assert self._saved is not None
            state, groups = self._saved
            scheduler.load_state_dict(copy.deepcopy(state))
            for group, settings in zip(scheduler.optimizer.param_groups, groups, strict=True):
                group.update(copy.deepcopy(settings))
        while _place_of(scheduler) < place:
            scheduler.step()

    def _save(self) -> None:
        """Save what a scheduler that has to be stepped goes back to."""
        if self.course is not None and not self._can_jump:
            groups = self._scheduler.optimizer.param_groups
            settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
            self._saved = copy.deepcopy((self._scheduler.state_dict(), settings))


def course_of(scheduler: Any, steps: int | None = None) -> Course | None:
    """The course of a scheduler; `steps` is that of its trainer, for one that has no end of its own. None if it is not
    to be led."""
    match scheduler:
        case schedulers.ReduceLROnPlateau():
            return None
        case _ if isinstance(scheduler, _IN_CYCLES) or not isinstance(scheduler, schedulers.LRScheduler):
            return None
        case schedulers.OneCycleLR():
            return Course(scheduler.total_steps - 1)  # Its first step is number 0, and it ends at the last one.
        case schedulers.CosineAnnealingLR():
            return Course(scheduler.T_max)
        case schedulers.LinearLR() | schedulers.ConstantLR() | schedulers.PolynomialLR():
            return Course(scheduler.total_iters)
        case schedulers.SequentialLR():
            begin = scheduler._milestones[-1]
            last = course_of(scheduler._schedulers[-1], None if steps is None else steps - begin)
            first = scheduler._schedulers[0]
            rise = scheduler._milestones[0] if _rises(first, scheduler._milestones[0]) else 0
            return None if last is None else Course(begin + last.steps, rise)
        case schedulers.ChainedScheduler():
            courses = [course for each in scheduler._schedulers if (course := course_of(each, steps)) is not None]
            rises = [course_of(each, steps) for each in scheduler._schedulers if _rises(each, 1)]
            ends = max((course.steps for course in courses), default=0)
            rise = max((course.rise or course.steps for course in rises if course is not None), default=0)
            return Course(ends, rise if rise < ends else 0) if courses else None
        case schedulers.LambdaLR():
            return _course_of_function(scheduler.lr_lambdas[0], steps)
    return None if steps is None or steps < 1 else Course(steps)


def _course_of_function(function: Callable[[int], float], steps: int | None) -> Course | None:
    """The course of a function of the step; those of transformers say theirs by keywords."""
    keywords = getattr(function, "keywords", {})
    rise = keywords.get("num_warmup_steps")
    if (own := keywords.get("num_training_steps")) is None and "num_decay_steps" in keywords:
        own = (rise or 0) + keywords.get("num_stable_steps", 0) + keywords["num_decay_steps"]
    steps = steps if own is None else own
    if steps is None or steps < 1:
        return None
    if rise is None:
        places = pairwise(map(function, range(min(steps, RISE_STEPS_MAX) + 1)))
        rise = next((place for place, (one, other) in enumerate(places) if other <= one), 0)
    return Course(steps, rise if rise < steps else 0)


def _rises(scheduler: Any, steps: int) -> bool:
    """Whether a schedule rises in so many first steps."""
    match scheduler:
        case schedulers.LinearLR():
            return bool(scheduler.start_factor < scheduler.end_factor)
        case schedulers.ConstantLR():
            return bool(scheduler.factor < 1.0)
        case schedulers.LambdaLR():
            function = scheduler.lr_lambdas[0]
            return bool(function(0) < function(steps))
    return False


def _place_of(scheduler: Any) -> int:
    """The number of the step that a scheduler is at."""
    inner = scheduler._schedulers[0] if isinstance(scheduler, schedulers.ChainedScheduler) else scheduler
    return int(getattr(inner, "last_epoch", 0))


def _jumps(scheduler: Any) -> bool:
    """Whether a rate follows from the number of the step alone."""
    if type(scheduler) is schedulers.SequentialLR:
        return all(_jumps(each) for each in scheduler._schedulers)
    return type(scheduler) in _CLOSED | _OF_THE_STEP


def _jump(scheduler: Any, place: int) -> None:
    """Bring a scheduler to a step, over all between."""
    if type(scheduler) is schedulers.SequentialLR:
        index = bisect_right(scheduler._milestones, place)
        inner = scheduler._schedulers[index]
        _jump(inner, place - (scheduler._milestones[index - 1] if index else 0))
        scheduler.last_epoch, scheduler._last_lr = place, inner.get_last_lr()
        return
    scheduler.last_epoch = place
    scheduler._get_lr_called_within_step = True  # Or it warns that it was asked from outside.
    try:
        rates = scheduler._get_closed_form_lr() if type(scheduler) in _CLOSED else scheduler.get_lr()
    finally:
        scheduler._get_lr_called_within_step = False
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(float(rate))
        else:
            group["lr"] = float(rate)
    last = [group["lr"] for group in scheduler.optimizer.param_groups]
    scheduler._last_lr = [each.clone() if isinstance(each, torch.Tensor) else each for each in last]

"""Figures of a final evaluation: what a task says of the final model of a run, beside its loss, such as an accuracy.

The task has `evaluate_final(model) -> {name: number}`, for at most `evaluate_final_seconds`, and `better`, which says
of a name whether "higher" or "lower" is better. The function is the user's: it may raise, return anything, or never
return. So the evaluator sends the evaluation first, with how long its figures may take, and the same with them once
they are there; a failure becomes a fault in their place. The recorder awaits them, and ends the run without them where
they do not come in time, or a person has stopped the run (`programs.engine.recorder.last_evaluation`).
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

from isthmus.ops.exchange.messages import Evaluated, FiguresFault
from isthmus.ops.island.contract import Evaluating
from isthmus.ops.island.life import Tensors

FIGURES_MAX: Final = 32
NAME_MAX: Final = 64
TEXT_MAX: Final = 300
"""Characters of an error that are told; all of it is in the log of the evaluator."""
NOT_FINITE: Final = "not finite"
"""The fault of figures that are there, as far as they are numbers."""


@runtime_checkable
class HasModel(Protocol):
    """An evaluation that makes the model of merged leaves in the form that the task's own functions take."""

    def model(self, tensors: Tensors) -> Any:
        """The model of these merged leaves."""


@final
class FinalFigures(NamedTuple):
    """Figures by name, None for one that is not finite; and why there are none, or not all."""

    figures: dict[str, float | None]
    fault: FiguresFault | None = None

    def of(self, task: Any, evaluation: Evaluated) -> Evaluated:
        """An evaluation with them."""
        pairs = [[name, math.nan if value is None else value] for name, value in self.figures.items()]
        found: Evaluated = {**evaluation, "figures": pairs, "better": [list(pair) for pair in better_of(task)]}
        if self.fault is not None:
            found["figures_fault"] = self.fault
        return found


STOPPED: Final = FinalFigures({}, {"kind": "stopped", "detail": ""})


def has_figures(task: Any) -> bool:
    """Whether a task computes any of its final model."""
    return getattr(task, "evaluate_final", None) is not None


def better_of(task: Any) -> tuple[tuple[str, str], ...]:
    """Which way is better, by name."""
    return tuple(task.better)


def figures_of(task: Any, evaluation: Evaluating, tensors: Tensors, seed: int) -> FinalFigures:
    """The figures of the model of these merged leaves; never raises what the user's function raises."""
    try:
        model = evaluation.model(tensors) if isinstance(evaluation, HasModel) else task.model(tensors, seed)
        result = task.evaluate_final(model)
    except (Exception, SystemExit) as error:
        traceback.print_exc(file=sys.stderr)
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:TEXT_MAX]
        return FinalFigures({}, {"kind": "raised", "detail": f"{text} ({place.filename}:{place.lineno})"})
    if not isinstance(result, Mapping):
        return FinalFigures({}, {"kind": "no figures", "detail": f"{type(result).__name__}, {result!r}"[:TEXT_MAX]})
    if len(result) > FIGURES_MAX:
        return FinalFigures({}, {"kind": "no figures", "detail": f"{len(result)} of them, {FIGURES_MAX} at most"})
    if odd := [(name, value) for name, value in result.items() if not _is_figure(name, value)]:
        return FinalFigures({}, {"kind": "no figures", "detail": f"{odd[0][0]!r}: {odd[0][1]!r}"[:TEXT_MAX]})
    values = {str(name): float(value) for name, value in result.items()}
    unknown = [name for name, value in values.items() if not math.isfinite(value)]
    fault: FiguresFault | None = {"kind": NOT_FINITE, "detail": ", ".join(unknown)} if unknown else None
    return FinalFigures({name: None if name in unknown else value for name, value in values.items()}, fault)


def _is_figure(name: Any, value: Any) -> bool:
    """Whether a pair is a name that can be shown, and a number."""
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_MAX or not name.isprintable():
        return False
    if isinstance(value, str | bytes | bytearray):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # The last is torch's, for a tensor of several.
        return False
    return True


@final
class FigureSender:
    """The figures of the final model, as the host of one evaluation node computes and sends them."""

    def __init__(self, task: Any, context: Any) -> None:
        self._task, self._seed, self._stop_requested = task, context.seed, context.stop_requested

    def follow(
        self, made: Evaluated | None, evaluation: Evaluating, tensors: Callable[[], Tensors]
    ) -> Generator[dict[str, Any], None, dict[str, Any] | None]:
        """Yields the evaluation of the final model, and returns it with its figures; None where there is none.

        Of a run that is stopped by then they are left out.
        """
        if made is None:
            return None
        if made.get("left_out") or not has_figures(self._task):
            return {"evaluation": made}
        if self._stop_requested():
            return {"evaluation": STOPPED.of(self._task, made)}
        yield {"evaluation": {**made, "figures_within": int(self._task.evaluate_final_seconds * 1e9)}}
        found = figures_of(self._task, evaluation, tensors(), self._seed)
        return {"evaluation": found.of(self._task, made)}

"""Figures of a final evaluation: what counts as one, what becomes of a function that fails, and how they are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isthmus.ops.island.final_figures import FIGURES_MAX, FigureSender, figures_of

SEED = 7
MADE: Any = {"kind": "final", "loss": 1.5, "tokens": 64, "metrics": []}


class Judging:
    """An evaluation that makes the model itself."""

    def model(self, tensors: Any) -> Any:
        return {"made": tensors}


def task(result: Any, *, seconds: float = 2.0) -> Any:
    def evaluate_final(model: Any) -> Any:
        return result(model) if callable(result) else result

    return SimpleNamespace(evaluate_final=evaluate_final, evaluate_final_seconds=seconds, better=(("right", "higher"),))


def found(result: Any) -> Any:
    return figures_of(task(result), Judging(), {"w": 1}, SEED)  # type: ignore[arg-type]


def test_figures_are_of_the_model_that_the_evaluation_makes() -> None:
    seen: list[Any] = []
    result = found(lambda model: seen.append(model) or {"right": np.float32(0.5), "count": 3})
    assert seen == [{"made": {"w": 1}}]
    assert (result.figures, result.fault) == ({"right": 0.5, "count": 3.0}, None)


def test_a_task_makes_the_model_where_its_evaluation_does_not() -> None:
    own = task(lambda model: {"right": model})
    own.model = lambda tensors, seed: tensors["w"] + seed
    assert figures_of(own, object(), {"w": 1}, SEED).figures == {"right": 8.0}  # type: ignore[arg-type]


def fail(_: Any) -> Any:
    raise ValueError("no questions.jsonl")


def leave(_: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("result", "kind", "detail"),
    [
        (fail, "raised", "ValueError: no questions.jsonl"),
        (leave, "raised", "SystemExit: 3"),
        (None, "no figures", "None"),
        (0.5, "no figures", "0.5"),
        ({"right": "0.5"}, "no figures", "'right': '0.5'"),
        ({"right": None}, "no figures", "'right': None"),
        ({"right": np.zeros(3)}, "no figures", "'right'"),
        ({3: 0.5}, "no figures", "3: 0.5"),
        ({"a\nb": 0.5}, "no figures", "a\\nb"),
        ({"": 0.5}, "no figures", "''"),
        ({"x" * 65: 0.5}, "no figures", "xxx"),
        ({str(number): 1 for number in range(FIGURES_MAX + 1)}, "no figures", str(FIGURES_MAX + 1)),
    ],
)
def test_what_is_no_figure_is_a_fault_with_what_was_found(
    result: Any, kind: str, detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, fault = found(result)
    assert figures == {}
    assert fault is not None
    assert fault["kind"] == kind
    assert detail in fault["detail"]
    assert ("Traceback" in capsys.readouterr().err) == (kind == "raised"), "the log has all of an error"


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_not_finite_is_none_and_named_and_the_others_stay(odd: float) -> None:
    result = found({"right": odd, "count": 3})
    assert result.figures == {"right": None, "count": 3.0}
    assert result.fault == {"kind": "not finite", "detail": "right"}


def sent(own: Any, made: Any, *, is_stopped: bool = False) -> list[Any]:
    context = SimpleNamespace(seed=SEED, stop_requested=lambda: is_stopped)
    items = FigureSender(own, context).follow(made, Judging(), lambda: {"w": 1})  # type: ignore[arg-type]
    emitted = []
    while True:
        try:
            emitted.append(next(items))
        except StopIteration as end:
            return [*emitted, end.value]


def test_the_evaluation_is_sent_before_its_figures_and_says_how_long_they_may_take() -> None:
    first, last = sent(task({"right": 0.5}), MADE)
    assert first == {"evaluation": {**MADE, "figures_within": 2_000_000_000}}
    assert last == {"evaluation": {**MADE, "figures": [["right", 0.5]], "better": [["right", "higher"]]}}


def test_of_a_run_that_is_stopped_they_are_left_out_and_the_function_is_not_called() -> None:
    (only,) = sent(task(fail), MADE, is_stopped=True)
    assert only["evaluation"]["figures_fault"]["kind"] == "stopped"
    assert only["evaluation"]["loss"] == 1.5


def test_a_task_without_figures_sends_its_evaluation_alone() -> None:
    assert sent(SimpleNamespace(evaluate_final=None), MADE) == [{"evaluation": MADE}]
    assert sent(task(fail), {**MADE, "left_out": True}) == [{"evaluation": {**MADE, "left_out": True}}]
    assert sent(task(fail), None) == [None]

"""Which evaluations a run that was stopped leaves out, and how long one has taken."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.island.contract import count_of, parts_of
from isthmus.ops.island.evaluation_time import STOPPED_NS, EvaluationTime, whole

SECOND = 1_000_000_000


class Clock:
    """Time that batches take; `stops_at` is when the stop of the run is requested."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.at, self.stops_at = 0, stops_at

    def now(self) -> int:
        return self.at

    def is_stopped(self) -> bool:
        return self.stops_at is not None and self.at >= self.stops_at


class Slow:
    """An evaluation of `count` batches, each of which takes so many nanoseconds; `made` counts those of all."""

    def __init__(self, clock: Clock, count: int, batch_ns: int) -> None:
        self.clock, self.count, self.batch_ns, self.made = clock, count, batch_ns, 0

    def parts(self, tensors: Any) -> Any:
        for _ in range(self.count):
            yield
            self.clock.at += self.batch_ns
            self.made += 1
        return {"loss": 2.0, "more": 1.0}

    def metrics(self, tensors: Any) -> dict[str, float]:
        return whole(self.parts(tensors))

    def assemble(self, fragments: Any, values: Any) -> Any:
        return values


class Undivided:
    """The same in one part."""

    def __init__(self, clock: Clock, took: int) -> None:
        self.clock, self.took, self.made = clock, took, 0

    def metrics(self, tensors: Any) -> dict[str, float]:
        self.clock.at += self.took
        self.made += 1
        return {"loss": 2.0}

    def assemble(self, fragments: Any, values: Any) -> Any:
        return values


def made(time: EvaluationTime, kind: Any, evaluation: Any) -> Any:
    return time.made(kind, parts_of(evaluation, {}), count_of(evaluation), 640)


@pytest.mark.parametrize("kind", ["initial", "during", "final"])
def test_while_a_run_goes_on_every_evaluation_is_made_however_long_it_takes(kind: Any) -> None:
    clock = Clock()
    evaluation = Slow(clock, 40, 5 * SECOND)
    time = EvaluationTime(clock.now, clock.is_stopped)
    expected = {"kind": kind, "loss": 2.0, "tokens": 640, "metrics": [["more", 1.0]], "took": 200 * SECOND, "queued": 0}
    assert made(time, kind, evaluation) == expected


@pytest.mark.parametrize("kind", ["initial", "during"])
def test_an_evaluation_under_way_at_the_stop_is_given_up_after_its_batch(kind: Any) -> None:
    clock = Clock(stops_at=SECOND)
    evaluation = Slow(clock, 40, SECOND // 2)
    assert made(EvaluationTime(clock.now, clock.is_stopped), kind, evaluation) is None
    assert evaluation.made == 2


def assert_left_out(message: Any) -> None:
    assert message["loss"] != message["loss"]
    assert (message["kind"], message["tokens"], message["left_out"]) == ("final", 640, True)


def test_the_final_evaluation_of_a_stopped_run_is_made_where_it_is_short() -> None:
    clock = Clock(stops_at=0)
    evaluation = Slow(clock, 16, SECOND // 20)
    assert made(EvaluationTime(clock.now, clock.is_stopped), "final", evaluation)["loss"] == 2.0


def test_one_that_is_too_long_is_not_begun_where_it_is_known_to_be() -> None:
    clock = Clock()
    evaluation = Slow(clock, 16, SECOND)
    time = EvaluationTime(clock.now, clock.is_stopped)
    made(time, "initial", evaluation)
    clock.stops_at, evaluation.made = clock.at, 0
    assert_left_out(made(time, "final", evaluation))
    assert evaluation.made == 0


def test_one_whose_time_is_unknown_is_given_up_once_it_is_known() -> None:
    clock = Clock(stops_at=0)
    evaluation = Slow(clock, 16, SECOND)
    assert_left_out(made(EvaluationTime(clock.now, clock.is_stopped), "final", evaluation))
    assert evaluation.made == 2  # The first one may have been compiled for.


def test_a_stop_in_the_final_evaluation_leaves_it_the_same_time() -> None:
    clock = Clock(stops_at=100 * SECOND)
    for count, batches in ((102, 102), (120, 100)):
        clock.at = 0
        evaluation = Slow(clock, count, SECOND)
        message = made(EvaluationTime(clock.now, clock.is_stopped), "final", evaluation)
        assert (evaluation.made, "left_out" in message) == (batches, batches < count)
        assert clock.at <= 100 * SECOND + STOPPED_NS


def test_what_cannot_be_divided_is_left_out_as_a_whole() -> None:
    clock = Clock()
    evaluation = Undivided(clock, 4 * SECOND)
    time = EvaluationTime(clock.now, clock.is_stopped)
    assert [made(time, kind, evaluation)["took"] for kind in ("initial", "during")] == [4 * SECOND] * 2
    clock.stops_at = clock.at
    assert made(time, "during", evaluation) is None
    assert_left_out(made(time, "final", evaluation))
    assert evaluation.made == 2

"""What is told of a task's stream before a run starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

from isthmus.ops.data.batches import At
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.task_in_hand import differences
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError


class Numbers:
    """Batches that follow from slot, seed and position."""

    size = 4

    def __init__(self, slot: int, slots: int, seed: int) -> None:
        self.of, self.position = (seed, slot), 0

    def __next__(self) -> Any:
        self.position += 1
        return {"x": np.full(self.size, self.position, np.float32)}

    def get_state(self) -> Any:
        return self.position

    def set_state(self, state: Any) -> None:
        self.position = state


def task(stream: Any, size: int = 4) -> Task:
    def batch(at: At) -> Any:
        assert at.split == "evaluation"  # A task with a stream is asked for nothing else.
        return {"x": np.ones(size, np.float32)}

    def init(key: Any) -> Any:
        return {"w": np.ones(4, np.float32)}

    return Task(
        init,
        lambda p, b: ((p["w"] * b["x"]) ** 2).sum(),
        batch,
        tokens_per_batch=4,
        optimizer=optax.sgd(0.1),
        stream=stream,
    )


def refusal(stream: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        layout(task(stream, **more))
    return str(caught.value)


def test_a_task_with_a_stream_has_a_layout_and_is_known_again() -> None:
    assert [spec.name for spec in layout(task(Numbers))] == ["w"]
    assert list(differences(task(Numbers), task(Numbers), 0)) == []


def test_a_stream_without_a_state_is_refused_before_the_start() -> None:
    assert "found a list_iterator without get_state, set_state" in refusal(lambda *of: iter([1]))


def test_a_state_that_does_not_bring_back_a_batch_is_refused() -> None:
    class Forgets(Numbers):
        def set_state(self, state: Any) -> None:
            pass

    assert "after set_state(get_state()): expected the same 'x'" in refusal(Forgets)


def test_a_stream_that_is_another_one_each_time_is_refused() -> None:
    class Drawn(Numbers):
        made = 0

        def __init__(self, *of: int) -> None:
            super().__init__(*of)
            Drawn.made += 100
            self.position = Drawn.made

    assert "made anew: expected the same 'x', found other values" in refusal(Drawn)


def test_batches_that_differ_in_structure_are_refused() -> None:
    class Grows(Numbers):
        def __next__(self) -> Any:
            self.size += 1
            return super().__next__()

    assert "'x' as at" in refusal(Grows)
    assert "(task.batch(At" not in refusal(Grows)
    assert "split='evaluation'" in refusal(Numbers, size=1)


def test_what_a_stream_raises_is_told_with_its_line() -> None:
    def broken(slot: int, slots: int, seed: int) -> Any:
        raise OSError("no such shard")

    told = refusal(broken)
    assert "OSError: no such shard" in told
    assert "test_stream_task.py" in told


def test_a_stream_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="a function stream"):
        task(Numbers(0, 1, 0))

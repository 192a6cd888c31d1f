"""A run that cannot fit into the memory of this machine, or of its container, is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.programs.engine.islands import environment, memory_room
from isthmus.programs.engine.islands.memory_room import OF_SYNCER, with_memory
from isthmus.programs.engine.request.model_sizes import FLOAT32_BYTES, learner_bytes, parameter_count
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.runtime.errors import ConfigError

LEARNERS = 3


@pytest.fixture(scope="module")
def request_() -> Request:
    small = {"layers": 1, "width": 16, "heads": 2, "context": 16}
    return prepare(Program("decoupled-diloco"), None, run={"learners": LEARNERS, "tokens": 1000}, task_settings=small)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives this machine so much memory, and GPUs."""

    def has(memory: int, gpus: int = 0) -> None:
        monkeypatch.setattr(memory_room, "memory_most", lambda: memory)
        monkeypatch.setattr(environment, "device_files", lambda: {"cuda": gpus, "tpu": 0})

    return has


def test_what_is_certain_has_to_fit(request_: Request, machine: Callable[..., None]) -> None:
    syncer = OF_SYNCER * FLOAT32_BYTES * parameter_count(request_)
    need = LEARNERS * learner_bytes(request_) + syncer
    machine(need)
    assert with_memory(request_) is request_
    machine(need - 1)
    with pytest.raises(ConfigError) as refused:
        with_memory(request_)
    (fault,) = refused.value.faults
    assert "3 learners" in fault.action
    assert "container" in fault.remedy
    machine(syncer, gpus=1)
    assert with_memory(request_) is request_
    machine(syncer - 1, gpus=1)
    with pytest.raises(ConfigError):
        with_memory(request_)

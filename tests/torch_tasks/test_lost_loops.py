"""What a loop hears that has lost its slot, and its host is over; or that would lose it by what it claims."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import isthmus
from isthmus.ops.island.life import IslandSlot
from isthmus.programs.island import Island
from isthmus.programs.loop_script import ISLAND, LoopLife
from isthmus.programs.module_island import ModuleModel
from isthmus.runtime.errors import ConfigError, RunError

pytestmark = [pytest.mark.torch]

TAKEN = "it was taken for stuck"


class Host:
    """A host that is over from the beginning on, or after a first step; its daemon then says why."""

    position = 0
    place = IslandSlot(0, 1, 0)
    tokens_most = 64

    def __init__(self, daemon: SimpleNamespace, lost: str, progress: float, *, at_once: bool) -> None:
        self.is_over, self.has_left, self.counts = False, False, list[int]()
        self._daemon, self._lost, self.progress, self._at_once = daemon, lost, progress, at_once

    def begin(self) -> None:
        if self._at_once:
            self.go_on()

    def go_on(self) -> None:
        self.is_over, self._daemon.lost = True, self._lost

    def leave(self) -> None:
        self.has_left = True

    def fail(self, error: BaseException) -> None:
        assert isinstance(error, RunError | ConfigError)


def island_of(monkeypatch: pytest.MonkeyPatch, lost: str, progress: float, *, at_once: bool) -> tuple[Island, Host]:
    """An island that joins by itself, and its host."""
    life = LoopLife("/run", "learner/0", 1, "ipc://x")
    daemon = SimpleNamespace(lost="", wait=lambda: life, close=lambda status, is_over: None)
    host = Host(daemon, lost, progress, at_once=at_once)
    monkeypatch.delenv(ISLAND, raising=False)
    monkeypatch.setattr("isthmus.programs.engine.machine.own_daemon.OwnDaemon", lambda *_, **__: daemon)
    monkeypatch.setattr(ModuleModel, "host", lambda self, make, **more: host)
    module = torch.nn.Linear(4, 1)
    island = isthmus.island(module, torch.optim.SGD(module.parameters()), address="tcp://127.0.0.1:1")
    island._learner = SimpleNamespace(progress=progress, record=lambda tokens, scalars: host.counts.append(tokens))
    return island, host


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("lost", "progress"), [(TAKEN, 0.5), (TAKEN, 1.0), ("", 0.5)])
def test_a_loop_does_not_end_in_silence_where_its_slot_was_taken_away(
    at_once: bool, lost: str, progress: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    island, host = island_of(monkeypatch, lost, progress, at_once=at_once)

    def train() -> None:
        with island:
            while not island.is_over:
                island.step(1.0, tokens=8)

    if lost and progress < 1.0:
        with pytest.raises(RunError, match=TAKEN):
            train()
    else:
        train()
        assert host.has_left


def test_a_step_of_more_tokens_than_the_run_takes_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    island, host = island_of(monkeypatch, "", 0.5, at_once=False)
    with pytest.raises(ConfigError, match="tokens_most="), island:
        island.step(1.0, tokens=65)
    assert host.counts == []
    island, host = island_of(monkeypatch, "", 0.5, at_once=False)
    with island:
        island.step(1.0, tokens=64)
    assert host.counts == [64]

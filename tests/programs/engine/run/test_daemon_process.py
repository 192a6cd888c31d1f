"""The process of a run's own daemon: when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.run import daemon_process
from isthmus.runtime.system.lines import ProcessLine


class Run:
    """One that is over as soon as it is started; then its command acts."""

    is_unwritten = is_set_aside = is_running = is_late = False

    def __init__(self, loop: Any, *arguments: Any, on_over: Callable[[], None], **more: Any) -> None:
        self.daemon, self._loop, self._on_over = self, loop, on_over

    def start(self) -> None:
        self._on_over()
        self._loop.call_later(0.05, Run.act)
        self._loop.call_later(10.0, self._give_up)

    def _give_up(self) -> None:
        Run.is_late = True
        self._loop.stop()

    @staticmethod
    def act() -> None: ...

    def set_aside(self, grace: float) -> None: ...

    def full(self) -> list[str]:
        return []

    def close(self) -> None: ...


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProcessLine, ProcessLine]]:
    """The command's end of the line, and the daemon's."""
    monkeypatch.setattr(daemon_process, "HeldRun", Run)
    monkeypatch.setattr(daemon_process.spec, "load", lambda folder: None)
    monkeypatch.setattr(daemon_process, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(Run, "is_late", False)
    ours, its = ProcessLine.pair()
    yield ours, ProcessLine(its)
    ours.close()


@pytest.mark.parametrize("message", [None, {"detach": True}])
def test_it_ends_once_the_run_is_over_and_its_command_has_seen_that_or_let_it_go(
    command: tuple[ProcessLine, ProcessLine], monkeypatch: pytest.MonkeyPatch, message: dict[str, bool] | None
) -> None:
    ours, its = command

    def act() -> None:
        if message is None:
            ours.end()
        else:
            ours.send(message)

    monkeypatch.setattr(Run, "act", staticmethod(act))
    lock = cast(RunLock, None)
    assert daemon_process._serve(Path("run"), lock, its, grace=2.0) == 0
    assert not Run.is_late

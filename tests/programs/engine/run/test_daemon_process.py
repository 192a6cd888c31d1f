"""The process of a run's own daemon: when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.run import daemon_process
from isthmus.runtime.wire.control_messages import DETACH


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
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The command's end of the pipe to standard input."""
    monkeypatch.setattr(daemon_process, "HeldRun", Run)
    monkeypatch.setattr(daemon_process.spec, "load", lambda folder: None)
    monkeypatch.setattr(daemon_process, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(Run, "is_late", False)
    reader, writer = os.pipe()
    before = os.dup(0)
    os.dup2(reader, 0)
    yield writer
    os.dup2(before, 0)
    os.close(reader)
    os.close(before)


@pytest.mark.parametrize("word", [b"", DETACH])
def test_it_ends_once_the_run_is_over_and_its_command_has_seen_that_or_let_it_go(
    command: int, monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    def act() -> None:
        os.write(command, word)
        os.close(command)

    monkeypatch.setattr(Run, "act", staticmethod(act))
    lock = cast(RunLock, None)
    assert daemon_process._serve(Path("run"), lock, has_pipe=True, grace=2.0) == 0
    assert not Run.is_late

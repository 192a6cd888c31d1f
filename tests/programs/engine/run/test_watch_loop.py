"""The watch of a command over a run: what it does with Ctrl-C, and where nobody reads what it shows."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.run import interrupts, private_daemon, watch_loop
from isthmus.programs.engine.run.interrupts import Interrupts
from isthmus.programs.engine.run.private_daemon import PrivateDaemon
from isthmus.programs.engine.run.watch_loop import (
    MARGIN_SECONDS,
    SECOND_SECONDS,
    CutOffError,
    DetachedError,
    LastResort,
    RunWatch,
)
from isthmus.runtime.errors import RunError
from isthmus.runtime.supervision.liveness import BACKOFF_SECONDS
from isthmus.runtime.wire.control_messages import Message
from tests.patience import PATIENCE

RUN = Path("run")
STATUS: Message = {"training": {}, "hosts": []}


class Daemon:
    """Its run is over after so many statuses; with `signals`, as many signals come before each."""

    fate = "is no more"

    def __init__(self, statuses: int, signals: int = 0, *, is_deaf: bool = False) -> None:
        self.interrupted = Interrupts()
        self._left, self._signals, self._is_deaf = statuses, signals, is_deaf
        self.number = signal.SIGINT
        self.requests: list[str] = []
        self.is_detached = False

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def tend(self) -> None:
        for _ in range(self._signals):
            self.interrupted.on_signal(self.number, None)

    def status(self) -> Message | None:
        self._left -= 1
        return STATUS

    def confirms(self, message: Message) -> bool:
        self.requests.append(message["type"])
        return not self._is_deaf

    def detach(self) -> bool:
        self.is_detached = True
        return True


class View:
    """Whose reader goes after the first status."""

    def __init__(self) -> None:
        self.updates = 0

    def update(self, status: dict[str, Any]) -> None:
        self.updates += 1
        if self.updates == 2:
            raise BrokenPipeError

    def close(self, summary: dict[str, Any]) -> None:
        raise AssertionError


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_loop.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(watch_loop, "leave_output", lambda: None)


def test_each_of_the_first_two_signals_is_passed_on_once() -> None:
    daemon = Daemon(5, signals=1)
    RunWatch(daemon, daemon.interrupted).until_over(RUN, None)
    assert daemon.requests == ["stop", "end"]


def test_a_notice_to_leave_is_passed_on_once_and_no_wish_to_stop() -> None:
    daemon = Daemon(5, signals=1)
    daemon.number = signal.SIGTERM
    RunWatch(daemon, daemon.interrupted).until_over(RUN, None)
    assert daemon.requests == ["set-aside"]


def test_a_daemon_that_does_not_answer_the_second_signal_is_given_up() -> None:
    daemon = Daemon(5, signals=1, is_deaf=True)
    with pytest.raises(RunError, match="by a second Ctrl-C; its daemon did not answer, and is no more"):
        RunWatch(daemon, daemon.interrupted).until_over(RUN, None)
    assert daemon.requests == ["stop", "end"]


def test_a_daemon_that_confirms_the_end_and_does_not_come_to_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 20))
    monkeypatch.setattr(watch_loop.time, "monotonic", lambda: next(seconds))
    daemon = Daemon(1000)
    daemon.interrupted.count = daemon.interrupted.presses = 2
    with pytest.raises(RunError, match="did not come to the end within 90 s, and is no more"):
        RunWatch(daemon, daemon.interrupted).until_over(RUN, None)


class Clock:
    """So many seconds from one look at it to the next."""

    def __init__(self, step: float) -> None:
        self._now, self._step = 0.0, step

    def __call__(self) -> float:
        self._now += self._step
        return self._now


@pytest.mark.parametrize(("seconds_apart", "is_second"), [(0.5, False), (1.5, True)])
def test_notices_within_a_second_are_one(
    seconds_apart: float, is_second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts.time, "monotonic", Clock(seconds_apart))
    interrupted = Interrupts()
    for _ in range(2):
        interrupted.on_signal(signal.SIGHUP, None)
    assert interrupted.second.is_set() == is_second
    assert interrupted.count == 2


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_press_is_a_signal_of_its_own(numbers: tuple[int, int]) -> None:
    interrupted = Interrupts()
    for number in numbers:
        interrupted.on_signal(number, None)
    assert interrupted.second.is_set()


@pytest.mark.parametrize("is_second", [True, False])
def test_a_notice_that_is_not_carried_out_cuts_the_run_off(is_second: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(1000, is_deaf=True)
    for number in (signal.SIGTERM, *((signal.SIGINT,) if is_second else ())):
        daemon.interrupted.on_signal(number, None)
    clock = Clock(1.0)
    monkeypatch.setattr(watch_loop.time, "monotonic", clock)
    daemon.interrupted.first_at = 0.0
    daemon.interrupted.second_at = 0.0 if is_second else None
    with pytest.raises(CutOffError):
        RunWatch(daemon, daemon.interrupted, 20.0, SECOND_SECONDS, is_own=True).until_over(RUN, None)
    least = SECOND_SECONDS if is_second else 20.0 + MARGIN_SECONDS
    assert least < clock() <= least + 10.0


def test_a_daemon_that_is_not_this_commands_is_only_asked() -> None:
    daemon = Daemon(5)
    daemon.interrupted.on_signal(signal.SIGTERM, None)
    daemon.interrupted.first_at = -1e6
    RunWatch(daemon, daemon.interrupted).until_over(RUN, None)
    assert daemon.requests == ["set-aside"]


class Wedged:
    """A daemon whose command is blocked."""

    def __init__(self) -> None:
        self.is_given_up = threading.Event()
        self.error: RunError | None = None

    def give_up(self, error: RunError) -> None:
        self.error = error
        self.is_given_up.set()


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, RunError), (signal.SIGTERM, CutOffError)])
def test_a_thread_ends_what_a_blocked_command_does_not(
    number: int, kind: type[RunError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_loop, "SECOND_SECONDS", 0.0)
    monkeypatch.setattr(watch_loop, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(watch_loop.signal, "pthread_kill", lambda thread, number: None)
    daemon, interrupted = Wedged(), Interrupts()
    with LastResort(daemon, interrupted):
        interrupted.on_signal(number, None)
        interrupted.second.set()
        assert daemon.is_given_up.wait(PATIENCE)
    assert type(daemon.error) is kind  # A notice to leave cuts a run off: it goes on at its next start.


def test_a_command_that_ends_is_left_alone() -> None:
    daemon = Wedged()
    with LastResort(daemon, Interrupts()):
        pass
    assert not daemon.is_given_up.is_set()


def test_where_nobody_reads_the_output_the_run_goes_on_with_its_command_or_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept, left, view = Daemon(4), Daemon(4), View()
    RunWatch(kept, kept.interrupted).until_over(RUN, view)
    assert (view.updates, kept.is_detached) == (4, False)
    assert capsys.readouterr().err.count("standard output was closed; the run goes on") == 1
    with pytest.raises(DetachedError):
        RunWatch(left, left.interrupted).until_over(RUN, View(), detaches=True)
    assert left.is_detached


def test_with_nothing_to_show_it_detaches_at_the_first_answer() -> None:
    daemon = Daemon(4)
    with pytest.raises(DetachedError):
        RunWatch(daemon, daemon.interrupted).until_over(RUN, None, detaches=True)
    assert (daemon._left, daemon.is_detached) == (3, True)


def test_what_a_next_daemon_does_not_know_yet_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that its daemons cannot go on with, the last figures are written."""
    known = {"name": "learner/0", "pid": 7, "cpu_seconds": 1.5, "flows": {"sent": 1}}
    answers = [
        {"training": {"tokens": 9}, "hosts": [known]},
        {"training": {}, "hosts": [{"name": "learner/0", "pid": None}]},
    ]
    monkeypatch.setattr(PrivateDaemon, "_start", lambda daemon: None)
    monkeypatch.setattr(PrivateDaemon, "_ask", lambda daemon, message, seconds_max: answers.pop(0))
    with RunLock(tmp_path) as lock:
        daemon = PrivateDaemon(tmp_path, lock, print, 20.0)
        daemon.status()
        daemon.status()
    assert daemon.seen == {"training": {"tokens": 9}, "hosts": [{**known, "pid": None}]}


def test_a_daemon_that_began_while_the_disk_was_full_is_forgiven_where_room_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ["full"] * 6 + ["", ""]
    monkeypatch.setattr(PrivateDaemon, "_start", lambda daemon: None)
    monkeypatch.setattr(private_daemon, "refusal_of", lambda folder: found.pop(0))
    monkeypatch.setattr(private_daemon, "has_hosts", lambda folder: True)
    with RunLock(tmp_path) as lock:
        daemon = PrivateDaemon(tmp_path, lock, lambda line: None, 20.0)
        delays = [daemon._put_off("with status 1") for _ in range(7)]
        assert delays == [*BACKOFF_SECONDS[:5], BACKOFF_SECONDS[-1], BACKOFF_SECONDS[0]]
        with pytest.raises(RunError, match="8 times in a row"):
            daemon._put_off("with status 1")

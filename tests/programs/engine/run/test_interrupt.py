"""Ctrl-C, with real signals to a real process, and a terminal that goes away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from isthmus.programs.engine.run.private_daemon import processes_of
from tests.effort import soaked
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import PAUSE, press_until_over

pytestmark = [pytest.mark.process, pytest.mark.long]

ISTHMUS = Path(sys.executable).with_name("isthmus")
TASK = (Path(__file__).parents[4] / "docs" / "examples" / "mine.py").read_text()

ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Goes on as another program, whose session has its standard input as its terminal."""


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str], seconds_max: float = PATIENCE) -> None:
    until = time.monotonic() + seconds_max
    while not what():
        assert time.monotonic() < until, "it did not come about"
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise AssertionError(process.communicate())


@pytest.fixture
def running(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "mine.py").write_text(TASK)
    command = [str(ISTHMUS), "train", "--task", "mine.py:task", "--tokens", "1000000000", "--run-dir", "run"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    merges = tmp_path / "run" / "merges.jsonl"
    try:
        wait_for(lambda: merges.exists() and merges.stat().st_size > 4000, process)
    except BaseException:
        process.kill()
        raise
    return process


@pytest.mark.soak
def test_the_first_ctrl_c_merges_the_last_fragments(running: subprocess.Popen[str], tmp_path: Path) -> None:
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == "stopped"
    assert summary["tokens_pending"] == 0
    assert len(list((tmp_path / "run" / "snapshots" / "final").glob("*.safetensors"))) == summary["fragments"]
    assert "stopped" in out


@pytest.mark.soak
def test_the_second_ctrl_c_ends_the_run_at_once(running: subprocess.Popen[str], tmp_path: Path) -> None:
    pids = {name: pid for pid, name in processes_of(tmp_path / "run")}
    os.kill(pids["learner-0.log"], signal.SIGSTOP)  # The run waits for its last answers.
    error = press_until_over(running)
    assert running.returncode == 1, error
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "failed"
    assert (tmp_path / "run" / "report.html").exists()
    assert "Traceback" not in error


@pytest.mark.parametrize("transport", ["zmq", soaked("inproc")])
def test_a_terminal_that_goes_away_sets_the_run_aside(tmp_path: Path, transport: str) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    train = [str(ISTHMUS), "train", "--task", "mine.py:task", "--tokens", "1000000000", "--run-dir", "run"]
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_TERMINAL, *train, "--learners", "1", "--transport", transport],
        cwd=tmp_path,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    merges, is_shown = tmp_path / "run" / "merges.jsonl", threading.Event()

    def read() -> None:
        """Somebody looks at the terminal, which would be full otherwise."""
        while not is_shown.is_set() and os.read(ours, 1 << 16):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    until = time.monotonic() + 60
    while not (merges.exists() and merges.stat().st_size > 2000):
        assert time.monotonic() < until
        assert process.poll() is None
        PAUSE.wait(0.02)
    is_shown.set()
    reader.join()
    os.close(ours)
    status, outcome = (75, "interrupted") if transport == "zmq" else (0, "stopped")
    assert process.wait(60) == status
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["outcome"], summary["error"]) == (outcome, None)
    assert (tmp_path / "run" / "report.html").exists()

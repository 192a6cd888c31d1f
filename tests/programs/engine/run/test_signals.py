"""Signals to the command at every stage of the start: it ends as it promises, and leaves nothing running."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus import programs
from isthmus.programs.engine.run.interrupts import interrupt, interrupts
from tests.effort import soaked
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import PAUSE, STUCK, Run, press_until_over

pytestmark = pytest.mark.process

PROGRAMS = Path(programs.__path__[0])
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


# Stages of the start. But for the first, which lasts a second, a stage is not over when the next begins: a look that
# comes late finds a later one, at which the command promises the same.


def is_preparing(run: Run) -> bool:
    """Whether what prepares the request is there, and what waits for the run: a daemon, and a server of its hosts."""
    return len(run.processes()) == 4 and not run.folder.exists()


def is_daemon_starting(run: Run) -> bool:
    return (run.folder / "logs" / "daemon.log").exists()


def are_hosts_starting(run: Run) -> bool:
    return (run.folder / "daemon.json").exists()


def is_compiling(run: Run) -> bool:
    return run.host("learner/0").get("phase") == "compiling" or is_without_merges(run)


def is_without_merges(run: Run) -> bool:
    return run.host("learner/0").get("phase") in ("ready", "recovering", "stepping")


def reach(run: Run, stage: Callable[[Run], bool]) -> None:
    """Wait for a stage of the start, looking often: some last a few hundredths of a second."""
    until = time.monotonic() + 60
    while not stage(run):
        assert time.monotonic() < until
        assert run.command.poll() is None, (run.command.communicate(), run.story())
        PAUSE.wait(0.005)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, soaked(signal.SIGTERM), soaked(signal.SIGHUP), soaked(signal.SIGKILL)]
)
def test_during_preparation_nothing_is_started(start: Callable[..., Run], number: signal.Signals) -> None:
    run = start(learners=1)
    reach(run, is_preparing)
    if number == signal.SIGKILL:
        run.command.kill()
    else:
        run.signal(number)
    out, error = run.command.communicate(timeout=PATIENCE)
    status = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 1}
    assert run.command.returncode == status.get(number, 75)
    words = {signal.SIGINT: "isthmus: ended by Ctrl-C.\n", signal.SIGKILL: ""}
    assert error == words.get(number, f"isthmus: ended by {number.name}.\n")
    assert "Traceback" not in out
    run.wait_until_gone()
    assert not run.folder.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [
        are_hosts_starting,
        soaked(is_compiling),
        soaked(is_without_merges),
    ],
)
def test_kill_leaves_nothing_running(start: Callable[..., Run], stage: Callable[[Run], bool]) -> None:
    run = start(learners=1)
    reach(run, stage)
    run.command.kill()
    run.command.communicate()
    run.wait_until_gone()
    assert run.summary()["outcome"] == "failed"
    assert "Traceback" not in run.story()


@pytest.mark.parametrize("stage", [is_daemon_starting, soaked(is_without_merges)])
def test_a_first_ctrl_c_brings_the_run_to_its_end(start: Callable[..., Run], stage: Callable[[Run], bool]) -> None:
    run = start(learners=1)
    reach(run, stage)
    run.signal(signal.SIGINT)
    assert run.finish()["tokens_pending"] == 0


@pytest.mark.long
@pytest.mark.parametrize("stage", [soaked(is_daemon_starting), is_compiling])
def test_a_second_one_ends_it_at_once(start: Callable[..., Run], stage: Callable[[Run], bool]) -> None:
    run = start(learners=1, task=STUCK)
    reach(run, stage)
    error = press_until_over(run.command)
    assert run.command.returncode == 1, error
    assert "ended at once by a second Ctrl-C" in error
    assert "Traceback" not in error
    run.wait_until_gone()


@pytest.mark.parametrize(("presses", "is_raised"), [(1, True), (2, False)])
def test_after_a_second_one_a_third_does_not_take_the_place_of_what_is_said(presses: int, is_raised: bool) -> None:
    before = signal.signal(signal.SIGINT, interrupt)
    raised = False
    try:
        with interrupts():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raised = True
    finally:
        signal.signal(signal.SIGINT, before)
    assert raised == is_raised


@pytest.mark.soak
def test_kill_before_the_daemon_has_said_where_it_is_leaves_nothing_running(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    reach(run, is_daemon_starting)
    run.command.kill()
    run.command.communicate()
    run.wait_until_gone()
    assert "Traceback" not in run.story()


@pytest.mark.soak
def test_kill_of_a_run_that_trains_leaves_nothing_running(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(5)
    assert len(run.processes()) >= 7
    run.command.kill()
    run.command.communicate()
    run.wait_until_gone()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_each_of_them_sets_a_run_aside_before_its_first_merge_and_a_second_one_changes_nothing(
    start: Callable[..., Run], number: signal.Signals
) -> None:
    run = start(learners=1)
    reach(run, is_compiling)
    for _ in range(2):
        run.signal(number)
    _, error = run.command.communicate(timeout=PATIENCE)
    assert (run.command.returncode, run.summary()["outcome"]) == (75, "interrupted"), error
    run.wait_until_gone()


@pytest.mark.soak
def test_a_third_one_does_not_wait_for_the_daemon(start: Callable[..., Run]) -> None:
    run = start(learners=1, task=STUCK)
    reach(run, is_without_merges)
    while run.status()["outcome"] != "failed":
        run.command.send_signal(signal.SIGINT)
        PAUSE.wait(0.1)
    os.kill(run.daemon()["pid"], signal.SIGSTOP)  # It has confirmed, and writes the summary now.
    error = press_until_over(run.command)
    assert run.command.returncode == 1, error
    assert "ended at once by a second Ctrl-C" in error
    assert run.summary()["outcome"] == "failed"
    run.wait_until_gone()


@pytest.fixture
def mask() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP are blocked; whatever is started inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def blocked(pid: int) -> set[int]:
    """The signals that a process blocks, in its main thread."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigBlk")]
    bits = int(line.split()[1], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


@pytest.mark.soak
@pytest.mark.usefixtures("mask")
def test_a_mask_that_is_inherited_keeps_none_of_them_away(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    assert blocked(os.getpid()) >= ENDING
    run.wait_for_merges(1)
    assert len(run.processes()) >= 7
    for pid, name in run.processes().items():
        assert not blocked(pid) & ENDING, name
    run.signal(signal.SIGINT)
    run.finish()


@pytest.mark.long
@pytest.mark.usefixtures("mask")
def test_nor_while_a_run_is_prepared(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    reach(run, is_preparing)
    run.signal(signal.SIGHUP)
    _, error = run.command.communicate(timeout=PATIENCE)
    assert (run.command.returncode, error) == (75, "isthmus: ended by SIGHUP.\n")
    run.wait_until_gone()


ENDED_BY_USER_CODE = """
import json, subprocess
from isthmus.programs.engine.run.preparing import in_child

def work():
    started = subprocess.Popen(["sleep", "60"])
    started.terminate()
    return {"status": started.wait(10)}

print(json.dumps(in_child(work)))
"""


def test_what_user_code_starts_while_a_run_is_prepared_has_default_signals() -> None:
    command = [sys.executable, "-c", ENDED_BY_USER_CODE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ('{"status": -15}\n', "")


@pytest.fixture
def ignored() -> Iterator[None]:
    """SIGINT and SIGHUP are ignored, as for what a script starts with `nohup ... &`."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.soak
@pytest.mark.usefixtures("ignored")
def test_sighup_stays_ignored_and_sigint_does_not(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    run.wait_for_merges(1)
    for _ in range(2):
        run.signal(signal.SIGHUP)
    run.wait_for_merges(20)
    run.signal(signal.SIGINT)
    run.finish()


def test_every_process_of_ours_undoes_a_mask_at_its_start() -> None:
    """Those that are started as modules: each has to say so itself."""
    texts = {path: path.read_text() for path in PROGRAMS.rglob("*.py")}
    statements = {path: ast.parse(text).body for path, text in texts.items() if "__name__" in text}
    started = [
        path
        for path, body in statements.items()
        if any(isinstance(each, ast.If) and "__name__" in ast.unparse(each.test) for each in body)
    ]
    assert {path.stem for path in started} >= {"host_process", "fork_server", "daemon_process", "finish"}
    # Each of the last three does so for the process that calls it.
    undone = ("    unblock()\n", "    follow_daemon()\n", " = serve_line(", " answer_one(arguments, ")
    assert [path.name for path in started if not any(each in path.read_text() for each in undone)] == []


@pytest.mark.usefixtures("mask")
def test_a_run_in_a_process_of_the_users_undoes_a_mask_for_as_long_as_it_lasts() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with interrupts() as interrupted:
        assert not {*signal.pthread_sigmask(signal.SIG_BLOCK, ())} & {*ENDING}
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.count == 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

"""What is started ahead of a run: nothing of it is left where the request is refused, or its command dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import ISTHMUS

pytestmark = pytest.mark.process

REFUSED = """
from isthmus.programs.engine.run.preparing import DaemonAhead
from isthmus.runtime.errors import ConfigError
def work():
    import subprocess
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    raise ConfigError("Reading", "this", "that", "Change it.")
try:
    DaemonAhead(work)
except ConfigError as error:
    print(error.faults[0].found)
"""
WORKING = """
import os, sys, time
from isthmus.programs.engine.run.preparing import DaemonAhead
def work():
    open(sys.argv[1], "w").close()
    time.sleep(600)
DaemonAhead(work)
"""


def of_session(environment: str) -> list[int]:
    """The processes that have this variable, zombies not among them."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            is_ours = path.name.isdigit() and environment.encode() in (path / "environ").read_bytes()
        except OSError:
            continue
        if is_ours and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def gone(environment: str) -> bool:
    until = time.monotonic() + PATIENCE
    while of_session(environment):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_refused_request_leaves_no_process(tmp_path: Path) -> None:
    mark = f"ISTHMUS_TEST_MARK={tmp_path}"
    environment = {**os.environ, "ISTHMUS_TEST_MARK": str(tmp_path)}
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "that\n"), done.stderr
    assert gone(mark)


OF_THE_DISK = """
import errno
from isthmus.programs.engine.run.preparing import DaemonAhead
from isthmus.runtime.errors import ConfigError, RunError
for number in (errno.EACCES, errno.ENOSPC, errno.EBADF):
    def work():
        raise OSError(number, "a reason", "/x/runs")
    try:
        DaemonAhead(work)
    except ConfigError as error:
        print(error.faults[0].found, "told")
    except RunError as error:
        print("Traceback" in str(error), "failed")
"""


def test_what_the_disk_refuses_is_told_and_what_nobody_knows_has_its_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", OF_THE_DISK], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["a reason: /x/runs told", "a reason: /x/runs told", "True failed"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_command_that_ends_while_its_request_is_prepared_leaves_no_process(tmp_path: Path, number: int) -> None:
    mark, working = f"ISTHMUS_TEST_MARK={tmp_path}", tmp_path / "working"
    environment = {**os.environ, "ISTHMUS_TEST_MARK": str(tmp_path)}
    nothing = subprocess.DEVNULL
    command = [sys.executable, "-c", WORKING, str(working)]
    with subprocess.Popen(command, stdout=nothing, stderr=nothing, env=environment) as process:
        until = time.monotonic() + PATIENCE
        while not working.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(PATIENCE)
    assert gone(mark)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_command_that_ends_while_its_script_is_asked_leaves_no_process(tmp_path: Path, number: int) -> None:
    mark, environment = f"ISTHMUS_TEST_MARK={tmp_path}", {**os.environ, "ISTHMUS_TEST_MARK": str(tmp_path)}
    hangs = "import os, subprocess, time; subprocess.Popen(['sleep', '600']); open(f'{os.getpid()}.pid', 'w').close()\n"
    (tmp_path / "train.py").write_text(f"{hangs}time.sleep(600)")
    command = [str(ISTHMUS), "train", "--loop", "train.py", "--learners", "2"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, stdout=nothing, stderr=nothing, env=environment) as process:
        until = time.monotonic() + PATIENCE
        while not list(tmp_path.glob("*.pid")):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(PATIENCE)
    assert gone(mark)


OPENED = """
import json, os, sys
from isthmus.programs.engine.run.preparing import DaemonAhead
kept = os.open(sys.argv[1], os.O_RDONLY)
def work():
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {"has": os.path.realpath(sys.argv[1]) in files, "task": ""}
print(DaemonAhead(work).answer["has"])
"""


def test_what_the_command_has_open_does_not_stay_with_hosts(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    command = [sys.executable, "-c", OPENED, str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


TELLING = """
from isthmus.programs.engine.run.preparing import DaemonAhead, in_child, listening
from isthmus.programs.reading.token_progress import MakingProgress, tell
def work():
    tell(MakingProgress(1234, 5, 67))
    tell(MakingProgress(99))  # Too soon after the other.
    return {"task": "", "is": "done"}
heard = []
with listening(heard.append):
    print(in_child(work)["is"], DaemonAhead(work).answer["is"], heard == 2 * [MakingProgress(1234, 5, 67)])
DaemonAhead(work)
print(len(heard))
"""


def test_how_far_the_data_are_is_told_before_the_answer() -> None:
    command = [sys.executable, "-c", TELLING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.splitlines() == ["done done True", "2"], done.stderr


NAMED = """
import os
from isthmus.programs.engine.run.preparing import DaemonAhead
from isthmus.runtime.system.processes import name_process
def work():
    name_process("isthmus learner/0")
    return {"has": open("/proc/self/cmdline").read().rstrip(chr(0)), "task": ""}
print(DaemonAhead(work).answer["has"])
"""


def test_hosts_that_are_forked_from_it_have_their_names() -> None:
    done = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "isthmus learner/0\n", done.stderr

"""Commands with many inherited descriptors, with few of their own, and on a disk without locks."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.system.locks import NOTE_SUFFIX, holder_of
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import ISTHMUS, TASK, Run, resume

pytestmark = [pytest.mark.process, pytest.mark.long]

MANY = 1100
FEW = 64
LOCKLESS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
int flock(int file, int how) { errno = ENOLCK; return -1; }
#define REPLACED(name) int name(int file, int how, ...) { \\
    va_list more; va_start(more, how); void *what = va_arg(more, void *); va_end(more); \\
    if (how == F_SETLK || how == F_SETLKW || how == F_GETLK) { errno = ENOLCK; return -1; } \\
    int (*own)(int, int, ...) = dlsym(RTLD_NEXT, #name); return own(file, how, what); }
REPLACED(fcntl)
REPLACED(fcntl64)
"""


@pytest.fixture
def many() -> Iterator[None]:
    """So many descriptors that every child inherits, unless it closes them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip("this machine does not permit so many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    for each in opened:
        os.set_inheritable(each, True)
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children keep what they inherit."""
    started = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        return started(*arguments, **{"close_fds": False, **options})

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.usefixtures("many", "inherited")
def test_a_run_with_many_inherited_descriptors(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(5)
    assert len(os.listdir(f"/proc/{run.command.pid}/fd")) > MANY
    assert all(len(os.listdir(f"/proc/{pid}/fd")) < MANY for pid in run.pids().values())
    run.kill("learner/1")
    run.wait_for(lambda: run.host("learner/1").get("incarnation") == 2)
    run.wait_for_merges(5)
    run.stop()


def limited(limit: int, *words: str) -> list[str]:
    """A command that may have so many files open."""
    code = f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); "
    code += "import sys; os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, str(ISTHMUS), *words]


COMMANDS = [
    ("status", "--all"),
    ("graph", "diloco"),
    ("keygen", "alpha"),
    ("train", "--tokens", "100000", "--run-dir", "run"),
    ("train", "--tokens", "1000", "--transport", "inproc", "--task", "paced.py:task", "--run-dir", "inproc"),
    ("compare", "--tokens", "1000", "--seeds", "1"),
    ("simulate", "world", "--seeds", "1"),
    ("chaos", "run"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("limit", [FEW, 20])
def test_a_command_with_few_descriptors_works_or_says_so(
    words: tuple[str, ...], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paced.py").write_text(TASK)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = limited(limit, *words)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in (0, 2), done.stderr
    if limit < FEW:
        assert done.returncode == 2
    if done.returncode == 2:
        assert done.stderr.count("expected") == 1
    assert not (tmp_path / "run").exists()


def test_a_daemon_with_few_descriptors_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = limited(FEW, "daemon", "--name", "few", "--listen", "tcp://127.0.0.1:0")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as daemon:
        assert daemon.stdout is not None
        assert "listens at" in daemon.stdout.readline()
        daemon.send_signal(signal.SIGINT)
        assert "Traceback" not in daemon.communicate(timeout=PATIENCE)[1]
        assert daemon.returncode == 0


def test_a_task_that_takes_all_permissions_leaves_files_for_their_owner(start: Callable[..., Run]) -> None:
    run = start(task=TASK.replace("task = Task", "import os\nos.umask(0o777)\ntask = Task"), tokens=20_000)
    run.finish("done")
    for path in run.folder.rglob("*"):
        if not path.is_symlink():
            wanted = stat.S_IRWXU if path.is_dir() else stat.S_IRUSR | stat.S_IWUSR
            assert stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


@pytest.fixture
def lockless(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is started finds disks without locks."""
    folder = tmp_path_factory.mktemp("lockless")
    (folder / "lockless.c").write_text(LOCKLESS)
    command = ["gcc", "-shared", "-fPIC", "-o", "lockless.so", "lockless.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(folder / "lockless.so"))


@pytest.mark.usefixtures("lockless")
def test_on_a_disk_without_locks_a_run_goes_on_and_is_one_commands_alone(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(5)
    lock = run.folder / "run.lock"
    holder = holder_of(lock)
    assert holder is not None
    assert holder.pid in run.processes()
    second = resume(run)
    assert "Traceback" not in second.communicate(timeout=PATIENCE)[1]
    assert second.returncode == 2
    run.wait_for(lambda: list((run.folder / "snapshots").glob("*.json")))
    run.kill_all()
    assert lock.with_name(lock.name + NOTE_SUFFIX).is_symlink()
    again = resume(run)
    before = run.merges()
    while run.merges() < before + 5:
        assert again.poll() is None, again.communicate()
    again.send_signal(signal.SIGINT)
    assert "Traceback" not in again.communicate(timeout=PATIENCE)[1] + run.story()
    run.wait_until_gone()
    assert holder_of(lock) is None

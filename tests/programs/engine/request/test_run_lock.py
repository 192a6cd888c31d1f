"""Two of anything: run folders that several want at once, and folders that are in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier

import pytest

from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.request.new_folder import InUseError, RunLock, user_of
from isthmus.runtime.errors import ConfigError
from tests.patience import PATIENCE

MANY = 16
NOW = datetime(2026, 11, 20, 10, 30, 5)
HOLDS = """
import sys, time
from pathlib import Path
from isthmus.programs.engine.request.new_folder import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def at_once(make: object) -> list[object]:
    """What comes of MANY calls at the same time: results, or the errors."""
    barrier = Barrier(MANY)

    def one(number: int) -> object:
        barrier.wait()
        try:
            return make(number)  # type: ignore[operator]
        except ConfigError as error:
            return error

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


def test_of_trainings_that_begin_in_one_second_each_has_a_folder(tmp_path: Path) -> None:
    chosen = [new_folder.choose(None, "ring", NOW, tmp_path) for _ in range(MANY)]
    assert len(set(chosen)) == 1  # Choosing touches nothing, so all choose the same.
    made = at_once(lambda number: new_folder.make(chosen[0], f"{number}", is_given=False))
    assert len(set(map(str, made))) == MANY
    for number, folder in enumerate(made):
        assert isinstance(folder, Path)
        assert (folder / "config.toml").read_text() == str(number)
    names = {path.name for path in made if isinstance(path, Path)}
    assert names == {"ring-20261120-103005", *(f"ring-20261120-103005-{count}" for count in range(2, MANY + 1))}


@pytest.mark.parametrize("is_there", [True, False])
def test_of_trainings_that_want_one_folder_one_gets_it(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "run"
    if is_there:
        folder.mkdir()
    made = at_once(lambda number: new_folder.make(folder, f"{number}", is_given=True))
    assert Counter(type(each) for each in made) == {type(folder): 1, ConfigError: MANY - 1}
    winner = next(number for number, each in enumerate(made) if isinstance(each, Path))
    assert (folder / "config.toml").read_text() == str(winner)


@pytest.mark.process
def test_a_folder_in_use_is_refused_until_its_process_is_gone_however_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert user_of(tmp_path) == str(holder.pid)
        with pytest.raises(InUseError, match=str(holder.pid)):
            RunLock(tmp_path)
        for use in (
            lambda: new_folder.choose(tmp_path, "ring", NOW),
            lambda: new_folder.make(tmp_path, "", is_given=True),
        ):
            with pytest.raises(ConfigError, match=f"of process {holder.pid}"):
                use()
        holder.send_signal(signal.SIGKILL)
    assert user_of(tmp_path) == ""
    assert new_folder.make(new_folder.choose(tmp_path, "ring", NOW), "", is_given=True) == tmp_path


@pytest.mark.process
def test_a_lock_is_not_left_to_what_its_process_starts(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
            lock.close()
            assert user_of(tmp_path) == ""
            child.kill()
        lock.close()


def test_latest_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "runs" / str(number) for number in range(MANY)]
    for folder in folders:
        folder.mkdir(parents=True)
    new_folder.point_latest_to(folders[0])
    seen: list[bool] = []

    def point(number: int) -> None:
        for _ in range(50):
            new_folder.point_latest_to(folders[number])
            seen.append((tmp_path / "runs" / "latest").is_dir())

    at_once(point)
    assert len(seen) == MANY * 50
    assert all(seen)
    assert sorted(os.listdir(tmp_path / "runs")) == sorted([*(folder.name for folder in folders), "latest"])


@pytest.mark.process
def test_a_second_daemon_of_a_run_ends_at_once_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "isthmus.programs.engine.run.daemon_process", str(tmp_path)]
    with RunLock(tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert f"of process {os.getpid()}" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.lock"]

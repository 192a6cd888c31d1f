"""Processes of a script that are started before their run: what they tell, their lives, and that none is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.run.script_processes import ScriptsAhead, ask_through
from isthmus.programs.job import RunSlots
from isthmus.programs.loop_script import LoopLife, LoopScript
from isthmus.programs.loop_task import ModelFound, loop
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import end_child, started_at
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

FOUND = ModelFound((ModelLeaf("w", (2,), "float32", "rda"),), (("**", "rda"),), 8, 64, 100)
SCRIPT = f"""
import json, os, sys, time
from isthmus.programs.engine.run.script_processes import life_of_waiting
from isthmus.programs.loop_script import LoopAhead
ahead = LoopAhead(**json.loads(os.environ["ISTHMUS_ISLAND"]))
print("begins as", ahead.slot, ahead.slots, ahead.seed, os.path.basename(os.getcwd()), flush=True)
if sys.argv[1] == "has no output":
    sys.stdout = None
if sys.argv[1] == f"{{ahead.slot}} dies":
    sys.exit("a fault")
with os.fdopen(ahead.asks, "w") as file:
    json.dump({FOUND.answer()!r}, file)
life = life_of_waiting(ahead)
print("has", life and life.incarnation, flush=True)
time.sleep(600 if life else 0)
"""


class Asked:
    """A daemon that waits, in this thread, and a preparer, in another."""

    def __init__(self, folder: Path, how: str) -> None:
        (folder / "script.py").write_text(SCRIPT)
        self.script = LoopScript(str(folder / "script.py"), (how,), str(folder))
        ours, socket_there = ProcessLine.pair()
        its = ProcessLine(socket_there)
        self.ahead = ScriptsAhead(ours)
        self.told: Any = None

        def ask() -> None:
            ask_through(its)
            try:
                self.told = loop(self.script.script, [how], str(folder)).completed(RunSlots(2, 4, 7)).found
            except ConfigError as error:
                self.told = error
            finally:
                its.close()

        thread = threading.Thread(target=ask)
        thread.start()
        while watched := self.ahead.watched():
            able = select.select(watched, [], [], PATIENCE)[0]
            assert able
            self.ahead.hear(able)
        thread.join(PATIENCE)

    def begin(self, slot: int, log: Path) -> int | None:
        return self.ahead.begin(LoopLife("run", f"learner/{slot}", 1, "daemon"), log)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def ended() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        end_child(pid)


def lines_of(log: Path, count: int) -> list[str]:
    until = time.monotonic() + PATIENCE
    while len(lines := log.read_text().splitlines() if log.exists() else []) < count:
        assert time.monotonic() < until
        time.sleep(0.02)
    return lines


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.usefixtures("two_cores")
def test_one_tells_of_the_model_and_each_is_given_its_life(tmp_path: Path, ended: list[int]) -> None:
    asked = Asked(tmp_path, "works")
    assert asked.told == FOUND
    for slot in (0, 1):
        log = tmp_path / f"{slot}.log"
        pid = asked.begin(slot, log)
        assert pid is not None
        ended.append(pid)
        # What it printed before follows into the log, which is its output from then on: by that a run knows it.
        assert lines_of(log, 2) == [f"begins as {slot} 4 7 {tmp_path.name}", "has 1"]
        assert os.readlink(f"/proc/{pid}/fd/1") == str(log)
        assert os.getsid(pid) == pid
        assert score(pid) == score(os.getpid())
    assert [asked.begin(0, tmp_path / "0.log"), asked.begin(2, tmp_path / "2.log")] == [None, None]


@pytest.mark.usefixtures("two_cores")
def test_one_that_has_put_something_else_in_place_of_its_output_is_given_its_life(
    tmp_path: Path, ended: list[int]
) -> None:
    asked, log = Asked(tmp_path, "has no output"), tmp_path / "0.log"
    pid = asked.begin(0, log)
    assert pid is not None
    ended.append(pid)
    assert lines_of(log, 1) == [f"begins as 0 4 7 {tmp_path.name}"]
    asked.ahead.end()


@pytest.mark.usefixtures("two_cores")
def test_one_that_has_ended_is_given_no_life(tmp_path: Path, ended: list[int]) -> None:
    asked = Asked(tmp_path, "1 dies")
    waiting = asked.ahead._waiting[1]
    os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOWAIT)
    assert asked.begin(1, tmp_path / "1.log") is None
    assert (tmp_path / "1.log").read_text() == f"begins as 1 4 7 {tmp_path.name}\na fault\n"  # What it had to say.
    with pytest.raises(ChildProcessError):
        os.waitpid(waiting.pid, os.WNOHANG)
    pid = asked.begin(0, tmp_path / "0.log")
    assert pid is not None
    ended.append(pid)


@pytest.mark.usefixtures("two_cores")
def test_what_ends_before_its_first_step_is_told_with_its_reason(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "0 dies")
    assert "exit status 1, with 'a fault' as its last line" in str(asked.told)
    other = asked.ahead._waiting[1].pid
    assert score(other) == 1000
    asked.ahead.end()
    assert started_at(other) is None


@pytest.mark.usefixtures("two_cores")
def test_those_of_more_slots_than_the_run_begins_with_are_ended(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "works")
    first, second = (asked.ahead._waiting[slot].pid for slot in (0, 1))
    asked.ahead.end(1)
    assert [started_at(first) is None, started_at(second) is None] == [False, True]
    asked.ahead.end()
    assert started_at(first) is None


@pytest.mark.usefixtures("two_cores")
def test_where_the_preparer_has_died_before_it_is_told_nothing_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    ours, socket_there = ProcessLine.pair()
    its = ProcessLine(socket_there)
    ahead = ScriptsAhead(ours)
    asked = {"script": LoopScript("script.py", ("",), str(tmp_path)).keywords, "run": RunSlots(1, 4, 7)}
    its.send(asked)
    ahead.hear(ahead.watched())
    its.close()
    ahead.hear(select.select(ahead.watched(), [], [], PATIENCE)[0])
    assert ahead.watched() == []
    [pid] = [each.pid for each in ahead._waiting.values()]
    ahead.end()
    assert started_at(pid) is None


DAEMON = """
import os, sys, time
from pathlib import Path
from tests.programs.engine.run.test_script_processes import Asked
os.sched_getaffinity = lambda pid: {0, 1}
asked = Asked(Path(sys.argv[1]), "works")
print(*(each.pid for each in asked.ahead._waiting.values()), flush=True)
time.sleep(600)
"""


def test_those_that_wait_die_with_the_daemon(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DAEMON, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pids = [int(pid) for pid in daemon.stdout.readline().split()]
        assert len(pids) == 2
        daemon.send_signal(signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    while any(started_at(pid) is not None for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("sent", [(), (1,), (2,), (1, 2)], ids=str)
def test_output_that_a_script_has_sent_elsewhere_stays_there(tmp_path: Path, sent: tuple[int, ...]) -> None:
    """What still goes where its process began goes on in the log, behind what it had said until then."""
    code = f"""
import os, sys
from pathlib import Path
from isthmus.programs.engine.run.script_processes import _go_on_in
def say(when):
    for number in (1, 2):
        os.write(number, f"{{when}} {{number}}\\n".encode())
say("begun")
known = os.fstat(int(sys.argv[1]))
for number in {sent!r}:
    os.dup2(os.open(f"sent-{{number}}", os.O_CREAT | os.O_WRONLY), number)
_go_on_in(Path("log"), (known.st_dev, known.st_ino))
say("later")
"""
    with (tmp_path / "first").open("w+b") as output:
        command = [sys.executable, "-c", code, str(output.fileno())]
        fd = output.fileno()
        subprocess.run(command, cwd=tmp_path, stdout=fd, stderr=fd, pass_fds=[fd], check=True, timeout=PATIENCE)
    staying = [number for number in (1, 2) if number not in sent]
    begun = ["begun 1", "begun 2"]
    assert (tmp_path / "first").read_text().splitlines() == begun
    log = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
    assert log == (begun if staying else []) + [f"later {number}" for number in staying]
    for number in sent:
        assert (tmp_path / f"sent-{number}").read_text() == f"later {number}\n"

"""A fleet: what excuses the silence of a life, here and on other machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.runtime.fleet import Fleet, Places
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger
from isthmus.runtime.lives import Life
from isthmus.runtime.supervisor import Supervisor

HERE, THERE = Replica("learner", 0), Replica("learner", 1)


class Nobody:
    """Wants to know nothing, and starts nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose home is alpha, with learner 1 on beta."""
    loop, ledger = uvloop.new_event_loop(), Ledger(tmp_path / "daemon.sqlite")
    supervisor = Supervisor(loop, Nobody(), ledger, Nobody())
    yield Fleet(supervisor, ledger, Nobody(), Places("alpha", {THERE: "beta"}))
    ledger.close()
    loop.close()


def report(fleet: Fleet, *, is_stopped: bool) -> None:
    said = {"endpoints": [], "phase": "stepping", "published": {}, "figures": {}, "error": ""}
    row = {"replica": str(THERE), "incarnation": 1, "pid": 4711, "beats": 1, "is_stopped": is_stopped, **said}
    fleet.hear("beta", {"lives": [row], "ended": []})


def test_a_process_of_this_machine_is_looked_at(fleet: Fleet) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = os.pidfd_open(process.pid)
        life = Life(Member(HERE, 1), process.pid, watch, is_child=True)
        assert fleet.excuse(life) is None
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 10
        while (found := fleet.excuse(life)) is None:
            assert time.monotonic() < until
        assert found[0] == "stopped"
        assert f"`kill -CONT {process.pid}` lets it go on" in found[1]
        process.kill()
        process.wait()
        assert fleet.excuse(life) is None
        os.close(watch)


def test_of_another_machine_its_outpost_tells_and_its_own_silence_excuses_all(fleet: Fleet) -> None:
    fleet.start(THERE, "")
    report(fleet, is_stopped=False)
    life = fleet.lives[THERE]
    fleet.beat()
    assert fleet.excuse(life) is None
    fleet.beat()
    assert fleet.excuse(life) == ("unheard", "unheard, because its machine beta does not answer")
    report(fleet, is_stopped=True)
    assert fleet.excuse(life) == (
        "stopped",
        "stopped by a signal or a debugger; `kill -CONT 4711` on beta lets it go on, `kill -KILL 4711` has it replaced",
    )

"""The machines of a run under a plan, by themselves."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.wings.chaos.chaos_strikes import STATE, Machines

pytestmark = pytest.mark.process

STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); sys.stdin.read()"


class Interrupted(subprocess.Popen[bytes]):
    """A daemon during whose end somebody presses Ctrl-C again."""

    interrupts = 1

    def wait(self, timeout: float | None = None) -> int:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_a_second_interrupt_leaves_nothing_of_a_machine(tmp_path: Path) -> None:
    machines: Any = Machines.__new__(Machines)
    machines._lock, machines._own = threading.Lock(), tmp_path
    place: dict[str, str] = {STATE: str(machines._state(0))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", STUBBORN]
    with Interrupted(command, env=place, **pipes) as daemon, subprocess.Popen(command, env=place, **pipes) as host:
        for each in (daemon, host):
            assert each.stdout is not None
            assert each.stdout.readline() == b"1\n"
        machines._daemons = [daemon]
        with pytest.raises(KeyboardInterrupt):
            machines.close()
        assert daemon.returncode == host.wait() == -9

"""What a daemon says to the service manager that started it, and the unit that docs/examples has for systemd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.programs.engine.machine.service_manager import BEAT_SECONDS, ServiceManager
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.runtime.errors import INTERRUPTED_STATUS
from tests.patience import PATIENCE
from tests.programs.engine.machine.daemon_place import MachineDaemon, Place

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
UNITS = [EXAMPLES / f"isthmus-{name}.service" for name in ("daemon", "join")]


class Manager:
    """A manager's socket, at an address as systemd writes it, and the loop of a daemon by hand."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE)
        self.later: list[tuple[float, Callable[[], None]]] = []

    def fields(self) -> dict[str, str]:
        """The next datagram."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())


@pytest.fixture(params=["@isthmus-test", "file"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Manager, str]]:
    address = f"@isthmus-test-{os.getpid()}" if request.param.startswith("@") else str(tmp_path / "notify")
    listening = Manager(address)
    yield listening, address
    listening.socket.close()


def test_a_daemon_is_ready_alive_and_stopping(manager: tuple[Manager, str]) -> None:
    listening, address = manager
    variables = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    said, doing = ServiceManager.of(variables), ["no run"]
    assert variables == {"HOME": "/"}  # Hosts are not to speak for the daemon.
    said.follow(lambda *call: listening.later.append(call), lambda: doing[0])
    assert listening.fields() == {"READY": "1", "STATUS": "no run", "WATCHDOG": "1"}
    ((seconds, beat),) = listening.later
    assert 2 * seconds < 2.0
    beat()
    assert listening.fields() == {"WATCHDOG": "1"}
    doing[0] = "1 run"
    beat()
    assert listening.fields() == {"STATUS": "1 run", "WATCHDOG": "1"}
    said.stop()
    said.stop()
    beat()
    assert [listening.fields(), listening.fields()] == [{"STOPPING": "1"}, {"WATCHDOG": "1"}]


@pytest.mark.parametrize("pid", ["1", None])
def test_a_watchdog_of_another_process_is_not_answered(manager: tuple[Manager, str], pid: str | None) -> None:
    listening, address = manager
    variables = {"NOTIFY_SOCKET": address} | ({"WATCHDOG_USEC": "10", "WATCHDOG_PID": pid} if pid else {})
    ServiceManager.of(variables).follow(lambda *call: listening.later.append(call), lambda: "")
    assert listening.fields() == {"READY": "1", "STATUS": ""}
    assert listening.later[0][0] == BEAT_SECONDS


def test_without_a_manager_nothing_is_said_and_one_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    later: list[object] = []
    ServiceManager.of({}).follow(lambda *call: later.append(call), lambda: "")
    assert later == []
    gone = ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.follow(lambda *call: later.append(call), lambda: "")
    gone.stop()
    assert len(later) == 1


def keys_of(unit: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_what_was_interrupted_again_and_waits_longer_than_the_grace(unit: Path) -> None:
    keys = keys_of(unit)
    assert keys["Type"] == "notify"
    assert keys["Restart"] == "on-failure"
    assert keys["SuccessExitStatus"] == keys["RestartForceExitStatus"] == str(INTERRUPTED_STATUS)
    assert float(keys["TimeoutStopSec"]) > 2 * GRACE_SECONDS
    assert float(keys["WatchdogSec"]) > 10 * BEAT_SECONDS


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze verifies a unit, and is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, units, strict=True):
        command = keys_of(unit)["ExecStart"].split()[0]
        copy.write_text(unit.read_text().replace(command, str(shutil.which("true"))))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_a_daemon_tells_its_manager(tmp_path: Path) -> None:
    listening, place = Manager(str(tmp_path / "notify")), Place(tmp_path)
    place.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "500000"}
    try:
        daemon = MachineDaemon(place)
        first = listening.fields()
        assert first == {"READY": "1", "STATUS": "no run; 0 runs over", "WATCHDOG": "1"}
        assert listening.fields() == {"WATCHDOG": "1"}
        assert daemon.end(signal.SIGTERM) == INTERRUPTED_STATUS
        said = []
        while {"STOPPING": "1"} not in said:
            said.append(listening.fields())
    finally:
        listening.socket.close()
        place.close()

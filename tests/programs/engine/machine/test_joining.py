"""What `isthmus join` does while its home is not there, does not admit it, or is another version's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import joining, links
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.joining import JoinRequest
from isthmus.runtime.errors import Fault
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.loops import run_until
from tests.programs.engine.machine.daemon_place import fake_daemon
from tests.programs.engine.machine.owner import Owner

ALPHA, BETA, OWN = (KeyPair.draw() for _ in range(3))
NOWHERE = "tcp://127.0.0.1:9"


class Joined:
    """A machine that joins, on the loop of the test."""

    def __init__(self, folder: Path, loop: Any, request: JoinRequest) -> None:
        self.lines: list[str] = []
        name, home, _, invitation, _ = joining._checked(request)
        keys = Keyring(BETA, {}, name) if home.public_key else None
        self.joining = joining._Joining(request, name, home, invitation, BETA.public if keys else "")
        self.machine = MachineDaemon(
            loop,
            name,
            "tcp://127.0.0.1:*",
            MachineConfig((), BETA if keys else None, until_over=request.until_over),
            keys,
            folder / name,
            Owner(self.lines),
            [self.joining],
        )

    @property
    def fault(self) -> Fault | None:
        return None if self.machine.fault is None else self.machine.fault.faults[0]


@pytest.fixture
def loop() -> Iterator[Any]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Any) -> Iterator[Callable[..., Joined]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(links, "LINK_SECONDS", 0.02)
    started: list[Joined] = []

    def begin(**request: Any) -> Joined:
        started.append(Joined(tmp_path, loop, JoinRequest(name="beta", **request)))
        return started[-1]

    yield begin
    for each in started:
        each.machine.close()


@pytest.fixture
def alpha(loop: Any) -> Iterator[ControlServer]:
    """A home's end that admits nobody."""
    server = ControlServer(loop, "tcp://127.0.0.1:*", lambda peer, message: None, keys=Keyring(ALPHA, {}, "alpha"))
    yield server
    server.close()


def test_a_home_is_waited_for_so_long_and_no_longer(join: Callable[..., Joined], loop: Any) -> None:
    bounded = join(address=NOWHERE, wait_seconds=0.2)
    run_until(loop, lambda: bounded.fault is not None)
    assert bounded.fault is not None
    assert bounded.fault[:3] == (f"Joining the home at {NOWHERE}", "a link within 0.2 s", "no answer")
    assert bounded.lines[0] == f"waits for {NOWHERE}"


def test_one_that_is_not_admitted_is_told_what_to_type_there(
    join: Callable[..., Joined], loop: Any, alpha: ControlServer
) -> None:
    joined = join(address=alpha.endpoint, server_key=ALPHA.public, wait_seconds=0.5)
    run_until(loop, lambda: joined.fault is not None)
    assert joined.fault is not None
    assert joined.fault.found == "this machine's key is not admitted there"
    assert joined.fault.remedy == f"Type there: isthmus admit beta {BETA.public}"
    assert any(line.endswith(f"type there: isthmus admit beta {BETA.public}") for line in joined.lines)


def test_a_home_of_another_version_is_named(
    join: Callable[..., Joined], loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "UP_SECONDS", 0.05)
    with fake_daemon(type="another version", version="0.0.1", protocol=0) as address:
        joined = join(address=address)
        run_until(loop, lambda: joined.fault is not None)
    assert joined.fault is not None
    assert "isthmus 0.0.1" in joined.fault.found


def test_the_home_of_a_cluster_file_is_found_where_the_file_says_by_then(
    join: Callable[..., Joined], loop: Any, alpha: ControlServer, tmp_path: Path
) -> None:
    OWN.write(tmp_path, "own")
    file = tmp_path / "cluster.toml"
    text = f'[keys]\nsecret = "own.key"\n[[machine]]\nname = "alpha"\naddress = "AT"\npublic_key = "{ALPHA.public}"\n'
    file.write_text(text.replace("AT", NOWHERE))
    joined = join(cluster=file)
    file.write_text("nonsense")
    run_until(loop, lambda: any(line.startswith(f"goes on with {NOWHERE}") for line in joined.lines))
    file.write_text(text.replace("AT", alpha.endpoint))
    run_until(loop, lambda: any("isthmus admit beta" in line for line in joined.lines if "not admitted" in line))
    assert joined.machine.neighbours._homes.keys() == {ALPHA.public}

"""The porter of a daemon as a process: it serves, dies and is started again, and ends with its daemon; and ports that
are too few."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.programs import wing_table
from isthmus.programs.engine.cluster.cluster_file import check_room, checked_ports
from isthmus.programs.engine.machine import serve
from isthmus.programs.engine.machine.doors import door_that_leads_in
from isthmus.programs.engine.request.spec import Here, is_one_port
from isthmus.programs.wings.one_port import porter as porter_module
from isthmus.programs.wings.one_port.porter import Porter
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.porter_greeting import CONNECTED, GREETED
from tests.loops import run_until
from tests.patience import PATIENCE

HELLO = b"\x05\x01\x00"


class Served:
    """A porter with a daemon behind it that answers."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.lines: list[str] = []
        self.porter = Porter(self.loop, "tcp://127.0.0.1:*", None, list, self.lines.append)
        self._server = ControlServer(self.loop, Porter.inner, lambda peer, message: self._server.send(peer, message))
        self.porter.start(self._server.endpoint)

    def answer(self, number: int) -> Any:
        """What the daemon answers to a command."""
        coming = self.loop.run_in_executor(None, ask, self.porter.endpoint, {"type": "machine", "number": number})
        answer = self.loop.run_until_complete(asyncio.wait_for(coming, 30))
        return None if answer is None else answer["number"]

    def close(self) -> None:
        self.porter.close()
        self._server.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.mark.process
def test_it_serves_through_signals_and_its_own_death_and_ends_with_its_daemon(served: Served) -> None:
    assert served.answer(1) == 1
    first = served.porter.pid
    assert first is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)
    assert served.answer(2) == 2
    assert served.porter.pid == first
    os.kill(first, signal.SIGKILL)
    assert served.answer(3) == 3  # It waited in the queue of the socket, which the daemon holds.
    second = served.porter.pid
    assert second not in (None, first)
    assert len(served.lines) == 1
    run_until(served.loop, lambda: started_at(first) is None)
    address = served.porter.endpoint.removeprefix("tcp://").split(":")
    served.porter.close()
    assert second is not None
    assert started_at(second) is None
    with closing(socket.create_server((address[0], int(address[1])))):
        pass


def asked(porter: Porter, endpoint: str) -> bytes:
    """What a porter answers to one who asks for a host."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    there, _, own = porter.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((there, int(own)), PATIENCE) as made:
        made.sendall(HELLO + b"\x05\x01\x00\x01" + socket.inet_aton(host) + int(port).to_bytes(2, "big"))
        data = b""
        while len(data) < len(GREETED + CONNECTED) and (more := made.recv(100)):
            data += more
    return data


@pytest.mark.process
def test_each_process_is_told_the_endpoints_and_there_is_one_a_second_at_most() -> None:
    loop, lines = uvloop.new_event_loop(), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as host:
        endpoint = "tcp://{}:{}".format(*host.getsockname())
        porter = Porter(loop, "tcp://127.0.0.1:*", None, lambda: [endpoint], lines.append)
        porter.start("tcp://127.0.0.1:1")

        def is_led() -> bool:
            asking = loop.run_in_executor(None, asked, porter, endpoint)
            return loop.run_until_complete(asyncio.wait_for(asking, PATIENCE)) == GREETED + CONNECTED

        begun: list[float] = []
        for number in range(3):
            while not is_led():
                pass
            begun.append(porter._child.begun_at)
            assert len(lines) == number
            assert porter.pid is not None
            os.kill(porter.pid, signal.SIGKILL)
            run_until(loop, lambda number=number: len(lines) == number + 1)
        porter.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert all(later - earlier >= 0.99 for earlier, later in pairwise(begun))


@pytest.mark.process
def test_a_porter_that_dies_at_once_is_begun_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_module, "_PROCESS", "isthmus.no_such_module")
    loop, lines = uvloop.new_event_loop(), list[str]()
    porter = Porter(loop, "tcp://127.0.0.1:*", None, list, lines.append)
    porter.start("tcp://127.0.0.1:1")
    begun = [porter._child.begun_at]

    def has_begun_again() -> bool:
        if porter._child.begun_at != begun[-1]:
            begun.append(porter._child.begun_at)
        return len(begun) == 4

    run_until(loop, has_begun_again)
    porter.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert all(later - earlier >= 0.99 for earlier, later in pairwise(begun))


@pytest.mark.process
def test_a_bound_that_a_porter_has_reached_is_told(served: Served) -> None:
    count = len(served.lines)
    for message in (
        {"full": ["ways", 1024, "10.0.0.9"]}, {"full": ["greetings", 256, ""]},
        {"source": "127.1.0.1", "peer": "10.0.0.7"},
    ):  # fmt: skip
        served.porter._hear(message)
    told = served.lines[count:]
    assert [("1024" in line, "10.0.0.9" in line) for line in told] == [(True, True), (False, False)]
    assert "256" in told[1]
    assert served.porter.peer("127.1.0.1") == "10.0.0.7"


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:7400", "tcp://10.0.0.1:7400", "tcp://[fd00::1]:7400"])
def test_a_daemon_has_one_wherever_it_listens(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert door_that_leads_in(listen) is Porter
    monkeypatch.setattr(wing_table, "WINGS", ())
    if "127" in listen:
        assert door_that_leads_in(listen) is None  # Without the wing such a daemon is for this machine alone.
    else:
        with pytest.raises(ConfigError, match="installation without that wing"):
            door_that_leads_in(listen)


def test_a_machine_that_joins_has_none_and_a_daemon_has_one(typed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    configs: list[Any] = []
    monkeypatch.setattr(serve, "run", lambda name, endpoint, config, *more: configs.append(config) or 0)
    assert typed(tmp_path, "daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0").exit_code == 0
    assert typed(tmp_path, "join", "tcp://127.0.0.1:7400", "--name", "beta").exit_code == 0
    assert [config.has_porter for config in configs] == [True, False]


def test_hosts_listen_where_the_ports_say() -> None:
    here = [Here("10.0.0.1", 1, ports=ports).listens for ports in ("", "7401-7410", "7400-7400")]
    assert here == ["tcp://10.0.0.1:0", "tcp://10.0.0.1:7401-7410", "tcp://127.0.0.1:0"]


@pytest.mark.parametrize("text", ["7400", "a-b", "7410-7401", "0-10", "7401-70000", "-", "7401-7410-7411"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected A-B"):
        checked_ports(text, "tcp://10.0.0.1:7400")


def test_too_few_ports_are_refused_with_how_many_are_needed() -> None:
    home = "tcp://10.0.0.1:7400"
    assert [checked_ports(text, home) for text in ("7401-7406", "7400-7406")] == ["7401-7406", "7400-7406"]
    assert is_one_port(checked_ports("7400-7400", home))
    for text, found in (("7401-7405", 5), ("7400-7405", 5), ("7400-7401", 1)):
        with pytest.raises(ConfigError, match=f"expected 6 free ports.*found {found} in --ports {text}"):
            checked_ports(text, home)
    check_room("7401-7410", home, 5, 0, "Taking a run")
    with pytest.raises(ConfigError, match="expected 10 free ports, 2 for each of 5 hosts that listen, found 4"):
        check_room("7401-7410", home, 5, 6, "Taking a run")


def test_the_command_refuses_them_and_starts_nothing(typed: Any, tmp_path: Path) -> None:
    said = typed(tmp_path, "daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0", "--ports", "7401-7402")
    assert said.exit_code == 2
    assert "expected 6 free ports" in said.output
    said = typed(tmp_path, "daemon", "--name", "alpha", "--listen", "nonsense", "--ports", "7401-7402")
    assert said.exit_code == 2
    assert "expected tcp://ADDRESS:PORT" in said.output
    assert "expected 6 free ports" in said.output  # All faults at once.
    assert list(tmp_path.iterdir()) == []

"""Whether a machine reaches the other machines of a run that its learners would need."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from isthmus.programs.engine.cluster.handover import MachineSite, Sites
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import neighbours
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.readiness import to_take_part
from isthmus.programs.engine.machine.ways_to_others import UNREACHED, faults, needed, told
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica
from isthmus.runtime.wire.porter_greeting import GREETED
from tests.loops import run_until
from tests.programs.engine.machine.owner import Owner

ADDRESS = "tcp://10.0.0.3:7400"
SITES = {
    "home": MachineSite("home", "tcp://127.0.0.1:7400"),
    "beta": MachineSite("beta"),
    "gamma": MachineSite("gamma", ADDRESS),
}


def sites(**placed: str) -> Sites:
    """A run of `home` with replicas elsewhere: 'syncer_0' -> machine."""
    return Sites("home", SITES, {Replica.parse(name.replace("_", "/")): where for name, where in placed.items()}, "d")


def rows(**placed: str) -> list[list[Any]]:
    made = sites(**placed)
    return needed(made.placement.items(), made, "home")


def test_what_every_learner_needs_beside_the_home_is_tried() -> None:
    assert rows(syncer_0="home", recorder_0="home", learner_0="gamma", evaluator_0="gamma", region_1="gamma") == []
    assert rows(syncer_0="gamma", syncer_1="gamma", learner_0="beta") == [["gamma", ADDRESS, ["syncer/0", "syncer/1"]]]
    assert rows(syncer_0="beta") == [["beta", "", ["syncer/0"]]]


def test_before_a_run_those_are_asked_that_have_learners() -> None:
    asked = to_take_part(sites(syncer_0="gamma", learner_0="beta"), "home", "diloco", "task", [])
    assert {each.site.name: each.check["ways"] for each in asked} == {
        "beta": [["gamma", ADDRESS, ["syncer/0"]]],
        "gamma": [],
    }


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """What answers every connection so, and hangs up; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            made, _ = server.accept()
            with made:
                made.recv(64)
                made.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def tried(*ways: list[Any], own: str = "beta") -> list[Any]:
    return asyncio.run(faults(list(ways), own, "Trying"))


def test_a_porter_is_a_way_and_neither_a_stranger_nor_a_tunnel_to_nowhere_is() -> None:
    with answering(GREETED) as porter:
        assert tried(["gamma", porter, ["syncer/0"]]) == []
    for answer, found in ((b"HTTP/1.1 400 Bad", "SOCKS5"), (b"", "hung up")):
        with answering(answer) as stranger:
            [fault] = tried(["gamma", stranger, ["syncer/0", "syncer/1"]])
        assert found in fault.found
        assert all(word in fault.expected for word in ("gamma", "syncer/0, syncer/1", stranger))
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    [fault] = tried(["gamma", closed, ["syncer/0"]])
    assert fault.found == "Connection refused"


def test_a_machine_needs_no_way_to_itself_and_one_without_an_address_is_named() -> None:
    assert tried(["gamma", "tcp://127.0.0.1:1", ["syncer/0"]], own="gamma") == []
    [fault] = tried(["gamma", "", ["syncer/0"]])
    assert "gamma" in fault.expected


@pytest.mark.parametrize("ways", [5, [["gamma"]], [5], None])
def test_what_are_no_ways_are_refused(ways: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        asyncio.run(faults(ways, "beta", "Trying"))


def test_a_machine_without_a_way_is_told_and_asked_again_later_and_one_that_refuses_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "WAYS_SECONDS", 0.01)
    loop, owner = uvloop.new_event_loop(), Owner()
    made = MachineDaemon(loop, "home", "tcp://127.0.0.1:*", MachineConfig(runs=tmp_path), None, tmp_path / "s", owner)
    asked: list[str] = []
    joined: list[tuple[str, int]] = []
    answers: list[Any] = [ConfigError("a", "b", "c", "d"), *[{UNREACHED: [["e", "f", "g", "h"]]}] * 2, {}]

    async def request(name: str, message: Any, seconds_max: float) -> Any:
        asked.append(name)
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def join(name: str, islands: int) -> list[Replica]:
        joined.append((name, islands))
        return []

    monkeypatch.setattr(made.neighbours.links, "request", request)
    fleet = SimpleNamespace(
        parties=SimpleNamespace(of=lambda name: SimpleNamespace(name=name, slots=None)), learners=[]
    )
    daemon = SimpleNamespace(join=join, home=SimpleNamespace(fleet=fleet))
    facts = {"name": "run", "folder": tmp_path, "takes_loops": False, "leaves_out": lambda name: name == "delta"}
    run: Any = SimpleNamespace(**facts, check=dict, daemon=daemon, other_script=lambda name, answer: "")
    run.station, run.log = (lambda *of: None), (lambda line: None)

    def announce() -> bool:
        for name in () if joined else ("gamma", "delta", "beta"):  # The run is to go without delta.
            made.neighbours._let_join(run, name, f"instance of {name}", 1, is_loop=False)
        return bool(joined)

    try:
        run_until(loop, announce)
    finally:
        made.close()
        loop.close()
    assert asked == ["gamma", "beta", "beta", "beta"]
    assert joined == [("beta", 1)]


def test_a_home_reads_what_it_is_told() -> None:
    [fault] = tried(["gamma", "", ["syncer/0"]])
    assert told({"type": "permitted", UNREACHED: [list(fault)]}) == [fault]
    assert told({"type": "permitted"}) == []

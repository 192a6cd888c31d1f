"""The services of a machine's daemon: the table says what they answer, and they are loaded when they are asked."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

import pytest

from isthmus.programs.engine.machine import services
from isthmus.programs.engine.machine.services import SERVICES, DaemonService, ServiceRow, Services

OPTIONAL = (
    "admissions", "bucket", "failover", "handing_over", "invitations", "joining", "link_trials", "loop_guest",
    "metrics_service", "next_home", "own_run", "porter", "trial_ports",
)  # fmt: skip
NOT_OF_DAEMONS = (
    "isthmus.programs.engine.request.request", "isthmus.programs.folder_task", "isthmus.programs.language_model",
    "isthmus.programs.model_folders", "isthmus.runtime.wire.channel", "jax", "torch",
)  # fmt: skip


@pytest.mark.process
def test_a_daemon_loads_no_service_that_it_was_not_asked_for() -> None:
    look = "import sys, isthmus.programs.engine.machine.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "isthmus.programs.engine.machine.daemon" in loaded
    unwanted = {f"isthmus.programs.engine.machine.{name}" for name in OPTIONAL} | set(NOT_OF_DAEMONS)
    assert not unwanted & loaded


@pytest.mark.parametrize("row", SERVICES, ids=lambda row: row.made_by.rpartition(":")[2])
def test_a_row_of_the_table_is_what_the_service_answers(row: ServiceRow) -> None:
    module, _, name = row.made_by.partition(":")
    kind = getattr(import_module(module), name)
    assert issubclass(kind, DaemonService)
    assert set(kind.messages) == set(row.messages)
    assert set(kind.home_messages) == set(row.home_messages)
    for method in {*kind.messages.values(), *kind.home_messages.values()}:
        assert callable(getattr(kind, method))


class Echo(DaemonService):
    """Answers, and notes what it is told."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.told: list[Any] = []

    def start(self, machine: Any) -> None:
        self.told.append(machine)

    def claim(self, invitation: str, message: Any, away_seconds: float) -> Any:
        return self.answer

    def loop_linked(self, name: str) -> None:
        self.told.append(name)

    def expelled(self) -> None:
        self.told.append("expelled")

    def listening(self) -> list[str]:
        return [f"tcp://{len(self.told)}"]

    def close(self) -> None:
        self.told.append("closed")


def test_all_are_told_and_the_first_that_knows_a_claim_answers() -> None:
    silent, knowing = Echo(), Echo({"type": "admitted"})
    of_daemon = Services(cast(Any, "machine"), [silent, knowing, Echo({"type": "other"})])
    of_daemon.start()
    of_daemon.loop_linked("a loop")
    assert of_daemon.claim("key", {}, 0.0) == {"type": "admitted"}
    assert Services(cast(Any, "machine"), [silent]).claim("key", {}, 0.0) is None
    assert list(of_daemon.listening()) == ["tcp://2"] * 3
    of_daemon.expelled()
    of_daemon.close()
    assert silent.told == knowing.told == ["machine", "a loop", "expelled", "closed"]
    assert of_daemon.guest() is None


def test_a_service_is_made_once_with_its_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DaemonService] = []

    class Counted(DaemonService):
        messages = MappingProxyType({"ask": "asked"})
        home_messages = MappingProxyType({"tell": "told"})

        def __init__(self) -> None:
            made.append(self)

        def asked(self, message: Any) -> Any:
            return {"asked": message}

        async def told(self, home: Any, message: Any) -> Any:
            return message

    monkeypatch.setattr(services, "SERVICES", (ServiceRow(f"{__name__}:Counted", {"ask": ""}, ("tell",)),))
    monkeypatch.setattr(sys.modules[__name__], "Counted", Counted, raising=False)
    of_daemon = Services(cast(Any, "machine"), ())
    assert of_daemon.handler("other") is None
    assert of_daemon.home_handler("ask") is None
    assert not made
    handler = of_daemon.handler("ask")
    assert handler is not None
    assert handler({"n": 1}) == {"asked": {"n": 1}}
    assert of_daemon.home_handler("tell") is not None
    assert len(made) == 1


def test_both_ends_of_a_row_are_held_to_the_same_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no handler 'gone'"):

        class Broken(DaemonService):
            messages = MappingProxyType({"ask": "gone"})

    class Answers(DaemonService):
        messages = MappingProxyType({"ask": "start"})

    monkeypatch.setattr(sys.modules[__name__], "Answers", Answers, raising=False)
    for row in (ServiceRow(f"{__name__}:Answers", {"ask": "", "tell": ""}), ServiceRow(f"{__name__}:Answers", {})):
        monkeypatch.setattr(services, "SERVICES", (row, ServiceRow(f"{__name__}:Answers", {"ask": ""}, ("ask",))))
        with pytest.raises(AssertionError):
            Services(cast(Any, "machine"), ()).handler("ask")


def test_no_service_answers_what_its_daemon_does() -> None:
    assert Services(cast(Any, "machine"), ()).kinds == {kind for row in SERVICES for kind in row.messages}

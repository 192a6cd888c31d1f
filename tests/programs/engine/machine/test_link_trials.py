"""Trials of the link between two daemons: what is measured, who may ask for it, and what a stranger can make of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typer.testing import CliRunner

from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import link_trials
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.link_trials import rate
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.wings.doctor import linking
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.command_line import app
from tests.patience import PATIENCE
from tests.programs.engine.machine.owner import Owner

PAIRS = {name: KeyPair.draw() for name in ("alpha", "beta", "gamma", "owner")}


class Running:
    """The daemon of a machine in a thread; `admits` are names, of which owner is an operator."""

    def __init__(self, folder: Path, name: str, *admits: str) -> None:
        keys = Keyring(PAIRS[name], {PAIRS[each].public: each for each in admits}, name, [PAIRS["owner"].public])
        self.name, self._loop = name, uvloop.new_event_loop()
        self.daemon = MachineDaemon(
            self._loop,
            name,
            "tcp://127.0.0.1:*",
            MachineConfig(pair=PAIRS[name], runs=folder / name),
            keys,
            folder / f"state-{name}",
            Owner(),
        )
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def address(self) -> dict[str, str]:
        return {"name": self.name, "address": self.daemon.endpoint, "public_key": PAIRS[self.name].public}

    def asks(self, caller: str, message: dict[str, Any]) -> dict[str, Any]:
        """Its answer to one who has a key."""
        keys, key = Keyring(PAIRS[caller]), PAIRS[self.name].public
        answer = ask(self.daemon.endpoint, message, PATIENCE, keys=keys, server_key=key)
        assert answer is not None
        return answer

    def do(self, call: Callable[[], Any]) -> Any:
        """What a call gives on the loop of the daemon."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(call()))
        return done.result(PATIENCE)

    def close(self) -> None:
        self.do(self.daemon.close)
        self.do(lambda: None)  # A turn for what was cancelled.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Running]]:
    """Alpha and beta, which admit each other, and gamma, which admits nobody but the owner of all; short trials."""
    monkeypatch.setattr(link_trials, "PUSH_SECONDS", 0.3)
    monkeypatch.setattr(link_trials, "PUSH_BYTES_MAX", 64 << 20)
    monkeypatch.setattr(link_trials, "TRIAL_SECONDS", PATIENCE)
    monkeypatch.setattr(link_trials, "DRAIN_SECONDS", PATIENCE / 10)
    made = {
        "alpha": Running(tmp_path, "alpha", "beta", "owner"),
        "beta": Running(tmp_path, "beta", "alpha", "owner"),
        "gamma": Running(tmp_path, "gamma", "owner"),
    }
    yield made
    for each in made.values():
        each.close()


def measure(peer: Running) -> dict[str, Any]:
    return {"type": "measure-link", "peer": peer.address}


def check(directions: list[dict[str, Any]]) -> None:
    for way in directions:
        assert way["bytes"] > 0
        assert way["bytes_per_second"] > 0
        assert way["round_trip_seconds"] > 0
        assert 0 <= way["resent"] <= way["segments"]


def test_both_directions_of_a_link_are_measured(daemons: dict[str, Running]) -> None:
    answer = daemons["alpha"].asks("owner", measure(daemons["beta"]))
    assert answer["type"] == "measured", answer
    assert [(way["source"], way["target"]) for way in answer["directions"]] == [("alpha", "beta"), ("beta", "alpha")]
    check(answer["directions"])
    assert answer["is_relayed"] is False


def test_a_machine_that_cannot_be_dialled_is_measured_by_its_link(daemons: dict[str, Running]) -> None:
    alpha, beta = daemons["alpha"], daemons["beta"]
    beta.do(lambda: beta.daemon.neighbours.link(HomeAddress(**alpha.address)))
    until_linked = threading.Event()
    for _ in range(round(PATIENCE * 10)):
        if alpha.do(lambda: alpha.daemon.neighbours.links.is_up("beta")):
            break
        until_linked.wait(0.1)
    answer = alpha.asks("owner", {"type": "measure-link", "peer": {"name": "beta", "address": "", "public_key": ""}})
    assert [(way["source"], way["target"]) for way in answer["directions"]] == [("alpha", "beta"), ("beta", "alpha")]
    check(answer["directions"])


def test_a_machine_that_does_not_admit_the_other_is_named(daemons: dict[str, Running]) -> None:
    answer = daemons["alpha"].asks("owner", measure(daemons["gamma"]))
    assert answer["type"] == "refused"
    [fault] = answer["faults"]
    assert "from alpha to gamma" in fault[0]
    assert fault[2] == "that this key is not"


def test_one_without_an_address_or_a_link_is_named(daemons: dict[str, Running]) -> None:
    unknown = {"name": "delta", "address": "", "public_key": ""}
    answer = daemons["alpha"].asks("owner", {"type": "measure-link", "peer": unknown})
    assert answer["type"] == "refused"
    assert "delta" in answer["faults"][0][1]


def test_an_admitted_machine_can_open_one_trial_at_a_time_and_have_nothing_measured(
    daemons: dict[str, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = daemons["alpha"]
    assert alpha.asks("beta", measure(daemons["beta"]))["type"] == "refused"
    assert alpha.asks("beta", {"type": "open-link-trial", "name": "owner"})["type"] == "trial"
    monkeypatch.setattr(link_trials, "PAUSE_SECONDS", PATIENCE)
    paused = alpha.asks("beta", {"type": "open-link-trial", "name": "beta"})
    assert (paused["type"], "one in" in paused["faults"][0][1]) == ("refused", True)
    other = alpha.asks("owner", {"type": "open-link-trial", "name": "owner"})
    assert (other["type"], other["faults"][0][2]) == ("refused", "one that goes on")
    alpha.do(lambda: alpha.daemon._services.close())
    assert alpha.asks("owner", {"type": "open-link-trial", "name": "owner"})["type"] == "trial"


def test_a_trial_that_nobody_dials_ends_by_itself(daemons: dict[str, Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trials, "TRIAL_SECONDS", 0.1)
    monkeypatch.setattr(link_trials, "DRAIN_SECONDS", 0.1)
    alpha = daemons["alpha"]
    assert alpha.asks("beta", {"type": "open-link-trial", "name": "beta"})["type"] == "trial"
    ended = threading.Event()
    for _ in range(round(PATIENCE * 10)):
        if not alpha.do(lambda: list(alpha.daemon._services.listening())):
            break
        ended.wait(0.1)
    assert not alpha.do(lambda: list(alpha.daemon._services.listening()))


def test_the_rate_is_that_of_what_came_after_the_start() -> None:
    assert rate([], 0) is None
    assert rate([(5, 100)], 0) is None
    second = 10**9
    assert rate([(second, 100), (2 * second, 300)], 0) == 300.0
    slow_start = [(second, 1), *((second + each * second // 10, 50) for each in range(1, 11))]
    assert rate(slow_start, 0) == pytest.approx(500.0)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(daemons: dict[str, Running], tmp_path: Path) -> Path:
    """A cluster file of the three, by the owner's key."""
    secret, _ = PAIRS["owner"].write(tmp_path, "owner")
    parts = [f'[keys]\nsecret = "{secret}"\n']
    for each in daemons.values():
        fields = each.address
        parts.append(
            f'[[machine]]\nname = "{fields["name"]}"\naddress = "{fields["address"]}"\n'
            f'public_key = "{fields["public_key"]}"\n'
        )
    file = tmp_path / "cluster.toml"
    file.write_text("".join(parts))
    return file


def test_the_command_says_what_a_model_takes_by_format(cluster: Path) -> None:
    done = CliRunner().invoke(
        app, ["doctor", "--link", "beta", "alpha", "--cluster", str(cluster), "--parameters", "1000", "--json"]
    )
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    [pair] = data["pairs"]
    assert [way["source"] for way in pair["directions"]] == ["beta", "alpha"]
    for way in pair["directions"]:
        sizes = {each["format"]: each["bytes"] for each in way["formats"]}
        assert sizes["float32"] == 4000
        assert sizes["int4"] == 500 + 16
        for each in way["formats"]:
            expected = each["bytes"] / way["bytes_per_second"] + way["round_trip_seconds"] / 2
            assert each["seconds"] == pytest.approx(expected)
        assert way["loss"] == way["resent"] / way["segments"]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (["alpha", "beta", "--links"], "--link and --links"),
        (["alpha", "beta", "--for", "x"], "--for"),
        (["alpha", "alpha"], "alpha twice"),
        (["alpha", "gamma"], "from alpha to gamma"),
        (["epsilon", "delta"], "epsilon and delta"),
        (["alpha", "beta", "--parameters", "0"], "--parameters"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(cluster: Path, ends: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["doctor", "--link", *ends, "--cluster", str(cluster)])
    assert done.exit_code == 2
    assert words in done.output


def test_without_keys_both_are_on_loopback() -> None:
    with pytest.raises(ConfigError, match="keys"):
        linking.link(["tcp://192.0.2.1:7400", "tcp://192.0.2.2:7400"], None, None, as_json=True)


def test_the_command_of_an_earlier_version_is_told_what_it_is_now() -> None:
    done = CliRunner().invoke(app, ["link", "alpha", "beta"])
    assert done.exit_code == 2
    assert "isthmus doctor --link A B" in done.output

"""A home that asks other machines answers its command in time, whatever they do."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.machine import readiness
from isthmus.programs.engine.machine.absent_homes import HomeView
from isthmus.programs.engine.machine.client import patience
from isthmus.programs.engine.machine.daemon import ANSWERED_SHARE
from isthmus.programs.engine.machine.links import HomeAddress, answered
from isthmus.programs.engine.machine.readiness import LinkRequest, check_machines
from isthmus.programs.wings.failover import next_home
from isthmus.programs.wings.failover.next_home import standings
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.security_keys import KeyPair, Keyring

HERE = HomeAddress("beta", "tcp://beta:1", "")
NONE = HomeView("", 0, is_heard=False)


class Linked:
    """Links to machines that are there, and answer in turn what they were given; notes how long each may take."""

    def __init__(self, *answers: dict[str, Any] | ConfigError) -> None:
        self.answers = list(answers)
        self.seconds: list[float] = []

    def is_up(self, name: str) -> bool:
        return True

    async def request(self, name: str, message: dict[str, Any], seconds_max: float) -> dict[str, Any]:
        self.seconds.append(seconds_max)
        answer = self.answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer


def found(links: Linked) -> tuple[dict[str, HomeView], dict[str, str]]:
    asked = [LinkRequest(MachineSite("gamma"), HERE, {"type": "check"})]
    return asyncio.run(standings(cast(Any, links), asked, None, ("beta", lambda: NONE)))


def said(*, is_heard: bool) -> dict[str, Any]:
    return {"type": "permitted", "home": "alpha", "term": 2, "is_heard": is_heard}


def test_what_is_not_ready_in_time_is_refused_with_a_message() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    answer = asyncio.run(answered(never(), "Trying", 0.01))
    [(doing, expected, told, _)] = answer["faults"]
    assert (answer["type"], doing, told) == ("refused", "Trying", "some that did not come")
    assert expected.startswith("all answers within")


@pytest.mark.parametrize("error", [ConfigError("Doing", "this", "that", "Do."), KeyError("run"), TimeoutError("disk")])
def test_what_is_refused_and_what_is_malformed_is_answered(error: Exception) -> None:
    async def refuse() -> dict[str, Any]:
        raise error

    answer = asyncio.run(answered(refuse(), "Trying", 60.0))
    assert answer["type"] == "refused"
    assert str(error.args[0]) in str(answer["faults"]) or "that" in str(answer["faults"])


def test_machines_are_asked_again_while_one_hears_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_home, "UP_SECONDS", 0.0)
    links = Linked(said(is_heard=True), said(is_heard=False), said(is_heard=True))
    assert found(links) == ({"gamma": HomeView("alpha", 2, is_heard=False), "beta": NONE}, {})
    links = Linked(*[said(is_heard=True)] * next_home.HEARD_TRIES)
    assert found(links)[0]["gamma"].is_heard
    asked = next_home.HEARD_TRIES * (max(links.seconds) + readiness.LINK_SECONDS_MAX + patience("machine"))
    assert asked < ANSWERED_SHARE * patience("resume"), "the command would have given up"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", None])
def test_a_machine_whose_key_the_home_does_not_admit_is_told_so(address: str | None) -> None:
    class Away:
        def is_up(self, name: str) -> bool:
            return False

        async def wait_for(self, name: str, seconds_max: float) -> bool:
            return False

    home, gamma, other = (KeyPair.draw() for _ in range(3))

    def faults(key: str | None, ring: Keyring) -> str:
        request = LinkRequest(MachineSite("gamma", address, key), HERE, {"type": "check"})
        return str(asyncio.run(check_machines(cast(Any, Away()), [request], ring)))

    ring = Keyring(home, {other.public: "gamma"}, "beta")
    assert f"isthmus admit gamma {gamma.public}" in faults(gamma.public, ring)
    assert "isthmus admit gamma KEY" in faults(None, Keyring(home, {}, "beta"))
    assert "isthmus admit" not in faults(gamma.public, Keyring(home, {gamma.public: "gamma"}, "beta"))
    assert "isthmus admit" not in faults(None, ring)


def test_what_a_machine_refuses_is_refused() -> None:
    with pytest.raises(ConfigError, match="found that"):
        found(Linked(ConfigError("Doing", "this", "that", "Do.")))

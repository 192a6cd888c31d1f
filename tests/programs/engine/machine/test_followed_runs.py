"""Daemons that end with their runs: which they follow, and with which exit status they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import daemon, links, neighbours
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.followed_runs import FOLLOWED_MAX, FollowedRuns, FormerRuns
from isthmus.programs.engine.machine.links import HomeAddress
from tests.loops import run_until
from tests.programs.engine.machine.owner import Owner


def followed(**outcomes: str) -> FollowedRuns:
    runs = FollowedRuns()
    runs.note("alpha", outcomes)
    return runs


@pytest.mark.parametrize(
    ("outcomes", "are_over", "has_failed"),
    [
        ({}, False, False),
        ({"a": "running"}, False, False),
        ({"a": "done"}, True, False),
        ({"a": "stopped"}, True, False),
        ({"a": "failed"}, True, True),
        ({"a": "interrupted"}, False, False),
        ({"a": "done", "b": "running"}, False, False),
        ({"a": "failed", "b": "interrupted"}, False, True),
        ({"a": "failed", "b": "done"}, True, True),
    ],
)
def test_a_daemon_ends_once_none_of_its_runs_goes_on(
    outcomes: dict[str, str], are_over: bool, has_failed: bool
) -> None:
    runs = followed(**outcomes)
    assert (runs.are_over, runs.has_failed) == (are_over, has_failed)


def test_it_follows_each_run_of_each_home_until_that_is_over() -> None:
    runs = followed(a="running", b="interrupted", c="done")
    runs.note("beta", {"a": "stopped"})
    assert runs.of("alpha") == ["a", "b"]
    runs.note("alpha", {"a": "done"})
    assert (runs.of("alpha"), runs.are_over) == (["b"], False)
    runs.note("alpha", {"b": "running"})
    runs.note("alpha", {"b": "done"})
    assert runs.are_over


def test_runs_that_are_over_make_room_and_a_failure_is_remembered() -> None:
    runs = followed(a="failed", **{f"r{number}": "done" for number in range(FOLLOWED_MAX)})
    assert "a" not in runs.words
    assert runs.has_failed
    runs.note("alpha", {f"s{number}": "running" for number in range(2 * FOLLOWED_MAX)})
    assert len(runs.of("alpha")) == FOLLOWED_MAX


def test_a_home_tells_of_former_runs_those_that_follow_or_took_part() -> None:
    former = FormerRuns(2)
    for run in ("a", "b", "c"):
        former.add(run, "done", ["beta"])
    assert former.for_machine("beta", []) == {"b": "done", "c": "done"}
    assert former.for_machine("gamma", ["a", "c"]) == {"c": "done"}
    assert former.for_machine("gamma", []) == {}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MachineDaemon]]:
    """Starts daemons on one loop, which ends when one of them does."""
    monkeypatch.setattr(daemon, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(links, "LINK_SECONDS", 0.01)
    loop, started = uvloop.new_event_loop(), list[MachineDaemon]()

    def begin(name: str, *, until_over: bool = False) -> MachineDaemon:
        here = tmp_path / name
        here.mkdir()
        made = MachineDaemon(
            loop,
            name,
            "tcp://127.0.0.1:*",
            MachineConfig(runs=here, until_over=until_over),
            None,
            here,
            Owner(),
        )
        started.append(made)
        return made

    yield begin
    for each in started:
        each.close()
    loop.close()


def going_on(name: str) -> Any:
    """A run of a home in which nobody else takes part."""
    fleet = SimpleNamespace(others=[], away=())
    held = SimpleNamespace(home=SimpleNamespace(fleet=fleet), relayed=dict, full=list, folder=Path(name))
    return SimpleNamespace(name=name, is_running=False, daemon=held, tick=lambda: False)


@pytest.mark.parametrize(("outcome", "has_failed"), [("done", False), ("stopped", False), ("failed", True)])
def test_a_machine_ends_with_the_runs_of_its_home(
    start: Callable[..., MachineDaemon], outcome: str, has_failed: bool
) -> None:
    alpha, beta = start("alpha"), start("beta", until_over=True)
    ended: list[bool] = []
    beta._owner.idle = lambda: ended.append(beta.has_failed)  # type: ignore[method-assign]
    followed = beta.neighbours.followed
    assert followed is not None
    link = beta.neighbours.join(HomeAddress("", alpha.endpoint), 1)
    alpha.neighbours.former.add("yesterday", "failed", ["gamma"])
    run_until(alpha.loop, lambda: link.is_up)
    assert not followed.words
    alpha._runs["run"] = going_on("run")
    run_until(alpha.loop, lambda: followed.of(link.home.identity) == ["run"])
    del alpha._runs["run"]
    alpha.neighbours.former.add("run", "interrupted", [])
    run_until(alpha.loop, lambda: "interrupted" in followed.words)
    assert not ended
    alpha.neighbours.former.add("run", outcome, [])
    run_until(alpha.loop, lambda: bool(ended))
    assert ended[0] == has_failed
    assert followed.words == f"run: {outcome}"


@pytest.mark.parametrize("is_set_aside", [True, False])
def test_hosts_elsewhere_of_a_run_that_is_set_aside_are_not_told_that_it_is_over(
    start: Callable[..., MachineDaemon], monkeypatch: pytest.MonkeyPatch, is_set_aside: bool
) -> None:
    """They report while its daemon leaves, and work on for the next one."""
    alpha, run, sent = start("alpha"), going_on("run"), list[Any]()
    run.folder, run.is_set_aside, run.log = Path("run"), is_set_aside, print
    run.daemon.failure, run.daemon.outcome = None, "interrupted"
    alpha._runs[str(run.folder)] = run
    alpha._over(run)
    monkeypatch.setattr(alpha.neighbours, "_name_of", lambda peer: "beta")
    monkeypatch.setattr(alpha.neighbours, "_send", lambda peer, message: sent.append(message["run"]))
    obeyed = SimpleNamespace(obeyed=SimpleNamespace(term=1))
    monkeypatch.setattr(neighbours, "read_report", lambda message: (obeyed, {}))
    alpha.neighbours._reported(b"", {"run": "run"})
    assert sent == ([] if is_set_aside else ["run"])


def test_a_machine_that_has_left_announces_itself_no_more(start: Callable[..., MachineDaemon]) -> None:
    """Its home would take it for one that is back, and its name would not be free."""
    alpha, beta = start("alpha"), start("beta")
    link = beta.neighbours.join(HomeAddress("", alpha.endpoint), 1)
    run_until(alpha.loop, lambda: alpha.neighbours.links.is_up("beta"))
    assert beta.neighbours.part() > 0.0
    run_until(alpha.loop, lambda: alpha.neighbours.links.away_seconds("beta") == math.inf)
    sent: list[Any] = []
    link.send = sent.append  # type: ignore[method-assign]
    link._client.send = sent.append  # type: ignore[method-assign]
    link._beat()
    assert not sent


def test_a_home_ends_with_its_own_runs_and_any_other_daemon_stays(start: Callable[..., MachineDaemon]) -> None:
    alpha, beta = start("alpha", until_over=True), start("beta")
    ended: list[str] = []
    for each in (alpha, beta):
        each._owner.idle = lambda name=each.name: ended.append(name)  # type: ignore[method-assign,misc]
    for each in (alpha, beta):
        each.neighbours.note(each.name, {"run": "done"})
    run_until(alpha.loop, lambda: bool(ended))
    assert ended == ["alpha"]
    assert beta.neighbours.followed is None

"""Whether a home is lost is refused by one yes, and the next term is beyond all that anybody has heard of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.programs.engine.cluster.handover import MachineSite, Sites
from isthmus.programs.engine.machine.absent_homes import HomeView
from isthmus.programs.wings.failover.takeover import (
    TakeoverState,
    check_nowhere,
    next_home,
    next_term,
    to_ask,
)
from isthmus.runtime.errors import ConfigError

TOLD = cast(Any, SimpleNamespace(run="run-1"))
SITES = Sites(
    "alpha", {name: MachineSite(name, f"tcp://{name}:1") for name in ("alpha", "beta", "gamma")}, {}, "", term=3
)
ESTATE = TakeoverState(Path("run"), TOLD, SITES, 3, ("alpha", "beta", "gamma", "joined"))
NONE = HomeView("", 0, is_heard=False)


def test_the_next_term_is_beyond_all_that_anybody_has_heard_of() -> None:
    assert next_term(ESTATE, {"beta": NONE}, "Trying") == 4
    later = HomeView("gamma", 7, is_heard=False)
    assert next_term(ESTATE, {"beta": NONE, "gamma": later}, "Trying") == 8


def test_all_who_hear_the_home_are_named() -> None:
    heard = HomeView("alpha", 3, is_heard=True)
    with pytest.raises(ConfigError) as caught:
        next_term(ESTATE, {"beta": heard, "gamma": NONE, "joined": heard}, "Trying")
    assert [fault.found for fault in caught.value.faults] == [
        "its home 'alpha', which 'beta' hears",
        "its home 'alpha', which 'joined' hears",
    ]


def test_one_machine_that_has_the_run_is_enough() -> None:
    check_nowhere("run-1", {"beta": ["run-2"], "gamma": []}, "Trying")
    with pytest.raises(ConfigError, match="goes on under 'gamma'"):
        check_nowhere("run-1", {"beta": ["run-2"], "gamma": ["run-2", "run-1"]}, "Trying")


def test_everybody_is_asked_but_the_lost_home_and_the_next_one_where_the_cluster_file_has_them_now() -> None:
    moved = MachineSite("gamma", "tcp://elsewhere:1")
    assert to_ask("beta", ESTATE, [moved]) == [moved, MachineSite("joined")]


def test_the_next_home_has_an_address_and_the_run_is_of_its_cluster() -> None:
    beta = MachineSite("beta", "tcp://beta:1")
    assert next_home("beta", ESTATE, [beta], "Trying") == beta
    assert (
        next_home("delta", ESTATE, [MachineSite("alpha"), MachineSite("delta", "tcp://delta:1")], "Trying").name
        == "delta"
    )
    with pytest.raises(ConfigError, match="'beta' with an address"):
        next_home("beta", ESTATE, [MachineSite("beta")], "Trying")
    with pytest.raises(ConfigError, match="a run of the machines in the cluster file, delta"):
        next_home("delta", ESTATE, [MachineSite("delta", "tcp://delta:1")], "Trying")

"""Plans: what they may say, and the faults that are drawn or built in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from isthmus.programs.command.config import absolute
from isthmus.programs.settings import Text
from isthmus.programs.wings.chaos.chaos_plan import (
    FAULTS_MAX,
    ChaosPlan,
    Planned,
    check_hosts,
    check_programs,
    faults_of,
    machine_hosts,
    machines_of,
    read,
)
from isthmus.runtime.errors import ConfigError

HOSTS = ["learner/0", "learner/1", "learner/2", "learner/3", "syncer/0", "evaluator/0", "recorder/0"]


def plan(text: str) -> ChaosPlan:
    return read(tomllib.loads(text), "plan.toml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(text)
    return str(caught.value)


def test_faults_come_in_the_order_of_their_times() -> None:
    read_ = plan(
        '[[fault]]\nkind = "pause"\nhost = "learner/1"\nat = 9\nseconds = 0.5\n'
        '[[fault]]\nkind = "kill"\nhost = "syncer/0"\nat = 3.5\n[run]\ntokens = 7\n'
    )
    assert read_.run == {"tokens": 7}
    faults = (
        Planned(kind="kill", host="syncer/0", at=3.5),
        Planned(kind="pause", host="learner/1", at=9, seconds=0.5),
    )
    assert faults_of(read_, HOSTS, 1.0) == read_.faults == faults
    check_hosts(read_, HOSTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[fault]]\nkind = "kil"\nhost = "a"\nat = 1', "Did you mean 'kill'?"),
        ('[[fault]]\nkind = "kill"\nat = 1', "missing required field `host`"),
        ('[[fault]]\nkind = "kill"\nhost = "a"\nat = "soon"', "Expected `float`"),
        ('[[fault]]\nkind = "kill"\nhost = "a"\nat = -1', "from 0, found -1"),
        ('[[fault]]\nkind = "kill"\nhost = "a"\nat = nan', "from 0, found nan"),
        ('[[fault]]\nkind = "kill"\nhost = "a"\nat = 1\nseconds = 2', "no seconds: a kill has none"),
        ('[[fault]]\nkind = "pause"\nhost = "a"\nat = 1\nseconds = 0', "seconds above 0"),
        ('[[fault]]\nkind = "slow"\nhost = "a"\nat = 1\nfactor = 1', "factor above 1"),
        ("[random]\ncount = 0", "count from 1"),
        ("[random]\nmean_seconds = 0", "mean_seconds above 0"),
        ("[random]\nkinds = []", "kinds of"),
        ('[random]\n[[fault]]\nkind = "kill"\nhost = "a"\nat = 1', "found both"),
        ("[faults]", "faults"),
        ("[program]\nfragments = 2", "program"),
        ("machines = 0", "machines from 1 to 16, found 0"),
        ('machines = 2\n[[fault]]\nkind = "pause"\nhost = "machine/1"\nat = 1', "kill the machine"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told(text: str, words: str) -> None:
    assert words in refusal(text)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    text = '[[fault]]\nkind = "kill"\nhost = "a"\nat = -1\n[[fault]]\nkind = "slow"\nhost = "a"\nat = 1\nfactor = 0\n'
    assert refusal(text).count("expected") == 2


def test_hosts_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="'learner/4'") as caught:
        check_hosts(ChaosPlan(faults=(Planned(kind="kill", host="learner/4", at=1.0),)), HOSTS)
    assert "Did you mean 'learner/" in str(caught.value)
    check_hosts(ChaosPlan(faults=(Planned(kind="kill", host="daemon", at=1.0),)), HOSTS)


def test_the_same_seed_draws_the_same_faults() -> None:
    drawn = plan('[random]\nseed = 3\ncount = 400\nmean_seconds = 5\nhosts = ["learner/0", "syncer/0"]')
    faults = faults_of(drawn, HOSTS, 1.0)
    assert faults == faults_of(drawn, HOSTS, 99.0)
    assert faults != faults_of(plan("[random]\nseed = 4\ncount = 400\nmean_seconds = 5"), HOSTS, 1.0)
    assert {fault.kind for fault in faults} == {"kill", "pause", "slow"}
    assert {fault.host for fault in faults} == {"learner/0", "syncer/0"}
    assert 4.0 < faults[-1].at / 400 < 6.0


def test_without_a_count_faults_come_for_as_long_as_a_run_may_last() -> None:
    drawn = plan("[random]\nmean_seconds = 10")
    faults = faults_of(drawn, HOSTS, 30.0)
    assert drawn.is_endless
    assert not plan("[random]\ncount = 3").is_endless
    assert 500.0 < faults[-1].at <= 600.0
    assert faults_of(drawn, HOSTS, 60.0)[: len(faults)] == faults
    assert len(faults_of(drawn, HOSTS, 1e9)) == FAULTS_MAX


def test_a_section_of_a_program_that_there_is_not_is_named() -> None:
    told = plan("[program.decopled-diloco]\ngamma = 0.5\n[program.diloco]\ninterval = 8")
    check_programs(told, ["decopled-diloco", "diloco"])
    with pytest.raises(ConfigError, match="Did you mean 'decoupled-diloco'") as caught:
        check_programs(told, ["data-parallel", "decoupled-diloco", "diloco"])
    assert str(caught.value).count("expected") == 1


@pytest.mark.parametrize("hosts", [HOSTS, ["learner/0", "evaluator/0", "recorder/0"]])
def test_the_built_in_plan_strikes_every_kind_of_process(hosts: list[str]) -> None:
    faults = faults_of(ChaosPlan(), hosts, 60.0)
    killed = {fault.role for fault in faults if fault.kind == "kill"}
    machines = machines_of(ChaosPlan(), hosts)
    assert machines == (2 if "learner/1" in hosts else 1)
    assert killed == {host.partition("/")[0] for host in [*hosts, *machine_hosts(machines)]} | {"daemon", "fork-server"}
    assert {fault.kind for fault in faults} == {"kill", "pause", "slow"}
    assert 0.0 < faults[0].at < faults[-1].until < 60.0
    check_hosts(ChaosPlan(faults=faults, machines=machines), hosts)


def test_machines_are_killed_where_there_are_several() -> None:
    fault = '[[fault]]\nkind = "kill"\nhost = "machine/{}"\nat = 1'
    check_hosts(plan("machines = 3\n" + fault.format(2)), HOSTS)
    check_hosts(plan("machines = 2\n" + fault.format(0)), HOSTS)
    for told, number in (("machines = 2\n", 2), ("", 0), ("", 1)):
        with pytest.raises(ConfigError, match=f"'machine/{number}'"):
            check_hosts(plan(told + fault.format(number)), HOSTS)
    with pytest.raises(ConfigError, match="as many machines as learners, 4"):
        check_hosts(plan("machines = 5"), HOSTS)


def test_paths_begin_in_the_folder_of_the_plan(tmp_path: Path) -> None:
    text = '[run]\ntask = "mine.py:task"\nseed = 1\n[task]\nbatch = 2\nrouter = "a.router"'
    found = plan(text).in_folder(tmp_path, absolute)
    assert found.run == {"task": f"{tmp_path}/mine.py:task", "seed": 1}
    assert found.task == {"batch": 2, "router": f"{tmp_path}/a.router"}
    handed_on = {("task", "router"): Text(f'"{tmp_path}/a.router"')}
    assert absolute(handed_on, tmp_path) == handed_on


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[fault]]\nkind = "mute"\nhost = "syncer/0"\nat = 1', "a learner, whose link can mute"),
        ('[[fault]]\nkind = "lose"\nhost = "learner/0"\nat = 1\nshare = 1.0', "a share above 0 and below 1"),
        ('[[fault]]\nkind = "clog"\nhost = "learner/0"\nat = 1\nlatency = 0', "latency in seconds"),
        ('[[fault]]\nkind = "throttle"\nhost = "learner/0"\nat = 1\nlatency = 2', "a throttle has none"),
        ("[links]\nkbits = [0]", "kbits above 0"),
        ("[links]\nlatency = -1", "latency in seconds"),
        ('[random]\nkinds = ["mute"]\nhosts = ["syncer/0"]', "a learner among the hosts"),
    ],
)
def test_what_is_wrong_with_links_is_told(text: str, words: str) -> None:
    assert words in refusal(text)


def test_slow_links_alone_strike_nothing() -> None:
    assert faults_of(plan("[links]\nkbits = [64.0]"), HOSTS, 60.0) == ()

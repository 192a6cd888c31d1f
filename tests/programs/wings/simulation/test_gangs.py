"""Islands of several processes in universes: whichever of them dies, they end and begin again as one, and the run
comes to its end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from isthmus import Program
from isthmus.programs.wings.simulation import searches
from isthmus.programs.wings.simulation import simulating as shown
from isthmus.programs.wings.simulation.universe import Shape, outcome_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Member, Replica, leader
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Blackout, Cut, Fault, Kill, KillDaemon, Pause, RefuseStarts
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.incidents import Condemned, GangMemberLost, Happened
from tests.effort import long, soaked
from tests.programs.wings.simulation.scenarios import assert_exact, survive

PROCESSES = (3, 1, 2)
FOLLOWERS = ("learner.1/0", "learner.2/0", "learner.1/2")


class Began(Checker):
    """Objects to nothing. `lives` has those of each island that began, by its leader."""

    def __init__(self) -> None:
        self.lives: dict[Replica, set[Member]] = {}
        self.bereft = 0

    def began(self, universe: Universe, member: Member) -> None:
        self.lives.setdefault(leader(member.replica), set()).add(member)

    def happened(self, universe: Universe, happened: Happened) -> None:
        self.bereft += isinstance(happened.incident, Condemned) and isinstance(
            happened.incident.verdict, GangMemberLost
        )


@pytest.mark.slow
@pytest.mark.parametrize("host", ["learner.2/0", long("learner/0")])
def test_an_island_that_loses_a_process_begins_again_whole(host: str) -> None:
    seen = Began()
    outcome = survive(Kill(host, at=2.5), learners=3, witness=seen, processes=PROCESSES)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert seen.bereft == 2
    island = seen.lives[Replica("learner", 0)]
    assert sorted(island) == sorted(
        Member(Replica(role, 0), number) for role in ("learner", "learner.1", "learner.2") for number in (1, 2)
    )
    assert seen.lives[Replica("learner", 2)] == {Member(Replica(role, 2), 1) for role in ("learner", "learner.1")}
    assert_exact(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *map(long, range(2, 5)), *map(soaked, range(5, 60))])
def test_islands_survive_what_happens_to_their_processes_daemons_and_machines(seed: int) -> None:
    outcome = outcome_of(
        Shape(
            seed=seed,
            learners=3,
            processes=PROCESSES,
            steps=40,
            step_ms=100.0,
            program=Program("decoupled-diloco", fragments=2, interval=8),
            climate=Climate(),
            speeds=(1.0,) * 3,
            faults=faults(random.Random(f"isthmus {seed} gangs")),
        )
    )
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert outcome.faults


@pytest.mark.slow
def test_an_island_ends_whose_process_finds_no_room_and_the_fault_is_known() -> None:
    outcome = survive(RefuseStarts("learner-0", at=0.0), learners=3, steps=16, processes=PROCESSES)
    assert (outcome.violation, outcome.faults["no room"]) == (None, 1)
    # The others end with it, and the next life is one of all.
    assert {f"{host}#2" for host in ("learner/0", "learner.1/0", "learner.2/0")} <= set(outcome.lives)


def faults(rng: random.Random) -> tuple[Fault, ...]:
    """Two to four, at any moment of the first half."""
    made: list[Fault] = []
    for _ in range(rng.randint(2, 4)):
        host, at = rng.choice((*FOLLOWERS, "learner/0", "learner/2")), rng.uniform(1.2, 3.5)
        machine = host.replace("/", "-")
        made.append(
            rng.choice(
                (
                    Kill(host, at=at),
                    Pause(host, rng.choice((1.0, 4.0)), at=at),
                    KillDaemon(machine, at=at, commands=rng.randint(0, 6)),
                    Blackout(machine, rng.choice((1.0, 25.0)), at=at),
                    Cut(machine, None, rng.choice((2.0, 30.0)), at=at),
                )
            )
        )
    return tuple(made)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "seeds"),
    [
        ("decoupled-diloco", range(3, 5)),
        soaked("decoupled-diloco", range(100)),
        soaked("diloco", range(200, 230)),
        soaked("streaming-diloco", range(300, 330)),
    ],
)
def test_islands_of_seeds_live_with_the_faults_of_all_hosts(program: str, seeds: range) -> None:
    guards: Counter[str] = Counter()
    for seed in seeds:
        outcome = searches.run_ganged(seed, program)
        assert outcome.violation is None, (seed, outcome.violation)
        guards += outcome.guards
    assert sum(guards[f"island: {word}"] for word in searches.WORDS)


def test_what_never_happened_to_an_island_is_told() -> None:
    happened = Counter(dict.fromkeys((f"island: {word}" for word in searches.WORDS), 1))
    assert searches.unseen(happened) == []
    del happened["island: reformed"]
    assert searches.unseen(happened) == ["of islands 'reformed' never happened"]


def test_programs_whose_learners_are_one_process_have_no_such_search() -> None:
    for program, beside in (("data-parallel", ["gangs"]), ("decoupled-diloco", ["deaths", "gangs"])):
        with pytest.raises(ConfigError, match="--gangs"):
            shown.world(0, 1, program, beside=beside, as_json=False)

"""Whom the hosts of a run of two levels meet: with each they have a connection, so it is not the whole run."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus import Program
from isthmus.programs.program_graph import EVALUATOR, REGION, SYNCER
from isthmus.programs.wings.simulation import toy_task
from isthmus.runtime.graph.plans import lower, peers_most
from isthmus.runtime.host.own_process import met_by
from isthmus.runtime.ids import LEARNER, RECORDER, Replica


class Run:
    """The plans of a run, and whom its hosts meet."""

    def __init__(self, *, learners: int, regions: int, region_shards: int, shards: int, keeps: str = "answers") -> None:
        divided = {"regions": regions, "region_shards": region_shards, "shards": shards}
        settings: dict[str, Any] = {"fragments": 12, "keeps": keeps, **divided}
        graph = toy_task.graph_of(Program("regional-diloco", **settings), learners=learners, steps=8, seed=0)
        self.plans = lower(graph)
        self.counts = {LEARNER: learners, REGION: regions * region_shards, SYNCER: shards, EVALUATOR: 1, RECORDER: 1}

    def met(self, role: str, slot: int) -> dict[str, list[int]]:
        """The slots of each role that a host meets, but for itself."""
        named, own = met_by(self.plans[role], Replica(role, slot)), Replica(role, slot)
        all_hosts = [Replica(each, number) for each, count in self.counts.items() for number in range(count)]
        met = [each for each in all_hosts if each != own and any(name.holds(each) for name in named)]
        assert len(met) <= peers_most(self.plans[role], self.counts)
        return {name: slots for name in self.counts if (slots := [each.slot for each in met if each.role == name])}


@pytest.mark.parametrize(("learners", "regions"), [(24, 4), (96, 4), (96, 16)])
def test_a_learner_meets_the_shards_of_its_region_and_none_of_the_others(learners: int, regions: int) -> None:
    """However many learners there are: three shards and the recorder."""
    run = Run(learners=learners, regions=regions, region_shards=3, shards=6)
    met = run.met(LEARNER, 6)
    assert met == {REGION: [6 % regions + regions * shard for shard in range(3)], RECORDER: [0]}
    assert peers_most(run.plans[LEARNER], run.counts) == 4


def test_what_shards_keep_changes_nobody_that_a_host_meets() -> None:
    runs = [Run(learners=24, regions=4, region_shards=3, shards=6, keeps=each) for each in ("answers", "sums")]
    for role, slot in ((LEARNER, 6), (REGION, 6), (SYNCER, 4)):
        assert runs[0].met(role, slot) == runs[1].met(role, slot)


def test_a_shard_of_a_region_meets_its_learners_and_the_global_shards_with_its_fragments() -> None:
    run = Run(learners=24, regions=4, region_shards=3, shards=6)
    own = [2, 6, 10, 14, 18, 22]  # Shard 1 of region 2: fragments 1, 4, 7, 10, which global shards 1 and 4 have.
    assert run.met(REGION, 6) == {LEARNER: own, SYNCER: [1, 4], EVALUATOR: [0], RECORDER: [0]}


def test_a_global_shard_meets_one_shard_of_each_region_and_no_learner() -> None:
    run = Run(learners=24, regions=4, region_shards=3, shards=6)
    others = [0, 1, 2, 3, 5]  # Among them its neighbours.
    assert run.met(SYNCER, 4) == {SYNCER: others, REGION: [4, 5, 6, 7], EVALUATOR: [0], RECORDER: [0]}
    one = Run(learners=24, regions=4, region_shards=3, shards=1)
    assert one.met(SYNCER, 0)[REGION] == list(range(12))


@pytest.mark.parametrize(("region_shards", "shards"), [(1, 1), (1, 4), (4, 1), (2, 3), (4, 6), (3, 6), (6, 3)])
def test_whoever_has_a_fragment_in_common_meets(region_shards: int, shards: int) -> None:
    run = Run(learners=6, regions=3, region_shards=region_shards, shards=shards)
    for slot in range(3 * region_shards):
        wanted = {p % shards for p in range(12) if p % region_shards == slot // 3}
        assert wanted <= set(run.met(REGION, slot)[SYNCER])
        assert all(slot in run.met(SYNCER, shard)[REGION] for shard in wanted)


def test_with_one_level_a_learner_meets_all_shards_and_no_learner() -> None:
    graph = toy_task.graph_of(Program("decoupled-diloco", fragments=12, shards=5), learners=24, steps=8, seed=0)
    met = met_by(lower(graph)[LEARNER], Replica(LEARNER, 7))
    assert {(each.role, each.first, each.step) for each in met if each.role == LEARNER} == {(LEARNER, 7, 0)}
    assert peers_most(lower(graph)[LEARNER], {}) == 7  # The evaluator and the recorder, which hold the model, too.

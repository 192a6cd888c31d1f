"""Placement: small clusters by hand, and generated ones, whose placement must hold every rule or say every fault."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine, Placement, Topology, place
from isthmus.programs.program_graph import ProgramGraph
from isthmus.runtime.errors import PlacementError
from isthmus.runtime.graph.template import Graph, Template
from isthmus.runtime.ids import LEARNER, RECORDER, Replica

HERE = "tcp://127.0.0.1:7400"
V5E, V6E, CPU = find("v5e", ""), find("v6e", ""), find("cpu", "")


def graph_of(*roles: str) -> Template:
    graph = Graph("some")
    for role in roles:
        graph.role(role, replicas=(1, 256))
    return graph.freeze()


SHIPPED = graph_of("learner", "syncer", "evaluator", "recorder")


def roster(learners: int, shards: int = 1) -> dict[str, int]:
    return {"learner": learners, "syncer": shards, "evaluator": 1, "recorder": 1}


def placed(learners: int, *machines: Machine, shards: int = 1, memory_bytes: int = 0) -> Placement:
    return place(SHIPPED, roster(learners, shards), Topology(machines), memory_bytes={"learner": memory_bytes})


def faults_of(learners: int, *machines: Machine, memory_bytes: int = 0) -> list[tuple[str, str, str]]:
    with pytest.raises(PlacementError) as error:
        placed(learners, *machines, memory_bytes=memory_bytes)
    return [fault[:3] for fault in error.value.faults]


def test_one_machine_takes_everything() -> None:
    placement = placed(3, Machine("only", HERE))
    assert len(placement.machines) == 6
    assert set(placement.machines.values()) == {"only"}
    assert placement.home == "only"


def test_learners_go_to_the_fastest_islands_and_everything_else_to_cpus() -> None:
    placement = placed(
        4,
        Machine("slow", islands=2, device=V5E, devices=4),
        Machine("hub", HERE),
        Machine("fast", HERE, islands=3, device=V6E, devices=4),
    )
    assert placement.of_role(LEARNER) == ("fast", "fast", "fast", "slow")
    assert placement.on("hub") == (Replica("evaluator", 0), Replica(RECORDER, 0), Replica("syncer", 0))


def test_equal_islands_are_taken_one_of_each_machine_at_a_time() -> None:
    placement = placed(5, Machine("a", HERE, islands=4), Machine("b", islands=1), Machine("c"))
    assert placement.of_role(LEARNER) == ("a", "b", "c", "a", "c")


def test_shards_are_spread_over_domains_and_go_to_the_widest_link() -> None:
    def hub(name: str, domain: str, bandwidth: int) -> Machine:
        return Machine(name, HERE, roles=("syncer",), domain=domain, bandwidth_bits=bandwidth)

    hubs = (hub("a", "north", 4), hub("b", "north", 9), hub("c", "south", 2), hub("d", "south", 3))
    rest = Machine("rest", HERE, roles=("learner", "evaluator"))
    assert placed(1, *hubs, rest).of_role("syncer") == ("b",)
    assert placed(1, *hubs, rest, shards=2).of_role("syncer") == ("b", "d")
    assert placed(1, *hubs, rest, shards=4).of_role("syncer") == ("b", "d", "b", "c"), "b carries as much as two others"


def test_shards_go_beside_learners_where_machines_of_their_own_carry_no_more() -> None:
    """Of eight learners and four shards, each shard loads a link as two learners do."""
    hub = Machine("hub", HERE, roles=("syncer", "evaluator"), bandwidth_bits=10)
    islands = [Machine(name, HERE, islands=2, device=V5E, bandwidth_bits=10) for name in "abcd"]
    assert placed(8, hub, *islands, shards=1).of_role("syncer") == ("hub",)
    assert placed(8, hub, *islands, shards=4).of_role("syncer") == ("hub", "a", "hub", "b")
    wide = Machine("hub", HERE, roles=("syncer", "evaluator"), bandwidth_bits=100)
    assert placed(8, wide, *islands, shards=4).of_role("syncer") == ("hub",) * 4, "theirs are narrower"
    untold = Machine("hub", HERE, roles=("syncer", "evaluator"))
    assert placed(8, untold, *islands, shards=4).of_role("syncer") == ("hub", "a", "hub", "b")


def test_a_shard_is_not_where_the_one_before_it_would_fail_with_it() -> None:
    """The next shard has its newest state."""
    both = [Machine(name, HERE, roles=("syncer",), domain=of) for name, of in (("a", "x"), ("b", "x"), ("c", "y"))]
    rest = Machine("rest", HERE, roles=("learner", "evaluator"))
    assert placed(3, *both, rest, shards=3).of_role("syncer") == ("a", "c", "b")


def test_evaluator_and_shards_leave_each_other_and_the_learners_alone() -> None:
    both = Machine("both", HERE, bandwidth_bits=10**12), Machine("hub", HERE, roles=("syncer", "evaluator"))
    placement = placed(2, *both)
    assert placement.of_role("syncer") == placement.of_role("evaluator") == ("hub",)
    other = Machine("other", HERE, roles=("syncer", "evaluator"))
    placement = placed(2, *both, other)
    assert {placement.of_role("syncer"), placement.of_role("evaluator")} == {("hub",), ("other",)}


def test_home_is_the_first_that_takes_more_than_learners() -> None:
    learners, hub = Machine("learners", HERE, roles=("learner",)), Machine("hub", HERE, roles=("syncer", "evaluator"))
    assert placed(1, learners, hub).home == "hub"
    assert placed(1, Machine("a", HERE), hub).home == "a"
    only = place(graph_of("learner", "recorder"), {"learner": 2, "recorder": 1}, Topology((learners,)))
    assert only.home == only.machines[Replica(RECORDER, 0)] == "learners"


def test_what_is_placed_already_stays_if_it_can() -> None:
    machines = (Machine("a", HERE, islands=1), Machine("b", HERE, islands=3))
    kept = {Replica("learner", 2): "b", Replica("learner", 0): "gone", Replica("syncer", 0): "b"}
    placement = place(SHIPPED, roster(4), Topology(machines), kept=kept)
    assert placement.of_role("learner") == ("a", "b", "b", "b")
    assert placement.of_role("syncer") == ("b",)
    machines = (Machine("a", HERE, islands=2), Machine("b", islands=2), Machine("c", roles=("syncer",)))
    kept = {Replica("learner", 0): "a", Replica("learner", 1): "c"}
    assert place(SHIPPED, roster(3), Topology(machines), kept=kept).of_role("learner") == ("a", "b", "a")


def test_everything_that_is_in_the_way_is_told_at_once() -> None:
    assert faults_of(
        4,
        Machine("a", roles=("learners",)),
        Machine("b", roles=("evaluator",)),
        Machine("c", roles=("learner",), islands=1, device=V6E),
        Machine("d", roles=("learner",), islands=2, device=V5E, devices=2),
        memory_bytes=40_000_000_000,
    ) == [
        ("Reading the roles of 'a'", "of learner, syncer, evaluator, region", "'learners'"),
        ("Placing 4 learners", "an island for each", "none that is large enough"),
        *(
            (
                f"Placing a learner on {name!r}",
                "40 GB on an island, for parameters, gradient and optimizer state alone",
                found,
            )
            for name, found in (("c", "32 GB (1 x TPU v6e)"), ("d", "32 GB (2 x TPU v5e)"))
        ),
        ("Placing role 'syncer'", "a machine that takes 'syncer'", "a: learners; b: evaluator; c: learner; d: learner"),
        ("Placing role 'evaluator'", "a machine with an address: other hosts dial this role", "b without one"),
        ("Placing the recorder", "a machine with an address, which all hosts can dial", "a, b, c, d, without one"),
    ]


def test_islands_that_are_too_small_are_passed_over_and_told_when_they_would_be_needed() -> None:
    machines = (Machine("hub", HERE, islands=1), Machine("small", islands=9, device=V5E))
    assert placed(1, *machines, memory_bytes=17 * 10**9).of_role("learner") == ("hub",)
    assert placed(2, *machines, memory_bytes=16 * 10**9).of_role("learner") == ("small", "small")
    assert faults_of(2, *machines, memory_bytes=17 * 10**9)[0][2] == "1 (hub 1)"
    assert len(faults_of(2, *machines, memory_bytes=17 * 10**9)) == 2
    assert len(faults_of(11, *machines)) == 1


def test_roles_of_a_graph_of_its_own_may_be_named() -> None:
    graph = graph_of("front", "back")
    machines = (Machine("a", HERE, roles=("front", "syncer")), Machine("b", HERE, roles=("back",)))
    placement = place(graph, {"front": 1, "back": 1}, Topology(machines))
    assert placement.machines == {Replica("back", 0): "b", Replica("front", 0): "a"}


# -- generated clusters ------------------------------------------------------------------------------------------------

ROLES = ("learner", "syncer", "evaluator")
MACHINES = st.builds(
    Machine,
    st.text("abcdefgh", min_size=1, max_size=3),
    st.sampled_from([HERE, HERE, None]),
    st.none(),
    st.lists(st.sampled_from(ROLES), unique=True).map(tuple),
    st.one_of(st.none(), st.integers(1, 4)),
    st.sampled_from([None, CPU, V5E, V6E]),
    st.integers(1, 4),
    st.sampled_from([None, "x", "y"]),
    st.sampled_from([None, 10**9, 10**10]),
)
CLUSTERS = st.lists(MACHINES, min_size=1, max_size=8, unique_by=lambda machine: machine.name)


def attempt(machines: list[Machine], counts: dict[str, int], memory: int) -> Placement | list[str]:
    try:
        return place(SHIPPED, counts, Topology(tuple(machines)), memory_bytes={"learner": memory})
    except PlacementError as error:
        return [fault.action for fault in error.faults]


@given(CLUSTERS, st.integers(1, 6), st.integers(1, 4), st.sampled_from([0, 20 * 10**9]))
def test_a_placement_holds_every_rule_or_names_every_fault(
    machines: list[Machine], learners: int, shards: int, memory: int
) -> None:
    found = attempt(machines, roster(learners, shards), memory)
    by_name = {machine.name: machine for machine in machines}
    fits = [m for m in machines if m.offers(LEARNER) and (m.island_memory_bytes or memory) >= memory]
    islands = sum(learners if m.islands is None else m.islands for m in fits)
    dialled = {r: [m for m in machines if m.offers(r) and m.address is not None] for r in ("syncer", "evaluator")}
    expected = [f"Placing role {role!r}" for role in ("syncer", "evaluator") if not dialled[role]]
    expected += ["Placing the recorder"] * all(machine.address is None for machine in machines)
    if islands < learners:
        expected.append(f"Placing {learners} learner{'s' * (learners > 1)}")
    if isinstance(found, list):
        assert sorted(doing for doing in found if not doing.startswith("Placing a learner on")) == sorted(expected)
        return
    assert not expected
    assert Counter(replica.role for replica in found.machines) == Counter(roster(learners, shards))
    for replica, name in found.machines.items():
        machine = by_name[name]
        if replica.role != RECORDER:
            assert machine.offers(replica.role)
        if replica.role == LEARNER:
            assert machine in fits
        else:
            assert machine.address is not None
    taken = Counter(found.of_role(LEARNER))
    assert all(machine.islands is None or taken[machine.name] <= machine.islands for machine in fits)
    slowest = min((by_name[name].island_flops or 0 for name in taken), default=0)
    for machine in fits:
        if (machine.island_flops or 0) > slowest:
            assert taken[machine.name] == machine.islands, "A faster island is free."
    if shards > 1:
        last = found.of_role("syncer")
        told = [machine.bandwidth_bits for machine in machines if machine.bandwidth_bits]
        loads = Counter(taken) + Counter(
            {name: Fraction(learners * n, shards) for name, n in Counter(last[:-1]).items()}
        )
        before = by_name[last[-2]].failure_domain
        costs = {
            machine.name: (loads[machine.name] + Fraction(learners, shards))
            * (1 + (machine.failure_domain == before))
            / (machine.bandwidth_bits or min(told, default=1))
            for machine in dialled["syncer"]
        }
        assert costs[last[-1]] == min(costs.values())
        return
    plain = [machine for machine in dialled["syncer"] if not machine.has_accelerators]
    if plain:
        assert not any(by_name[name].has_accelerators for name in found.of_role("syncer"))
    free = [machine for machine in plain if machine.name not in taken]
    domains = {machine.failure_domain for machine in free}
    assert not domains or len({by_name[n].failure_domain for n in found.of_role("syncer")}) == min(shards, len(domains))


@given(CLUSTERS, st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_nothing_but_home_depends_on_the_order_of_anything(
    machines: list[Machine], learners: int, shards: int, random: object
) -> None:
    first = attempt(machines, roster(learners, shards), 0)
    shuffled = list(machines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    counts = dict(reversed(roster(learners, shards).items()))
    second = attempt(shuffled, counts, 0)
    if isinstance(first, Placement) and isinstance(second, Placement):
        recorder = Replica(RECORDER, 0)
        assert {**first.machines, recorder: ""} == {**second.machines, recorder: ""}
        assert attempt(machines, counts, 0) == first
    else:
        assert first == second


def in_regions(learners: int, *machines: Machine, regions: int = 2, shards: int = 1) -> Placement:
    graph = ProgramGraph.of(SHIPPED)
    graph.role("region", replicas=(regions * shards, regions * shards))
    graph.divide(regions)
    return place(graph.freeze(), {**roster(learners), "region": regions * shards}, Topology(machines))


@pytest.mark.parametrize("shards", [1, 2])
def test_learners_and_the_syncers_of_regions_are_in_their_regions(shards: int) -> None:
    placement = in_regions(
        5,
        Machine("hub", HERE, region="west"),
        Machine("fast", HERE, islands=4, device=V6E, region="west"),
        Machine("slow", islands=2, device=V5E, region="east"),
        Machine("near", HERE, islands=1, region="east"),
        shards=shards,
    )
    # East is region 0, west 1: learners take turns.
    east, west = {"slow", "near"}, {"fast", "hub"}
    assert [name in east for name in placement.of_role(LEARNER)] == [True, False, True, False, True]
    assert [name in east for name in placement.of_role("region")] == [True, False] * shards
    assert {name in west for name in placement.of_role("region")[1::2]} == {True}


def test_regions_that_do_not_go_with_the_program_are_refused() -> None:
    here, there = Machine("here", HERE, region="a"), Machine("there", HERE, region="b")

    def refused(*machines: Machine, learners: int = 4, regions: int = 2) -> list[tuple[str, str]]:
        with pytest.raises(PlacementError) as error:
            in_regions(learners, *machines, regions=regions)
        return [(fault.action, fault.found) for fault in error.value.faults]

    assert refused(here, there, regions=3) == [("Placing the syncers of regions", "a, b")]
    assert refused(here, there, Machine("third", HERE)) == [("Placing learner and region on 'third'", "none")]
    far = Machine("there", islands=2, region="b")
    assert refused(here, far) == [("Placing region/1", "none")]
    assert refused(Machine("here", HERE, region="a"), Machine("there", HERE, islands=1, region="b")) == [
        ("Placing learner/3", "none")
    ]
    assert in_regions(4, here, there, Machine("third", HERE, roles=("syncer",))).of_role("syncer") == ("third",)
    # Of a graph without syncers of regions, and where no machine has one, nothing is asked.
    assert len(placed(4, here, Machine("third", HERE)).machines) == 7
    assert len(in_regions(4, Machine("only", HERE)).machines) == 9

"""Seconds to place a run on many islands.

    python -m tests.bench.long.bench_placement [--islands N] [--json]

The cluster has machines of eight islands, of four kinds in turn and in eight domains, and a CPU machine for every 32
islands; the run a learner for each island and four syncer shards. `impossible` is the same with a role that nobody
offers and islands that are too small, so that every fault is found and none of it placed. The reference, in the same
run, is sorting the islands once, which any placement must do. Medians with their range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine, Topology, place
from isthmus.runtime.errors import PlacementError
from isthmus.runtime.graph.template import Graph, Template

SECONDS_BAR = 2.0
ISLANDS_EACH = 8
KINDS = ("TPU v5p", "TPU v6e", "NVIDIA H100", "CPU")


def cluster(islands: int) -> Topology:
    """Machines with that many islands, and CPU machines beside them."""
    learners = [
        Machine(
            f"island-{number}",
            roles=("learner",),
            islands=ISLANDS_EACH,
            device=find(KINDS[number % len(KINDS)], "Measuring"),
            domain=f"building-{number % 8}",
        )
        for number in range(islands // ISLANDS_EACH)
    ]
    hubs = [
        Machine(f"hub-{number}", "tcp://127.0.0.1:7400", roles=("syncer", "evaluator"), domain=f"building-{number % 8}")
        for number in range(max(1, islands // 32))
    ]
    return Topology((*hubs, *learners))


def graph(*roles: str) -> Template:
    """A template with these roles."""
    template = Graph("placed")
    for role in roles:
        template.role(role, replicas=(1, 1024))
    return template.freeze()


def main() -> None:
    """Measure, print, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--islands", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()

    topology = cluster(options.islands)
    possible = graph("learner", "syncer", "evaluator", "recorder")
    impossible = graph("learner", "syncer", "evaluator", "recorder", "nobody")
    roster = {"learner": options.islands, "syncer": 4, "evaluator": 1, "recorder": 1, "nobody": 1}
    islands = [
        (-(machine.island_flops or 0.0), index, machine.name)
        for machine in topology.machines
        for index in range(machine.islands or 0)
    ]

    def refused() -> None:
        with suppress(PlacementError):
            place(impossible, roster, topology, memory_bytes={"learner": 10**12})

    cases: dict[str, Callable[[], object]] = {
        "sort": lambda: sorted(islands),
        "place": lambda: place(possible, roster, topology),
        "impossible": refused,
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.repeats):
        for name, case in cases.items():
            begun = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - begun)

    medians = {name: statistics.median(each) for name, each in seconds.items()}
    figures = {
        name: {
            "seconds_median": medians[name],
            "seconds_min": min(each),
            "seconds_max": max(each),
            "ratio": medians[name] / medians["sort"],
        }
        for name, each in seconds.items()
    }
    is_met = max(max(seconds[name]) for name in ("place", "impossible")) <= SECONDS_BAR
    if options.json:
        print(json.dumps({"bench": "placement", "bar_seconds": SECONDS_BAR, "is_met": is_met, "cases": figures}))
        return
    print(f"{options.islands} islands on {len(topology.machines)} machines, {options.repeats} repeats")
    print(f"{'case':<12}{'median ms':>11}{'min':>9}{'max':>9}{'ratio to sort':>15}")
    for name, f in figures.items():
        times = "".join(
            f"{1e3 * f[f'seconds_{what}']:>{width}.3f}" for what, width in (("median", 11), ("min", 9), ("max", 9))
        )
        print(f"{name:<12}{times}{f['ratio']:>15.1f}")
    print(f"bar {SECONDS_BAR} s: {'met' if is_met else 'MISSED'}")


if __name__ == "__main__":
    main()

"""Firings a second of the scheduler core with its tape, one thread.

    python -m tests.bench.bench_scheduler [--json]

The limit is what the event loop itself can do: hops of uvloop's `call_soon`, in the same run. `chain` is three nodes by
Queue edges in one host; in `join` two nodes feed a third by Latest edges. Each firing makes its item and its event, and
goes through the core and onto the tape, which is taken every thousand firings. For information: the chain without tape,
and the chain in a whole host with real (empty) bodies, the inline executor and the virtual clock. The cases take turns
within each repeat, so that all see the same machine; figures are medians with their range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import Event, FiringEnded, NodeOpened, Output, ReplicaJoined, RunBody
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.graph.template import Graph, Latest, Queue
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.sim.world import World
from isthmus.runtime.tape.writing import Tape

FIRINGS_BAR, RATIO_BAR = 100_000, 0.10
HERE = Member(Replica("here", 0), 1)
TAKEN_EVERY = 1000


def one() -> int:
    """A source."""
    return 1


def through(item: int) -> int:
    """A node in the middle."""
    return item


class Sink:
    """A node at the end."""

    outputs = ()

    def __call__(self, item: int) -> None:
        """Take an item."""


class Join:
    """A node with two inputs."""

    outputs = ("out",)

    def __call__(self, left: int, right: int) -> None:
        """Take an item of each."""


def chain() -> Plan:
    """Three nodes by Queue edges."""
    graph = Graph("chain")
    here = graph.role("here", replicas=(1, 1))
    source, middle, sink = here.node("source", one), here.node("middle", through), here.node("sink", Sink)
    graph.edge(source["result"], middle["item"], Queue(2))
    graph.edge(middle["result"], sink["item"], Queue(2))
    return lower(graph.freeze())["here"]


def join() -> Plan:
    """Two nodes that feed a third by Latest edges."""
    graph = Graph("join")
    here = graph.role("here", replicas=(1, 1))
    left, right, both = here.node("left", one), here.node("right", one), here.node("both", Join)
    graph.edge(left["result"], both["left"], Latest())
    graph.edge(right["result"], both["right"], Latest())
    return lower(graph.freeze())["here"]


def drive(plan: Plan, firings: int, tape: Tape | None) -> None:
    """Let a core fire so often; every firing of a node with edges emits one item."""
    core = Scheduler(plan, HERE)
    emits = {node.index: any(output.edges for output in node.outputs) for node in plan.nodes}
    events: deque[Event] = deque([ReplicaJoined(HERE), *(NodeOpened(node.index) for node in plan.nodes)])
    now = handle = fired = 0
    while fired < firings:
        event = events.popleft()
        now += 1000
        commands = core.handle(event, Instant(now))
        if tape is not None:
            tape.append(Instant(now), event, commands)
        for command in commands:
            if type(command) is RunBody:
                fired += 1
                outputs: tuple[Output, ...] = ()
                if emits[command.node]:
                    handle += 1
                    outputs = (Output(0, Handle(handle)),)
                events.append(FiringEnded(command.node, outputs))
                if tape is not None and fired % TAKEN_EVERY == 0:
                    tape.drain()
    core.check()


def host(plan: Plan, firings: int) -> None:
    """Let a whole host fire so often, in virtual time."""
    counts = {"here": 1}
    world = World({"here": plan}, counts, seed=0, resolve=str, duration=lambda replica, node: Duration(1000))
    [only] = world.hosts.values()
    nodes = list(only.scheduler._nodes.values())
    world.run(lambda: sum(node.firings for node in nodes) >= firings, seconds_max=1e9)
    world.close()


def hops(count: int) -> None:
    """Let uvloop call a function so often that asks to be called again."""
    loop = uvloop.new_event_loop()
    left = count

    def hop() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(hop)
        else:
            loop.stop()

    loop.call_soon(hop)
    loop.run_forever()
    loop.close()


def measure(cases: dict[str, Callable[[int], Any]], counts: dict[str, int], repeats: int) -> dict[str, list[float]]:
    """Rates of each case, taken in turns; the first repeat warms up and is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats + 1):
        for name, case in cases.items():
            begun = time.perf_counter()
            case(counts[name])
            rates[name].append(counts[name] / (time.perf_counter() - begun))
    return {name: each[1:] for name, each in rates.items()}


def main() -> None:
    """Measure, print, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--firings", type=int, default=60_000, help="of each case and repeat")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()

    queues, mailboxes = chain(), join()
    cases: dict[str, Callable[[int], Any]] = {
        "hops": hops,
        "chain": lambda firings: drive(queues, firings, Tape()),
        "join": lambda firings: drive(mailboxes, firings, Tape()),
        "chain, no tape": lambda firings: drive(queues, firings, None),
        "chain in a host": partial(host, queues),
    }
    counts = {name: options.firings * 4 if name == "hops" else options.firings for name in cases}
    rates = measure(cases, counts, options.repeats)

    hop = statistics.median(rates["hops"])
    figures = {
        name: {
            "per_second_median": statistics.median(each),
            "per_second_min": min(each),
            "per_second_max": max(each),
            "microseconds": 1e6 / statistics.median(each),
            "ratio": statistics.median(each) / hop,
        }
        for name, each in rates.items()
    }
    barred = [figures[name] for name in ("chain", "join")]
    is_met = all(each["per_second_median"] >= FIRINGS_BAR and each["ratio"] >= RATIO_BAR for each in barred)
    if options.json:
        bars = {"firings_per_second": FIRINGS_BAR, "ratio": RATIO_BAR}
        print(json.dumps({"bench": "scheduler", "bars": bars, "is_met": is_met, "cases": figures}))
        return
    print(f"{options.firings} firings, {options.repeats} repeats")
    print(f"{'case':<18}{'median /s':>11}{'min':>11}{'max':>11}{'us each':>9}{'ratio to hops':>15}")
    for name, f in figures.items():
        spread = f"{f['per_second_median']:>11,.0f}{f['per_second_min']:>11,.0f}{f['per_second_max']:>11,.0f}"
        print(f"{name:<18}{spread}{f['microseconds']:>9.2f}{f['ratio']:>15.3f}")
    verdict = "met" if is_met else "MISSED"
    print(f"chain and join, each: bars {FIRINGS_BAR:,} firings/s and ratio {RATIO_BAR}: {verdict}")


if __name__ == "__main__":
    main()

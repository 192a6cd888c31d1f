"""The placement of a run on a cluster, and its predictions: below the graph, in its boxes, or in its JSON.

Nothing is decided here: `placing` places, `prediction` predicts. Every figure stands under the word predicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import wrap
from typing import Any

from isthmus.programs.cluster.cluster_file import Cluster
from isthmus.programs.cluster.needs import Find
from isthmus.programs.cluster.placing import placed
from isthmus.programs.cluster.prediction import Island, Link, Prediction, predict
from isthmus.programs.request import graph_view
from isthmus.programs.request.request import Request
from isthmus.programs.results.numbers import percent, scaled, seconds, size
from isthmus.runtime.graph.placement import Machine, Placement, Topology
from isthmus.runtime.ids import LEARNER


def shown(request: Request, cluster: Cluster, form: str, compiled: Find, *, plans: bool) -> str:
    """The graph of a request on a cluster, as 'text', 'mermaid' or 'json'; `compiled` gives the compiler's figures.

    PlacementError if it does not fit.
    """
    placement = placed(request, cluster.topology, compiled)
    prediction = predict(request, cluster.topology, placement, compiled)
    graph, proof = request.graph, request.proof
    if form == "mermaid":
        return graph_view.mermaid(graph, proof, captions(cluster.topology, placement, prediction))
    if form == "json":
        shape = graph_view.as_json(graph, proof, request.fingerprint, nodes_placed(request, placement))
        return json.dumps({**shape, "predicted": as_json(prediction)}, indent=2)
    parts = [graph_view.text(graph, proof, request.plans if plans else None)]
    return "\n".join([*parts, "", *text(cluster.topology, placement, prediction)])


def nodes_placed(request: Request, placement: Placement) -> dict[str, str | Sequence[str]]:
    """The machine of each node, or those of its replicas in order where they differ."""
    result: dict[str, str | Sequence[str]] = {}
    for node in request.graph.nodes:
        machines = placement.of_role(node.role)
        result[node.name] = machines[0] if len(set(machines)) == 1 else machines
    return result


def text(topology: Topology, placement: Placement, prediction: Prediction) -> Iterator[str]:
    """Lines: the replicas of each machine, then the predictions for islands and links."""
    yield f"where it goes; the run's home is {placement.home}"
    yield from graph_view.table([_machine(machine, placement, prediction) for machine in topology.machines])
    yield ""
    yield from wrap(f"predicted, not measured: {prediction.assumptions}", graph_view.WIDTH, subsequent_indent="  ")
    islands = [("island", "device", "step", "memory", "sends and gets")]
    yield from graph_view.table([*islands, *map(_islands, _alike(topology, prediction.islands))])
    rows = [(link.machine, _link(link)) for link in prediction.links if link.bits]
    if rows:
        yield from graph_view.table([("machine", "on its link, in the busier direction"), *rows])
    if prediction.price_per_hour is not None:
        yield f"  {prediction.price_per_hour:.2f} an hour for the devices"


def captions(topology: Topology, placement: Placement, prediction: Prediction) -> dict[str, list[str]]:
    """For each role, a line per machine with the replicas there, and of learners the predicted step."""
    result: dict[str, list[str]] = {}
    for role in dict.fromkeys(replica.role for replica in placement.machines):
        numbers: dict[str, list[int]] = {}
        for number, machine in enumerate(placement.of_role(role)):
            numbers.setdefault(machine, []).append(number)
        result[role] = [f"{_ranges(each)} on {machine}" for machine, each in numbers.items()]
    if prediction.islands:
        result[LEARNER] = [_caption(islands) for islands in _alike(topology, prediction.islands)]
    return result


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction as plain data; unknown values are null."""
    return {
        "assumptions": prediction.assumptions,
        "price_per_hour": prediction.price_per_hour,
        "islands": [
            {
                "learner": island.learner,
                "machine": island.machine,
                "device": island.device,
                "devices": island.devices,
                "step_seconds": island.step_seconds,
                "memory_bytes": island.memory_bytes,
                "memory_bytes_max": island.memory_bytes_max,
                "link_bits_per_second": island.link_bits,
                "is_compiled": island.is_compiled,
            }
            for island in prediction.islands
        ],
        "links": [
            {
                "machine": link.machine,
                "bits_per_second": link.bits,
                "bits_per_second_max": link.bits_max,
            }
            for link in prediction.links
        ],
        "host_bytes": dict(prediction.host_bytes),
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def _machine(machine: Machine, placement: Placement, prediction: Prediction) -> tuple[str, str, str]:
    """Name, resources and replicas of a machine."""
    replicas = placement.on(machine.name)
    roles = {role: [replica.slot for replica in each] for role, each in groupby(replicas, lambda item: item.role)}
    takes = ", ".join(f"{role}/{_ranges(numbers)}" for role, numbers in roles.items())
    said = [machine.domain] if machine.domain is not None else []
    said += [machine.address] if machine.address is not None else ["dials out only"]
    if machine.memory_bytes is not None:
        said.append(f"at least {size(prediction.host_bytes[machine.name])} of {size(machine.memory_bytes)}")
    return machine.name, ", ".join(said), takes or "nobody"


def _alike(topology: Topology, islands: Sequence[Island]) -> Iterator[list[Island]]:
    """Islands with a learner, grouped by machine and equal prediction, in the machines' order."""
    for machine in topology.machines:
        groups: dict[Island, list[Island]] = {}
        for island in islands:
            if island.machine == machine.name:
                groups.setdefault(replace(island, learner=0), []).append(island)
        yield from groups.values()


def _caption(islands: Sequence[Island]) -> str:
    """The line of islands that are alike."""
    where = f"{_ranges([island.learner for island in islands])} on {islands[0].machine}"
    step = islands[0].step_seconds
    return where if step is None else f"{where}, step {seconds(step)} predicted"


def _islands(islands: Sequence[Island]) -> tuple[str, ...]:
    """The row of islands that are alike."""
    first = islands[0]
    device = "not known" if first.device is None else f"{first.devices} x {first.device}"
    memory = f"{'compiled:' if first.is_compiled else 'at least'} {size(first.memory_bytes)}"
    if first.memory_bytes_max is not None:
        share = first.memory_bytes / first.memory_bytes_max
        memory = f"{memory} of {size(first.memory_bytes_max)}, {percent(share)}"
    step = "not known" if first.step_seconds is None else seconds(first.step_seconds)
    link = "not known" if first.link_bits is None else scaled(first.link_bits, "bit/s")
    return f"{first.machine}: {LEARNER}/{_ranges([island.learner for island in islands])}", device, step, memory, link


def _link(link: Link) -> str:
    used = scaled(link.bits or 0, "bit/s")
    if link.bits_max is None:
        return used
    share = (link.bits or 0) / link.bits_max
    told = "more than it carries" if share > 1 else percent(share)
    return f"{used} of {scaled(link.bits_max, 'bit/s')}, {told}"


def _ranges(numbers: Sequence[int]) -> str:
    """'0', '0-3', '0-3,6'; the numbers ascend."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)

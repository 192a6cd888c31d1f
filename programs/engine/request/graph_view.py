"""A graph in readable form: plain text, a Mermaid flowchart, or the JSON of `graph.json`.

Each shows the results of `verify`: which nodes run free, and which hosts can delay the others. Nothing is decided here,
and nothing of a body is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

from isthmus.programs.engine.results.crossing_kinds import kind_of
from isthmus.runtime.graph.plans import InputPlan, NodePlan, Plan
from isthmus.runtime.graph.proof import PossibleDelay, Proof, Verdict, describe_policy, describe_route
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Latest, Node, Queue, Quorum, Role, Template
from isthmus.runtime.graph.verify import DECISION

WIDTH: Final = 120
"""Columns: a chain of waits is wrapped there, tables are as wide as they are."""


def text(graph: Template, proof: Proof, plans: Mapping[str, Plan] | None = None) -> str:
    """Roles with their nodes, edges with their policies, proofs of blocking; and `plans`, by role, if given."""
    sizes = (_count(graph.roles, "role"), _count(graph.nodes, "node"), _count(graph.edges, "edge"))
    lines = [f"{graph.name}: {', '.join(sizes)}"]
    for role in graph.roles:
        nodes = [node for node in graph.nodes if node.role == role.name]
        lines += ["", f"{role.name}, {_replicas(role)}"]
        lines += table([(node.name, node.body_name, _fires(node), _marks(node)) for node in nodes])
    lines += ["", "edges"]
    lines += table([(str(edge), describe_policy(edge), f"to {describe_route(edge)}") for edge in graph.edges])
    lines += ["", "who waits for whom, with every replica on a host of its own"]
    width = max((len(node.name) for node in graph.nodes), default=0)
    for node in graph.nodes:
        lines += _verdict(proof[node.name], width)
    for plan in (plans or {}).values():
        lines += ["", f"what every {plan.role} runs"]
        for node_plan in plan.nodes:
            lines += _plan(node_plan, plan)
    return "\n".join(lines)


def mermaid(graph: Template, proof: Proof, captions: Mapping[str, Sequence[str]] | None = None) -> str:
    """A Mermaid flowchart: a box per role, solid arrows for Queues, dashed ones for Latest; free-running nodes stand
    out. `captions` are further lines for the boxes of roles."""
    ids = {node.name: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for index, role in enumerate(graph.roles):
        caption = "".join(f"<br/>{_escaped(line)}" for line in (captions or {}).get(role.name, ()))
        lines.append(f'    subgraph r{index}["{role.name}, {_replicas(role)}{caption}"]')
        for node in graph.nodes:
            if node.role == role.name:
                body = _escaped(node.body.__qualname__)
                mark = ":::free" if proof[node.name].free_running else ""
                lines.append(f'        {ids[node.name]}["{node.name}<br/>{body}"]{mark}')
        lines.append("    end")
    for edge in graph.edges:
        source, target = edge.source, edge.target
        ports = source.name if source.name == target.name else f"{source.name} to {target.name}"
        route = "" if edge.route is None or edge.route.kind == "all" else f", {describe_route(edge)}"
        arrow = "-->" if isinstance(edge.policy, Queue) else "-.->"
        label = _escaped(f"{ports}: {describe_policy(edge)}{route}")
        lines.append(f'    {ids[source.node.name]} {arrow}|"{label}"| {ids[target.node.name]}')
    lines.append("    classDef free stroke-width:3px")
    return "\n".join(lines)


def as_json(
    graph: Template, proof: Proof, fingerprint: str, placement: Mapping[str, str | Sequence[str]]
) -> dict[str, Any]:
    """The graph as plain data.

    `placement` names the machine of each node, or those of its replicas in order where they differ; `initial` counts a
    Queue's initial items; `carries` is the kind of an edge's items, None for a user's own; `mode` is 'free-running'
    (declared never_waits), 'may-block' (body_may_wait) or 'waiting'.
    """
    return {
        "program": graph.name,
        "fingerprint": fingerprint,
        "roles": [
            {"name": role.name, "replicas_min": role.replicas_min, "replicas_max": role.replicas_max}
            for role in graph.roles
        ],
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "body": node.body_name,
                "firing": _rule(node),
                "mode": "free-running" if node.never_waits else "may-block" if node.body_may_wait else "waiting",
                "free_running": proof[node.name].free_running,
                "blocked_by": list(proof[node.name].blocked_by),
            }
            for node in graph.nodes
        ],
        "edges": [
            {
                "source": f"{edge.source.node.name}.{edge.source.name}",
                "target": f"{edge.target.node.name}.{edge.target.name}",
                "policy": type(edge.policy).__name__,
                "capacity": edge.policy.capacity if isinstance(edge.policy, Queue) else None,
                "key": edge.policy.key if isinstance(edge.policy, Latest) else None,
                "initial": len(edge.policy.initial) if isinstance(edge.policy, Queue) else 0,
                "carries": kind_of(edge),
            }
            for edge in graph.edges
        ],
        "placement": {node: where if isinstance(where, str) else list(where) for node, where in placement.items()},
    }


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with their columns aligned, indented by two."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


# -- parts -------------------------------------------------------------------------------------------------------------


def _rule(node: Node) -> str:
    """The firing rule, as it is written in a program."""
    fires = node.fires
    if isinstance(fires, AllOf | AnyOf):
        return f"{type(fires).__name__}({', '.join(fires.ports)})"
    if isinstance(fires, Every):
        return f"Every({_time(fires.period)})"
    grace = "None" if fires.grace is None else _time(fires.grace)
    return f"Quorum({fires.port}, {fires.key}, opened_by={fires.opened_by}, count_min={fires.count_min}, grace={grace})"


def _fires(node: Node) -> str:
    """The firing rule, in words."""
    fires = node.fires
    if isinstance(fires, AllOf):
        return f"fires on {_list(fires.ports, 'and')}" if fires.ports else "fires as often as there is credit"
    if isinstance(fires, AnyOf):
        return f"fires on {_list(fires.ports, 'or')}"
    if isinstance(fires, Every):
        return f"fires every {_time(fires.period)}"
    return f"fires on a quorum of {fires.count_min} on {fires.port}, in rounds that come on {fires.opened_by}"


def _marks(node: Node) -> str:
    """The declarations of its author."""
    return ", ".join(["declared never_waits"] * node.never_waits + ["body_may_wait"] * node.body_may_wait)


def _verdict(verdict: Verdict, width: int) -> Iterator[str]:
    """The proof about a node: one sentence with the nodes that can hold it up, and below it the node's own waits.

    The rest of a chain stands with the nodes that it leads through.
    """
    near = [hold for hold in verdict.holds if hold.is_near and hold.waits]
    sentences = [] if verdict.holds else ["free-running: waits for no other host"]
    if any(not hold.waits for hold in verdict.holds):
        sentences.append("may wait by itself")
    if near:
        sentences.append(f"held up by {_holders(near)}{_further(verdict.holds, near)}")
    sentences += [
        f"    {wait.removeprefix(f'{verdict.node} ')}" for wait in dict.fromkeys(hold.waits[0] for hold in near)
    ]
    name = verdict.node
    for sentence in sentences:
        indent = len(sentence) - len(sentence.lstrip())
        yield from wrap(
            sentence.lstrip(),
            WIDTH,
            initial_indent=f"  {name.ljust(width)}  {' ' * indent}",
            subsequent_indent=" " * (width + 4 + indent + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        name = ""


def _holders(near: Sequence[PossibleDelay]) -> str:
    """The nodes that are nearest, by the hosts that they are on: 'merge (syncer), inner-step and data (learner)'."""
    places: dict[str, list[str]] = {}
    for hold in near:
        places.setdefault(_whose(hold), []).append(hold.node)
    roles = [
        f"{_list(nodes, 'and')} ({whose})" if whose else f"{_list(nodes, 'and')}, whose body may wait"
        for whose, nodes in places.items()
    ]
    return ", ".join(roles)


def _further(holds: Sequence[PossibleDelay], near: Sequence[PossibleDelay]) -> str:
    """The hosts that are behind those of the nearest nodes."""
    near_names = {_whose(hold) for hold in near}
    behind = dict.fromkeys(_whose(hold) for hold in holds if not hold.is_near and _whose(hold) not in near_names)
    return f"; through {'it' if len(near) == 1 else 'them'} by {_list(list(behind), 'and')}" if behind else ""


def _whose(hold: PossibleDelay) -> str:
    """'syncer' or 'another learner'; '' for a node of the own host."""
    return hold.place.removeprefix(hold.node).strip(" ()")


def _plan(node: NodePlan, plan: Plan) -> Iterator[str]:
    """Inputs and outputs of one node of a host, with the fields of items that cores see; ? marks optional ones."""
    yield f"  {node.name}"
    rows = [("takes", port.name, *_taken(node, port, plan)) for port in node.inputs]
    for output in node.outputs:
        fields = [*output.fields, *(f"{name}?" for name in output.fields_optional)]
        seen = f"with {', '.join(fields)}" if fields else ""
        rows.append(("gives", output.name, _ends(plan, output.edges, at_source=False), seen))
    for row in table(rows):
        yield f"  {row}"


def _taken(node: NodePlan, port: InputPlan, plan: Plan) -> tuple[str, str]:
    """The sources of an input port's items, and the form in which a firing gets them."""
    if isinstance(node.fires, Quorum) and port.name == DECISION:
        return "from the runtime", "why the round closed"
    what = "the item" if port.is_bare else "a dict (replica, key) -> item"
    role = "sampled" if not port.is_required else "any fires it" if isinstance(node.fires, AnyOf) else "required"
    return _ends(plan, port.edges, at_source=True), f"{what}, {role}" if port.edges else ""


def _ends(plan: Plan, edges: Sequence[int], *, at_source: bool) -> str:
    """The nodes at the other end of edges."""
    ends = []
    for edge in map(plan.edges.__getitem__, edges):
        node, _, _ = edge.name.partition(" -> ")[0 if at_source else 2].rpartition(".")
        role = edge.source_role if at_source else edge.target_role
        ends.append(node if edge.route == "local" else f"{node} ({role})")
    return f"{'from' if at_source else 'to'} {_list(ends, 'and') if ends else 'nobody'}"


def _replicas(role: Role) -> str:
    low, high = role.replicas_min, role.replicas_max
    return f"{low} to {high} replicas" if low != high else f"{high} replica{'' if high == 1 else 's'}"


def _time(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:g} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:g} ms"


def _list(names: Sequence[str], word: str) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _escaped(label: str) -> str:
    """Text that Mermaid shows as it is."""
    return label.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")

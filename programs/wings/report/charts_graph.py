"""The graph of the program as a drawing: a box per role, its nodes inside, its edges between them.

Roles stand side by side in the order of the graph, from the third on below one another; nodes stand in the order of
their definition. Edges inside a role run down (or, where they skip or return, around the right), edges between roles
run from side to side. A Queue edge is solid, because its producer can be made to wait; a Latest edge is dashed, because
its producer never waits. A `graph.json` that holds no graph gives no drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from isthmus.programs.wings.report.charts_drawing import drawing, element, joined, text, titled

_ROLE_WIDTH: Final = 190.0
_GAP_MAX: Final = 230.0
_NODE_HEIGHT: Final = 34.0
_NODE_GAP: Final = 36.0
_TOP: Final = 44.0
_PAD: Final = 20.0
_LETTERS_MAX: Final = 24
_LETTER_PIXELS: Final = 6.6
_LETTER_HEIGHT: Final = 13.0
_SHARES: Final = (0.34, 0.26, 0.42, 0.2, 0.5, 0.58, 0.66, 0.14, 0.74)
"""Positions of an edge's name, as shares of its length, the best first."""


class DrawnRole(msgspec.Struct, frozen=True):
    """A role of graph.json."""

    name: str
    replicas_min: int = 1
    replicas_max: int = 1


class DrawnNode(msgspec.Struct, frozen=True):
    """A node of graph.json."""

    name: str
    role: str
    body: str = ""
    firing: Any = ""
    free_running: bool = False
    blocked_by: list[Any] = []


class DrawnEdge(msgspec.Struct, frozen=True):
    """An edge of graph.json, from 'node.port' to 'node.port'."""

    source: str
    target: str
    policy: str = ""
    capacity: int | None = None
    key: str | None = None

    @property
    def rule(self) -> str:
        """Its policy with parameters: 'Queue, capacity 4'."""
        capacity = f", capacity {self.capacity}" if self.capacity else ""
        return self.policy + capacity + (f", newest per {self.key}" if self.key else "")


class DrawnGraph(msgspec.Struct, frozen=True):
    """The graph of a run, as far as it is drawn."""

    roles: list[DrawnRole] = []
    nodes: list[DrawnNode] = []
    edges: list[DrawnEdge] = []


def parse_graph(graph: Mapping[str, Any]) -> DrawnGraph | None:
    """The graph in graph.json; None if there is none, or it is something else."""
    try:
        drawn = msgspec.convert(dict(graph), DrawnGraph)
    except (msgspec.ValidationError, ValueError):
        return None
    return drawn if drawn.roles and drawn.nodes else None


class _Box(NamedTuple):
    """The position of a node, in pixels, and the column of its role."""

    x: float
    y: float
    width: float
    column: int


class _Area(NamedTuple):
    """The area that a node or a name covers."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, name: str) -> _Area:
        """The area of a name whose middle is at (x, y), with room to the next one."""
        half = (len(name) + 1.5) * _LETTER_PIXELS / 2
        return cls(x - half, y - _LETTER_HEIGHT / 2, x + half, y + _LETTER_HEIGHT / 2)

    def meets(self, other: _Area) -> bool:
        """Whether the two cover anything together."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def draw_graph(graph: DrawnGraph, width: float = 1080) -> Markup:
    """Roles, nodes and edges; the recorder, which listens to all, is left out."""
    roles = [role for role in graph.roles if role.name != "recorder" and _nodes_of(graph, role.name)]
    columns = [roles[:1], roles[1:2], roles[2:]] if len(roles) > 2 else [[role] for role in roles]
    gap = (width - len(columns) * _ROLE_WIDTH - 2) / max(len(columns) - 1, 1) if len(columns) > 1 else 0.0
    gap = min(gap, _GAP_MAX)
    boxes: dict[str, _Box] = {}
    frames = []
    bottom = 0.0
    for number, column in enumerate(columns):
        x, y = 1 + number * (_ROLE_WIDTH + gap), 1.0
        for role in column:
            nodes = _nodes_of(graph, role.name)
            height = _TOP + len(nodes) * (_NODE_HEIGHT + _NODE_GAP) - _NODE_GAP + _PAD
            frames.append(_frame(role, x, y, height))
            for index, node in enumerate(nodes):
                top = y + _TOP + index * (_NODE_HEIGHT + _NODE_GAP)
                boxes[node.name] = _Box(x + _PAD, top, _ROLE_WIDTH - 2 * _PAD, number)
            y += height + 16
        bottom = max(bottom, y - 16)
    edges = [edge for edge in graph.edges if _node_of(edge.source) in boxes and _node_of(edge.target) in boxes]
    lines, labels = _edges(edges, boxes)
    nodes_drawn = [_node(node, boxes[node.name]) for node in graph.nodes if node.name in boxes]
    label = f"The graph: {len(boxes)} nodes in {len(roles)} roles, {len(edges)} edges"
    total = 2 + len(columns) * _ROLE_WIDTH + (len(columns) - 1) * gap
    return drawing(max(total, 1), bottom + 2, label, *frames, *lines, *nodes_drawn, *labels)


def _nodes_of(graph: DrawnGraph, role: str) -> list[DrawnNode]:
    return [node for node in graph.nodes if node.role == role]


def _node_of(end: str) -> str:
    """The node of an edge's end 'node.port'."""
    return end.rpartition(".")[0]


def _frame(role: DrawnRole, x: float, y: float, height: float) -> Markup:
    low, high = role.replicas_min, role.replicas_max
    count = "one" if low == high == 1 else f"{low} to {high}" if low != high else f"{low}"
    return joined(
        [
            element("rect", x=x, y=y, width=_ROLE_WIDTH, height=height, rx=8, class_="role"),
            text(x + _PAD, y + 24, _clipped(role.name), "name"),
            text(x + _ROLE_WIDTH - _PAD, y + 24, count, "end"),
        ]
    )


def _node(node: DrawnNode, box: _Box) -> Markup:
    title = f"{node.name}: {node.body}" + (", free-running: it waits for no other host" if node.free_running else "")
    shape = {"x": box.x, "y": box.y, "width": box.width, "height": _NODE_HEIGHT}
    class_ = "node free" if node.free_running else "node"
    return joined(
        [
            element("rect", titled(title), rx=6, class_=class_, **shape),
            text(box.x + box.width / 2, box.y + _NODE_HEIGHT / 2 + 4, _clipped(node.name), "name", "mid"),
        ]
    )


def _edges(edges: Sequence[DrawnEdge], boxes: Mapping[str, _Box]) -> tuple[list[Markup], list[Markup]]:
    """Lines and labels; edges that share the side of a node end at different places of it."""
    ends: dict[tuple[str, str], list[tuple[float, int]]] = {}
    sides = [_sides(boxes[_node_of(edge.source)], boxes[_node_of(edge.target)]) for edge in edges]
    for index, (edge, (leaving, entering)) in enumerate(zip(edges, sides, strict=True)):
        source, target = _node_of(edge.source), _node_of(edge.target)
        ends.setdefault((source, leaving), []).append((_order(boxes[target], leaving), 2 * index))
        ends.setdefault((target, entering), []).append((_order(boxes[source], entering), 2 * index + 1))
    places: dict[int, tuple[float, float]] = {}
    for (name, side), ends_of in ends.items():
        for rank, (_, key) in enumerate(sorted(ends_of)):
            places[key] = _place(boxes[name], side, (rank + 1) / (len(ends_of) + 1))
    lines, labels = [], []
    occupied = [_Area(box.x, box.y, box.x + box.width, box.y + _NODE_HEIGHT) for box in boxes.values()]
    for index, (edge, (leaving, entering)) in enumerate(zip(edges, sides, strict=True)):
        begin, end = places[2 * index], places[2 * index + 1]
        lines.append(_line(edge, begin, end, leaving, entering))
        labels.append(_label(edge, begin, end, leaving, entering, occupied))
    return lines, labels


def _sides(source: _Box, target: _Box) -> tuple[str, str]:
    """The sides of the two nodes between which an edge runs."""
    if source.column < target.column:
        return "right", "left"
    if source.column > target.column:
        return "left", "right"
    is_next = 0 < target.y - source.y <= 1.5 * (_NODE_HEIGHT + _NODE_GAP)
    return ("bottom", "top") if is_next else ("right", "right")


def _order(other: _Box, side: str) -> float:
    """Sort key of the ends on one side: the position of the other node, so that edges do not cross at once."""
    return other.x if side in ("top", "bottom") else other.y


def _place(box: _Box, side: str, share: float) -> tuple[float, float]:
    if side in ("top", "bottom"):
        return box.x + box.width * share, box.y if side == "top" else box.y + _NODE_HEIGHT
    return (box.x if side == "left" else box.x + box.width), box.y + _NODE_HEIGHT * share


def _line(edge: DrawnEdge, begin: tuple[float, float], end: tuple[float, float], leaving: str, entering: str) -> Markup:
    is_queue = edge.policy.lower().startswith("queue")
    (x1, y1), (x2, y2) = begin, end
    (a1, b1), (a2, b2) = _handles(begin, end, leaving, entering)
    drawn = f"M{x1:.1f} {y1:.1f}C{a1:.1f} {b1:.1f} {a2:.1f} {b2:.1f} {x2:.1f} {y2:.1f}"
    title = f"{edge.source} to {edge.target}: {edge.rule}"
    tip = {
        "top": f"M{x2:.1f} {y2:.1f}l-4 -7h8z",
        "left": f"M{x2:.1f} {y2:.1f}l-7 -4v8z",
        "right": f"M{x2:.1f} {y2:.1f}l7 -4v8z",
    }[entering]
    line = element("path", titled(title), d=drawn, class_="queue" if is_queue else "latest")
    return joined([line, element("path", d=tip, class_="arrow" if is_queue else "arrow late")])


def _handles(
    begin: tuple[float, float], end: tuple[float, float], leaving: str, entering: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The control points of an edge's curve."""
    (x1, y1), (x2, y2) = begin, end
    if leaving == "bottom":
        bend = (y2 - y1) / 2
        return (x1, y1 + bend), (x2, y2 - bend)
    bend = max(abs(x2 - x1) / 2, 34.0)
    return (
        (x1 + (bend if leaving == "right" else -bend), y1),
        (x2 + (bend if entering == "right" else -bend), y2),
    )


def _label(
    edge: DrawnEdge,
    begin: tuple[float, float],
    end: tuple[float, float],
    leaving: str,
    entering: str,
    occupied: list[_Area],
) -> Markup:
    """The name of the edge's source port, on the line, at a place where it covers no other name and no node."""
    (x1, y1), (x2, y2) = begin, end
    port = _clipped(edge.source.rpartition(".")[2])
    if leaving == "bottom":
        occupied.append(_Area.around((x1 + x2) / 2 + 7 + len(port) * _LETTER_PIXELS / 2, (y1 + y2) / 2, port))
        return text((x1 + x2) / 2 + 7, (y1 + y2) / 2 + 4, port, "label", "role-label")
    handles = _handles(begin, end, leaving, entering)
    # At a third of the way edges are still in the order in which they left.
    shares = (0.5, 0.4, 0.6, 0.3, 0.7) if leaving == entering else _SHARES
    places = [_on_curve((begin, *handles, end), share) for share in shares]
    areas = [_Area.around(x, y, port) for x, y in places]
    free = (index for index, area in enumerate(areas) if not any(area.meets(other) for other in occupied))
    index = next(free, 0)
    occupied.append(areas[index])
    return text(places[index][0], places[index][1] + 4, port, "mid", "label")


def _on_curve(points: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """The point of a Bezier curve of third degree at `share` of its parameter."""
    weights = ((1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3)
    x = sum(weight * point[0] for weight, point in zip(weights, points, strict=True))
    y = sum(weight * point[1] for weight, point in zip(weights, points, strict=True))
    return x, y


def _clipped(name: str) -> str:
    return name if len(name) <= _LETTERS_MAX else name[: _LETTERS_MAX - 1] + "…"

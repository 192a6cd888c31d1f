"""A node of a host while it runs: its state, its ports, and whether it may fire.

It decides readiness and nothing else: the scheduler decides when to ask, and what a firing takes. A node is *ready*
when its body is open and not running, every Queue output has credit at every live consumer, and its firing rule is
satisfied; an *idle* one, in place of the rule, when something new is sampled or the node was nudged (opened idle, or a
stop requested).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from isthmus.runtime.errors import InvariantError
from isthmus.runtime.graph.plans import NodePlan
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Quorum
from isthmus.runtime.scheduler.events import Output
from isthmus.runtime.scheduler.ports import Exit, Inlet, Mailbox, Outlet, QueueInlet
from isthmus.runtime.scheduler.quorum_node import Rounds


class NodeState:
    """A node while it runs. Its Quorum ports have no inlet: their items go to its rounds.

    `held` are outputs that wait for credit, the head of the line first; `link_newest` is the newest link when its
    firing began. `is_ending`: its last firing is over, and it ends once nothing is held.
    """

    __slots__ = (
        "exits", "firings", "held", "index", "inlets", "is_due", "is_ending", "is_finished", "is_idle", "is_nudged",
        "is_open", "is_running", "link_newest", "outlets", "plan", "required", "rounds", "rule", "sampled",
    )  # fmt: skip

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.index = plan.index
        voting = (plan.fires.opened_by, plan.fires.port) if isinstance(plan.fires, Quorum) else ()
        inlets = [None if port.name in voting else _inlet(port.kind) for port in plan.inputs]
        self.required = tuple(inlet for inlet, port in zip(inlets, plan.inputs, strict=True) if port.is_required)
        self.inlets = tuple(
            (number, inlet, port.is_required)
            for number, (inlet, port) in enumerate(zip(inlets, plan.inputs, strict=True))
            if inlet is not None
        )
        self.sampled = tuple(inlet for _, inlet, is_required in self.inlets if not is_required)
        self.exits = tuple(Exit(output) for output in plan.outputs)
        self.outlets: list[Outlet] = []
        self.rounds: Rounds | None = None
        self.rule: Callable[[NodeState], bool] = _RULES[type(plan.fires)]
        self.firings = self.link_newest = 0
        self.held: deque[Output] = deque()
        self.is_open = self.is_running = self.is_idle = self.is_nudged = self.is_due = False
        self.is_ending = self.is_finished = False

    def inlet(self, port: int) -> Inlet | None:
        """The inlet of input port number `port`."""
        return next((inlet for number, inlet, _ in self.inlets if number == port), None)

    def check(self) -> None:
        """Raise InvariantError unless counters and contents agree."""
        name = self.plan.name
        for outlet in self.outlets:
            demand(outlet.starved == sum(not link.credit for link in outlet.links), f"{name}: starved")
        for _, inlet, _ in self.inlets:
            if isinstance(inlet, QueueInlet):
                demand(inlet.new == sum(bool(link.items) for link in inlet.links), f"{name}: new")
        if self.rounds is not None:
            self.rounds.check()
        demand(bool(self.held) or not self.is_ending, f"{name}: ending, but holds nothing")


def is_ready(node: NodeState) -> bool:
    """Whether a node that holds nothing is ready to fire."""
    if node.is_running or not node.is_open or node.is_finished:
        return False
    for outlet in node.outlets:
        if outlet.starved:
            return False
    return node.is_nudged or _has_sampled(node) if node.is_idle else node.rule(node)


def demand(holds: bool, what: str) -> None:
    """Raise InvariantError with `what`, the condition that failed, unless `holds`."""
    if not holds:
        raise InvariantError(what)


def _inlet(kind: str) -> Inlet | None:
    return QueueInlet() if kind == "queue" else Mailbox() if kind == "latest" else None


def _all_of(node: NodeState) -> bool:
    for inlet in node.required:  # noqa: SIM110 -- all(...) takes three times as long, and every firing comes here.
        if inlet is None or not inlet.is_complete():
            return False
    return True


def _any_of(node: NodeState) -> bool:
    return any(inlet is not None and inlet.new for inlet in node.required)


def _has_sampled(node: NodeState) -> bool:
    """Whether a sampled port has something new, for which an idle node fires."""
    return any(inlet.new for inlet in node.sampled)


_RULES: Final[dict[type, Callable[[NodeState], bool]]] = {
    AllOf: _all_of,
    AnyOf: _any_of,
    Every: lambda node: node.is_due,
    Quorum: lambda node: node.rounds is not None and node.rounds.has_closed,
}

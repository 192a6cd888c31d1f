"""The flow of items through one host: items that leave a node, items that arrive at one, and the return of credit.

It decides where each output goes, what is held for lack of credit, and what is dropped; not when nodes fire, nor which
links exist. It lists the commands of an event in the order in which to perform them, and the nodes that were *woken*:
something happened that they may fire for.

A firing may emit more than there is credit for. The rest is *held*, in the order of emission over all ports: the head
of the line leaves as soon as every live consumer of it has given credit. Held outputs are never mixed with those of a
later firing, because the node does not fire meanwhile. An output without a live consumer is dropped.

Payloads are handles with counted uses: every use ends in exactly one RunBody, SendItem or DropItem.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import (
    Command,
    CreditGranted,
    DropItem,
    FailHost,
    Fields,
    GrantCredit,
    ItemArrived,
    Output,
    SendItem,
    ShareItem,
)
from isthmus.runtime.cores.scheduler_live_links import NodeState, Roster, subjects
from isthmus.runtime.cores.scheduler_ports import KEY_TYPES, Arrival, Link
from isthmus.runtime.cores.scheduler_quorum_node import Settled
from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError, demand
from isthmus.runtime.ids import Handle

HELD_MAX: Final = 1024
"""Outputs that a node may hold for lack of credit: far more than a firing should emit ahead of its consumers."""


_demand: Final = partial(demand, "scheduler")


class Flow:
    """The items of one host. `now` is the instant of the event that is being handled."""

    def __init__(self, roster: Roster, nodes: dict[int, NodeState]) -> None:
        self.now = Instant(0)
        self.commands: list[Command] = []
        self.woken: deque[NodeState] = deque()
        self.counts: Counter[str] = Counter()
        self._roster = roster
        self._targets = roster.targets
        self._nodes = nodes

    # -- leaving -------------------------------------------------------------------------------------------------------

    def emit(self, node: NodeState, outputs: tuple[Output, ...]) -> None:
        """Send outputs as far as there is credit for them, and hold the rest.

        LocalProtocolError, with the state as it was, for outputs that no body may emit.
        """
        exits = node.exits
        is_plain = len(outputs) == 1 and not node.held
        for output in outputs:  # All are checked before the first one leaves: an error leaves the state as it was.
            if not 0 <= output.port < len(exits):
                raise LocalProtocolError(
                    f"node {node.plan.name!r} emitted on port {output.port}, which it does not have"
                )
            exit_ = exits[output.port]
            if exit_.has_fields:
                exit_.check_fields(node.plan.name, output.fields)
            for outlet in exit_.outlets:
                if outlet.starved:
                    is_plain = False
        if is_plain:
            self._let_leave(node, outputs[0])
        else:
            self._emit_in_line(node, outputs)

    def release(self, node: NodeState) -> None:
        """Send a node's held outputs as far as there is credit for them."""
        while node.held and self._can_leave(node, node.held[0]):
            self._let_leave(node, node.held.popleft())

    def check(self, node: NodeState) -> None:
        """Raise InvariantError if a node holds an output that could leave, or more than HELD_MAX."""
        about = subjects(node.plan)
        _demand(len(node.held) <= HELD_MAX, about, "{}: holds more than it may", node.plan.name)
        can_leave = bool(node.held) and self._can_leave(node, node.held[0])
        _demand(not can_leave, about, "{}: holds what could leave", node.plan.name)

    def _emit_in_line(self, node: NodeState, outputs: tuple[Output, ...]) -> None:
        """Queue outputs behind the held ones, and send them as far as there is credit."""
        self._check_held(node, outputs)  # First, because it may raise.
        for output in outputs:
            if node.held or not self._can_leave(node, output):  # No output overtakes a held one.
                node.held.append(output)
            else:
                self._let_leave(node, output)

    def _check_held(self, node: NodeState, outputs: tuple[Output, ...]) -> None:
        """Raise LocalProtocolError if the available credit leaves more than HELD_MAX outputs to hold."""
        if len(node.held) + len(outputs) <= HELD_MAX:
            return
        spent: Counter[Link] = Counter()
        leaving = 0
        for output in () if node.held else outputs:  # Behind a held output none leaves.
            links = [*self._queue_links(node, output)]
            if any(spent[link] == link.credit for link in links):
                break
            spent.update(links)
            leaving += 1
        count = len(node.held) + len(outputs) - leaving
        if count > HELD_MAX:
            raise LocalProtocolError(
                f"node {node.plan.name!r} emitted {len(outputs)} items at once: expected at most {HELD_MAX} that have "
                f"to wait for credit, found {count}. Emit fewer a firing, or raise the capacity of its Queue edges."
            )

    def _can_leave(self, node: NodeState, output: Output) -> bool:
        """Whether every consumer of an output has given credit."""
        for outlet in node.exits[output.port].outlets:
            if outlet.starved:
                break
        else:
            return True
        for link in self._queue_links(node, output):  # noqa: SIM110 -- as in `is_ready`: held outputs come here every firing.
            if not link.credit:
                return False
        return True

    def _queue_links(self, node: NodeState, output: Output) -> Iterator[Link]:
        """The links of an output that need credit."""
        for route in node.exits[output.port].routes:
            if route.outlet is not None:
                yield from self._targets(route, output.fields, node.link_newest)

    def _let_leave(self, node: NodeState, output: Output) -> None:
        """Send one item along every edge of its port."""
        uses, at = 0, len(self.commands)
        handle, fields = output.handle, output.fields
        for route in node.exits[output.port].routes:
            edge, arrival = route.edge, route.arrival
            key = fields[edge.key] if edge.key is not None and fields is not None else None
            if route.keeps:
                uses += 1  # The kept one is for consumers that join later, so it counts where there is none yet.
                former = route.keep(key, handle, fields)
                if former is not None:
                    self.drop(former, "newest no more")
            for link in self._targets(route, fields, node.link_newest):
                uses += 1
                if route.outlet is not None:
                    route.outlet.spend(link)  # Before the delivery: a vote that is refused there returns this credit.
                if arrival is not None and link.is_local:
                    self._deliver(arrival, link, handle, key, fields)
                else:
                    self.commands.append(SendItem(edge.index, link.member, handle, key, fields))
        if uses == 0:
            self.drop(handle, "nobody to send to")
        elif uses > 1:
            self.commands.insert(at, ShareItem(handle, uses))  # Before the uses: the first would release the payload.

    # -- arriving ------------------------------------------------------------------------------------------------------

    def arrive(self, event: ItemArrived) -> None:
        """Accept an item from another host; RemoteProtocolError for one that it may not send."""
        arrival = self._roster.arrivals.get(event.edge)
        if arrival is None or arrival.edge.source_role != event.source.replica.role:
            raise RemoteProtocolError(f"{event.source} sent an item on edge {event.edge}, which does not lead here")
        edge, link = arrival.edge, arrival.links.get(event.source)
        # The form is checked even where the link has closed: an illegal item costs its sender the connection.
        key = None if edge.key is None else (event.fields or {}).get(edge.key)
        if edge.key is not None and type(key) not in KEY_TYPES:
            raise RemoteProtocolError(f"{event.source} sent an item on {edge.name} without {edge.key!r}")
        if link is None:
            self.drop(event.handle, "not connected")
            return
        if edge.kind == "queue" and link.credit == 0:  # Before the delivery: an item without credit has no place.
            raise RemoteProtocolError(f"{event.source} sent an item on {edge.name} without credit")
        self._deliver(arrival, link, event.handle, key, event.fields)
        link.credit -= edge.kind == "queue"  # Last, because the calls before may raise.

    def settle(self, node: NodeState, settled: Settled) -> None:
        """Carry out the decisions of a Quorum node's rounds."""
        for handle, link, reason in settled.refused:
            self.return_vote(link)
            self.drop(handle, reason)
        self.commands.extend(settled.timers)
        if settled.has_closed:
            self.woken.append(node)

    def drop(self, handle: Handle, reason: str) -> None:
        """End one use of a payload, and count it."""
        self.counts[reason] += 1
        self.commands.append(DropItem(handle, reason))

    def _deliver(self, arrival: Arrival, link: Link, handle: Handle, key: int | str | None, fields: Fields) -> None:
        """Put an item into the port of a node of this host."""
        node = self._nodes[arrival.consumer]
        if node.is_finished:  # First: nothing would ever release what its ports or rounds still took.
            self.drop(handle, "node finished")
        elif arrival.inlet is None:
            self._enter_round(node, arrival, link, handle, fields)
        else:
            superseded = arrival.inlet.put(link, handle, key)
            if superseded is not None:
                self.drop(superseded, "superseded")
            if not node.is_running:
                self.woken.append(node)

    def _enter_round(self, node: NodeState, arrival: Arrival, link: Link, handle: Handle, fields: Fields) -> None:
        """Accept a vote or an opening. An illegal one is the fault of the body that emitted it."""
        assert node.rounds is not None
        try:
            settled = node.rounds.arrived(arrival.port, link, handle, fields, self.now)
        except LocalProtocolError as error:
            if not link.is_local:  # Before any command: the host releases the payload of an event that raises.
                raise RemoteProtocolError(f"{link.member} sent an item on {arrival.edge.name}: {error}") from None
            self.drop(handle, "not allowed")
            if link.outlet is not None:
                self.give_back(link)
            self.commands.append(FailHost(arrival.edge.source, str(error)))
            return
        self.settle(node, settled)

    # -- credit --------------------------------------------------------------------------------------------------------

    def grant(self, event: CreditGranted) -> None:
        """Accept credit from another host; RemoteProtocolError where it is not the consumer's to grant."""
        route = self._roster.routes.get(event.edge)
        if route is None or route.outlet is None:
            raise RemoteProtocolError(f"{event.target} granted credit on edge {event.edge}, no Queue that begins here")
        link = route.links.get(event.target)
        if link is not None:
            route.outlet.grant(link, event.count)
            self.woken.append(self._nodes[route.outlet.producer])

    def give_back(self, link: Link) -> None:
        """Return one credit to the producer of a Queue link, because an item was taken."""
        outlet = link.outlet
        if outlet is not None:
            if outlet.restore(link):  # Otherwise it was not this credit that the producer waited for.
                self.woken.append(self._nodes[outlet.producer])
        else:
            link.credit += 1
            self.commands.append(GrantCredit(link.edge.index, link.member, 1))

    def return_vote(self, link: Link) -> None:
        """Return the credit of a used vote or opening, where it came by a Queue."""
        if link.is_open and link.edge.kind == "queue":  # A closed link has no credit: the next one begins afresh.
            self.give_back(link)

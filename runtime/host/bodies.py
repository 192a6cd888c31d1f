"""The bodies of one host, and the payloads of its items.

Bodies are opened and fired in their nodes' threads; their outputs are frozen and encoded here. Items that a firing
emits before its end are passed to `emitted` at once. It decides nothing: the core decides when a node fires and how
often each payload is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.runtime.clock import Clock, Duration, Instant
from isthmus.runtime.cores.scheduler_core import CONSTANTS_PER_EDGE
from isthmus.runtime.cores.scheduler_events import Fields
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.graph.body import Trait, trait
from isthmus.runtime.graph.plans import NodePlan, OutputPlan, Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Context, IslandDevices, Traffic, Whereabouts, pairs
from isthmus.runtime.ids import Handle, Member
from isthmus.runtime.items import layout
from isthmus.runtime.items.encoding import Encoded, encode
from isthmus.runtime.items.schemas import Mismatch, attested
from isthmus.runtime.system.disk import Disk


class Payload(msgspec.Struct):
    """An item with its digest and its size in bytes (both 0 if not computed), with `uses` uses left.

    `encoded` is its encoding, if it is to leave this host.
    """

    item: Any
    digest: int = 0
    size_bytes: int = 0
    encoded: Encoded | None = None
    uses: int = 1


class Payloads:
    """The payloads of the host that runs `plan`; call only in its turn.

    A payload is released after its last use. Handles below 0 are the plan's initial items, which stay.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._items: dict[Handle, Payload] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._items)

    def keep(self, payload: Payload) -> Handle:
        """Hold a payload for one use, unless `share` sets another number; returns its handle."""
        self._last += 1
        handle = Handle(self._last)
        self._items[handle] = payload
        return handle

    def share(self, handle: Handle, uses: int) -> None:
        """Set the number of uses of a payload."""
        self._items[handle].uses = uses

    def look(self, handle: Handle) -> Payload:
        """A held payload, without using it."""
        return self._items[handle]

    def use(self, handle: Handle) -> Payload:
        """Use a payload once; KeyError if it is not held."""
        if handle < 0:
            edge, index = divmod(-1 - handle, CONSTANTS_PER_EDGE)
            return Payload(self._plan.edges[edge].initial[index])
        payload = self._items[handle]
        payload.uses -= 1
        if payload.uses == 0:
            del self._items[handle]
        return payload

    def holds(self, handle: Handle) -> bool:
        """Whether a payload has uses left."""
        return handle in self._items

    def forget(self, handle: Handle) -> None:
        """Release a payload that the core did not accept."""
        self._items.pop(handle, None)


class Emission(msgspec.Struct, frozen=True):
    """An item that a body emitted on output port number `port`, with the fields that cores may see.

    Its digest and size are computed where it leaves the host.
    """

    port: int
    payload: Payload
    fields: Fields


FLAGS: Final[tuple[Trait, ...]] = ("is_idle", "is_finished", "is_engaged")
"""What a body tells after each call, in the order of `FiringResult`."""


class FiringResult(msgspec.Struct, frozen=True):
    """The result of a firing."""

    begun: Instant
    ended: Instant
    emissions: list[Emission]
    is_idle: bool
    is_finished: bool
    is_engaged: bool


class RejectedInput(NamedTuple):
    """A fault that the body of a node found in an item on one of its ports, from a (slot, incarnation)."""

    node: int
    port: str
    sender: tuple[int, int]
    mismatch: Mismatch


class OutputPort(NamedTuple):
    """Output port `number` of a node: whether its items leave the host, and the fields of them that cores may see.

    The `attested` fields must not exceed the count of firings.
    """

    number: int
    crosses: bool
    fields: tuple[str, ...]
    attested: tuple[str, ...]


def _output_port(plan: Plan, number: int, output: OutputPlan) -> OutputPort:
    crosses = any(plan.edges[edge].route != "local" for edge in output.edges)
    fields = {name for edge in output.edges for name in attested(plan.edges[edge].schema)}
    return OutputPort(number, crosses, (*output.fields, *output.fields_optional), tuple(sorted(fields)))


def _exhausted(parts: Generator[None, None, Any]) -> Any:
    """The return value of a generator, run to its end."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


class Bodies:
    """The bodies of the host that runs `plan` for `member`, by number of their node.

    `published` is the status that each has published, `rejected_inputs` the faults that they have reported and that the
    host has not recorded yet; the host sets `stop_requested`, `is_stopping` and `leave_requested`, for bodies to see.
    `leaves_itself`: one of them has the host leave.
    """

    def __init__(
        self,
        plan: Plan,
        member: Member,
        *,
        clock: Clock,
        seed: int,
        resolve: Callable[[Reference], Any],
        disk: Disk,
        traffic: Traffic,
        members: Callable[[], frozenset[Member]],
        whereabouts: Whereabouts,
        emitted: Callable[[NodePlan, list[Emission]], None],
        away: Callable[[], Duration],
        island: IslandDevices | None = None,
        folder: Path | None = None,
    ) -> None:
        self.published: dict[str, dict[str, Any]] = {}
        self.rejected_inputs: deque[RejectedInput] = deque()
        self.stop_requested = self.is_stopping = self.leave_requested = self.leaves_itself = False
        self._plan, self._member, self._clock, self._seed = plan, member, clock, seed
        self._resolve, self._disk, self._traffic, self._emitted = resolve, disk, traffic, emitted
        self._members, self._island, self._folder = members, island, folder
        self._whereabouts, self._away = whereabouts, away
        self._ports = {
            node.index: {output.name: _output_port(plan, number, output) for number, output in enumerate(node.outputs)}
            for node in plan.nodes
        }
        self._bodies: dict[int, Callable[..., Any]] = {}
        self._early: dict[int, Callable[[Any], None]] = {}
        """Node -> what takes its votes early."""
        self._raised: dict[int, Exception] = {}
        """Node -> what it has raised between calls: its next call raises it."""
        self._firings = dict.fromkeys((node.index for node in plan.nodes), 0)

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, node: int) -> Callable[..., Any]:
        return self._bodies[node]

    def open(self, node: NodePlan) -> bool:
        """Open the body of a node; returns whether it begins idle."""
        body = node.body
        if isinstance(body, type):
            arguments = [self._resolved(value) for value in node.arguments]
            body = body(*arguments, **{name: self._resolved(value) for name, value in node.keywords.items()})
        trait(body, "open")(
            Context(
                member=self._member,
                node=node.name,
                seed=self._seed,
                connected=frozenset(
                    [port.name for port in node.inputs if port.edges]
                    + [port.name for port in node.outputs if port.edges]
                ),
                now=self._clock.now,
                members=self._members,
                machine_of=self._whereabouts.machine_of,
                was_on=self._whereabouts.was_on,
                stop_requested=lambda: self.stop_requested,
                is_stopping=lambda: self.is_stopping,
                leave_requested=lambda: self.leave_requested,
                leave=self._leave,
                publish=partial(self._publish, node.name),
                refuse=partial(self._refuse, node.index),
                traffic=self._traffic,
                disk=self._disk,
                island=self._island,
                folder=self._folder,
                away=self._away,
                queued=self._clock.queued,
            )
        )
        early = trait(body, "take_early")
        if early is not None:
            self._early[node.index] = early
        self._bodies[node.index] = body
        return bool(trait(body, "is_idle"))

    def _leave(self) -> None:
        self.leave_requested = self.leaves_itself = True

    def takes_early(self, node: int) -> bool:
        """Whether the body of a node takes its votes early; not before it is open."""
        return node in self._early

    def take_early(self, node: int, vote: Any) -> None:
        """Give the body of a node a vote that waits, between two of its calls."""
        try:
            self._early[node](vote)
        except Exception as error:  # A failure outside of a firing is none that the core knows.
            self._raised.setdefault(node, error)

    def fire(self, node: NodePlan, inputs: dict[str, Any]) -> FiringResult:
        """Call the body of a node; `inputs` is emptied, so that nothing else keeps items that the body has released."""
        body, begun = self._bodies[node.index], self._clock.now()
        result = self._called(node, inputs)
        if type(result) is GeneratorType:
            result = _exhausted(self._parts(node, body, result))
        return self._ended(node, begun, result)

    def firing(self, node: NodePlan, inputs: dict[str, Any]) -> Generator[None, None, FiringResult]:
        """The same in parts: it yields where the body yields None, for its caller to do something else before it goes
        on."""
        body, begun = self._bodies[node.index], self._clock.now()
        result = self._called(node, inputs)
        if type(result) is GeneratorType:
            result = yield from self._parts(node, body, result)
        return self._ended(node, begun, result)

    def _called(self, node: NodePlan, inputs: dict[str, Any]) -> Any:
        self._firings[node.index] += 1
        if node.index in self._raised:
            raise self._raised.pop(node.index)
        result = self._bodies[node.index](**inputs)
        inputs.clear()
        return result

    def _ended(self, node: NodePlan, begun: Instant, result: Any) -> FiringResult:
        body = self._bodies[node.index]
        emissions = self._emissions(node, body, result)
        flags = [bool(trait(body, name)) for name in FLAGS]
        return FiringResult(begun, self._clock.now(), emissions, *flags)

    def close(self) -> None:
        """Close bodies that have a `close`, so that they release their resources.

        Raises ExceptionGroup, after all have been called, of the exceptions that they raise.
        """
        errors: list[Exception] = []
        for body in self._bodies.values():
            try:
                trait(body, "close")()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"closing the bodies of {self._member}", errors)

    def _resolved(self, value: Any) -> Any:
        return self._resolve(value) if isinstance(value, Reference) else value

    def _publish(self, node: str, values: Mapping[str, Any]) -> None:
        self.published[node] = dict(values)

    def _refuse(self, node: int, port: str, sender: tuple[int, int], mismatch: tuple[str, str, str]) -> None:
        self.rejected_inputs.append(RejectedInput(node, port, sender, Mismatch(*mismatch)))

    def _parts(
        self, node: NodePlan, body: Callable[..., Any], firing: Generator[Any, None, Any]
    ) -> Generator[None, None, Any]:
        """Emit the items that a firing yields, and yield where it yields None; returns its return value."""
        while True:
            try:
                result = next(firing)
            except StopIteration as end:
                return end.value
            if result is None:
                yield
                continue
            emissions = self._emissions(node, body, result)
            del result
            if emissions:
                self._emitted(node, emissions)
            del emissions  # Nothing here keeps items while the firing goes on: that may be a whole step.

    def _emissions(self, node: NodePlan, body: Callable[..., Any], result: Any) -> list[Emission]:
        """Items of a body's result or yield, by number of output port; the only place that freezes and encodes them."""
        emissions: list[Emission] = []
        ports = self._ports[node.index]
        for name, item in pairs(body, result):
            port = ports.get(name)
            if port is None:
                names = ", ".join(ports) or "none"
                raise LocalProtocolError(f"node {node.name!r} emitted on port {name!r}; its outputs are: {names}")
            for field in port.attested:
                self._attest(node, name, field, item)
            if port.crosses:
                encoded = encode(item)
                payload = Payload(item, encoded.digest, encoded.size_bytes, encoded)
            else:
                layout.freeze(item)
                payload = Payload(item)
            fields = layout.fields(item, port.fields) if port.fields else None
            emissions.append(Emission(port.number, payload, fields))
        return emissions

    def _attest(self, node: NodePlan, port: str, field: str, item: Any) -> None:
        """Raise LocalProtocolError for an item whose `field` exceeds the count of its node's firings."""
        count, most = item.get(field) if isinstance(item, Mapping) else None, self._firings[node.index]
        if type(count) is int and count > most:
            raise LocalProtocolError(
                f"node {node.name!r} emitted {field} = {count} on port {port!r}: expected at most {most}, the count of "
                "its firings. Count one a firing."
            )

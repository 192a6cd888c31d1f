"""Computes the merges of a shard again, from the payloads that it kept: the same bodies and inputs, in the same order.

A body is new at the beginning, as it was in that life; so its firings are computed from the first on, up to the last
that was kept. The outputs of a firing for another one of the same host are passed on. The digests of all items that
follow from the inputs are compared; for the first that differ the value is named. Reads files, computes with the
kernels of the run, and imports neither its task nor jax.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph import plans
from isthmus.runtime.graph.plans import NodePlan, Plan
from isthmus.runtime.graph.template import Quorum, Reference
from isthmus.runtime.host.bodies import Bodies
from isthmus.runtime.host.contract import Traffic
from isthmus.runtime.ids import Member
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.tape import payloads
from isthmus.runtime.tape.payloads import StoredFiring

_AGAIN: Final = "Fetch the folder again; without its payloads as they were written its merges cannot be computed."
_SHOWN_MAX: Final = 5


class OtherBytes(NamedTuple):
    """The first item of a life whose bytes differ when computed again.

    Node, firing and port; the item; its inputs (`given`); and the kept and computed values, in words.
    """

    node: str
    firing: int
    port: str
    item: str
    given: str
    kept: str
    computed: str


class Computed(NamedTuple):
    """The merge rounds of a life that were computed again, and the first item that differs."""

    merges: int
    difference: OtherBytes | None
    firings: Mapping[str, int] = {}
    """Node -> firings that were computed: all that were kept from the first on."""


class _Clock:
    """Instants that nothing depends on which is compared."""

    def now(self) -> Instant:
        return Instant(0)


class _OtherError(Exception):
    """Carries the first difference."""

    def __init__(self, other: OtherBytes) -> None:
        super().__init__(other)
        self.other = other


class _Life:
    """The bodies of one life whose firings were kept."""

    def __init__(self, folder: Path, plan: Plan, member: Member, seed: int) -> None:
        self.merges = 0
        self._folder = folder
        self._nodes = [node for node in plan.nodes if plans.ports(node.body)]
        self._made_here = {node.name: plans.made_here(plan, node) for node in self._nodes}
        self._queues: dict[tuple[str, str, str], deque[Any]] = {
            (node.name, port, source[0]): deque()
            for node in self._nodes
            for port, source in self._made_here[node.name].items()
        }
        self._bodies = Bodies(
            plan,
            member,
            clock=_Clock(),  # type: ignore[arg-type]
            seed=seed,
            resolve=_nothing,
            disk=DISK,
            traffic=Traffic(),
            members=frozenset,
            emitted=lambda node, emissions: None,
        )
        for node in self._nodes:
            self._bodies.open(node)
        self.done = dict.fromkeys((node.name for node in self._nodes), 0)

    def run(self) -> None:
        """Compute firing by firing, as far as there are files; items are passed on before more are made."""
        is_on = True
        while is_on:
            is_on = False
            for node in reversed(self._nodes):
                is_on |= self._fire(node)

    def _fire(self, node: NodePlan) -> bool:
        """Compute the next firing of a node, if it was kept and its inputs are available; returns whether it did."""
        number = self.done[node.name] + 1
        path = self._folder / f"{node.name}.{number}.item"
        queues = {port: self._queues[node.name, port, source] for port, (source, _) in self._of(node).items()}
        if not path.exists() or not all(queues.values()):
            return False
        kept = payloads.read(path.read_bytes(), node.name, number)
        inputs = {**dict.fromkeys(node.ports_idle), **kept.inputs, **{port: q.popleft() for port, q in queues.items()}}
        if node.has_decision:
            inputs.setdefault("decision", None)
        self.done[node.name] = number
        inputs_text = _words_of(inputs)
        try:
            ended = self._bodies.fire(node, inputs)
        except Exception as error:  # The body of the run did not raise, else its firing would not have been kept.
            other = OtherBytes(node.name, number, "", "", inputs_text, "no error", f"{type(error).__name__}: {error}")
            raise _OtherError(other) from error
        emitted = [(node.outputs[each.port].name, each.payload.item) for each in ended.emissions]
        self._compare(node, number, kept, [each for each in emitted if each[0] in plans.ports(node.body)], inputs_text)
        self._hand_on(node, emitted)
        self.merges += isinstance(node.fires, Quorum) and "closed_at" in (kept.inputs.get("decision") or {})
        return True

    def _of(self, node: NodePlan) -> dict[str, tuple[str, str]]:
        return self._made_here[node.name]

    def _hand_on(self, node: NodePlan, emitted: list[tuple[str, Any]]) -> None:
        for other in self._nodes:
            for port, source in self._of(other).items():
                if source[0] == node.name:
                    self._queues[other.name, port, node.name].extend(
                        item for name, item in emitted if name == source[1]
                    )

    def _compare(
        self, node: NodePlan, number: int, kept: StoredFiring, emitted: list[tuple[str, Any]], inputs_text: str
    ) -> None:
        ports = [port for port, _, _ in kept.outputs], [port for port, _ in emitted]
        if ports[0] != ports[1]:
            raise _OtherError(OtherBytes(node.name, number, "", "", inputs_text, str(ports[0]), str(ports[1])))
        for (port, digest, before), (_, item) in zip(kept.outputs, emitted, strict=True):
            computed = encode(item).digest
            if computed != digest:
                unknown = "", f"digest {digest:016x}", f"digest {computed:016x}"
                place, was, now = next(_differing(before, item), unknown)
                raise _OtherError(OtherBytes(node.name, number, port, place, inputs_text, was, now))


def merges_again(run: Path, plan: Plan, member: Member, seed: int) -> Computed | None:
    """Compute the merges of a life again; None if it kept no payloads. ValueError for payloads that cannot be read."""
    folder = payloads.folder_of(run, member)
    if not folder.is_dir() or not any(plans.ports(node.body) for node in plan.nodes):
        return None
    life = _Life(folder, plan, member, seed)
    try:
        life.run()
    except _OtherError as error:
        return Computed(life.merges, error.other, life.done)
    return Computed(life.merges, None, life.done)


def fault(member: Member, error: ValueError | OSError) -> Fault:
    """The fault of a life's unreadable payloads."""
    return Fault(f"Reading the payloads of {member}", "what was kept", str(error), _AGAIN)


def _nothing(reference: Reference) -> Any:
    raise ValueError(f"it needs {reference.text}, which a replay does not import")


def _words_of(inputs: Mapping[str, Any]) -> str:
    """The inputs of a firing in words: rounds, fragments, and the replicas that answered."""
    parts = []
    for port, value in inputs.items():
        if not isinstance(value, dict) or port == "decision":
            continue
        if all(isinstance(key, str) for key in value):
            named = ", ".join(f"{name} {value[name]}" for name in ("fragment", "round", "kind") if name in value)
            parts.append(f"{port}: {named}" if named else port)
        else:
            parts.append(f"{port} of {', '.join(str(replica) for replica, _ in value)}")
    return "; ".join(parts)


def _differing(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """The places in which two items differ, with the value of each."""
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        if (before.shape, before.dtype) != (now.shape, now.dtype):
            yield name, f"{before.dtype}{list(before.shape)}", f"{now.dtype}{list(now.shape)}"
        elif before.tobytes() != now.tobytes():
            bits = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (before, now)]
            at = np.flatnonzero(bits[0] != bits[1]) // before.itemsize
            place, count = int(at[0]), len(np.unique(at))
            more = f", first of {count} that differ" if count > 1 else ""
            yield f"{name}[{place}]{more}", repr(before.reshape(-1)[place]), repr(now.reshape(-1)[place])
    elif isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        for key in before:
            yield from _differing(before[key], now[key], f"{name}.{key}" if name else str(key))
    elif isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _differing(one, other, f"{name}[{number}]")
    elif before is not None and repr(before) != repr(now):
        yield name, repr(before)[:200], repr(now)[:200]

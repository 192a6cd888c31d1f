"""What tests of bodies share: a small task, its fragments, and a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.recipe import Recipe, of_loss
from isthmus.runtime.host.contract import Traffic
from isthmus.runtime.ids import HostMachine, MachineOwner


@dataclass(frozen=True)
class Spec:
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    merge: str = "rda"
    is_stacked: bool = False


ADAM = optax.adam(1e-2)


@dataclass(frozen=True)
class SmallTask:
    """Least squares; `init`, `loss` and `batch` as a Task has them. Two with the same fields are one task, whose
    functions are compiled once in a process."""

    tokens_per_batch: int = 8
    optimizer: Any = ADAM
    evaluation: int = 2
    factor: float = 1.0

    def init(self, key: Any) -> Any:
        return {"w": jax.random.normal(key, (4, 3)), "inner": {"b": jnp.zeros(3), "s": jnp.ones(())}}

    def loss(self, params: Any, batch: Any) -> Any:
        out = (batch["x"] @ params["w"] + params["inner"]["b"]) * params["inner"]["s"]
        return self.factor * jnp.mean((out - batch["y"]) ** 2)

    def batch(self, at: At) -> Any:
        x = at.rng().normal(size=(8, 4)).astype(np.float32)
        return {"x": x, "y": np.stack([x.sum(1)] * 3, 1)}

    def recipe(self) -> Recipe:
        return of_loss(self.init, self.loss, self.optimizer)

    def evaluation_batches(self, seed: int, path: int = 0) -> Any:
        return (self.batch(At(seed, 0, position, "evaluation")) for position in range(self.evaluation))


def fragments_of(task: SmallTask, count: int) -> tuple[Fragment, ...]:
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return partition([Spec(name, tuple(leaf.shape)) for name, leaf in named_leaves(shapes)], count)


@dataclass
class Replica:
    role: str
    slot: int


@dataclass
class Member:
    replica: Replica
    incarnation: int = 1


class Context:
    """A context whose time moves when the test says so."""

    def __init__(self, role: str = "learner", slot: int = 0, *, incarnation: int = 1, seed: int = 0) -> None:
        self.member = Member(Replica(role, slot), incarnation)
        self.node, self.seed, self.at = "node", seed, 0
        self.connected = frozenset({"parameters", "fragment", "progress"})
        self.traffic = Traffic()
        self.published: list[Any] = []
        self.refused: list[Any] = []
        self.is_stopped = self.is_leaving = self.leaves_itself = False
        self.island = None
        self.folder: Any = None
        self.away_ns = 0
        self.live: set[Any] = set()
        self.owners: dict[tuple[str, int], MachineOwner] = {}
        self.machines: dict[tuple[str, int], str] = {}

    def machine_of(self, role: str, slot: int) -> HostMachine:
        machine = self.machines.get((role, slot), "")
        return HostMachine(machine, self.owners.get((role, slot), MachineOwner(machine)))

    def leave(self) -> None:
        self.is_leaving = self.leaves_itself = True

    def members(self) -> frozenset[Any]:
        return frozenset(self.live)

    def now(self) -> int:
        self.at += 1_000_000
        return self.at

    def queued(self) -> int:
        return 0

    def away(self) -> int:
        return self.away_ns

    def stop_requested(self) -> bool:
        return self.is_stopped

    def is_stopping(self) -> bool:
        return self.is_stopped

    def leave_requested(self) -> bool:
        return self.is_leaving

    def refuse(self, port: str, sender: tuple[int, int], mismatch: tuple[str, str, str]) -> None:
        self.refused.append((port, sender, *mismatch))

    def publish(self, values: dict[str, Any]) -> None:
        self.published.append(values)


def pull(
    fragment: int, number: int, *, kind: str = "merge", members: Any = ((0, 1),), attempt: int = 1, known: Any = ()
) -> dict[str, Any]:
    return {
        "round": number,
        "fragment": fragment,
        "attempt": attempt,
        "kind": kind,
        "members": [list(member) for member in members],
        "count_min": 1,
        "grace": 0,
        "required": [],
        "deadline": None,
        "chain": None,
        "interval": 24,
        "totals": [],
        "known": [list(row) for row in known],
    }


def update(
    fragment: Fragment, count: int, values: Any, *, clock: Any = (), kind: str = "merge", refused: Any = ()
) -> dict[str, Any]:
    array = np.asarray(values, np.float32)
    array = np.full(fragment.size, array, np.float32) if array.ndim == 0 else array
    return {
        "fragment": fragment.index,
        "version": [1, count],
        "kind": kind,
        "values": array,
        "clock": [list(entry) for entry in clock],
        "positions": [],
        "totals": [],
        "refused": [list(life) for life in refused],
    }

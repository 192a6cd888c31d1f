"""The figures of one function of a learner, compiled for an island: the form that a worker sends, and that is kept.

All sizes are bytes on one device, as the compiler lays them out; operations are those of the whole island.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from isthmus.programs.ahead.collectives import Collectives


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """What a program takes on each device. `aliased` are outputs that lie where arguments were; `peak` is the most that
    the compiler says is in use at a time, without the code."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    peak: int

    @property
    def total(self) -> int:
        """All of it: what has to be there, for a device sets the temporaries aside as one piece."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as the compiler made it; `accessed_bytes` is what it reads and writes, a loop's body counted once."""

    memory: Memory
    accessed_bytes: float
    collectives: Collectives
    compile_seconds: float


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """A program that the compiler refused, because it needs more memory than a device has."""

    used_bytes: int
    compile_seconds: float


@final
@dataclass(frozen=True, slots=True)
class Counted:
    """One function: `products` are the operations of its matrix products in all, without `unbounded` loops that were
    counted once; `state_bytes` are of the state that it takes, `given_bytes` of its other arguments, as arrays lie,
    `made_bytes` of what it gives, whole; `is_kept` where the figures were there already."""

    name: str
    is_step: bool
    products: int
    unbounded: int
    state_bytes: int
    given_bytes: int
    made_bytes: int
    compiled: Compiled | None
    refused: Refused | None
    is_kept: bool

    def needed(self, state_bytes: int) -> int:
        """What each device has to have while it runs: what it takes itself, and what it leaves alone of a state."""
        if self.refused is not None:
            return self.refused.used_bytes + state_bytes - self.state_bytes
        assert self.compiled is not None
        return self.compiled.memory.total + state_bytes - self.state_bytes


@final
@dataclass(frozen=True, slots=True)
class Fit:
    """The largest batch whose step fits, in rows along its first axis: `given` is that of the run, `rows` the largest,
    None if none fits, `asked` those that the compiler was asked about, `steps` the functions of a step for `rows`."""

    given: int
    rows: int | None
    asked: tuple[int, ...]
    steps: tuple[Counted, ...]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker has found out of an island: the tokens of a batch there, its devices as the compiler calls them, on
    so many machines, the memory of each that programs can have, its functions, those of a step first, and the largest
    batch, where it was asked for."""

    tokens: int
    device_kind: str
    devices: int
    hosts: int
    limit_bytes: int
    functions: tuple[Counted, ...]
    versions: dict[str, str]
    fit: Fit | None = None

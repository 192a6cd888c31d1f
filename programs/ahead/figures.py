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
    """Bytes of a program on each device. `aliased` are outputs in the place of arguments; `peak` is the compiler's
    maximum in use at a time, without the code."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    peak: int

    @property
    def total(self) -> int:
        """Bytes that have to be available: a device reserves the temporaries as one piece."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program; `accessed_bytes` are read and written, with a loop's body counted once."""

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
    """Figures of one function.

    `products`: operations of all its matrix products, with each of the `unbounded` loops counted once; `state_bytes`:
    of its state argument, `given_bytes`: of its other arguments, both per device; `made_bytes`: of its whole result;
    `is_kept`: the figures were kept from before.
    """

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
        """Bytes that each device needs while it runs: its own, and the part of a state that it does not take."""
        if self.refused is not None:
            return self.refused.used_bytes + state_bytes - self.state_bytes
        assert self.compiled is not None
        return self.compiled.memory.total + state_bytes - self.state_bytes


@final
@dataclass(frozen=True, slots=True)
class Fit:
    """The largest batch whose step fits, in rows along its first axis.

    `given` is that of the run, `rows` the largest, None if none fits, `asked` those that were compiled, `steps` the
    functions of a step for `rows`.
    """

    given: int
    rows: int | None
    asked: tuple[int, ...]
    steps: tuple[Counted, ...]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's figures of an island.

    The tokens of a batch there; the number of devices, their kind as the compiler names it, and the machines (`hosts`)
    they are on; the memory of each that programs can use; its functions, those of a step first; and the largest batch,
    if requested.
    """

    tokens: int
    device_kind: str
    devices: int
    hosts: int
    limit_bytes: int
    functions: tuple[Counted, ...]
    versions: dict[str, str]
    fit: Fit | None = None

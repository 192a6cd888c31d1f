"""A run on an island that it was compiled for: whether it fits, the contents of the memory, and the cost of a step.

Decides how the figures of a learner's functions add up to those of an island; all but compile times come from the
compiler and from shapes, and the step time is predicted. Memory counts the state whole, also while a function runs that
takes a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from isthmus.programs.ahead.collectives import Collectives
from isthmus.programs.ahead.figures import Answer, Counted
from isthmus.programs.ahead.targets import Target, roofline_seconds

_EXTRACT: Final = "extract/"
BATCH: Final = "smaller-batch"
CHECKPOINT: Final = "checkpoint"
DEVICES: Final = "more-devices"


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """Use of a device's memory in the function that needs most, in bytes.

    `state`, `given` (a batch, an update), `temporaries` with the results, `code`, and `padding` of arrays beyond their
    elements. For a refused function the compiler reports only the sum: `unknown` is then the part beside state and
    given.
    """

    function: str
    state: int
    given: int
    temporaries: int = 0
    code: int = 0
    padding: int = 0
    unknown: int = 0


@final
@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that fits: `rows` along the first axis of its arrays, `tokens` in it, bytes of each device, and
    a predicted step."""

    rows: int
    tokens: int
    memory_bytes: int
    predicted_step_seconds: float | None


@final
@dataclass(frozen=True, slots=True)
class Island:
    """An island in the form of `--json`: bytes are of each device, operations those of a step divided by the devices.

    `helps`: remedies for an island that does not fit; `batch_max`: the largest batch if `is_fitted` (it was searched),
    None if none fits. The predicted time of a step is that of its products, or that of its memory accesses, whichever
    is longer, at published figures.
    """

    island: str
    slot: int
    device_kind: str
    devices: int
    hosts: int
    fits: bool
    memory_bytes: int
    memory_limit_bytes: int
    memory: Filling
    helps: tuple[str, ...]
    flops_per_device: int
    unbounded_loops: int
    collectives: Collectives
    fragment_bytes: tuple[int, ...]
    predicted_step_seconds: float | None
    predicted_products_seconds: float | None
    is_fitted: bool
    batch_max: LargestBatch | None
    compile_seconds: float
    is_kept: bool
    options: dict[str, str]
    versions: dict[str, str]
    functions: tuple[dict[str, Any], ...]

    def as_data(self) -> dict[str, Any]:
        """The island as JSON data."""
        return asdict(self)


def summed(target: Target, slot: int, answer: Answer) -> Island:
    """The island of a worker's answer."""
    functions = answer.functions
    state = max(each.state_bytes for each in functions)
    needs = [each.needed(state) for each in functions]
    largest = max(range(len(functions)), key=needs.__getitem__)
    steps = [each for each in functions if each.is_step]
    fits = all(each.refused is None for each in functions) and needs[largest] <= answer.limit_bytes
    flops = _flops(steps, answer.devices)
    return Island(
        island=target.name,
        slot=slot,
        device_kind=answer.device_kind,
        devices=answer.devices,
        hosts=answer.hosts,
        fits=fits,
        memory_bytes=needs[largest],
        memory_limit_bytes=answer.limit_bytes,
        memory=_filling(functions[largest], state, needs[largest]),
        helps=() if fits else (DEVICES,) if state >= answer.limit_bytes else (BATCH, CHECKPOINT, DEVICES),
        flops_per_device=flops,
        unbounded_loops=sum(each.unbounded for each in steps),
        collectives=_added([each.compiled.collectives for each in steps if each.compiled is not None]),
        fragment_bytes=tuple(each.made_bytes for each in functions if each.name.startswith(_EXTRACT)),
        predicted_step_seconds=_step_seconds(target, steps, answer.devices),
        predicted_products_seconds=_seconds_of(target, flops, 0.0),
        is_fitted=answer.fit is not None,
        batch_max=_batch_max(target, answer, state),
        compile_seconds=sum(_seconds(each) for each in functions),
        is_kept=all(each.is_kept for each in functions),
        options=target.options,
        versions=answer.versions,
        functions=tuple(
            {
                "name": each.name,
                "fits": each.refused is None and need <= answer.limit_bytes,
                "memory_bytes": need,
                "compile_seconds": _seconds(each),
                "is_kept": each.is_kept,
                "flops": each.products,
                "compiled": None if each.compiled is None else asdict(each.compiled),
            }
            for each, need in zip(functions, needs, strict=True)
        ),
    )


def _filling(function: Counted, state: int, needed: int) -> Filling:
    given = function.given_bytes
    if function.compiled is None:
        return Filling(function.name, state, given, unknown=needed - state - given)
    memory = function.compiled.memory
    padding = memory.arguments - function.state_bytes - given
    made = memory.temporaries + memory.outputs - memory.aliased
    return Filling(function.name, state, given, made, memory.code, padding)


def _batch_max(target: Target, answer: Answer, state: int) -> LargestBatch | None:
    """The largest batch, as far as one was looked for and found."""
    fit = answer.fit
    if fit is None or fit.rows is None:
        return None
    needed = max(each.needed(state) for each in fit.steps)
    seconds = _step_seconds(target, fit.steps, answer.devices)
    return LargestBatch(fit.rows, answer.tokens * fit.rows // fit.given, needed, seconds)


def _flops(steps: Sequence[Counted], devices: int) -> int:
    """Operations of a step's products on each device."""
    return sum(each.products for each in steps) // devices


def _step_seconds(target: Target, steps: Sequence[Counted], devices: int) -> float | None:
    """Predicted seconds of a step; None if the compiler refused a function of it."""
    accessed = [each.compiled.accessed_bytes for each in steps if each.compiled is not None]
    return _seconds_of(target, _flops(steps, devices), sum(accessed)) if len(accessed) == len(steps) else None


def _seconds_of(target: Target, flops: float, accessed_bytes: float) -> float | None:
    """Minimum seconds of a device, at its share of the chip's published figures."""
    return roofline_seconds(target.device, flops * target.devices_a_chip, accessed_bytes * target.devices_a_chip)


def _seconds(function: Counted) -> float:
    """Compile time of a function in seconds, measured when it was compiled."""
    found = function.compiled or function.refused
    assert found is not None
    return found.compile_seconds


def _added(each: list[Collectives]) -> Collectives:
    kinds: Counter[str] = Counter()
    for one in each:
        kinds.update(one.by_kind)
    return Collectives(
        count=sum(one.count for one in each),
        asynchronous=sum(one.asynchronous for one in each),
        overlapped=sum(one.overlapped for one in each),
        by_kind=dict(sorted(kinds.items())),
    )

"""The figures of a learner's functions compiled for an island, and their sum for the island: memory, operations,
collectives, predicted times.

Decides the valid names of islands (`v5p:2x2x1`, a kind of TPU and a topology in chips) with the compiler's options for
each, what counts as an overlapping collective, whether a run fits, and which figures are kept from one command to the
next. All but compile times come from the compiler and from shapes. Sizes are bytes on one device, as the compiler lays
them out; operations are those of the whole island.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import msgspec

from isthmus.programs.engine.cluster.devices import Device, find
from isthmus.runtime.errors import ConfigError, InvariantError
from isthmus.runtime.system.files import read_bytes, write_bytes

KINDS: Final = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "recv",
    "reduce-scatter",
    "send",
)
_ALWAYS_PAIRS: Final = ("recv", "send")
_COMPUTING: Final = ("convolution", "custom-call", "dot", "fusion")
_FUSED_PAIR: Final = "async-collective"
_CARRIER: Final = "async_collective_fusion"
"""A fusion between a fused start and its done, which computes and moves a part of the collective on."""

_HEADER: Final = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
_LINE: Final = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = .*?(?<=[\s)}\]]) ?(?P<opcode>[a-z][a-z0-9-]*)\(")
_OPERAND: Final = re.compile(r"%(?P<name>[\w.-]+)")
_INNER: Final = re.compile(r"(?:calls|to_apply)=%?(?P<name>[\w.-]+)")


@final
@dataclass(frozen=True, slots=True)
class Collectives:
    """Numbers of collectives in a program, of asynchronous ones, and of those with computation scheduled beside them;
    `by_kind` counts all by name."""

    count: int
    asynchronous: int
    overlapped: int
    by_kind: dict[str, int]


class _Instruction(NamedTuple):
    """A line: `operands` are the names in its parentheses and behind, `inner` the computation that it applies."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    inner: str | None


def read_collectives(text: str) -> Collectives:
    """The collectives in the text of a compiled module; InvariantError if it is no schedule.

    The text is the optimised module of an accelerator's compiler, which is a schedule: the instructions of a
    computation run in the order of their lines. A collective is asynchronous where it is a pair of a start and a done:
    instructions of their own (`all-gather-start`), or fusions with such names (`async-collective-start.3`), between
    which its parts may be fused into products. It overlaps where an instruction that computes lies between the two.
    That is evidence of a schedule, not a measurement. Sends to another slice, and receives, are such pairs, too. An
    all-reduce inside a fusion is a collective that waits; the parts of a collective inside the fusions that carry it
    along are not counted again.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        what = "reading a compiled program: expected a module with is_scheduled=true"
        raise InvariantError(f"{what}, found {text[:60]!r}.")
    computations = _computations(text)
    applied = {each.inner for lines in computations.values() for each in lines}
    inside = {name: _first_kind(lines) for name, lines in computations.items()}
    by_kind: Counter[str] = Counter()
    asynchronous = overlapped = 0
    for name, lines in computations.items():
        if name not in applied:
            pairs = list(_pairs(lines, inside, by_kind))
            asynchronous += len(pairs)
            overlapped += sum(pairs)
    return Collectives(by_kind.total(), asynchronous, overlapped, dict(sorted(by_kind.items())))


def _pairs(lines: list[_Instruction], inside: dict[str, str | None], by_kind: Counter[str]) -> Iterator[bool]:
    """Whether each asynchronous collective of a computation overlaps; counts all collectives into `by_kind`."""
    open_since: dict[str, int] = {}
    computed = 0
    for each in lines:
        within = inside.get(each.inner or "")
        if each.name.startswith(f"{_FUSED_PAIR}-start"):
            by_kind[within or _FUSED_PAIR] += 1
            open_since[each.name] = computed
        elif each.name.startswith(f"{_FUSED_PAIR}-done"):
            yield computed > open_since.pop(each.name.replace("-done", "-start"), computed)
        elif (kind := _kind(each.opcode)) is not None:
            if each.opcode.endswith("-done"):
                since = next((open_since.pop(name) for name in each.operands if name in open_since), computed)
                yield computed > since
            else:
                by_kind[kind] += 1
                if each.opcode.endswith("-start") or kind in _ALWAYS_PAIRS:
                    open_since[each.name] = computed
        elif within is not None and not (each.inner or "").startswith(_CARRIER):
            by_kind[within] += 1
        else:
            computed += each.opcode in _COMPUTING


def _computations(text: str) -> dict[str, list[_Instruction]]:
    """The instructions of each computation of a module, in the order of their lines."""
    computations: dict[str, list[_Instruction]] = {}
    lines: list[_Instruction] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            lines = computations.setdefault(header["name"], [])
        elif match := _LINE.match(line):
            rest, inner = line[match.end() :], _INNER.search(line)
            operands = tuple(operand["name"] for operand in _OPERAND.finditer(rest.partition(")")[0]))
            lines.append(
                _Instruction(match["name"], match["opcode"], operands, None if inner is None else inner["name"])
            )
    return computations


def _first_kind(lines: list[_Instruction]) -> str | None:
    """The collective that a computation holds."""
    return next((kind for each in lines if (kind := _kind(each.opcode)) is not None), None)


def _kind(opcode: str) -> str | None:
    stem = opcode.removesuffix("-start").removesuffix("-done")
    return stem if stem in KINDS else None


@final
@dataclass(frozen=True, slots=True)
class ProgramMemory:
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

    memory: ProgramMemory
    accessed_bytes: float
    collectives: Collectives
    compile_seconds: float


@final
@dataclass(frozen=True, slots=True)
class RefusedProgram:
    """A program that the compiler refused, because it needs more memory than a device has."""

    used_bytes: int
    compile_seconds: float


@final
@dataclass(frozen=True, slots=True)
class Counted:
    """Figures of one function."""

    name: str
    is_step: bool
    products: int
    """Operations of all its matrix products, with each of the unbounded loops counted once."""
    unbounded: int
    """The number of such loops."""
    state_bytes: int
    """Of its state argument, per device."""
    given_bytes: int
    """Of its other arguments, per device."""
    made_bytes: int
    """Of its whole result."""
    compiled: Compiled | None
    refused: RefusedProgram | None
    is_kept: bool
    """The figures were kept from before."""

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

    `rows_given` is that of the run, `rows` the largest, None if none fits, `rows_tried` those that were compiled,
    `steps` the functions of a step for `rows`.
    """

    rows_given: int
    rows: int | None
    rows_tried: tuple[int, ...]
    steps: tuple[Counted, ...]


@final
@dataclass(frozen=True, slots=True)
class IslandFigures:
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


_TARGET: Final = re.compile(r"(?P<kind>[a-z0-9]+):(?P<topology>\d+x\d+(?:x\d+)?)")
_DIMENSIONS: Final = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
"""Dimensions of the torus of each kind; https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm."""
_DEVICES_A_CHIP: Final = {"v4": 2}
"""Devices of a chip, as the compiler counts them; one by default."""
_CHIPS_A_HOST: Final = {"v4": 4, "v5e": 8, "v5p": 4, "v6e": 8}
"""The most that one machine has, from the same pages."""
_OVERLAPPING: Final = (
    "xla_enable_async_all_gather",
    "xla_tpu_overlap_compute_collective_tc",
    "xla_tpu_enable_latency_hiding_scheduler",
)
"""Measured, libtpu 0.0.42 and 0.0.50, two layers of nano. Of 187 collectives on v4:2x2x1, 151 overlap with the first
option and none without. Elsewhere nothing changes: what overlaps is the compiler's choice, 10 on v6e:2x2, and 110 of
158 on v5e:2x2 (0.0.50 alone). The fusion of all-gathers (xla_tpu_enable_async_collective_fusion_fuse_all_gather) let
113 overlap on v5p and v6e; 0.0.48 and 0.0.50 refuse it for all kinds but v5e: "incorrect results, hang"."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """An island to compile for.

    `name` as given; `count` devices of kind `device`; the compiler's options; `host_bounds`: the layout of its chips on
    one machine, in three dimensions, empty if it needs several machines; `devices_a_chip`: the compiler's devices in
    one chip, to which the figures of `device` apply.
    """

    name: str
    device: Device
    count: int
    options: dict[str, str]
    host_bounds: tuple[int, ...] = ()
    devices_a_chip: int = 1


def target(text: str, doing: str = "Reading --island") -> Target:
    """The target that `text` names; ConfigError for an unknown form, kind or topology."""
    form = _TARGET.fullmatch(text)
    kinds = ", ".join(_DIMENSIONS)
    if form is None or form["kind"] not in _DIMENSIONS:
        expected = f"KIND:TOPOLOGY, the kind one of {kinds}, the topology in chips"
        raise ConfigError(doing, expected, repr(text), "For example v5p:2x2x1, or v6e:2x2.")
    kind, sides = form["kind"], [int(side) for side in form["topology"].split("x")]
    if len(sides) != _DIMENSIONS[kind] or min(sides) < 1:
        expected = f"a topology of {_DIMENSIONS[kind]} dimensions for {kind}, each at least 1"
        raise ConfigError(doing, expected, repr(text), f"For example {kind}:{'x'.join('221'[: _DIMENSIONS[kind]])}.")
    chips, parts = math.prod(sides), _DEVICES_A_CHIP.get(kind, 1)
    count = chips * parts
    options = dict.fromkeys(_OVERLAPPING, "true") if count > 1 else {}
    bounds = (*sides, 1)[:3] if chips <= _CHIPS_A_HOST[kind] else ()
    return Target(text, find(kind, doing), count, options, bounds, parts)


def roofline_seconds(device: Device, flops: float, bytes_accessed: float) -> float | None:
    """Minimum seconds of a step on a device of this kind, at the published figures; None if they are not published.

    The longer of the times for its products and for the memory that it reads and writes. Collectives count as fully
    overlapped, so this is a predicted lower bound.
    """
    if device.flops is None or device.memory_bandwidth_bytes is None:
        return None
    return max(flops / device.flops, bytes_accessed / device.memory_bandwidth_bytes)


_EXTRACT: Final = "extract/"
BATCH: Final = "smaller-batch"
CHECKPOINT: Final = "checkpoint"
DEVICES: Final = "more-devices"


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """Use of a device's memory in the function that needs most, in bytes."""

    function: str
    state: int
    arguments: int
    """Beside the state: a batch, an update."""
    temporaries: int = 0
    """With the results."""
    code: int = 0
    padding: int = 0
    """Of arrays beyond their elements."""
    unknown: int = 0
    """For a refused function the compiler reports only the sum: this is then the part beside state and arguments."""


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
class CountedIsland:
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


def summed(target: Target, slot: int, answer: IslandFigures) -> CountedIsland:
    """The island of a worker's answer.

    Memory counts the state whole, also while a function runs that takes a part of it.
    """
    functions = answer.functions
    state = max(each.state_bytes for each in functions)
    needs = [each.needed(state) for each in functions]
    largest = max(range(len(functions)), key=needs.__getitem__)
    steps = [each for each in functions if each.is_step]
    fits = all(each.refused is None for each in functions) and needs[largest] <= answer.limit_bytes
    flops = _flops(steps, answer.devices)
    return CountedIsland(
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
    arguments = function.given_bytes
    if function.compiled is None:
        return Filling(function.name, state, arguments, unknown=needed - state - arguments)
    memory = function.compiled.memory
    padding = memory.arguments - function.state_bytes - arguments
    temporaries = memory.temporaries + memory.outputs - memory.aliased
    return Filling(function.name, state, arguments, temporaries, memory.code, padding)


def _batch_max(target: Target, answer: IslandFigures, state: int) -> LargestBatch | None:
    """The largest batch, as far as one was looked for and found."""
    fit = answer.fit
    if fit is None or fit.rows is None:
        return None
    needed = max(each.needed(state) for each in fit.steps)
    seconds = _step_seconds(target, fit.steps, answer.devices)
    return LargestBatch(fit.rows, answer.tokens * fit.rows // fit.rows_given, needed, seconds)


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
    program = function.compiled or function.refused
    assert program is not None
    return program.compile_seconds


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


_FIGURES_FORM: Final = 1
"""Counts up when figures mean something else."""


def digest(program: str, target: Target, versions: Mapping[str, str]) -> str:
    """The digest of a program as StableHLO, and of all other inputs of its figures."""
    inputs = [
        _FIGURES_FORM,
        target.name,
        target.host_bounds,
        sorted(target.options.items()),
        sorted(versions.items()),
        program,
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


class _Entry(msgspec.Struct):
    compiled: Compiled | None = None
    refused: RefusedProgram | None = None


@final
class KeptFigures:
    """Figures in a folder, which need not be there yet; None keeps nothing.

    A file for each program, under the digest of all that its figures depend on. One that cannot be read, or was written
    by another version of this module, is treated as missing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: str) -> Compiled | RefusedProgram | None:
        """The figures kept under this digest; None if there are none."""
        if self._folder is None:
            return None
        with suppress(OSError, msgspec.DecodeError):
            entry = msgspec.json.decode(read_bytes(self._folder / f"{key}.json"), type=_Entry)
            return entry.compiled or entry.refused
        return None

    def keep(self, key: str, figures: Compiled | RefusedProgram) -> None:
        """Keep them; a disk that takes nothing costs a later command its time, and nothing else."""
        if self._folder is None:
            return
        entry = _Entry(compiled=figures) if isinstance(figures, Compiled) else _Entry(refused=figures)
        with suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
            write_bytes(self._folder / f"{key}.json", msgspec.json.encode(entry))

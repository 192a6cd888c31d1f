"""The collectives of a compiled program, and the number that overlap with computation: read from its text.

The text is the optimised module of an accelerator's compiler, which is a schedule (`is_scheduled=true`): the
instructions of a computation run in the order of their lines. A collective is asynchronous where it is a pair of a
start and a done: instructions of their own (`all-gather-start`), or fusions with such names
(`async-collective-start.3`), between which its parts may be fused into products. It overlaps where an instruction that
computes lies between the two. That is evidence of a schedule, not a measurement. Sends to another slice, and receives,
are such pairs, too.

The computation that a fusion calls is inspected: an all-reduce inside one is a collective that waits. The parts of a
collective inside the fusions that carry it along are not counted again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from isthmus.runtime.errors import InvariantError

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
    """The collectives in the text of a compiled module; InvariantError if it is no schedule."""
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
            found = list(_pairs(lines, inside, by_kind))
            asynchronous += len(found)
            overlapped += sum(found)
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
            operands = tuple(found["name"] for found in _OPERAND.finditer(rest.partition(")")[0]))
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

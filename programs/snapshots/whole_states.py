"""Whole states of learners as files: parameters, moments, and their progress in their data.

Decides the form: a safetensors file with the bytes of each leaf, whose types and shapes are in the manifest, so that
types which safetensors does not know (those of keys, and of small floats) are as good as others.
"""

from __future__ import annotations

import msgspec
import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from isthmus.ops.exchange.messages import WholeState
from isthmus.ops.recovery.hold import flat, form_of, formed


class StateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state: the fields of its `WholeState`, with the tensors in `file`.

    `leaves` has (type, shape) of each, `streams` (slot, position) of those whose states are in the file; `bytes` and
    `digest` (xxh3-128, hexadecimal) are the file's; `standings` are of a learner that gives a part of a cut.
    """

    index: int
    tokens: int
    steps: int
    totals: list[tuple[int, int, int]]
    positions: list[tuple[int, int]]
    streams: list[tuple[int, int]]
    leaves: list[tuple[str, list[int]]]
    file: str
    bytes: int
    digest: str
    standings: list[tuple[int, int, int | None, list[list[int]]]] = []


def is_of(entry: StateEntry, state: WholeState) -> bool:
    """Whether an entry of this life is of a state that it was given: one has more tokens than the one before."""
    return (entry.tokens, entry.steps) == (state["tokens"], state["steps"])


def encoded(index: int, state: WholeState, life: int) -> tuple[StateEntry, bytes]:
    """The entry of a state, and its file; `life` is the recorder's."""
    leaves = [np.asarray(leaf) for leaf in state["leaves"]]
    tensors = {f"leaf-{i}": flat(leaf) for i, leaf in enumerate(leaves)}
    tensors |= {f"stream-{slot}": flat(np.asarray(told)) for slot, _, told in state["streams"]}
    data = save(tensors)
    entry = StateEntry(
        index=index,
        tokens=state["tokens"],
        steps=state["steps"],
        totals=[(slot, incarnation, tokens) for slot, incarnation, tokens in state["totals"]],
        positions=[(slot, position) for slot, position in state["positions"]],
        streams=[(slot, position) for slot, position, _ in state["streams"]],
        leaves=[form_of(leaf) for leaf in leaves],
        file=f"state-{index}-{life}-{state['tokens']}.safetensors",
        bytes=len(data),
        digest=xxhash.xxh3_128_hexdigest(data),
        standings=[(epoch, count, due, former) for epoch, count, due, former in state.get("standings", ())],
    )
    return entry, data


def decoded(entry: StateEntry, data: bytes) -> WholeState:
    """The state of an entry, from its file; ValueError if the file is not valid."""
    try:
        tensors = load(data)
        leaves = [formed(tensors[f"leaf-{i}"], *told) for i, told in enumerate(entry.leaves)]
        streams = [[slot, position, tensors[f"stream-{slot}"]] for slot, position in entry.streams]
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{entry.file} is no file of a state: {error}") from None
    return WholeState(
        tokens=entry.tokens,
        steps=entry.steps,
        totals=[list(row) for row in entry.totals],
        positions=[list(row) for row in entry.positions],
        streams=streams,
        leaves=leaves,
        standings=[list(row) for row in entry.standings],
    )

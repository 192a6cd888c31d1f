"""The ring all-reduce: M learners in a circle, each talking to the next one only, sum a vector in 2 (M - 1) hops.

Decides what each learner adds and passes on at which hop. Does not decide what is summed, nor what becomes of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, TypedDict

import numpy as np

from isthmus.ops.exchange.messages import Vector
from isthmus.ops.exchange.requested import Count

START: Final[dict[str, Any]] = {}
"""The input of the first hop of a step: nothing yet."""


class RingPart(TypedDict):
    """The own item of one hop: the `values` that are added to a chunk, None where it is passed on unchanged.

    `trained` is [slot, tokens, position] of the gradient's batch, which is below that position in its slot, empty where
    nothing is added; `stop`: this learner requests the end.
    """

    step: int
    values: Vector | None
    trained: list[list[int]]
    stop: bool


class Mean(TypedDict):
    """ring -> step: the mean of all learners' vectors, by tokens, and whether any learner requests the end.

    `trained` is [slot, tokens, position] of every learner's batch, in slot order.
    """

    step: int
    values: Vector
    trained: list[list[int]]
    stop: bool


class Hop(NamedTuple):
    """One firing: its chunk, whether the own values are added to it, and whether it is then whole (the sum of all)."""

    chunk: int
    adds: bool
    is_whole: bool


def hops(rank: int, learners: int) -> tuple[Hop, ...]:
    """The hops of one step, in order, as learner `rank` of `learners` sees them.

    The vector is cut into M chunks, as equal as possible. *Reduce-scatter*: chunk c begins at rank c and travels once
    around; each learner adds its own part, and the last, rank c - 1, has the sum. *All-gather*: the sums travel around
    once more, and every learner keeps them. So a learner sends 2 (M - 1) / M times the size of the vector. Each chunk
    is summed in one order (by rank, from its own on) and divided in one place: all learners have the same bytes.
    """
    scatter = [Hop((rank - j) % learners, True, j == learners - 1) for j in range(learners)]
    gather = [Hop((rank - j) % learners, False, True) for j in range(learners - 1)]
    return (*scatter, *gather)


def chunk_ends(size: int, learners: int) -> list[int]:
    """The boundaries of the chunks of a vector: M + 1 numbers."""
    return [i * size // learners for i in range(learners + 1)]


def parts(
    vector: Vector, rank: int, learners: int, *, step: int, tokens: int, position: int, stop: bool
) -> list[RingPart]:
    """The own items of all hops of a step."""
    ends = chunk_ends(vector.size, learners)
    return [
        RingPart(
            step=step,
            values=vector[ends[hop.chunk] : ends[hop.chunk + 1]] if hop.adds else None,
            trained=[[rank, tokens, position]] if hop.adds else [],
            stop=stop,
        )
        for hop in hops(rank, learners)
    ]


class Ring:
    """Own parts and the neighbour's chunks in; chunks to the next learner and, after the last hop, the Mean out.

    A learner's hops of one step are 2 M - 1 firings. Each takes one item of its neighbour and one of its own (its
    addend, or nothing), and sends one: at the last the empty item with which the next step begins, as the edge did. An
    unexpected item is from a ring that was closed again around a learner that died: this learner then waits for good,
    because the lost item exists nowhere. A vector of a batch with fewer than `tokens_most` tokens counts for less.
    """

    outputs = ("passed", "mean")

    @staticmethod
    def schemas(learners: int, *, tokens_most: int) -> dict[str, Any]:
        """The form of the neighbour's items; the first of a step is empty."""
        row = tuple[Annotated[int, ("range", 0, learners - 1)], Annotated[int, ("range", 1, tokens_most)], Count]
        return {"neighbour": Annotated[RingPart, ("needs",), {"trained": list[row]}]}

    def __init__(self, learners: int, *, tokens_most: int) -> None:
        self._learners, self._most = learners, tokens_most
        self._hop = 0
        self._chunks: dict[int, Vector] = {}
        self.is_idle = False

    def open(self, context: Any) -> None:
        """Set the rank of this learner."""
        self._hops = hops(context.member.replica.slot, self._learners)

    def __call__(self, mine: RingPart, neighbour: dict[str, Any]) -> dict[str, Any] | None:
        """One hop."""
        hop = self._hops[self._hop]
        if not self._is_expected(mine, neighbour, hop):
            self.is_idle = True
            return None
        values = neighbour.get("values")
        trained = [*neighbour.get("trained", ()), *mine["trained"]]
        if mine["values"] is not None:
            own = self._weighed(mine["values"], mine["trained"][0][1])
            values = own if values is None else values + own
        assert values is not None
        if hop.is_whole:
            if hop.adds:
                values = values / np.float32(sum(tokens for _, tokens, _ in trained) / self._most)
            self._chunks[hop.chunk] = values
        passed = {
            "step": mine["step"],
            "hop": self._hop,
            "chunk": hop.chunk,
            "values": values,
            "trained": trained,
            "stop": neighbour.get("stop", False) or mine["stop"],
        }
        self._hop += 1
        if self._hop < len(self._hops):
            return {"passed": passed}
        self._hop = 0
        return {"passed": START, "mean": self._mean(passed)}

    def _weighed(self, values: Vector, tokens: int) -> Vector:
        return values if tokens == self._most else values * np.float32(tokens / self._most)

    def _is_expected(self, mine: RingPart, neighbour: dict[str, Any], hop: Hop) -> bool:
        """Whether the neighbour's item is that of the hop before this one, in the same step.

        Where a learner between them has died, it is of another chunk.
        """
        if self._hop == 0:
            return not neighbour
        where = mine["step"], self._hop - 1, hop.chunk
        return bool(neighbour) and (neighbour["step"], neighbour["hop"], neighbour["chunk"]) == where

    def _mean(self, last: dict[str, Any]) -> Mean:
        whole: Sequence[Vector] = [self._chunks[chunk] for chunk in range(self._learners)]
        self._chunks = {}
        trained = sorted(last["trained"])
        return Mean(step=last["step"], values=np.concatenate(whole), trained=trained, stop=last["stop"])

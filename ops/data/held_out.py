"""Which windows of held-out text an evaluation has: the same in every run of one request.

Where a number is given, windows do not overlap: no token is predicted twice, and a short text has few. They are evenly
spaced. Where none is given there are 256, or the next multiple of a batch, which overlap where the text is short.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

TIMES_DEFAULT: Final = 20
"""The most evaluations of a run."""
WINDOWS: Final = 256
"""Where no number is given; in whole batches."""
FORWARD: Final = 3
"""A token costs so many times the operations of its forward pass where it is trained on (arXiv 2001.08361)."""
BATCHES_MIN: Final = 8
"""Given windows are cut into so many batches at least: the error of a loss follows from the means of its batches."""
LOGITS_BYTES: Final = 1 << 27
"""The most bytes that the logits of a batch of several windows take, in float32."""


class Extract(NamedTuple):
    """How much of a held-out text an evaluation reads: so many `windows`, of `there` that do not overlap, and the
    `tokens` that each predicts."""

    windows: int
    there: int
    tokens: int


class HeldOut(NamedTuple):
    """Windows of a text: `batches` of `rows` each, of `there` that do not overlap; None if they may overlap.

    `step`: the tokens between the starts of two windows that do not overlap; `last`: the last possible start.
    """

    batches: int
    rows: int
    there: int | None
    step: int
    last: int

    @property
    def windows(self) -> int:
        """How many there are in all."""
        return self.batches * self.rows

    def starts(self, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each window of a batch begins in the text, int64[rows]."""
        index = np.arange(batch * self.rows, (batch + 1) * self.rows, dtype=np.int64)
        if self.there is None:
            return index * self.last // max(self.windows - 1, 1)
        return index * self.there // self.windows * self.step


def overlapping(tokens: int, length: int, rows: int, batches: int | None = None) -> HeldOut:
    """256 windows of `length` tokens, or the next multiple of `rows`; or so many `batches`."""
    return HeldOut(-(-WINDOWS // rows) if batches is None else batches, rows, None, 0, tokens - length)


def apart(tokens: int, length: int, most: int, vocabulary: int) -> HeldOut:
    """`most` windows of `length` tokens that do not overlap, or all that there are; in whole batches.

    A window predicts all of its tokens but the first, which the window before may predict. A batch has as many as its
    logits leave memory for, where that leaves `BATCHES_MIN` batches.
    """
    there = windows_in(tokens, length)
    windows = min(most, there)
    rows = min(max(LOGITS_BYTES // (4 * length * vocabulary), 1), max(windows // BATCHES_MIN, 1))
    return HeldOut(windows // rows, rows, there, length - 1, tokens - length)


def windows_in(tokens: int, length: int) -> int:
    """How many windows of `length` tokens, that do not overlap, a text has."""
    return max(tokens - 1, 0) // (length - 1)

"""What an island asks of a store through which it reaches its home (`--via`): requests, their price, and the delay.

It decides nothing; the numbers follow from the interval at which both ends write and look (`bucket_process`).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from isthmus.programs.engine.machine.bucket_passage import OBJECT_BYTES_MAX
from isthmus.programs.engine.machine.bucket_process import LOOK_INTERVALS, REMOVE_SECONDS

REQUEST_SECONDS: Final = 0.2
"""Of a distant store, which is assumed."""
WRITE_PRICE: Final = 0.005 / 1000
"""Dollars for an object that is put, or a listing: S3 Standard, us-east-1, 2026. R2 takes 10 % less, MinIO nothing."""
READ_PRICE: Final = 0.0004 / 1000
AWAY_SHARE: Final = 0.2
"""Of the steps, that are overwritten while a fragment is away: four fifths are merged."""


class BucketLoad(NamedTuple):
    """The most requests an hour of one island and of its home for it, their price in dollars an hour, and the seconds
    in which an answer of the home to the island comes."""

    writes: float
    reads: float
    lists: float
    removals: float
    price_per_hour: float
    round_trip_seconds: float

    def overlap(self, step_seconds: float) -> int:
        """The steps for which a fragment is away."""
        return math.ceil(self.round_trip_seconds / step_seconds)

    def interval(self, step_seconds: float) -> int:
        """The least interval in which four fifths of the tokens are merged."""
        return math.ceil(self.overlap(step_seconds) / AWAY_SHARE)


def bucket_load(every: float, bytes_per_second: float) -> BucketLoad:
    """The load at this interval, with so many bytes a second in both directions together."""
    turns = 3600 / every
    full = 3600 * bytes_per_second / OBJECT_BYTES_MAX
    writes = 2 * turns + full
    reads = 2 * turns + writes  # One that finds nothing in each interval, and one for each object.
    lists, removals = turns / LOOK_INTERVALS, 2 * 3600 / REMOVE_SECONDS
    price = (writes + lists) * WRITE_PRICE + reads * READ_PRICE
    return BucketLoad(writes, reads, lists, removals, price, 2 * (every + 2 * REQUEST_SECONDS))

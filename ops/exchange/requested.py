"""What a shard requests of its learners, round by round, and the formats that it can request, by name; and the
kinds of numbers in it, which messages have, too.

Here are no arrays: whoever reads this in a run folder needs no numpy, which takes long to import.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypedDict

Count: TypeAlias = Annotated[int, ("range", 0)]
Ordinal: TypeAlias = Annotated[int, ("range", 1)]
"""A number that counts from 1, as incarnations do."""
Format: TypeAlias = Literal["float32", "bf16", "int8", "int4", "int2", "int1"]
"""The format of a vector as it travels."""


class RequestedSettings(TypedDict):
    """The requests of a shard whose settings follow its links, in a round.

    The format of each slot's answer, [slot, format], that of the update, and interval and overlap in inner steps.
    """

    push: list[Annotated[list[Any], tuple[Count, Format]]]
    update: Format
    interval: Ordinal
    overlap: Count

"""The batch of a run on accelerators where nobody says it: none with which a step would wait for the device's memory,
and one that its islands can divide.

The batch that follows from the tokens (`sweeps`) is as small as merges want it, down to one sequence, and on an
accelerator a step of so few tokens takes as long as one of more. So a default batch has at least as many tokens a step
as fill the device by the table of devices, or BATCHES' largest; with these the interval is shortened in its stead, as
`sweeps` does for any batch. What was chosen, and what it costs, is told beside the setting. Where a card is not in the
table the batch follows from the tokens alone, and that is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.cluster.devices import Device
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import decimal
from isthmus.programs.sweeps import BATCHES
from isthmus.runtime.ids import LEARNER

BATCH: Final = "task.batch"
LOSS: Final = "on nano twice the batch cost .025 to .104 nats a byte"
"""At as many merges, at 1.02 and .255 million tokens (docs/decisions/0058-sweeps.md)."""


class FilledBatch(NamedTuple):
    """A batch of so many sequences, and `told`: why not the one that follows from the tokens, and what that costs."""

    sequences: int
    told: str


def filled(batch: int, tokens: int, device: Device, devices: int) -> FilledBatch | None:
    """The default batch on an island of so many devices, where `batch` sequences of `tokens` tokens in all follow from
    the budget; None where these fill it, or nothing is known of it.

    It is `batch` times a power of two, so that what divides that divides it, and at most the largest default.
    """
    filling = device.tokens_filling
    if filling is None or tokens >= filling * devices or batch >= BATCHES[0]:
        return None
    wanted = batch
    while wanted * 2 <= BATCHES[0] and tokens * (wanted // batch) < filling * devices:
        wanted *= 2
    # A step takes as long as one that fills the device, or longer: of fewer tokens a step more of them are needed.
    full, more = filling * devices, tokens * wanted // batch
    times = full / tokens / (max(full, more) / more)
    source = "by its published figures" if device.tokens_measured is None else "as measured"
    told = (
        f"not {batch}, by the tokens: a step below {filling:,} tokens waits for the memory of {device.kind}, {source}; "
        f"{batch} would take {decimal(times, 2)} times as long, and {LOSS}"
    )
    return FilledBatch(wanted, told)


def largest_filled(batch: int, tokens: int, machines: Iterable[Machine]) -> FilledBatch | None:
    """The largest of `filled` for the islands of these machines: a batch is one for all."""
    found = [filled(batch, tokens, each.device, each.devices) for each in machines if each.device is not None]
    return max((each for each in found if each is not None), key=lambda each: each.sequences, default=None)


def with_batch(
    request: Request, machines: Iterable[Machine], prepare_again: Callable[[dict[str, Any]], Request], unknown: str = ""
) -> Request:
    """The request with a batch that fills the devices of its islands, where it has the default one; `prepare_again`
    prepares it with these settings of the task in addition.

    `machines`: those with its islands; `unknown`: a card here that is not in the table of devices.
    """
    batch, tokens = request.chosen.get(BATCH), request.job.tokens_per_batch
    if not isinstance(batch, int) or not isinstance(tokens, int):
        return request
    there = [each for each in machines if each.offers(LEARNER)]
    divided = math.lcm(batch, *(each.devices for each in there))  # A batch is one for all.
    found = largest_filled(divided, tokens * divided // batch, there)
    if found is None and divided > batch:
        most = max(each.devices for each in there)
        told = f"not {batch}, by the tokens: an island of {most} devices divides a batch by {most}"
        found = FilledBatch(divided, told)
    if found is not None:
        request = prepare_again({"batch": found.sequences})
        return _told(request, f"{found.sequences} ({found.told})")
    if unknown and batch < BATCHES[0]:
        return _told(request, f"{batch} (by the tokens alone: {unknown} is not in the table of devices)")
    return request


def _told(request: Request, text: str) -> Request:
    chosen: Mapping[str, Any] = {BATCH: text, **request.chosen}
    return replace(request, chosen={**chosen, BATCH: text})

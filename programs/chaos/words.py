"""What came of the programs, in sentences: for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.programs.chaos.comparison import Tried
from isthmus.programs.results.numbers import percent


def headline(tried: Sequence[Tried]) -> Iterator[str]:
    """The share of its goodput that the first program kept, compared with the others."""
    first, *others = tried
    struck = sum(bool(strike.proof) for strike in first.struck.strikes)
    if first.ratio is None or not struck:
        return
    yield (
        f"Under {struck} faults {first.order.program} kept {percent(first.ratio)} of its undisturbed goodput, with "
        f"some learner stepping {percent(first.struck.number('uptime'))} of the time."
    )
    compared = [
        f"{first.ratio / each.ratio:.2f} times the share that {each.order.program} kept ({percent(each.ratio)})"
        for each in others
        if each.ratio
    ]
    if compared:
        yield f"That is {', and '.join(compared)}."

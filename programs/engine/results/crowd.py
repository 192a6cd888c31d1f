"""Which learners of many are shown one by one, and the quantiles that stand for all: on screens, pages and in metrics.

Up to ROWS_MAX all are shown. Of more those that are looked for: the slowest, those that lose the largest share of what
they train, and those in another state than most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

ROWS_MAX: Final = 24
"""As many as fit on a screen."""
EXTREMES: Final = 10
LOST: Final = "lost"
"""The column that many learners have beside the others: the share of what they trained that was not merged."""
QUANTILES: Final = ((0.1, "10 % have at most"), (0.5, "half"), (0.9, "90 %"))
FATES: Final = 5
"""Merged, overlapped, refused, lost, pending: an account of a fragment (`ops.exchange.token_accounts`)."""


def lost_share(report: Mapping[str, Any]) -> float | None:
    """The share of a learner's settled tokens that was not merged; None before any is settled."""
    accounts = [each for each in report.get("accounts") or () if len(each) == FATES]
    merged, others = sum(each[0] for each in accounts), sum(sum(each[1:4]) for each in accounts)
    return others / (merged + others) if merged + others else None


def looked_for(states: Mapping[int, str], *figures: Mapping[int, float | None]) -> list[int]:
    """All slots of `states`, by number, or of many those in another state than most, and those with the largest of each
    of the `figures`."""
    if len(states) <= ROWS_MAX:
        return sorted(states)
    usual = Counter(states.values()).most_common(1)[0][0]
    unlike = sorted(slot for slot, each in states.items() if each != usual)[:EXTREMES]
    return sorted({*unlike, *(slot for each in figures for slot in largest(states, each))})


def largest(slots: Iterable[int], figures: Mapping[int, float | None]) -> list[int]:
    """The slots with the largest figures, of those that have one above 0."""
    known = [(value, -slot) for slot in slots if (value := figures.get(slot)) and math.isfinite(value)]
    return [-slot for _, slot in sorted(known, reverse=True)[:EXTREMES]]


def quantile(values: Iterable[Any], share: float) -> Any:
    """The smallest value that so large a share has at most; None without any."""
    known = sorted(each for each in values if each is not None and math.isfinite(each))
    return known[max(0, math.ceil(share * len(known)) - 1)] if known else None

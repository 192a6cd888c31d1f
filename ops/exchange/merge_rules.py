"""Merge rules: how the units of a model are merged. A new rule is one entry of `RULES`.

A rule is an entry, and everybody else asks the entry: the merge for coefficients and lengths, the outer step whether it
applies, the division into fragments whether rows may be cut, programs and tasks for the names that may be given.

A unit has a rule, and a program a method, which is what happens to all units whose rule `follows_method`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float64: TypeAlias = NDArray[np.float64]
Coefficients: TypeAlias = Callable[[Float64, Float64], Float64]


@dataclass(frozen=True, slots=True)
class MergeRule:
    """One rule: direction = sum_m c_m g_m over contributors m, and what else depends on the rule.

    - `coefficients(weights, lengths)`: c as float64[units, contributors], of weights float64[contributors] and lengths
      float64[units, contributors] of the gradients; None: the weights. The c of one contributor depends on no other:
      so sums begin before all are there.
    - `keeps_length`: the direction is scaled to the mean length of the gradients, unless they nearly cancel: then the
      unit is averaged.
    - `follows_method`: a program may choose another rule for its units, and this one as its method.
    - `steps`: the outer step applies, with its rate and momentum; otherwise the merged value replaces the old one.
    - `cuts_rows`: the unit is embedding-like: its rows may be spread over fragments, which hold no other units.
    """

    name: str
    coefficients: Coefficients | None = None
    keeps_length: bool = False
    follows_method: bool = False
    steps: bool = True
    cuts_rows: bool = False


def _radial(weights: Float64, lengths: Float64) -> Float64:
    return np.divide(weights, lengths, out=np.zeros_like(lengths), where=lengths > 0)


# The weighted average of outer gradients, for embeddings and output heads, and for directions that nearly cancel.
AVERAGE: Final = MergeRule("average", cuts_rows=True)
# The weighted mean of values, for statistics.
MEAN: Final = MergeRule("mean", steps=False)
_ENTRIES: Final = (
    # Radial-directional averaging of outer gradients (arXiv 2604.21428).
    MergeRule("rda", coefficients=_radial, keeps_length=True, follows_method=True),
    AVERAGE,
    MEAN,
)
RULES: Final[Mapping[str, MergeRule]] = {rule.name: rule for rule in _ENTRIES}
LOCAL: Final = "local"
"""In the place of a rule: the leaf never leaves its learner."""
FROZEN: Final = "frozen"
"""In the place of a rule: the leaf is not trained. Every island makes it for itself, and digests tell that all have the
same values; it is neither sent nor kept."""
DEFAULT: Final = next(rule.name for rule in _ENTRIES if rule.follows_method)
"""The rule of a unit for which none is given."""
METHODS: Final = tuple(rule.name for rule in _ENTRIES if rule.steps)
"""The rules that a program may choose for the units that follow its method."""

if TYPE_CHECKING:
    Method: TypeAlias = str
else:
    Method = Literal[METHODS]  # As the type of a setting it lists the valid names.


def is_merged(kind: str | None) -> bool:
    """Whether a leaf of this kind is exchanged; without a rule it would be."""
    return kind not in (LOCAL, FROZEN)


def rule_of(rule: str, method: Method) -> MergeRule:
    """What happens to a unit with a rule, in a program with a method; KeyError if there is none of that name."""
    return RULES[method if RULES[rule].follows_method else rule]

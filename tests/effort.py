"""How much of what is generated is tried: a part in `make test`, everything in `make soak`, less under mutation.

`TESTS_EFFORT` is the share of examples and seeds, in percent; `TESTS_EXAMPLES_MAX` bounds the examples of a property.
Examples and seeds are the same on every machine: the part that is tried is always the same one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import pytest

SHARE: Final = int(os.environ.get("TESTS_EFFORT", "5")) / 100
LEAST: Final = 20
"""What is tried at least, if there is so much and each is short."""
EXAMPLES_MAX: Final = int(os.environ.get("TESTS_EXAMPLES_MAX", sys.maxsize))


def examples(everything: int, least: int = LEAST) -> int:
    """So many examples of a property, of `everything` that `make soak` tries; `least` where each takes long."""
    return min(_part(everything, least), EXAMPLES_MAX)


def seeds(everything: int, least: int = LEAST) -> range:
    """Seeds from 0, of `everything` that `make soak` tries; `least` where each takes long."""
    return range(_part(everything, least))


def _part(everything: int, least: int) -> int:
    return min(everything, max(least, round(SHARE * everything)))


def every(moments: range) -> range:
    """Moments at which something is broken, of `moments` that `make soak` tries: without it every third."""
    return moments if SHARE >= 1 else moments[::3]


def slow(*values: Any) -> Any:
    """Values of parameters that `make test` tries, and `make quick` does not."""
    return pytest.param(*values, marks=pytest.mark.slow)


def long(*values: Any) -> Any:
    """Values of parameters that only `make long` tries."""
    return pytest.param(*values, marks=pytest.mark.long)


def soaked(*values: Any) -> Any:
    """Values of parameters that only `make soak` tries."""
    return pytest.param(*values, marks=pytest.mark.soak)

"""Gives memory that malloc keeps, and nobody uses, back to the kernel.

XLA's CPU backend has its arrays from malloc, which keeps what is freed below 32 MB for those that come later: after
compiling, and after a state was made anew, that is as much as some states, and nothing comes that would take it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # Other C libraries than glibc have none.


def give_back() -> None:
    """Have malloc keep nothing that is free."""
    _trim()(0)

"""Running an event loop in the thread of a test.

An exception in a callback of a loop does not end `run_forever`: the loop hands it to its exception handler and goes on.
So a test whose condition raises, or whose time limit's signal comes during a callback, would run for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.patience import PATIENCE


def run_until(loop: asyncio.AbstractEventLoop, holds: Callable[[], object], seconds_max: float = PATIENCE) -> None:
    """Run a loop until something holds; AssertionError if it does not in time. What a callback raises, this raises."""
    raised: list[BaseException] = []
    is_held = False
    deadline = loop.time() + seconds_max

    def fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        raised.append(context.get("exception") or AssertionError(context["message"]))
        loop.stop()

    def look() -> None:
        nonlocal is_held
        is_held = bool(holds())  # Not once more below: other callbacks of this turn may end it.
        if is_held or loop.time() > deadline:
            loop.stop()
        elif not raised:
            loop.call_later(0.002, look)

    before = loop.get_exception_handler()
    loop.set_exception_handler(fail)
    try:
        loop.call_soon(look)
        loop.run_forever()
    finally:
        loop.set_exception_handler(before)
    if raised:
        raise raised[0]
    assert is_held, f"it did not come to hold within {seconds_max} s"

"""How long tests wait for what must come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 300.0
"""Seconds, on a machine of which every core has ten others to serve. Only a test that fails waits so long: none
measures time by it."""


def wait_for(what: Callable[[], Any], seconds_max: float = PATIENCE) -> Any:
    """The first true result of `what`."""
    pause, until = threading.Event(), time.monotonic() + seconds_max
    while not (found := what()):
        assert time.monotonic() < until, "it did not come about"
        pause.wait(0.02)
    return found

"""A function that a learner calls on its devices, for callers that compile it without calling it."""

from __future__ import annotations

from typing import Any, NamedTuple


class DeviceCall(NamedTuple):
    """A jitted function, with arguments as shapes and shardings.

    The first argument is the part of the learner's state that it takes. `is_step` marks functions that every step
    calls. `batch` is the index of the argument that is a batch, None if none is.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...]
    is_step: bool = False
    batch: int | None = None

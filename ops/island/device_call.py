"""A function that a learner calls on its devices, for who compiles it without calling it."""

from __future__ import annotations

from typing import Any, NamedTuple


class DeviceCall(NamedTuple):
    """A jitted function, with arguments as shapes that say where they lie. The first argument is what of the learner's
    state it takes; `is_step` for what every step calls; `batch` the number of the argument that is a batch, if one
    is."""

    name: str
    function: Any
    arguments: tuple[Any, ...]
    is_step: bool = False
    batch: int | None = None

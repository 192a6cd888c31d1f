"""Which files of Python are the user's: neither ours nor those of libraries. A line in another one helps no user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Final

_HERE: Final = Path(__file__).parent.parent.parent
_LIBRARIES: Final = (
    *(f"{_HERE / package}{os.sep}" for package in ("ops", "programs", "runtime")),
    *(f"{prefix}{os.sep}" for prefix in {sys.prefix: None, sys.base_prefix: None}),
    "<frozen ",
)


def is_users(file: str) -> bool:
    """Whether a file, as tracebacks name it, is the user's."""
    return not file.startswith(_LIBRARIES)


NAME_LENGTH_MAX: Final = 200


def user_places() -> list[tuple[str, int, str]]:
    """File, line and function of the innermost line of the user's in each thread of this process that is in one."""
    places: dict[tuple[str, int, str], None] = {}
    for frame in sys._current_frames().values():
        place: FrameType | None = frame
        while place is not None and not is_users(place.f_code.co_filename):
            place = place.f_back
        if place is not None:
            name = place.f_code.co_name[:NAME_LENGTH_MAX]
            places[place.f_code.co_filename[-NAME_LENGTH_MAX:], place.f_lineno, name] = None
    return list(places)

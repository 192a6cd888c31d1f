"""The origin of an exception: as a record, which travels in place of a traceback, and the line to blame.

The traceback of an error in a body is mostly ours and that of libraries. The last line of it that is neither is where
the body's author has to look; if there is none, the last line of all. The whole text goes to the host's log.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Final

from isthmus.runtime.supervision.incidents import Raised

LENGTH_MAX: Final = 500
"""Characters of a message: a longer one contains an array."""
_HERE: Final = Path(__file__).parent.parent
LIBRARIES: Final = (
    *(f"{_HERE / package}{os.sep}" for package in ("ops", "programs", "runtime")),
    *(f"{prefix}{os.sep}" for prefix in {sys.prefix: None, sys.base_prefix: None}),
    "<frozen ",
)
"""Prefixes of files that are not the user's: a line in them does not help the user."""


def line_of(error: BaseException) -> tuple[str, int]:
    """The file and line to look at; '' and 0 for an exception that was never raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    if not frames:
        return "", 0
    frame = (foreign or list(frames))[-1]
    return frame.filename, frame.lineno or 0


def raised(node: str, error: BaseException | None) -> Raised:
    """The record of an exception in a node."""
    if error is None:
        return Raised(node, "", "unknown", "", 0)
    file, line = line_of(error)
    return Raised(node, type(error).__qualname__, _text(str(error)), _text(file), line)


def untold(node: str, story: str) -> Raised:
    """The record of a failure without an exception of a body: the last line of its story."""
    return Raised(node, "", _text((story.strip().splitlines() or ["unknown"])[-1]), "", 0)


def _text(text: str) -> str:
    """The text as one line that can be encoded."""
    return " ".join(text.split()).encode(errors="backslashreplace").decode()[:LENGTH_MAX]

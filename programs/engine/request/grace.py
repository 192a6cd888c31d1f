"""The end by signals: the grace, the time from a notice to leave until all processes of a run, or of a machine, have
ended; and how a run ends by a second Ctrl-C."""

from __future__ import annotations

from typing import Final

from isthmus.runtime.errors import ConfigError

SECOND: Final = "ended at once by a second Ctrl-C"
GRACE_SECONDS: Final = 20.0
GRACE_SECONDS_MIN: Final = 2.0
"""Two beats for an answer, and the time to write the last files of a small run."""


def checked_grace(value: float) -> float:
    """The grace that a user asks for; ConfigError for one that is too short for an answer."""
    if not GRACE_SECONDS_MIN <= value < float("inf"):
        do = "A learner answers within some steps and a merge; what does not fit is as after a kill."
        raise ConfigError("Reading --grace", f"{GRACE_SECONDS_MIN:g} seconds or more", f"{value:g}", do)
    return value

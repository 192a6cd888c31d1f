"""Absences in words: what became of a host, what that means for the others, and what it cost."""

from __future__ import annotations

from typing import Final

from isthmus.programs.command.absences import Absence, silence
from isthmus.programs.command.report_numbers import seconds

_MEANWHILE: Final = {
    "learner": "the others go on without it",
    "syncer": "learners go on stepping, and nothing is merged",
    "evaluator": "training goes on, and nothing is evaluated",
    "recorder": "training goes on, and nothing is written down",
}
_AGAIN: Final = {
    "learner": "steps again",
    "syncer": "merges again",
    "evaluator": "evaluates again",
    "recorder": "writes again",
}


def named(host: str) -> str:
    """'learner/2' as people say it."""
    return host.replace("/", " ")


def away(absence: Absence) -> str:
    """What happened, and what it means for the others: a sentence without its dot."""
    if absence.kind == "replaced":
        return "the daemon died; a new one has taken over its hosts, which went on meanwhile"
    meanwhile = _MEANWHILE.get(absence.role, "the others go on")
    lives = f", {absence.lives_lost} lives in a row" if absence.lives_lost > 1 else ""
    if absence.kind == "silent":
        return f"{named(absence.host)} is silent (suspect): {cause(absence)}"
    return f"{named(absence.host)} {cause(absence)}{lives}; {meanwhile}"


def back(absence: Absence) -> str:
    """How it came back: a sentence without its dot; '' if it did not, or was not away."""
    if absence.seconds is None or absence.kind == "replaced":
        return ""
    took = seconds(absence.seconds)
    if absence.kind == "silent":
        return f"{named(absence.host)} is heard again, after {took}"
    told = f"{named(absence.host)} {_AGAIN.get(absence.role, 'is there again')} after {took}"
    if absence.role == "syncer":
        return (
            f"{told}, under epoch {absence.life_after}: it has the newest fragments that learners held; "
            "its momentum was lost and is zero"
        )
    return f"{told}, as life {absence.life_after}"


def cause(absence: Absence) -> str:
    """Why a host was away, in words that follow its name."""
    text = absence.cause
    quiet = silence(text)
    if quiet is not None:
        length = seconds(quiet)
        is_condemned = text.startswith("killed: ")
        return (
            f"was silent for {length}, and was killed by the daemon" if is_condemned else f"no heartbeat for {length}"
        )
    if text.startswith("killed"):
        return f"was {text}"
    return text


def cost(absence: Absence) -> str:
    """What was lost with it, apart from time and tokens."""
    if absence.kind == "replaced":
        return "nothing"
    if absence.kind == "silent":
        return "nothing but the time"
    return {
        "learner": "what it had trained since its last merged answers; its optimizer's moments",
        "syncer": "its momentum, which is zero at the beginning of an epoch; answers that were under way",
        "evaluator": "evaluations that were due meanwhile",
        "recorder": "what was not yet written down",
    }.get(absence.role, "what it held")

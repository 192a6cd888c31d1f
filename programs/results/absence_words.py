"""Absences in words: the fate of a host, its consequences for the others, and the cost.

The fate is an incident, whose words are those of `incident_words`. The consequences for the others depend on which
hosts wait for which in the program (`who_waits`); where that is not known, they are left out.
"""

from __future__ import annotations

from typing import Final

from isthmus.programs.results.absences import Absence
from isthmus.programs.results.incident_words import predicate
from isthmus.programs.results.numbers import seconds
from isthmus.programs.results.who_waits import Others, Waiting
from isthmus.runtime.ids import LEARNER, SYNCER

_OTHERS_GONE: Final[dict[Others, str]] = {
    "go on": "the others go on without it",
    "wait for rounds": "the others no longer wait for it",
    "wait": "the others wait for it",
}
_OTHERS_SILENT: Final[dict[Others, str]] = {
    "go on": "",
    "wait for rounds": "the others may have to wait for it",
    "wait": "the others wait for it",
}
_MEANWHILE: Final = {
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
    """The replica 'learner/2' in words: 'learner 2'."""
    return host.replace("/", " ")


def away(absence: Absence, waiting: Waiting | None, *, is_known: bool = False) -> str:
    """The event and its effect on the others: a sentence without its full stop.

    `is_known`: the host's error was shown before, for this host or another, and is not repeated.
    """
    if absence.kind == "replaced":
        return "the daemon died; a new one has taken over its hosts, which went on meanwhile"
    meanwhile = others_meanwhile(absence, waiting)
    lives = f", {absence.lives_lost} lives in a row" if absence.lives_lost > 1 else ""
    if absence.kind == "silent":
        return f"{named(absence.host)} {cause(absence)}{meanwhile}"
    why = "failed in the same way" if is_known else cause(absence)
    return f"{named(absence.host)} {why}{lives}{meanwhile}"


def others_meanwhile(absence: Absence, waiting: Waiting | None) -> str:
    """'; ' and the others' behaviour; '' if it is unknown or obvious."""
    is_silent = absence.kind == "silent"
    if absence.role == LEARNER:
        told = "" if waiting is None else (_OTHERS_SILENT if is_silent else _OTHERS_GONE)[waiting.others]
    elif absence.role == SYNCER and waiting is not None and waiting.is_for_syncer:
        told = "learners wait for it"
    elif is_silent or (absence.role == SYNCER and waiting is None):
        told = ""
    elif absence.role == SYNCER:
        told = "learners go on stepping, and its fragments are not merged"
    else:
        told = _MEANWHILE.get(absence.role, "")
    return f"; {told}" if told else ""


def back(absence: Absence) -> str:
    """The host's return: a sentence without its full stop; '' if it did not return, or was not away."""
    if absence.seconds is None or absence.kind == "replaced":
        return ""
    took = seconds(absence.seconds)
    if absence.kind == "silent":
        return f"{named(absence.host)} is heard again, after {took}"
    told = f"{named(absence.host)} {_AGAIN.get(absence.role, 'is there again')} after {took}"
    if absence.role == SYNCER:
        return (
            f"{told}, under epoch {absence.life_after}: it has the newest fragments that hosts held, and what the "
            "recorder keeps of their momentum"
        )
    return f"{told}, as life {absence.life_after}"


def cause(absence: Absence) -> str:
    """Why a host was away, in words that follow its name."""
    return predicate(absence.cause)


def cost(absence: Absence) -> str:
    """The loss with an absence, apart from time and tokens."""
    if absence.kind == "replaced":
        return "nothing"
    if absence.kind == "silent":
        return "nothing but the time"
    return {
        "learner": "what it had trained and nobody else has",
        "syncer": "answers that were under way; its momentum, where the recorder has none that fits",
        "evaluator": "evaluations that were due meanwhile",
        "recorder": "what was not yet written down",
    }.get(absence.role, "what it held")

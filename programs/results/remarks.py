"""Events of hosts, or of their daemon, that are no absences: reported separately.

They do not count as failures, but for what was given up.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.programs.results.absence_words import named
from isthmus.programs.results.absences import DAEMON, Fact
from isthmus.programs.results.incident_words import predicate, reason
from isthmus.programs.results.who_waits import Waiting
from isthmus.runtime.supervision.incidents import (
    Ended,
    GivenUp,
    HomeTaken,
    Incident,
    ItemRefused,
    Joined,
    KeepsUp,
    LedgerRemoved,
    MachineTaken,
    NumbersLost,
    ProcessBack,
    ProcessLost,
    ProcessMissing,
    Reformed,
    Slow,
    Starved,
    Superseded,
)

Topic: TypeAlias = Literal["machines", "pace", "data", "given up", "ledger", "items", "island"]
Tone: TypeAlias = Literal["bad", "odd", "good"]
"""The tone of any notice. For absences: a host is gone; it is silent, or a daemon was replaced; it is back."""
_OTHERS_GO_ON: Final = "; the others go on"


class Remark(NamedTuple):
    """A notable fact, at the time of the fact in seconds."""

    at: float
    topic: Topic
    tone: Tone
    text: str


def remark(fact: Fact, waiting: Waiting | None = None) -> Remark | None:
    """The remark on a fact that is no absence; None if it is not worth one."""
    what = fact.what
    match what:
        case Joined():
            return _remark(fact, what, "machines", "good")
        case Ended(end=MachineTaken()):
            return _remark(fact, what, "machines", "odd", _OTHERS_GO_ON)
        case Slow():
            waits = "nobody waits" if waiting is not None and waiting.others == "go on" else "the others wait"
            return _remark(fact, what, "pace", "odd", "" if waiting is None else f"; {waits} for it")
        case Starved():
            return Remark(fact.at, "data", "odd", f"{reason(what)} ({named(fact.host)})")
        case KeepsUp():
            return _remark(fact, what, "pace", "good")
        case GivenUp():
            return _remark(fact, what, "given up", "bad", _OTHERS_GO_ON)
        case ItemRefused():
            return _remark(fact, what, "items", "bad")
        case HomeTaken() | Superseded():
            return Remark(fact.at, "machines", "odd", reason(what))
        case ProcessLost() | ProcessMissing():
            return _remark(fact, what, "island", "odd", _OTHERS_GO_ON)
        case ProcessBack() | Reformed():
            return _remark(fact, what, "island", "good")
        case NumbersLost() | LedgerRemoved():
            return Remark(fact.at, "ledger", "odd", f"the {DAEMON} {predicate(what)}")
        case _:
            return None


def _remark(fact: Fact, what: Incident, topic: Topic, tone: Tone, more: str = "") -> Remark:
    return Remark(fact.at, topic, tone, f"{named(fact.host)} {predicate(what)}{more}")

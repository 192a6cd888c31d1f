"""The absences of hosts from a run, with their times and reasons: a daemon's records of its hosts, as stories.

A daemon writes single incidents (`events.jsonl`): a process ended, was restarted, was silent, was heard again, was
adopted. A person asks how long a host was away. An absence begins when a host ends or falls silent, and ends when it
*works* again: that is no incident of the daemon's, so readers add it (`Works`) from the host's activity. A life that
ends before it worked belongs to the absence that it should have ended; a silence that ends in death is one absence. A
host that goes with its machine is not away (`remarks`).

Times are seconds, from the zero of the caller that feeds the facts; facts come in the order of their times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from isthmus.runtime.supervision.incidents import (
    Adopted,
    BodyFailed,
    Condemned,
    Ended,
    Excused,
    HeardAgain,
    Incident,
    MachineTaken,
    Raised,
    Restarted,
    Suspected,
    of_line,
)

DAEMON: Final = "daemon"

Kind: TypeAlias = Literal["gone", "silent", "replaced"]
"""gone: the process ended; silent: it lives but sends nothing; replaced: a daemon, whose hosts went on without it."""

_ADOPTION_SECONDS_MAX: Final = 15.0
"""Hosts find a new daemon within some seconds: adoptions that are closer together than this are one daemon's."""


@dataclass(frozen=True, slots=True)
class Works:
    """A life of a host has begun to do its work."""


class Fact(NamedTuple):
    """Something that happened to a life of a host: an incident, as the daemon wrote it, or that it works."""

    at: float
    host: str
    life: int
    what: Incident | Works

    @property
    def role(self) -> str:
        """The role of the host."""
        return self.host.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Absence:
    """One absence of a host, and the incident that best explains it. `life` is the one that was lost, `lives_lost`
    counts it and later ones that never began to work.

    `restarted` and `ended` are None until then.
    """

    host: str
    life: int
    kind: Kind
    begun: float
    cause: Incident
    restarted: float | None = None
    ended: float | None = None
    life_after: int | None = None
    lives_lost: int = 1

    @property
    def role(self) -> str:
        """The role of the host."""
        return self.host.partition("/")[0]

    @property
    def error(self) -> Raised | None:
        """The error of a body of the host, if that is the cause."""
        return self.cause.error if isinstance(self.cause, BodyFailed | Ended) else None

    @property
    def seconds(self) -> float | None:
        """Its duration; None if it has not ended."""
        return None if self.ended is None else max(0.0, self.ended - self.begun)


class Absences:
    """All absences so far, in the order in which they became known."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.all: list[Absence] = []
        self._open: dict[str, int] = {}
        self._causes: dict[tuple[str, int], Incident] = {}
        for fact in facts:
            self.take(fact)

    def open_of(self, host: str) -> Absence | None:
        """The open absence of a host; None if it is not away."""
        return self.all[self._open[host]] if host in self._open else None

    def take(self, fact: Fact) -> Absence | None:
        """Take in the next fact; returns the absence that began, ended or changed by it."""
        what = fact.what
        match what:
            case Suspected() | Excused():
                return self._fall_silent(fact, what)
            case HeardAgain():
                known = self.open_of(fact.host)
                return self._change(fact, ended=fact.at) if known is not None and known.kind == "silent" else None
            case Restarted():
                return self._change(fact, restarted=fact.at, life_after=fact.life)
            case Adopted():
                return self._replaced(fact, what)
            case BodyFailed() | Condemned():
                # The cause of an end that is recorded later; the first cause explains most.
                self._causes.setdefault((fact.host, fact.life), what)
                return None
            case Ended():
                return self._end(fact, what)
            case Works():
                return self._work(fact)
            case _:
                return None

    def _fall_silent(self, fact: Fact, what: Suspected | Excused) -> Absence | None:
        """A host falls silent; an excuse is the better cause, even one that no longer holds."""
        if fact.host in self._open:
            return self._change(fact, cause=what) if isinstance(what, Excused) else None
        silence = what if isinstance(what, Excused) else what.silence
        begun = fact.at if silence is None else fact.at - silence.silence_ns / 1e9
        return self._begin(Absence(fact.host, fact.life, "silent", begun, what))

    def _end(self, fact: Fact, what: Ended) -> Absence | None:
        if isinstance(what.end, MachineTaken):
            return None
        cause = self._causes.pop((fact.host, fact.life), what)
        known = self.open_of(fact.host)
        if known is None:
            return self._begin(Absence(fact.host, fact.life, "gone", fact.at, cause))
        if known.kind == "silent":
            return self._change(fact, kind="gone", cause=cause)
        return self._change(fact, cause=cause, lives_lost=known.lives_lost + 1)

    def _work(self, fact: Fact) -> Absence | None:
        known = self.open_of(fact.host)
        if known is None or known.kind == "silent" or fact.life <= known.life:
            return None
        return self._change(fact, ended=fact.at, life_after=fact.life)

    def _replaced(self, fact: Fact, what: Adopted) -> Absence | None:
        """A new daemon has adopted a host; the first of its hosts counts, the others repeat it."""
        last = next((item for item in reversed(self.all) if item.host == DAEMON), None)
        if last is not None and fact.at - last.begun <= _ADOPTION_SECONDS_MAX:
            return None
        life = 1 if last is None else last.life + 1
        told = Absence(DAEMON, life, "replaced", fact.at, what, fact.at, fact.at, life + 1)
        self.all.append(told)
        return told

    def _begin(self, absence: Absence) -> Absence:
        self._open[absence.host] = len(self.all)
        self.all.append(absence)
        return absence

    def _change(self, fact: Fact, **fields: Any) -> Absence | None:
        index = self._open.get(fact.host)
        if index is None:
            return None
        changed = self.all[index] = replace(self.all[index], **fields)
        if changed.ended is not None:
            del self._open[fact.host]
        return changed


def fact_of(line: Mapping[str, Any], zero_ns: int) -> Fact:
    """A line of events.jsonl as a fact, in seconds since `zero_ns`; ValueError if it is none."""
    told = of_line(line)
    return Fact((told.at - zero_ns) / 1e9, str(told.member.replica), told.member.incarnation, told.incident)


def daemons(absences: Sequence[Absence]) -> int:
    """The number of daemons so far, as far as hosts remained to be adopted."""
    return 1 + sum(absence.host == DAEMON for absence in absences)

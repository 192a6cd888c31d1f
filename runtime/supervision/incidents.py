"""What happens to the hosts of a run, as records: how lives end, why they are killed, and what is written down of it.

It decides nothing. `events.jsonl` has an incident a line; a status says the last one of each host; a run that failed
says why with a failure. Sentences about them are made in one place, where people read them (`programs.incident_words`).
Durations are nanoseconds where the name says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.presence import Excuse, Finding, LongExcuse, Pace, Refusal, Silence, Stall

# -- why a life is killed ----------------------------------------------------------------------------------------------


class Unspoken(Finding, frozen=True, tag="unspoken"):
    """Its process said nothing within `limit_ns` of its start."""

    limit_ns: int


class Hurried(Finding, frozen=True, tag="hurried"):
    """It was silent while the run came to its end."""


Verdict: TypeAlias = Silence | LongExcuse | Stall | Unspoken | Hurried


# -- how a life ends ---------------------------------------------------------------------------------------------------


class Exited(Finding, frozen=True, tag="exited"):
    """Its process ended, with `status`, or by `signal` ('SIGKILL'); with neither where nobody can know."""

    status: int | None = None
    signal: str = ""


class Unseen(Finding, frozen=True, tag="unseen"):
    """It ended while nobody looked."""


class NotStarted(Finding, frozen=True, tag="not-started"):
    """Its process could not be started: no memory, or no process left."""

    error: str


class MachineLost(Finding, frozen=True, tag="machine-lost"):
    """Its machine was not heard of for too long (`silence_ns`, 0 where that is not what counted)."""

    machine: str
    silence_ns: int


class MachineTaken(Finding, frozen=True, tag="machine-taken"):
    """Its machine takes part no more."""

    machine: str
    how: Literal["left", "expelled"]


End: TypeAlias = Exited | Unseen | NotStarted | MachineLost | MachineTaken


# -- what happened to a host -------------------------------------------------------------------------------------------


class Suspected(Finding, frozen=True, tag="suspected"):
    """It is silent; without `silence`, what excused its silence does so no more."""

    silence: Silence | None = None


class Excused(Finding, frozen=True, tag="excused"):
    """It has been silent for `silence_ns` and is not to blame: its process `pid` is stopped, or its machine unheard."""

    excuse: Excuse
    silence_ns: int
    pid: int
    machine: str


class HeardAgain(Finding, frozen=True, tag="heard-again"):
    """It speaks again."""

    silence_ns: int


class Slow(Finding, frozen=True, tag="slow"):
    """It steps much more slowly than the others of its role."""

    pace: Pace


class KeepsUp(Finding, frozen=True, tag="keeps-up"):
    """It was slow, and keeps up again."""

    pace: Pace


class BodyFailed(Finding, frozen=True, tag="failed"):
    """A body of it raised; its process ends."""

    error: str


class Condemned(Finding, frozen=True, tag="condemned"):
    """It is killed."""

    verdict: Verdict


class Ended(Finding, frozen=True, tag="ended"):
    """This life is over: why it was killed, if it was, and the error that it told of, if any."""

    end: End
    verdict: Verdict | None = None
    error: str = ""


class Restarted(Finding, frozen=True, tag="restarted"):
    """The next life of its replica has begun."""


class Adopted(Finding, frozen=True, tag="adopted"):
    """A new daemon has taken it over."""


class Joined(Finding, frozen=True, tag="joined"):
    """It joined the run with its machine."""

    machine: str


class GivenUp(Finding, frozen=True, tag="given-up"):
    """No next life is tried: `lives` of it have ended before they came to anything, this one last."""

    lives: int
    last: Ended


class Delayed(Finding, frozen=True, tag="delayed"):
    """Its next life cannot begin yet, and is tried again: the disk does not take its number."""

    error: str


class Refused(Finding, frozen=True, tag="refused"):
    """It is no member of the run."""

    refusal: Refusal


class NumbersLost(Finding, frozen=True, tag="numbers-lost"):
    """The daemon's ledger was lost or torn: numbers of lives go on from `next_number`, which none can have had."""

    next_number: int


Incident: TypeAlias = (
    Suspected
    | Excused
    | HeardAgain
    | Slow
    | KeepsUp
    | BodyFailed
    | Condemned
    | Ended
    | Restarted
    | Adopted
    | Joined
    | GivenUp
    | Delayed
    | Refused
    | NumbersLost
)


# -- why a run fails ---------------------------------------------------------------------------------------------------


class RecorderFailed(Finding, frozen=True, tag="recorder-failed"):
    """The recorder says so: what it had to write could not be written, say."""

    error: str


class Hopeless(Finding, frozen=True, tag="hopeless"):
    """A replica that the run cannot do without ended again and again."""

    host: str
    lives: int
    last: Ended


class Homeless(Finding, frozen=True, tag="homeless"):
    """A replica has no machine any more."""

    host: str
    last: Ended


class Ordered(Finding, frozen=True, tag="ordered"):
    """Somebody had it ended, or could not do what it needs, and says why."""

    reason: str


Failure: TypeAlias = RecorderFailed | Hopeless | Homeless | Ordered


# -- as lines ----------------------------------------------------------------------------------------------------------


class Happened(msgspec.Struct, frozen=True, gc=False):
    """An incident, when and to whom it happened."""

    at: Instant
    member: Member
    incident: Incident


_ENVELOPE: Final = ("at", "host", "incarnation")


def as_line(happened: Happened) -> dict[str, Any]:
    """A line of `events.jsonl`: `at` (nanoseconds), `host`, `incarnation`, and the fields of the incident."""
    member = happened.member
    told: dict[str, Any] = msgspec.to_builtins(happened.incident)
    return {"at": happened.at, "host": str(member.replica), "incarnation": member.incarnation, **told}


def of_line(line: Mapping[str, Any]) -> Happened:
    """What a line says; ValueError if it is none."""
    at, host, incarnation = (line.get(name) for name in _ENVELOPE)
    if not (isinstance(at, int) and isinstance(host, str) and isinstance(incarnation, int)):
        raise ValueError(f"not a line of events.jsonl: expected {', '.join(_ENVELOPE)}, found {dict(line)!r}")
    told = {name: value for name, value in line.items() if name not in _ENVELOPE}
    return Happened(Instant(at), Member(Replica.parse(host), incarnation), incident_of(told))


def incident_of(told: Mapping[str, Any]) -> Incident:
    """The incident that these fields stand for; ValueError if they stand for none."""
    try:
        incident: Incident = msgspec.convert(told, Incident)
    except msgspec.ValidationError as error:
        raise ValueError(f"not an incident: {error}") from None
    return incident


def failure_of(told: Mapping[str, Any]) -> Failure:
    """The failure that these fields stand for; ValueError if they stand for none."""
    try:
        failure: Failure = msgspec.convert(told, Failure)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a failure: {error}") from None
    return failure

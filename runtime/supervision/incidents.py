"""What happens to the hosts of a run, as records: how lives end, why they are killed, and what is written down of it.

It decides nothing. `events.jsonl` has an incident a line; a status says the last one of each host; a run that failed
says why with a failure. Sentences about them are made in one place, `programs.results.incident_words`. Durations are
nanoseconds where the name says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership.messages import Excuse, Finding, LongExcuse, Pace, Refusal, Silence, Stall

# -- why a life is killed ----------------------------------------------------------------------------------------------


class Unspoken(Finding, frozen=True, tag="unspoken"):
    """Its process said nothing within `limit_ns` of its start."""

    limit_ns: int


class Hurried(Finding, frozen=True, tag="hurried"):
    """It was silent while the run came to its end."""


class Unreached(Finding, frozen=True, tag="unreached"):
    """It spoke to its daemon, and had a data connection with none of its `peers` hosts for `lasted_ns`. It was given
    `patience_times` the usual patience."""

    lasted_ns: int
    peers: int
    patience_times: int = 1


class Misbehaved(Finding, frozen=True, tag="misbehaved"):
    """`count` items that it sent to host `by` on `edge` were refused: the first of them at `field` ('' for the whole
    item), where one was `expected` and another `found`."""

    by: str
    edge: str
    field: str
    expected: str
    found: str
    count: int


class Bereft(Finding, frozen=True, tag="bereft"):
    """Process `of` of the island that it is part of has ended, or could not be had: its processes live and end
    together."""

    of: str


class Undermanned(Finding, frozen=True, tag="undermanned"):
    """Of its island `found` processes are there, and it needs `least`: it begins again whole."""

    found: int
    least: int


Verdict: TypeAlias = Silence | LongExcuse | Stall | Unspoken | Hurried | Unreached | Misbehaved | Bereft | Undermanned


# -- what a body raised ------------------------------------------------------------------------------------------------


class Raised(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """An exception of a type named `exception` ('' where there was none), with its `message` in one line, raised in a
    node at this line of a file ('' and 0 where that is not known)."""

    node: str
    exception: str
    message: str
    file: str
    line: int

    @property
    def mistake(self) -> tuple[str, ...]:
        """Equal in two that are the same mistake: of one type, at one line. Messages differ, as by the slot that is in
        them; they count where no line is known."""
        where = (self.file, str(self.line)) if self.file else (self.node, self.message)
        return (self.exception, *where)


def raised_of(told: Any) -> Raised:
    """What these fields stand for; ValueError if they stand for none."""
    try:
        return msgspec.convert(told, Raised)
    except msgspec.ValidationError as error:
        raise ValueError(f"nothing that was raised: {error}") from None


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


class CutOff(Finding, frozen=True, tag="cut-off"):
    """It speaks to its daemon, and has a data connection with none of the `peers` hosts that it is to talk with."""

    peers: int


class Reached(Finding, frozen=True, tag="reached"):
    """It was cut off for `lasted_ns`, and has a data connection again."""

    lasted_ns: int


class Slow(Finding, frozen=True, tag="slow"):
    """It steps much more slowly than the others of its role."""

    pace: Pace


class Starved(Finding, frozen=True, tag="starved"):
    """Its node waits most of the time for what the node `source` makes: `made_ns` for each item, beside which
    everything else in a step takes `rest_ns`."""

    node: str
    source: str
    made_ns: int
    rest_ns: int


class KeepsUp(Finding, frozen=True, tag="keeps-up"):
    """It was slow, and keeps up again."""

    pace: Pace


class BodyFailed(Finding, frozen=True, tag="failed"):
    """A body of it raised; its process ends."""

    error: Raised


class Condemned(Finding, frozen=True, tag="condemned"):
    """It is killed."""

    verdict: Verdict


class Ended(Finding, frozen=True, tag="ended"):
    """This life is over: why it was killed, if it was, and the error that it told of, if any."""

    end: End
    verdict: Verdict | None = None
    error: Raised | None = None


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


class ItemRefused(Finding, frozen=True, tag="item-refused"):
    """An item that it sent was refused."""

    refusal: Misbehaved


class ProcessLost(Finding, frozen=True, tag="process-lost"):
    """A `process` of its island is gone, or silent: it goes on with `processes` of the `whole`."""

    process: str
    processes: int
    whole: int


class ProcessMissing(Finding, frozen=True, tag="process-missing"):
    """A `process` of its island did not come within `waited_ns`: it begins with `processes` of the `whole`."""

    process: str
    waited_ns: int
    processes: int
    whole: int


class ProcessBack(Finding, frozen=True, tag="process-back"):
    """A `process` of its island is there again: it goes on with `processes` of the `whole`."""

    process: str
    processes: int
    whole: int


class Reformed(Finding, frozen=True, tag="reformed"):
    """Its island trains again, with `processes` of the `whole`: nothing was computed for `stall_ns`, and `again` steps
    were made once more."""

    processes: int
    whole: int
    stall_ns: int
    again: int


class NumbersLost(Finding, frozen=True, tag="numbers-lost"):
    """The daemon's ledger was lost or torn: numbers of lives go on from `next_number`, which none can have had."""

    next_number: int


class HomeTaken(Finding, frozen=True, tag="home-taken"):
    """A machine has become the home of the run, in that term, in place of the `former` one, which was lost."""

    home: str
    term: int
    former: str


class Superseded(Finding, frozen=True, tag="superseded"):
    """The run has another home by now, in a later term than that in which this was its home: the hosts here end."""

    home: str
    term: int
    was_term: int


class LedgerRemoved(Finding, frozen=True, tag="ledger-removed"):
    """The daemon's ledger was deleted while it was in use, and was written anew: no number is lost."""


Incident: TypeAlias = (
    Suspected
    | Excused
    | HeardAgain
    | CutOff
    | Reached
    | Slow
    | Starved
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
    | ItemRefused
    | ProcessLost
    | ProcessMissing
    | ProcessBack
    | Reformed
    | NumbersLost
    | HomeTaken
    | Superseded
    | LedgerRemoved
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


class ProgramFailed(Finding, frozen=True, tag="program-failed"):
    """Every learner ended by the same error, one of them `lives` times in a row: it is the program's, or the task's,
    and would be met again."""

    error: Raised
    lives: int


class Homeless(Finding, frozen=True, tag="homeless"):
    """A replica has no machine any more."""

    host: str
    last: Ended


class Unserved(Finding, frozen=True, tag="unserved"):
    """A replica that the run cannot do without served nobody for `lasted_ns`: no life of it began, or none reached the
    hosts that it is to talk with. `why` is what happened to it last."""

    host: str
    lasted_ns: int
    why: Incident | None = None


class Moved(Finding, frozen=True, tag="moved"):
    """The run goes on under another `home`, in that `term`; this was its home until `was_term`. It failed here only."""

    home: str
    term: int
    was_term: int


class Ordered(Finding, frozen=True, tag="ordered"):
    """Somebody had it ended, or could not do what it needs, and says why."""

    reason: str


Failure: TypeAlias = RecorderFailed | Hopeless | ProgramFailed | Homeless | Unserved | Moved | Ordered


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


def starved_of(told: Any) -> Starved | None:
    """What these fields stand for, if there are any; ValueError if they stand for nothing."""
    if told is None:
        return None
    try:
        return msgspec.convert(told, Starved)
    except msgspec.ValidationError as error:
        raise ValueError(f"nobody that is starved: {error}") from None


def incident_of(told: Mapping[str, Any]) -> Incident:
    """The incident that these fields stand for; ValueError if they stand for none."""
    try:
        incident: Incident = msgspec.convert(told, Incident)
    except msgspec.ValidationError as error:
        raise ValueError(f"not an incident: {error}") from None
    return incident

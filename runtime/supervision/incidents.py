"""Records of events at the hosts of a run: ends of lives, reasons for killing them, and incidents.

It decides nothing. `events.jsonl` has an incident a line; a status shows the last one of each host; a failed run states
its reason as a failure. Sentences about them are made in one place, `programs.engine.results.words`. Durations are in
nanoseconds where the name ends in `_ns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.membership_messages import Finding, MemberIncident, MemberVerdict
from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import COUNT_MAX, Count, Member, Name, Replica

TEXT_LENGTH_MAX: Final = 2000
"""Characters of a text that a host reports, such as an error: four times the longest that a body's error has."""
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
EVENTS: Final = "events.jsonl"
"""The file of a run folder with an incident a line."""

# -- verdicts ----------------------------------------------------------------------------------------------------------


class NoFirstHeartbeat(Finding, frozen=True, tag="no-first-heartbeat"):
    """Its process sent no heartbeat within `limit_ns` of its start."""

    limit_ns: int


class NotEnded(Finding, frozen=True, tag="not-ended"):
    """Its host did not end within `limit_ns` of the end of the run, though the user's code did not keep it."""

    limit_ns: int


class Lingered(Finding, frozen=True, tag="lingered"):
    """The user's code kept it from its next step, or from its end, for longer than the run's `setting` allows.

    By 'run.loop_idle_seconds' it did nothing for `lasted_ns`, by 'run.loop_away_max' it lasted that long.
    """

    setting: Name
    lasted_ns: int
    bound_ns: int


class Hurried(Finding, frozen=True, tag="hurried"):
    """It was silent while the run came to its end."""


class Unreached(Finding, frozen=True, tag="unreached"):
    """It sent heartbeats to its daemon, and had a data connection with none of its `peers` hosts for `lasted_ns`.

    It had `patience_times` the usual patience.
    """

    lasted_ns: int
    peers: int
    patience_times: int = 1


class Misbehaved(Finding, frozen=True, tag="misbehaved"):
    """A host refused items of this one."""

    by: str
    """The host that did."""
    edge: str
    """Where they came."""
    field: str
    """Where the first was wrong; '' for the whole item."""
    expected: str
    """What it should have been there."""
    found: str
    """What it was."""
    count: int
    """The number of such items."""


class GangMemberLost(Finding, frozen=True, tag="gang-member-lost"):
    """Process `of` of its island ended or could not be started: the processes of an island live and end together."""

    of: str


class TooFewProcesses(Finding, frozen=True, tag="too-few-processes"):
    """Its island has `processes` left and needs `least`: the whole island starts again."""

    processes: int
    least: int


Verdict: TypeAlias = (
    MemberVerdict
    | NoFirstHeartbeat
    | NotEnded
    | Lingered
    | Hurried
    | Unreached
    | Misbehaved
    | GangMemberLost
    | TooFewProcesses
)


# -- exceptions of bodies ----------------------------------------------------------------------------------------------


class TextPlace(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The text of an error stays on `machine`, in its log of `host`; texts of one `digest` are taken as equal."""

    machine: Name
    host: Name
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}$")]


class Raised(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An exception in a node, at a line of a file."""

    node: Name
    exception: Text
    """Its type, '' where there was none."""
    message: Text
    """One line, '' where its text is `kept` elsewhere."""
    file: Text
    """'' where the place is not known."""
    line: Count
    """0 where the place is not known."""
    kept: TextPlace | None = None
    is_refusal: bool = False
    """A loop of the user's own did what is refused, and the next life would do it again."""

    @property
    def mistake(self) -> tuple[str, ...]:
        """Equal for two occurrences of one mistake: the same type at the same line.

        Messages differ, for example by the slot in them; they count where no line is known.
        """
        text = _digest(self.message) if self.kept is None else self.kept.digest
        where = (self.file, str(self.line)) if self.file else (self.node, text)
        return (self.exception, *where)

    def kept_on(self, machine: str, host: str) -> Raised:
        """The record without its text, which stays on that machine, in the log of that host."""
        return msgspec.structs.replace(self, message="", kept=TextPlace(machine, host, _digest(self.message)))


def _digest(text: str) -> str:
    """Four bytes: they tell texts apart, and fit too many to tell which of them it was."""
    return blake2b(text.encode(), digest_size=4).hexdigest()


def raised_of(plain: Any) -> Raised:
    """The Raised decoded from plain data; ValueError if it is not one."""
    raised: Raised = _decoded(plain, Raised, "a raised error")
    return raised


# -- ends of lives -----------------------------------------------------------------------------------------------------


class CodePlace(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Where a thread of a user's script was: `line` of `file`, in `function`."""

    file: Text
    line: Count
    function: Name


PLACES_MAX: Final = 16
"""Threads of a script of which a record has the place."""


class Exited(Finding, frozen=True, tag="exited"):
    """Its process ended, with `status`, or by `signal` ('SIGKILL'); neither where the status is unknowable.

    `places`: where the threads of a user's script were as we ended it.
    """

    status: Annotated[int, Meta(ge=-COUNT_MAX, le=COUNT_MAX)] | None = None
    signal: Name = ""
    places: Annotated[tuple[CodePlace, ...], Meta(max_length=PLACES_MAX)] = ()


class Unseen(Finding, frozen=True, tag="unseen"):
    """It ended while no daemon watched it."""


class NotStarted(Finding, frozen=True, tag="not-started"):
    """Its process could not be started: no memory, or no process left."""

    error: Text


class MachineLost(Finding, frozen=True, tag="machine-lost"):
    """Its machine was silent for too long (`silence_ns`, 0 where silence was not the cause)."""

    machine: Name
    silence_ns: Count


class MachineTaken(Finding, frozen=True, tag="machine-taken"):
    """Its machine no longer takes part in the run."""

    machine: Name
    how: Literal["left", "expelled"]


End: TypeAlias = Exited | Unseen | NotStarted | MachineLost | MachineTaken


class Departed(Finding, frozen=True, tag="departed"):
    """It left in order, because its `machine` was told to leave ('' for the home); `exited` is how its process ended.

    Homes write it in place of an `Exited`; no station reports it.
    """

    machine: Name
    exited: Exited


class Parted(Finding, frozen=True, tag="parted"):
    """It left in order by itself, as LoopLeft or DataSpent says; `exited` is how its process ended. As with Departed,
    homes write it."""

    exited: Exited


NotedEnd: TypeAlias = End | Departed | Parted
"""An end as the home records it."""


# -- incidents ---------------------------------------------------------------------------------------------------------


class CutOff(Finding, frozen=True, tag="cut-off"):
    """It sends heartbeats to its daemon, and has a data connection with none of its `peers` hosts."""

    peers: int


class Reached(Finding, frozen=True, tag="reached"):
    """It was cut off for `lasted_ns`, and has a data connection again."""

    lasted_ns: int


class Starved(Finding, frozen=True, tag="starved"):
    """Its node waits most of the time for node `source`: `made_ns` for each item, `rest_ns` for the rest of a step."""

    node: Name
    source: Name
    made_ns: Count
    rest_ns: Count


class SameData(Finding, frozen=True, tag="same-data"):
    """It has begun with the data digest of host `other`: both have the same data."""

    other: Name


class BodyRaised(Finding, frozen=True, tag="failed"):
    """One of its bodies raised; its process ends."""

    error: Raised


class Condemned(Finding, frozen=True, tag="condemned"):
    """It is killed."""

    verdict: Verdict


class Ended(Finding, frozen=True, tag="ended"):
    """This life is over: why it was killed, if it was, and the error that it reported, if any; for how long the user's
    code had its thread then, 0 where that had not."""

    end: NotedEnd
    verdict: Verdict | None = None
    error: Raised | None = None
    away_ns: Count = 0


class Restarted(Finding, frozen=True, tag="restarted"):
    """The next life of its replica has begun."""


class Adopted(Finding, frozen=True, tag="adopted"):
    """A new daemon has taken it over."""


class Joined(Finding, frozen=True, tag="joined"):
    """It joined the run with its machine."""

    machine: str


class GivenUp(Finding, frozen=True, tag="given-up"):
    """Its replica gets no next life: `lives` in a row ended before they served, this one last."""

    lives: int
    last: Ended


class WasAway(Finding, frozen=True, tag="was-away"):
    """The user's code kept it from its next step for `away_ns`; of its work before, `tokens` were overwritten as it
    came back: the model had gone on."""

    away_ns: int
    tokens: Count


class Lingers(Finding, frozen=True, tag="lingers"):
    """The user's code has kept it for `lasted_ns`; in `left_ns` it is ended by the run's `setting`, as in Lingered."""

    setting: Name
    lasted_ns: int
    left_ns: int


class NeverStepped(Finding, frozen=True, tag="never-stepped"):
    """Its script has not come to its first step for `waited_ns`."""

    waited_ns: int


class ScriptGoesOn(Finding, frozen=True, tag="goes-on"):
    """Its script makes steps though the run is over; they count for nothing."""


class ScriptUnfinished(Finding, frozen=True, tag="script-unfinished"):
    """Its script did not come to its own end: `last` is how its last life ended."""

    last: Ended


class LoopLeft(Finding, frozen=True, tag="left"):
    """The loop of its user's has ended before the run: it gave what it had to give, and gets no next life. `is_last`:
    no other learner is left, and the run comes to its end."""

    is_last: bool = False


class DataSpent(Finding, frozen=True, tag="data-spent"):
    """It has left in order, and gets no next life: it has trained `tokens`, of data of its own that have `of_tokens`,
    which it may train `epochs_max` times. `is_last`: as of LoopLeft."""

    tokens: Count
    of_tokens: Count
    epochs_max: Annotated[float, Meta(gt=0.0, le=1e12)]
    is_last: bool = False


class Delayed(Finding, frozen=True, tag="delayed"):
    """Its next life cannot begin yet, because the disk does not accept its number; this is retried."""

    error: str


class ItemRefused(Finding, frozen=True, tag="item-refused"):
    """An item that it sent was refused."""

    refusal: Misbehaved


class ProcessLost(Finding, frozen=True, tag="process-lost"):
    """A `process` of its island is gone, or silent: the island continues with `processes` of the `whole`."""

    process: str
    processes: int
    whole: int


class ProcessMissing(Finding, frozen=True, tag="process-missing"):
    """A `process` of its island did not start within `waited_ns`: the island begins with `processes` of the `whole`."""

    process: str
    waited_ns: int
    processes: int
    whole: int


class ProcessBack(Finding, frozen=True, tag="process-back"):
    """A `process` of its island is back: the island continues with `processes` of the `whole`."""

    process: str
    processes: int
    whole: int


class Reformed(Finding, frozen=True, tag="reformed"):
    """Its island trains again, with `processes` of the `whole`: stalled for `stall_ns`, and `again` steps repeated."""

    processes: int
    whole: int
    stall_ns: int
    again: int


class NumbersLost(Finding, frozen=True, tag="numbers-lost"):
    """The daemon's ledger was lost or torn: lives are numbered from `next_number`, above any number ever given."""

    next_number: int


class HomeTaken(Finding, frozen=True, tag="home-taken"):
    """Another machine became the home of the run, in `term`, in place of the `former` one, which was lost."""

    home: str
    term: int
    former: str


class HomeSetAside(Finding, frozen=True, tag="home-set-aside"):
    """The home of the run was told to leave, by a signal: its hosts end, and the next daemon goes on."""


class WentOn(Finding, frozen=True, tag="went-on"):
    """The run goes on after nothing of it had lived for `paused_ns`, which are no time of it: its clock stood still.

    Before this line the times of the run counted from the instant `was_ns`, from it on they count from `zero_ns`.
    `was_over`: it had come to its end before, in order, and no host was cut off.
    """

    paused_ns: Count
    was_ns: int
    zero_ns: int
    was_over: bool = False


class Superseded(Finding, frozen=True, tag="superseded"):
    """The run has another home, in a later `term` than `was_term`, in which this was its home: the hosts here end."""

    home: str
    term: int
    was_term: int


class ReportRefused(Finding, frozen=True, tag="report-refused"):
    """A report of `machine` was dropped as a whole: at `field`, `expected` and `found` describe the difference.

    While it sends no other, its hosts count as silent.
    """

    machine: str
    field: str
    expected: str
    found: str


class SharesUnbounded(Finding, frozen=True, tag="shares-unbounded"):
    """All learners are on so many machines of one party: its share of a merge is not bounded."""

    machines: Count


class SharesBounded(Finding, frozen=True, tag="shares-bounded"):
    """Learners are on machines of several parties again: what each has of a merge is bounded."""

    parties: Count


class LedgerRemoved(Finding, frozen=True, tag="ledger-removed"):
    """The daemon's ledger was deleted while in use, and was rewritten: no number is lost."""


HostIncident: TypeAlias = MemberIncident | CutOff | Reached | Starved | SameData | BodyRaised | ItemRefused
LifeIncident: TypeAlias = Condemned | Ended | Restarted | Adopted | Joined | GivenUp | LoopLeft | DataSpent | Delayed
ScriptIncident: TypeAlias = WasAway | Lingers | NeverStepped | ScriptGoesOn | ScriptUnfinished
IslandIncident: TypeAlias = ProcessLost | ProcessMissing | ProcessBack | Reformed
HomeIncident: TypeAlias = (
    NumbersLost
    | LedgerRemoved
    | HomeTaken
    | HomeSetAside
    | WentOn
    | Superseded
    | ReportRefused
    | SharesUnbounded
    | SharesBounded
)
Incident: TypeAlias = HostIncident | LifeIncident | ScriptIncident | IslandIncident | HomeIncident


# -- failures of runs --------------------------------------------------------------------------------------------------


class RecorderFailed(Finding, frozen=True, tag="recorder-failed"):
    """The recorder reported an error, for example one of writing its files."""

    error: str


class RestartsExhausted(Finding, frozen=True, tag="restarts-exhausted"):
    """A required replica ended again and again."""

    host: str
    lives: int
    last: Ended


class NeverHealthy(Finding, frozen=True, tag="never-healthy"):
    """The run came to its end, but a required replica raised in each of its last `lives` lives, soon after its start,
    and has computed nothing since. It would have been given up, had the run lasted."""

    host: str
    lives: int
    last: Ended


class ProgramFailed(Finding, frozen=True, tag="program-failed"):
    """Every learner ended by the same error, one of them `lives` times in a row.

    The fault is the program's or the task's, and would recur.
    """

    error: Raised
    lives: int


class LoopRefused(Finding, frozen=True, tag="loop-refused"):
    """The user's loop in `host` did what is refused, as to train what it had not announced: it would do it again."""

    host: str
    error: Raised


class ModelsDiffer(Finding, frozen=True, tag="models-differ"):
    """With the last versions of all fragments the leaves of `host` have other values than they: `leaf` is the first."""

    host: str
    leaf: Text


class NoMachineLeft(Finding, frozen=True, tag="no-machine-left"):
    """No machine is left for a replica."""

    host: str
    last: Ended


class Unserved(Finding, frozen=True, tag="unserved"):
    """A required replica served no host for `lasted_ns`: no life of it began, or none reached its peers.

    `why` is its last incident.
    """

    host: str
    lasted_ns: int
    why: Incident | None = None


class SupersededHome(Finding, frozen=True, tag="superseded-home"):
    """The run goes on under another `home`, in `term`; this was its home until `was_term`. It failed only here."""

    home: str
    term: int
    was_term: int


class Ordered(Finding, frozen=True, tag="ordered"):
    """The run was ended on request, or for the lack of something that it needs; `reason` names it."""

    reason: str


ReplicaFailure: TypeAlias = RestartsExhausted | NeverHealthy | NoMachineLeft | Unserved
"""Failures for one required replica, `host`."""
LoopFailure: TypeAlias = LoopRefused | ModelsDiffer
"""Failures because of what a loop of the user's own has done."""
Failure: TypeAlias = ReplicaFailure | LoopFailure | RecorderFailed | ProgramFailed | SupersededHome | Ordered


# -- as lines ----------------------------------------------------------------------------------------------------------


class Happened(msgspec.Struct, frozen=True, gc=False):
    """An incident, with its instant and its member."""

    at: Instant
    member: Member
    incident: Incident


_ENVELOPE: Final = ("at", "host", "incarnation")


def as_line(happened: Happened) -> dict[str, Any]:
    """A line of `events.jsonl`: `at` (nanoseconds), `host`, `incarnation`, and the fields of the incident."""
    member = happened.member
    fields: dict[str, Any] = msgspec.to_builtins(happened.incident)
    return {"at": happened.at, "host": str(member.replica), "incarnation": member.incarnation, **fields}


def of_line(line: Any) -> Happened:
    """The incident of a line, as it is in JSON; ValueError if it is not a line of `events.jsonl`."""
    if not isinstance(line, dict):
        raise ValueError(f"not a line of events.jsonl: expected an object, found {type(line).__name__}")
    at, host, incarnation = (line.get(name) for name in _ENVELOPE)
    are_numbers = all(isinstance(each, int) and abs(each) < _NUMBER_MAX for each in (at, incarnation))
    if not (isinstance(at, int) and isinstance(host, str) and isinstance(incarnation, int) and are_numbers):
        raise ValueError(
            f"not a line of events.jsonl: expected {', '.join(_ENVELOPE)}, found {shortened(str(line), 200)}"
        )
    fields = {name: value for name, value in line.items() if name not in _ENVELOPE}
    return Happened(Instant(at), Member(Replica.parse(host), incarnation), incident_of(fields))


_NUMBER_MAX: Final = 1 << 62
"""Beyond all instants and lives; larger ones are on no tape."""


def incident_of(plain: Mapping[str, Any]) -> Incident:
    """The incident decoded from plain data; ValueError if it is not one."""
    incident: Incident = _decoded(plain, Incident, "an incident")
    return incident


def _decoded(plain: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"not {name}: {error}") from None

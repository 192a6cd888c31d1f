"""Absences of hosts from a run: their times, causes, and consequences for the others, in words; and the remarks on
events that are no absences.

Decides where an absence begins and ends, by the daemon's records (`events.jsonl`), and which hosts wait meanwhile, by
the graph of the run. Times are seconds, from the zero of the caller that feeds the facts, in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from isthmus.programs.engine.results.lines import records
from isthmus.programs.engine.results.words import counted, kind_of, predicate, say, seconds
from isthmus.programs.program_graph import SYNCER
from isthmus.runtime.cores.membership_messages import Excused, Finding, HeardAgain, Suspected
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.supervision.incidents import (
    Adopted,
    BodyRaised,
    Condemned,
    Departed,
    Ended,
    GivenUp,
    HomeSetAside,
    Incident,
    Joined,
    Lingers,
    MachineTaken,
    NeverStepped,
    Parted,
    Raised,
    Restarted,
    ScriptGoesOn,
    Unseen,
    WentOn,
    of_line,
)
from isthmus.runtime.system.files import read_bytes

DAEMON: Final = "daemon"
_WENT_ON: Final = WentOn.__struct_config__.tag.encode()  # type: ignore[union-attr]

Kind: TypeAlias = Literal["gone", "silent", "replaced"]
"""gone: the process ended; silent: it lives but sends nothing; replaced: a daemon, whose hosts continued without it."""

_ADOPTION_SECONDS_MAX: Final = 15.0
"""Hosts find a new daemon within some seconds: adoptions that are closer together than this are one daemon's."""


@dataclass(frozen=True, slots=True)
class Works:
    """A life of a host has begun to do its work."""


@dataclass(frozen=True, slots=True)
class RunCut:
    """A daemon that took over found that no host of the run was left; `lives` are (host, life) of those that ended."""

    lives: tuple[tuple[str, int], ...]


class Fact(NamedTuple):
    """Something that happened to a life of a host: an incident, as the daemon wrote it, or that it works; or, to the
    daemon's run, that it was cut off."""

    at: float
    host: str
    life: int
    what: Incident | Works | RunCut

    @property
    def role(self) -> str:
        """The role of the host."""
        return self.host.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Absence:
    """One absence of a host, and the incident that best explains it. `life` is the one that was lost, `lives_lost`
    counts it and later ones that never began to work.

    `ended` is None until then. `is_cut`: no host was left, and nobody went on or waited; then `begun` is when that was
    found.
    """

    host: str
    life: int
    kind: Kind
    begun: float
    cause: Incident
    ended: float | None = None
    life_after: int | None = None
    lives_lost: int = 1
    is_cut: bool = False

    @property
    def role(self) -> str:
        """The role of the host."""
        return self.host.partition("/")[0]

    @property
    def is_in_order(self) -> bool:
        """Whether nothing failed: a daemon was told to leave, and the next one has taken over."""
        return isinstance(self.cause, HomeSetAside)

    @property
    def error(self) -> Raised | None:
        """The error of a body of the host, if that is the cause."""
        return self.cause.error if isinstance(self.cause, BodyRaised | Ended) else None

    @property
    def seconds(self) -> float | None:
        """Its duration; None if it has not ended."""
        return None if self.ended is None else max(0.0, self.ended - self.begun)


class Absences:
    """All absences so far, in the order in which they became known.

    An absence begins when a host ends or falls silent, and ends when it *works* again: that is no incident of the
    daemon's, so readers add it (`Works`) from the host's activity. A life that ends before it worked belongs to the
    absence that it should have ended; a silence that ends in death is one absence. A host that goes with its machine,
    or with the home, is not away (`remark`).
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.all: list[Absence] = []
        self._open: dict[str, int] = {}
        self._causes: dict[tuple[str, int], Incident] = {}
        self._ended: dict[str, int] = {}
        """Host -> its newest life that has ended."""
        self._set_aside: HomeSetAside | None = None
        """That the home was told to leave, until its next daemon has begun a life, or adopted one."""
        self._taken_over: tuple[float, HomeSetAside] | None = None
        """When the next daemon after such a one was first seen to act."""
        for fact in facts:
            self.add(fact)

    def open_of(self, host: str) -> Absence | None:
        """The open absence of a host; None if it is not away."""
        return self.all[self._open[host]] if host in self._open else None

    def add(self, fact: Fact) -> Absence | None:
        """Take in the next fact; returns the absence that began, ended or changed by it."""
        what = fact.what
        if isinstance(what, Restarted | Adopted) and self._set_aside is not None:
            self._taken_over, self._set_aside = (fact.at, self._set_aside), None
        match what:
            case HomeSetAside():
                self._set_aside = what
                return None
            case Suspected() | Excused():
                return self._fall_silent(fact, what)
            case HeardAgain():
                absence = self.open_of(fact.host)
                return self._change(fact, ended=fact.at) if absence is not None and absence.kind == "silent" else None
            case Restarted():
                return self._change(fact, life_after=fact.life)
            case Adopted():
                return self._replaced(fact, what)
            case BodyRaised() | Condemned():
                # The cause of an end that is recorded later; the first cause explains most.
                self._causes.setdefault((fact.host, fact.life), what)
                return None
            case Ended():
                return self._end(fact, what)
            case Works():
                return self._work(fact)
            case RunCut():
                for host, life in what.lives:
                    if life > self._ended.get(host, 0):
                        self._cut(Fact(fact.at, host, life, Ended(Unseen())))
                return None
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
        if isinstance(what.end, MachineTaken) or fact.life <= self._ended.get(fact.host, 0):
            return None  # In the other case a daemon tells again what the one before it has told.
        self._ended[fact.host] = fact.life
        if isinstance(
            what.end, Departed | Parted
        ):  # What it was silent for is over: it has heard that it was to leave.
            silence = self.open_of(fact.host)
            return self._change(fact, ended=fact.at) if silence is not None and silence.kind == "silent" else None
        cause = self._causes.pop((fact.host, fact.life), what)
        absence = self.open_of(fact.host)
        if absence is None:
            return self._begin(Absence(fact.host, fact.life, "gone", fact.at, cause))
        if absence.kind == "silent":
            return self._change(fact, kind="gone", cause=cause)
        return self._change(fact, cause=cause, lives_lost=absence.lives_lost + 1, is_cut=False)

    def _cut(self, fact: Fact) -> None:
        """The life of a fact ended with the whole run; one absence is over where another begins."""
        self._change(fact, ended=fact.at)
        self._begin(Absence(fact.host, fact.life, "gone", fact.at, Ended(Unseen()), is_cut=True))

    def _work(self, fact: Fact) -> Absence | None:
        absence = self.open_of(fact.host)
        if absence is None or absence.kind == "silent" or fact.life <= absence.life:
            return None
        return self._change(fact, ended=fact.at, life_after=fact.life)

    def _replaced(self, fact: Fact, what: Adopted) -> Absence | None:
        """A new daemon has adopted a host; the first of its hosts counts, the others repeat it."""
        last = next((item for item in reversed(self.all) if item.host == DAEMON), None)
        if last is not None and fact.at - last.begun <= _ADOPTION_SECONDS_MAX:
            return None
        life = 1 if last is None else last.life + 1
        taken = self._taken_over
        is_its = taken is not None and fact.at - taken[0] <= _ADOPTION_SECONDS_MAX
        cause = taken[1] if taken is not None and is_its else what
        absence = Absence(DAEMON, life, "replaced", fact.at, cause, fact.at, life + 1)
        self.all.append(absence)
        return absence

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
    entry = of_line(line)
    return Fact((entry.at - zero_ns) / 1e9, str(entry.member.replica), entry.member.incarnation, entry.incident)


def facts_in(data: bytes, submitted_ns: int, start_ns: int = 0) -> list[Fact | None]:
    """The fact of each line of events.jsonl, None for one that is none, in seconds of the run since `start_ns`.

    `submitted_ns` is the instant from which the times of the run count now; before it went on they had another one. A
    resume that failed may have left a line that never came true.
    """
    facts, zero_ns = list[Fact | None](), submitted_ns
    for line in reversed(list(records(data, dict[str, Any]))):
        fact = None
        with suppress(ValueError, OverflowError):
            fact = None if line is None else fact_of(line, zero_ns + start_ns)
            if fact is not None and isinstance(what := fact.what, WentOn):
                is_true = what.zero_ns == zero_ns
                fact = fact if is_true else fact._replace(what=msgspec.structs.replace(what, paused_ns=0))
                zero_ns = what.was_ns if is_true else zero_ns
        facts.append(fact)
    return facts[::-1]


def has_gone_on(data: bytes) -> bool:
    """Whether a run went on in these lines of events.jsonl, by which its times may count from another instant."""
    return _WENT_ON in data


TAKEOVER_SECONDS: Final = 2.0
"""A daemon that takes over looks for all processes of its machine in one pass, of some hundredths of a second."""


class CutFinder:
    """Finds in facts, in order, where a run was cut off: the ends that no daemon saw are those of all living hosts.

    `hosts` are those with which the run begins; without any nothing is a cut. Facts from such an end on are held until
    it is decided, for TAKEOVER_SECONDS at most. A host that is adopted decides it, too. Where a run goes on that had
    ended in order, no daemon saw the ends of its hosts because it had ended before them: these are no facts.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._living = dict.fromkeys(hosts)
        self._held: list[Fact] = []
        self._ended: set[str] = set()
        """The hosts of a run that had ended in order, until the next daemon has found them gone."""

    def add(self, fact: Fact) -> list[Fact]:
        """Take the next fact; returns those that are decided, with a RunCut in place of the ends that make one."""
        decided = self.due(fact.at)
        if isinstance(fact.what, WentOn) and fact.what.was_over:
            self._ended = set(self._living)
            self._living.clear()
        elif fact.host in self._ended and _is_unseen(fact):
            self._ended.discard(fact.host)
            return decided
        if not self._held and not (self._living and _is_unseen(fact)):
            return [*decided, self._passed(fact)]
        self._held.append(fact)
        unseen = [each for each in self._held if _is_unseen(each)]
        if self._living.keys() <= {each.host for each in unseen}:
            lives = tuple((each.host, each.life) for each in unseen if each.host in self._living)
            cut = Fact(fact.at, DAEMON, 1, RunCut(lives))
            return [*decided, cut, *self._release(without=unseen)]
        return [*decided, *(self._release() if isinstance(fact.what, Adopted) else [])]

    def due(self, now: float) -> list[Fact]:
        """The facts that were held for long enough."""
        is_due = self._held and now - self._held[0].at > TAKEOVER_SECONDS
        return self._release() if is_due else []

    def rest(self) -> list[Fact]:
        """The facts that are held, where no more come."""
        return self._release()

    def _release(self, without: Sequence[Fact] = ()) -> list[Fact]:
        held, self._held = self._held, []
        return [fact for fact in map(self._passed, held) if fact not in without]

    def _passed(self, fact: Fact) -> Fact:
        """The fact; notes who lives after it."""
        match fact.what:
            case Ended() | GivenUp():
                self._living.pop(fact.host, None)
            case Restarted() | Joined() | Adopted() | Works():
                self._living[fact.host] = None
            case _:
                pass
        return fact


def _is_unseen(fact: Fact) -> bool:
    return isinstance(fact.what, Ended) and isinstance(fact.what.end, Unseen) and fact.what.verdict is None


def with_cuts(facts: Iterable[Fact], hosts: Iterable[str]) -> list[Fact]:
    """All facts, in order, with a RunCut wherever a run that begins with these hosts was cut off."""
    cuts = CutFinder(hosts)
    return [*(each for fact in facts for each in cuts.add(fact)), *cuts.rest()]


def hosts_of(folder: Path) -> list[str]:
    """The hosts with which the run of a folder began and, where a resume changed their number, went on: those of all
    its specs; none if no spec can be read."""
    least: dict[str, int] | None = None
    for path in [folder / "spec.json", *sorted(folder.glob("spec-*.json"))]:
        try:
            fields = json.loads(read_bytes(path))
            roles = {str(name): int(count) for name, count in fields.get("spec", fields)["roles"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        least = roles if least is None else {name: min(count, roles.get(name, 0)) for name, count in least.items()}
    return [f"{role}/{slot}" for role, count in sorted((least or {}).items()) for slot in range(count)]


def cut_words(hosts: int) -> str:
    """That a run was cut off: a sentence without its full stop."""
    return f"the run was cut off: {counted(hosts, 'host')} had ended, and none was left"


def daemons(absences: Sequence[Absence]) -> int:
    """The number of daemons so far, as far as hosts remained to be adopted."""
    return 1 + sum(absence.host == DAEMON for absence in absences)


Others: TypeAlias = Literal["go on", "wait for rounds", "wait"]
"""Learners' behaviour while one is away: go on; wait in rounds, which drop dead members; wait for it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Learners' behaviour while another learner is away, and whether they wait while a syncer is."""

    others: Others
    is_for_syncer: bool


def waiting_of(folder: Path) -> Waiting | None:
    """The waiting in the graph of a run folder; None if there is none, or it is no graph."""
    try:
        return waiting_in(json.loads(read_bytes(folder / "graph.json")))
    except (OSError, ValueError):
        return None


def waiting_in(graph: object) -> Waiting | None:
    """The waiting in a graph as in graph.json; None if it is no graph.

    Nodes contain what was proved of them before the start (`blocked_by`). For learners the result concerns their steps:
    where a node of theirs is declared free-running, that one counts; where none is, all do. A firing rule that counts
    votes (`Quorum`) drops members that are known to be dead, so a host that waits in rounds waits for the living only;
    a Queue between learners drops none.
    """
    nodes = graph.get("nodes") if isinstance(graph, Mapping) else None
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        return None
    steps = [node for node in nodes if node.get("role") == LEARNER]
    steps = [node for node in steps if node.get("mode") == "free-running"] or steps
    blockers = {name for node in steps for name in _names(node)}
    # A node of the own host is named only if it may block by itself, which does not depend on other hosts.
    blocking = [node for node in nodes if isinstance(node.get("name"), str) and node["name"] in blockers]
    roles = [node.get("role") for node in blocking if node.get("mode") != "may-block"]
    has_rounds = any(str(node.get("firing")).startswith("Quorum") for node in nodes)
    others: Others = "go on" if LEARNER not in roles else "wait for rounds" if has_rounds else "wait"
    return Waiting(others, SYNCER in roles)


def _names(node: Mapping[str, Any]) -> Iterable[str]:
    """The nodes that can hold up this one."""
    blocked_by = node.get("blocked_by")
    return filter(lambda name: isinstance(name, str), blocked_by) if isinstance(blocked_by, list) else ()


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
    "region": "its learners go on stepping, and the other regions go on without it",
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
        return f"{replaced(absence)}; a new one has taken over its hosts, which went on meanwhile"
    meanwhile = others_meanwhile(absence, waiting)
    lives = f", {absence.lives_lost} lives in a row" if absence.lives_lost > 1 else ""
    if absence.kind == "silent":
        return f"{named(absence.host)} {cause(absence)}{meanwhile}"
    why = "failed in the same way" if is_known else cause(absence)
    return f"{named(absence.host)} {why}{lives}{meanwhile}"


def replaced(absence: Absence) -> str:
    """What happened to a daemon that another has replaced: a sentence without its full stop."""
    return "the daemon had left, as a signal told it to" if absence.is_in_order else "the daemon died"


def others_meanwhile(absence: Absence, waiting: Waiting | None) -> str:
    """'; ' and the others' behaviour; '' if it is unknown or obvious, or there were none."""
    if absence.is_cut:
        return ""
    is_silent = absence.kind == "silent"
    if absence.role == LEARNER:
        clause = "" if waiting is None else (_OTHERS_SILENT if is_silent else _OTHERS_GONE)[waiting.others]
    elif absence.role == SYNCER and waiting is not None and waiting.is_for_syncer:
        clause = "learners wait for it"
    elif is_silent or (absence.role == SYNCER and waiting is None):
        clause = ""
    elif absence.role == SYNCER:
        clause = "learners go on stepping, and its fragments are not merged"
    else:
        clause = _MEANWHILE.get(absence.role, "")
    return f"; {clause}" if clause else ""


def back(absence: Absence) -> str:
    """The host's return: a sentence without its full stop; '' if it did not return, or was not away."""
    if absence.seconds is None or absence.kind == "replaced":
        return ""
    took = seconds(absence.seconds)
    how = f"is heard again, after {took}" if absence.kind == "silent" else again(absence, f"after {took}")
    return f"{named(absence.host)} {how}"


def again(absence: Absence, when: str) -> str:
    """The return of a host that was gone, in words that follow its name; `when` is 'after 4.00 s' or 'at 21.0 s'."""
    does = f"{_AGAIN.get(absence.role, 'is there again')} {when}"
    if absence.role != SYNCER:
        return f"{does}, as life {absence.life_after}"
    return (
        f"{does}, under epoch {absence.life_after}: it has the newest fragments that hosts held, and what the recorder "
        "keeps of their momentum"
    )


def cause(absence: Absence) -> str:
    """Why a host was away, in words that follow its name."""
    return "ended with all others, as the run was cut off" if absence.is_cut else predicate(absence.cause)


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


Topic: TypeAlias = Literal[
    "machines", "pause", "pace", "data", "left", "given up", "ledger", "items", "island", "script"
]
Tone: TypeAlias = Literal["bad", "odd", "good"]
"""The tone of any notice. For absences: a host is gone; it is silent, or a daemon was replaced; it is back."""


class Remark(NamedTuple):
    """A notable fact, at the time of the fact in seconds."""

    at: float
    topic: Topic
    tone: Tone
    text: str


_REMARKS: Final[Mapping[str, tuple[Topic, Tone, str]]] = {
    "joined": ("machines", "good", "{host} {predicate}"),
    "machine-taken": ("machines", "odd", "{host} {predicate}; the others go on"),
    "departed": ("machines", "odd", "{host} {predicate}; the others go on"),
    "slow": ("pace", "odd", "{host} {predicate}[; {waits} for it]"),
    "same-data": ("data", "odd", "{host} {predicate}"),
    "starved": ("data", "odd", "{itself} ({host})"),
    "keeps-up": ("pace", "good", "{host} {predicate}"),
    "given-up": ("given up", "bad", "{host} {predicate}; the others go on"),
    "was-away": ("script", "good", "{host} {predicate}"),
    "lingers": ("script", "bad", "{host} {predicate}"),
    "never-stepped": ("script", "odd", "{host} {predicate}"),
    "goes-on": ("script", "odd", "{host} {predicate}"),
    "script-unfinished": ("script", "bad", "{host} {predicate}"),
    "left": ("left", "odd", "{host} {predicate}; {afterwards}"),
    "data-spent": ("left", "odd", "{host} {predicate}; {afterwards}"),
    "item-refused": ("items", "bad", "{host} {predicate}"),
    "home-taken": ("machines", "odd", "{itself}"),
    "home-set-aside": ("machines", "odd", "{itself}"),
    "went-on": ("pause", "odd", "{itself}"),
    "superseded": ("machines", "odd", "{itself}"),
    "report-refused": ("machines", "odd", "{itself}"),
    "shares-unbounded": ("machines", "odd", "{itself}"),
    "shares-bounded": ("machines", "odd", "{itself}"),
    "process-lost": ("island", "odd", "{host} {predicate}; the others go on"),
    "process-missing": ("island", "odd", "{host} {predicate}; the others go on"),
    "process-back": ("island", "good", "{host} {predicate}"),
    "reformed": ("island", "good", "{host} {predicate}"),
    "numbers-lost": ("ledger", "odd", "the daemon {predicate}"),
    "ledger-removed": ("ledger", "odd", "the daemon {predicate}"),
}
"""By the kind of an incident, or of the end of a life; all others are absences, or not worth a remark."""


def remark(fact: Fact, waiting: Waiting | None = None) -> Remark | None:
    """The remark on a fact that is no absence; None if it is not worth one."""
    what = fact.what
    if not isinstance(what, Finding):
        return None
    kind = kind_of(what.end if isinstance(what, Ended) else what)
    is_of_home = isinstance(what, Ended) and isinstance(what.end, Departed) and not what.end.machine
    if kind not in _REMARKS or is_of_home:  # That the home leaves is a remark of its own, and tells of all its hosts.
        return None
    if isinstance(what, WentOn) and not what.paused_ns:  # Only the clock of the machine is another one.
        return None
    topic, tone, text = _REMARKS[kind]
    waits = None if waiting is None else "nobody waits" if waiting.others == "go on" else "the others wait"
    return Remark(fact.at, topic, tone, say(text, what, host=named(fact.host), waits=waits))


def is_urgent(fact: Fact) -> bool:
    """Whether a user who wants no news has to know: a script makes no step, is about to be ended, or goes on."""
    return isinstance(fact.what, Lingers | NeverStepped | ScriptGoesOn)

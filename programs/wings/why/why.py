"""Finds a merge in a run folder, and reads its records; the run may be in progress.

A merge in words: the one place that words its facts as sentences.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isthmus.ops.step_tokens import StepTokens
from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import alterations, changes, tapes
from isthmus.programs.engine.results.absences import away, waiting_of
from isthmus.programs.engine.results.changes import sentence, settings
from isthmus.programs.engine.results.lines import MergeRecord, ReportLine, read
from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.results.record import read_timeline
from isthmus.programs.engine.results.words import FORMATS, dotted, percent, say, seconds, since, size, whole
from isthmus.programs.program_graph import REGION
from isthmus.programs.update_settings import step_tokens_of
from isthmus.programs.wings.why.merge_facts import (
    NOT_RECORDED,
    AbsentHost,
    DeviceWait,
    Fate,
    MergeFacts,
    RoundAnswer,
    TapedRound,
    Why,
    merge_facts,
    taped_round,
    taped_rounds,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNER, Member, Replica
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_bytes, read_text
from isthmus.runtime.tape.reading import Reading

MERGES: Final = "merges.jsonl"
METRICS: Final = "metrics.jsonl"
_FRAGMENTS_MAX: Final = 16
"""Fragments that a message names before it only counts them."""


@dataclass(frozen=True, slots=True)
class MergeQuery:
    """Which merge: the newest of all, the newest of a `fragment`, or the one that made its version `count` (of the
    newest `epoch` that made one, unless one is named)."""

    fragment: int | None = None
    count: int | None = None
    epoch: int | None = None

    @classmethod
    def of(cls, fragment: int | None, version: str | None, *, is_last: bool) -> MergeQuery:
        """The merge that the options name; ConfigError if they name none. `version` is 'N' or 'EPOCH.N'."""
        doing = "Reading the command line of `isthmus why`"
        if is_last and (fragment is not None or version is not None):
            raise ConfigError(doing, "--last, or --fragment and --version", "both", "Leave one of them out.")
        if version is None:
            return cls(fragment)
        if fragment is None:
            raise ConfigError(doing, "--fragment beside --version", "none", "Name the fragment: --fragment P.")
        epoch, dot, count = version.rpartition(".")
        if not count.isdecimal() or (dot and not epoch.isdecimal()):
            do = "Versions are counted in each fragment; `isthmus why --fragment P` shows its newest one."
            raise ConfigError("Reading --version", "N, or EPOCH.N", repr(version), do)
        return cls(fragment, int(count), int(epoch) if dot else None)


def why(folder: Path, wanted: MergeQuery) -> Why:
    """The run folder's record of one merge; ConfigError, with the existing ones, if it has no such merge."""
    lines = read(folder / MERGES, MergeRecord)
    if not lines:
        do = "A program without a syncer merges nothing; in others the first version comes before the first step."
        raise ConfigError(f"Looking for merges of {folder}", f"some in {MERGES}", "none", do)
    first, *later = _chosen(lines, wanted)
    run = _Run(folder, lines)
    merge = run.facts(first)
    recoveries = [run.facts(line) for line in later]
    away_then = _away(folder, [merge, *recoveries])
    problems = [*run.problems, *_altered(folder, first.time)]
    return Why(str(folder), merge, recoveries, away_then, problems, _host_waits(folder))


def facts_of_many(folder: Path, merges_max: int, answers_max: int) -> list[MergeFacts]:
    """What the run folder tells of many merges, as far as these bounds go: of those first in which a learner was left
    out or refused, then of the newest. Lines that are damaged are left out: the reader of the run reports them."""
    lines = read(folder / MERGES, MergeRecord)
    merges = [line for line in lines if line.kind in ("merge", "final")]
    merges.sort(key=lambda line: (bool(line.left_out or line.refused), line.time), reverse=True)
    learners = max((len(line.voters) for line in merges), default=1)
    chosen = merges[: min(merges_max, answers_max // max(1, learners))]
    run = _Run(folder, lines)
    run.read_ahead(chosen)
    return [run.facts(line) for line in chosen]


def _chosen(lines: Sequence[MergeRecord], wanted: MergeQuery) -> list[MergeRecord]:
    """The requested line, and those that took its version up again."""
    doing = "Looking for a merge"
    mine = [line for line in lines if wanted.fragment in (None, line.fragment)]
    if not mine:
        raise ConfigError(doing, f"fragment {wanted.fragment}", _there_is(lines), "Name one of these with --fragment.")
    if wanted.count is None:
        return [mine[-1]]
    made = [(line.version[0], line) for line in mine if line.version and line.version[1] == wanted.count]
    epoch = wanted.epoch or max((each for each, _ in made), default=0)
    versions = [line for each, line in made if each == epoch]
    if not versions:
        name = f"{wanted.epoch}.{wanted.count}" if wanted.epoch else str(wanted.count)
        expected = f"version {name} of fragment {wanted.fragment}"
        raise ConfigError(doing, expected, _there_is(mine), "Name one of these, or an earlier one.")
    return sorted(versions, key=lambda line: line.kind == "recover")


def _there_is(lines: Sequence[MergeRecord]) -> str:
    """Fragments and their newest versions, in words."""
    newest = {line.fragment: "none" for line in lines}
    newest |= {line.fragment: dotted(line.version) for line in lines if line.version is not None}
    shown = [f"{fragment}: {version}" for fragment, version in sorted(newest.items())][:_FRAGMENTS_MAX]
    more = f" and {len(newest) - _FRAGMENTS_MAX} more" if len(newest) > _FRAGMENTS_MAX else ""
    return f"these fragments with their newest versions: {', '.join(shown)}{more}"


class _Run:
    """The other files about the merges of merges.jsonl, each read once; unreadable ones are among `problems`."""

    def __init__(self, folder: Path, lines: Sequence[MergeRecord]) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._first = list({(line.fragment, line.epoch): line for line in reversed(lines)}.values())
        """The first line of each epoch of a fragment, which says with which version it began."""
        self._tapes: dict[Member, Reading] = {}
        self._rounds: dict[Member, dict[int, TapedRound]] = {}
        self._gamma = _gamma(folder)
        self._changes = changes.read(folder)
        self._by = _answering(folder)
        # An answer of a region has tokens of several slots.
        self._tokens_of_step: StepTokens = _tokens_of_step(folder) if self._by == LEARNER else ()
        self._sizes: dict[str, dict[int, list[float]]] | None = None

    def facts(self, line: MergeRecord) -> MergeFacts:
        """The facts of one line."""
        return merge_facts(
            line,
            self._taped(line),
            lines=self._first,
            gamma=self._gamma,
            tokens_of_step=self._tokens_of_step,
            sizes=self._sizes_to(f"syncer/{line.shard}"),
            changes=self._changes,
            by=self._by,
        )

    def read_ahead(self, lines: Iterable[MergeRecord]) -> None:
        """Find the rounds of these lines on their tapes, in one pass over each."""
        wanted: dict[Member, list[int]] = {}
        for line in lines:
            wanted.setdefault(_shard(line), []).append(line.round)
        for shard, rounds in wanted.items():
            self._rounds[shard] = taped_rounds(self._tape(shard).records, rounds)

    def _tape(self, shard: Member) -> Reading:
        if shard not in self._tapes:
            self._tapes[shard] = self._read(shard)
        return self._tapes[shard]

    def _taped(self, line: MergeRecord) -> TapedRound:
        shard, number = _shard(line), line.round
        tape = self._tape(shard)
        rounds = self._rounds.get(shard, {})
        taped = rounds[number] if number in rounds else taped_round(tape.records, number)
        if tape.segments and taped.closing is None:
            why_not = "it is written twice a second, or was cut off"
            if tape.missing:
                why_not = f"{tape.missing:,} records of it are not kept (run.tape_bytes)"
            self.problems.append(f"The tape of {shard} does not have this round: {why_not}.")
        return taped

    def _read(self, shard: Member) -> Reading:
        """The tape of a life of a shard, as far as it can be read."""
        try:
            file = tapes.of(self._folder, shard)
            if file is not None:
                return tapes.read(file)
            self.problems.append(
                f"The tape of {shard} is not here, so nobody knows when answers came, or on what terms."
            )
        except (OSError, ValueError) as error:
            self.problems.append(f"The tape of {shard} cannot be read: {error}.")
        return Reading(())

    def _sizes_to(self, host: str) -> Mapping[int, Sequence[float]]:
        """The bytes of all answers to a shard, by slot, in their order."""
        if self._sizes is None:
            self._sizes = {}
            try:
                timeline = read_timeline(read_bytes(self._folder / "trace.json"))
            except (OSError, ValueError):
                return {}  # It is written at the end of a run, and may be missing.
            for transfer in sorted(timeline.transfers, key=lambda transfer: transfer.ended):
                role, _, slot = transfer.source.partition("/")
                if role != self._by or transfer.target_port not in ("answer", "values"):
                    continue
                sizes = self._sizes.setdefault(transfer.target, {}).setdefault(int(slot), [])
                if transfer.target_port == "answer":
                    sizes.append(transfer.size_bytes)
                elif sizes:  # Of an answer that was told ahead.
                    sizes[-1] += transfer.size_bytes
        return self._sizes.get(host, {})


def _shard(line: MergeRecord) -> Member:
    """The life of a shard that a line is of."""
    return Member(Replica("syncer", line.shard), line.epoch)


def _gamma(folder: Path) -> float | None:
    """The safety margin of the grace window; None if the run has none."""
    try:
        program = tomllib.loads(read_text(folder / "config.toml"))["program"]
        return float(program["gamma"]) if program.get("grace", True) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _answering(folder: Path) -> str:
    """The role whose answers the syncers of a run merge."""
    try:
        roles = [role["name"] for role in json.loads(read_text(folder / "graph.json"))["roles"]]
        return REGION if REGION in roles else LEARNER
    except (OSError, ValueError, KeyError, TypeError):
        return LEARNER


def _tokens_of_step(folder: Path) -> StepTokens:
    """The tokens of a batch; empty if not recorded, or not the same of every batch."""
    try:
        return step_tokens_of(spec.load(folder).job)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _altered(folder: Path, time: float) -> list[str]:
    """What the run had gone on with by a time that was not as at its beginning."""
    with suppress(OSError):
        memory = books.load(folder, DISK)
        noted = [] if memory is None else memory.alterations
        in_time = [each for each in noted if each.time is None or each.time <= time]
        return [f"The run had gone on with changes {alterations.headline(each)}." for each in in_time]
    return []


def _away(folder: Path, merges: Sequence[MergeFacts]) -> list[AbsentHost]:
    """The hosts that were away while one of the rounds was open."""
    waiting = waiting_of(folder)
    times = [(merge.time if merge.opened is None else merge.opened, merge.time) for merge in merges]
    return [
        AbsentHost(each.host, away(each, waiting), each.begun, each.ended)
        for each in read_absences(folder)
        if any(each.begun <= end and (each.ended is None or each.ended >= begin) for begin, end in times)
    ]


def _host_waits(folder: Path) -> list[DeviceWait]:
    """What hosts have waited for on their devices."""
    newest = {line.learner: line for line in read(folder / METRICS, ReportLine)}
    return [
        DeviceWait(learner, line.incarnation, what, count, seconds)
        for learner, line in sorted(newest.items())
        for what, count, seconds in line.host_waits
    ]


_KINDS: Final = {
    "initial": "the first version",
    "merge": "a merge",
    "final": "the last merge of the run",
    "recover": "the version that learners held, taken up again",
}
_REMARKS: Final = (
    "[{refusal}]",
    "[too long, shortened to {shortened_to:percent} of its length]",
    "[longer than the run permits, clipped to {clipped_to:percent} of its length]",
    "[against all others, for {opposed_merges merge} now]",
    "[late for round {from_round:round}, counted here]",
    "[{late_ms} after the close[; counted in round {counted_in:round}|[; counted in no round: {dropped}]]]",
)
_REMARKS_OF_FATES: Final[Mapping[Fate, str]] = {
    "left out": "live, and no answer of it came",
    "gone": "asked, and not live any more at the close",
    "without steps": "had made no step on this version: weight 0",
}
_ASKED: Final = "{learners}[, in {attempts} attempts][, {opened:since}]; a quorum is {terms.quorum answer}"
_GRACE: Final = (
    "[{terms.grace_ms} granted[ = gamma {terms.gamma:g} x slack {terms.slack_ms}[; a quorum took "
    "{terms.typical_quorum_ms}, the median of {terms.typical_rounds round} before]]"
    "|without end: the round waits for every member that is live]"
)
_DEADLINE: Final = "{required} waited for, [until {terms.deadline_ms} after the opening|without end]"
_PUBLISHED: Final = (
    "{time:since}[, {merge_ms} after the close][{is_empty}; nothing was merged, and the model stays as it was]"
)
_UNDONE: Final = "[life {undone_by} of the shard began with an older version: this is not in the model]"


def head(merge: MergeFacts) -> str:
    """Which merge this is."""
    text = "fragment {fragment}, [version {version:version}|no version]: {what}"
    return say(text, merge, what=_KINDS.get(merge.kind, merge.kind))


def rows(merge: MergeFacts) -> Iterator[tuple[str, str]]:
    """A merge from its opening to its publication: keywords and texts."""
    began = "[{is_later}, which began with version {origin:version}]"
    yield "round", say("{round:round} of syncer/{shard}, life {epoch}" + began, merge, is_later=merge.epoch > 1)
    terms = merge.terms
    if terms is not None:
        attempts = terms.attempts if terms.attempts > 1 else None
        yield (
            "asked",
            say(_ASKED, merge, learners=_named(merge.by, [slot for slot, _ in terms.members]), attempts=attempts),
        )
    if merge.asked is not None:
        yield "settings", settings(merge.asked, merge.by)
    for change in merge.changes:
        yield "changed", f"{sentence(change, merge.by)} ({since(change.time)})"
    if merge.quorum_ms is not None:
        yield "quorum", say("{quorum_ms} after the opening", merge)
    if terms is not None and merge.kind not in ("initial", "recover"):
        yield "grace", say(_GRACE, merge)
    if terms is not None and terms.required:
        yield "deadline", say(_DEADLINE, merge, required=_named(merge.by, terms.required))
    yield "closed", say("[{grace_ms_used:ms} after the quorum: ]{reason}", merge)
    if merge.capped:
        reduced = (
            f"{name}: {percent(before)} of the weight, counts {percent(now)}" for name, before, now in merge.capped
        )
        yield "capped", "; ".join(reduced)
    is_empty = merge.version is None
    yield "told" if is_empty else "published", say(_PUBLISHED, merge, is_empty=is_empty)
    if merge.undone_by is not None:
        yield "undone", say(_UNDONE, merge)


def remark(answer: RoundAnswer) -> str:
    """Further remarks on a learner, or region, in a round."""
    parts = [*(say(each, answer) for each in _REMARKS), _REMARKS_OF_FATES.get(answer.fate, "")]
    return "; ".join(filter(None, parts))


def table(merge: MergeFacts) -> dict[str, list[str]]:
    """Column -> its cells, a row for each answer; columns of which nothing is known are left out."""
    answers = merge.answers
    lives = {answer.incarnation for answer in answers} - {None, 1}
    columns = {
        merge.by: [str(answer.slot) for answer in answers],
        "life": [str(answer.incarnation or "") for answer in answers] if lives else [],
        "answer": [fate(answer) for answer in answers],
        "arrived": [_cell(answer.arrived_ms, FORMATS["ms"]) for answer in answers],
        "tokens": [_cell(answer.tokens, whole) for answer in answers],
        "steps": [_cell(answer.steps, whole) for answer in answers],
        "weight": [_cell(answer.weight, percent) for answer in answers],
        "bytes": [_cell(answer.size_bytes, size) for answer in answers],
    }
    return {name: cells for name, cells in columns.items() if any(cells)}


_WAITED_FOR: Final[Mapping[str, str]] = {
    "step": "the step before",
    "answer": "an answer's copy",
    "scalars": "a step's scalars",
    "leaves": "leaves, to copy them",
    "arrivals": "arrivals, to be adopted",
    "evaluation": "an evaluation",
}


def waits_table(waits: Sequence[DeviceWait]) -> dict[str, list[str]]:
    """Column -> its cells, a row for each thing that a host has waited for on its device; empty if none has."""
    if not waits:
        return {}
    return {
        "learner": [str(each.learner) for each in waits],
        "waited on its device for": [_WAITED_FOR.get(each.what, each.what) for each in waits],
        "times": [whole(each.count) for each in waits],
        "in all": [seconds(each.seconds) for each in waits],
        "each": [seconds(each.seconds / each.count if each.count else None) for each in waits],
    }


def _cell(value: float | None, write: Callable[[float], str]) -> str:
    return "" if value is None else write(value)


def fate(answer: RoundAnswer) -> str:
    """The fate of a learner in a round, in a word or two."""
    return "no steps" if answer.fate == "without steps" else answer.fate


def absence_of(away: AbsentHost) -> str:
    """A host's absence while a round was open, in words."""
    return say("{story} ({begun:seconds}[ to {ended:seconds}])", away)


def notes(why: Why) -> Iterator[str]:
    """Unknown facts, and why."""
    yield from why.problems
    yield f"Not recorded: {', '.join(NOT_RECORDED)}."


def _named(role: str, slots: Sequence[int]) -> str:
    named = ", ".join(map(str, slots))
    return f"{role}{'' if len(slots) == 1 else 's'} {named}" if slots else "nobody"

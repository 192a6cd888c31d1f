"""Figures, incidents, verdicts, ends, failures and differences between books in words: the one place that words them.

Decides sentences and the form of numbers: few digits, a unit; ASCII only as far as names and errors are, because the
fonts and encodings of terminals and logs are unknown. An unknown number (None, NaN, infinite) is a dash. Incidents
travel as records (`runtime.supervision.incidents`), and nothing parses words: `reason` stands by itself, with every
figure that a decision rests on; `predicate` follows the name of a host. No figure is computed here that a record lacks,
and nothing is decided by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.runtime.cores.membership_messages import Finding, Refusal
from isthmus.runtime.supervision import bounds
from isthmus.runtime.supervision.incidents import Failure, Raised, incident_of
from isthmus.runtime.supervision.liveness import HEALTHY
from isthmus.runtime.system.processes import RANKS_HUNG

UNKNOWN: Final = "-"
_SCALES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def is_known(value: float | None) -> bool:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)


def whole(value: float | None) -> str:
    """1,234,567."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}"


def scaled(value: float | None, unit: str = "") -> str:
    """1.23 M, 45.6 k, 789: three digits and a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for scale, prefix in _SCALES:
        if abs(value) >= scale * 0.9995:
            return f"{_digits(value / scale)} {prefix}{unit}"
    text = f"{value:.0f}" if float(value).is_integer() else _digits(value)
    return f"{text} {unit}" if unit else text


def size(value_bytes: float | None) -> str:
    """Bytes: 1.23 GB."""
    return scaled(value_bytes, "B")


def seconds(value: float | None) -> str:
    """850 ms, 12.3 s, 2 min 14 s, 1 h 02 min."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return "-" + seconds(-value)
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{_digits(value * 1e3)} ms" if value >= 9.995e-4 else f"{_digits(value * 1e6)} us"
    if value < 119.5:
        return f"{_digits(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    """0.9912 as 99.1 %; a share below 1 never shows as 100 %, one above 0 never as 0 %."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        # Rounding up to 100 would hide that something is missing.
        return f"{math.floor(value * 100) / 100:.2f} %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def progress(share: float) -> str:
    """0.499 as 49 %: progress, rounded down, so that 100 % means the end."""
    return f"{math.floor(100 * min(max(share, 0.0), 1.0) + 1e-9)} %"


def decimal(value: float | None, digits: int = 3) -> str:
    """A loss or another plain number, with `digits` decimals; 3.23e-9 if it is very small or large."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        factor, _, exponent = f"{value:.2e}".partition("e")
        return f"{factor}e{int(exponent)}"
    return f"{value:.{digits}f}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


LINES_MAX: Final = 4
"""Differences that are shown one by one; summary.json has all of them."""


def book_lines(books: Mapping[str, Any]) -> list[str]:
    """Lines about the books of a summary; none if they agree, and every token was reported."""
    differences = books.get("differences", [])
    lines = [_difference(each) for each in differences[:LINES_MAX]]
    if more := len(differences) - len(lines):
        lines.append(f"{more} more differences between the books are in summary.json")
    if estimate := books.get("unreported_estimate"):
        amount = scaled(estimate)
        lines.append(
            f"about {amount} tokens more were trained by learners that ended before they told of them: an estimate"
        )
    return lines


def untrained(summary: Mapping[str, Any]) -> str:
    """That a run that is done has trained less than its budget; '' where it has not."""
    budget, total = summary.get("tokens_budget"), summary.get("tokens_total")
    if summary.get("outcome") != "done" or not budget or total is None or total >= budget:
        return ""
    return f"{percent(total / budget)} of the budget: the rest was due to learners that ended in the last rounds"


def not_finite(summary: Mapping[str, Any]) -> str:
    """How many batches of a run, and of which learners, had a loss that is not finite; '' where none had, or where it
    was not measured."""
    if not (count := summary.get("losses_not_finite")):
        return ""
    rows = [(row["learner"], row["losses_not_finite"]) for row in summary["per_learner"]]
    by_learner = ", ".join(f"learner {slot} {whole(own)}" for slot, own in rows if own)
    return f"{counted(count, 'loss')} not finite: {by_learner}"


def evaluated_at(figures: Mapping[str, Any]) -> str:
    """Of which tokens the last evaluation of a status or a summary is: 'at 95.8 % of the tokens trained so far', of
    those that count for the budget; '' where that is unknown.

    That is how many of them had been trained, by what the fragments of the evaluated model were told. A model that has
    more than there are now is one that a resume has undone.
    """
    is_over = "tokens_total" in figures
    at, trained = figures.get("eval_tokens_last" if is_over else "eval_tokens"), figures.get("tokens")
    undone = figures.get("tokens_undone") or 0
    if is_over:
        trained = (figures["tokens_total"] or 0) - undone
    if at is None or not trained:
        return ""
    if at > trained and undone:
        return "before the resume, which has undone it"
    so_far = "" if figures.get("outcome") == "done" else " so far"
    return f"at {percent(min(1.0, at / trained))} of the tokens trained{so_far}"


def evaluated_on(figures: Mapping[str, Any]) -> str:
    """The standard error of the last loss, and what was evaluated: '± 0.05, 40 of 310 windows'; '' if unknown."""
    text = "[± {eval_loss_error:decimal}][, {eval_windows:whole} of {eval_windows_there:whole} windows]"
    return say(text, figures).removeprefix(", ")


def begun_from(summary: Mapping[str, Any]) -> str:
    """Of a run that began with a model that was there: which, and what both models have on the held-out data; '' of
    any other run."""
    where, first, last = (summary.get(name) for name in ("begins_from", "eval_loss_initial", "eval_loss_final"))
    if where is None:
        return ""
    if first is None or last is None:
        return f"from {where}"
    change = f"{decimal(abs(last - first))} {'less' if last < first else 'more'}"
    return f"from {where}: its model has {decimal(first)} on the held-out part of these data, this one {change}"


def not_evaluated(summary: Mapping[str, Any]) -> str:
    """Why a run that was evaluated has no loss of its final model; '' where it has, or is never evaluated."""
    last, at = summary.get("eval_loss_last"), summary.get("eval_tokens_last")
    if summary.get("final_evaluation") == "left_out":
        return "the final model was not evaluated, because the run was stopped: `isthmus evaluate RUN` does it"
    if summary.get("final_evaluation") == "not_asked":
        return "no model was evaluated, as run.evaluate says: `isthmus evaluate RUN` evaluates the final one"
    if at is None or summary.get("eval_loss_final") is not None:
        return ""
    if last is None and summary.get("eval_loss_initial") is None:  # Of a task that has no evaluation.
        return ""
    return "the last loss was not finite" if last is None else "the final model was not evaluated"


_FIGURES_FAULTS: Final = {
    "raised": "evaluate_final raised {detail}",
    "no figures": "evaluate_final is to return numbers by name, and returned {detail}",
    "not finite": "not finite: {detail}",
    "late": "evaluate_final did not return in time",
    "ended": "the host that ran evaluate_final ended",
    "stopped": "evaluate_final was left out, because the run was stopped",
}


def without_figures(summary: Mapping[str, Any]) -> str:
    """Why the final model of a run has no figures, or not all; '' where nothing lacks."""
    if (fault := summary.get("final_figures_fault")) is None:
        return ""
    do = "" if fault["kind"] == "not finite" else ": `isthmus evaluate RUN` computes them"
    return _FIGURES_FAULTS[fault["kind"]].format(detail=fault["detail"]) + do


TIMES: Final = {
    "trained_seconds": "training",
    "evaluated_seconds": "waiting for the evaluation of the final model",
    "ending_seconds": "coming to its end",
}


def times(summary: Mapping[str, Any]) -> str:
    """How long a run trained, evaluated and ended, each with its share of the whole: '74.2 s training (97.1 %), 300 ms
    waiting for the evaluation of the final model (0.4 %), 1.90 s coming to its end (2.5 %)'; '' where it made no step.
    """
    lasted = {name: summary[name] for name in TIMES if is_known(summary.get(name))}
    if not (total := sum(lasted.values())):
        return ""
    shown = [(name, each) for name, each in lasted.items() if each or name != "evaluated_seconds"]
    return ", ".join(f"{seconds(each)} {TIMES[name]} ({percent(each / total)})" for name, each in shown)


SOON: Final = 2.0
"""Seconds for which nobody asks what is awaited."""


_AWAITED: Final = {
    "model": "merging the last fragments",
    "reports": "awaiting the last reports",
    "sites": "awaiting what sites find on their own data",
}


def awaited_at_end(ending: Mapping[str, Any], asking: str = "Ctrl-C") -> str:
    """What a run that comes to its end awaits, and how long that takes where it is known; `asking` leaves out what can
    be left out."""
    waited, usual = ending["seconds"], ending["usual_seconds"]
    if ending["awaits"] == "figures":
        how = "for a few seconds at most" if ending["is_stopped"] else f"{asking} leaves it out"
        return f"running evaluate_final, {seconds(waited)} of at most {seconds(usual)}; {how}"
    if ending["awaits"] != "evaluation":
        what = _AWAITED[ending["awaits"]]
        return what + (f", {seconds(waited)} so far" if waited >= SOON else "")
    if ending["is_stopped"]:
        return "evaluating the final model, for a few seconds at most"
    lasts = ""
    if is_known(usual):
        lasts = (
            f", about {seconds(usual - waited)}" if waited < usual else f", longer than the {seconds(usual)} of before"
        )
    return f"evaluating the final model{lasts}; {asking} leaves it out"


def snapshot_lines(faults: Sequence[str]) -> list[str]:
    """Lines about snapshots that could not be read."""
    return [f"damaged, an older one was taken, or none: {fault}" for fault in faults]


_DIFFERENCES: Final = {
    "merges": "merges.jsonl has {recorded} of {shards} merges",
    "steps": "learner {learner}, life {incarnation}: {tokens_reported} tokens reported, its {steps} steps make "
    "{tokens_by_steps}",
    "heard": "learner {learner}, life {incarnation}: {tokens_reported} tokens reported, others have heard of "
    "{tokens_heard}",
    "fates": "learner {learner}, life {incarnation}, fragment {fragment}: {count} of {trained} tokens do not add up; "
    "its account has {learner_merged} merged, the shards' has {shard_merged}",
}


def _difference(difference: Mapping[str, Any]) -> str:
    count = abs(difference.get("difference") or difference.get("gap", 0))
    return say(_DIFFERENCES[difference["kind"]], difference, count=count)


_TOKEN: Final = re.compile(r"\{([\w.]+)(?: (\w+))?(?::([^}]+))?\}(\.?)")
_BRACKETS: Final = re.compile(r"\[([^][]*)\]")
_PLURALS: Final = {"life": "lives", "loss": "losses"}


def dotted(version: Sequence[int]) -> str:
    """A version as people write it: EPOCH.COUNT."""
    return ".".join(map(str, version))


def since(time: float) -> str:
    """An instant of the run, in seconds since its first inner step: 2.50 s after the first step."""
    return f"{seconds(abs(time))} {'before' if time < 0 else 'after'} the first step"


def counted(count: float, noun: str) -> str:
    """1 item, 1,234 items, 2 lives."""
    return f"{whole(count)} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "whole": whole,
    "scaled": scaled,
    "size": size,
    "seconds": seconds,
    "percent": percent,
    "decimal": decimal,
    "decimal2": partial(decimal, digits=2),
    "quoted": repr,
    "version": dotted,
    "since": since,
    "round": lambda number: str(number & 0xFFFFFFFF),
    "ms": lambda value: seconds(value / 1e3),
}


def say(template: str, record: Any, **parts: object) -> str:
    """A sentence from a template, the fields of a record or the keys of a mapping, and `parts` beside them.

    `{name}` is a field in words: a duration (`_ns`, `_ms`), another record, or as it is. `{name noun}` is counted,
    `{name:percent}` is formatted (FORMATS, or as Python does), and a full stop after a field follows no other. Of
    `[one|other]` the first is taken of which every field is there (not None, empty or False), else the last; of `[one]`
    else nothing; brackets may be inside others. A bool has no words, and only decides.
    """

    def value(name: str) -> Any:
        return parts[name] if name in parts else _value(name, record)

    def is_there(text: str) -> bool:
        values = (value(token[1]) for token in _TOKEN.finditer(text))
        return all(each is not None and each is not False and each != "" for each in values)

    def chosen(match: re.Match[str]) -> str:
        choices = match[1].split("|")
        others = choices.pop() if len(choices) > 1 else ""
        return next(filter(is_there, choices), others)

    def worded(match: re.Match[str]) -> str:
        name, noun, form, stop = match.groups()
        field = value(name)
        text = counted(field, noun) if noun else _formatted(field, form) if form else _text(name, field)
        return f"{text.rstrip('.')}." if stop else text

    while _BRACKETS.search(template):  # The innermost first.
        template = _BRACKETS.sub(chosen, template)
    return _TOKEN.sub(worded, template)


def _formatted(value: Any, form: str) -> str:
    return FORMATS[form](value) if form in FORMATS else format(value, form)


def _value(name: str, record: Any) -> Any:
    outer, _, inner = name.rpartition(".")
    if outer:
        record = _value(outer, record)
        return None if record is None else _value(inner, record)
    part = _PARTS.get(name)
    if part is None:
        return record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    return say(part, record) if isinstance(part, str) else part(record)


def _text(name: str, value: Any) -> str:
    if isinstance(value, Finding):
        return reason(value)
    if isinstance(value, Raised):
        return raised(value)
    if isinstance(value, bool):
        return ""
    if name.endswith("_ms"):
        return seconds(value / 1e3)
    return seconds(value / 1e9) if name.endswith("_ns") else str(value)


_REFUSALS: Final[dict[Refusal, str]] = {
    "no slot": "its role has no such slot",
    "gone": "it announced itself as gone",
    "older incarnation": "a newer life of it is known",
    "ended incarnation": "this life of it has ended",
    "unannounced": "it sent a heartbeat before it announced itself",
}
DATA: Final = "data"
"""The node of every shipped program that calls `batch`."""


class Wording(NamedTuple):
    """The templates of a kind: by itself, with every figure that a decision rests on, and after a host's name."""

    itself: str
    predicate: str = "{itself}"


def reason(record: Finding) -> str:
    """A record in words that stand by themselves, with every figure."""
    return say(CATALOGUE[kind_of(record)].itself, record)


def reason_of(plain: Mapping[str, Any]) -> str:
    """An incident as another process tells it, in words; its kind, where that process knows one that this does not."""
    try:
        return reason(incident_of(plain))
    except ValueError:
        return str(plain.get("kind"))


def predicate(record: Finding) -> str:
    """A record in words that follow the name of its host; that of the daemon, where it is about the daemon."""
    return say(CATALOGUE[kind_of(record)].predicate, record)


def kind_of(record: Finding) -> str:
    """The kind of a record, as its lines have it."""
    return str(record.__struct_config__.tag)


def failure(failure: Failure, log: Path | None = None) -> str:
    """Why a run failed: a sentence, or the words of the recorder or of a person; `log` is that of the host that failed
    it."""
    return say(CATALOGUE[kind_of(failure)].itself, failure, log=log)


def text_is_on(machine: str, host: str) -> str:
    """Where a text is that its machine keeps."""
    return f"the text is on machine {machine}, in its log of {host}"


def scripts_again(folder: Path) -> str:
    """What to do about scripts that have not come to their end, in the run folder as it is, or is not, on this machine:
    the machines of a cluster start none again once the run is over."""
    is_alone = (folder / "spec.json").exists() and not (folder / "cluster.json").exists()
    if is_alone:
        return f"`isthmus train --resume {folder}` starts them again with the final model"
    return f"`isthmus export {folder}`, on its home, has the model for what they have not done"


def raised(error: Raised, more: str = "") -> str:
    """A body's error with its place, `more` about it, and where its text is that is not here."""
    where = f" ({error.file}:{error.line})" if error.file else ""
    if error.kept is not None:
        return f"{error.exception or 'an error'}{where}{more}; {text_is_on(error.kept.machine, error.kept.host)}"
    kind = f"{error.exception}: " if error.exception else ""
    return f"{kind}{error.message}{where}{more}"


_PARTS: Final[Mapping[str, str | Callable[[Any], object]]] = {
    "itself": lambda record: reason(record),
    "predicate": lambda record: predicate(record),
    "afterwards": lambda record: "no other is left: the run ends" if record.is_last else "the others go on",
    "source_call": lambda record: "batch()" if record.source == DATA else f"a firing of {record.source}",
    "other_hosts": lambda record: "the other host" if record.peers == 1 else f"any of {record.peers} other hosts",
    "other_paces": lambda record: "the others" if record.others > 1 else "the other",
    "patience": lambda record: record.patience_times if record.patience_times > 1 else None,
    "is_unheard": lambda record: record.excuse == "unheard",
    "is_in_script": lambda record: record.excuse == "away",
    "is_expelled": lambda record: record.how == "expelled",
    "is_only": lambda record: record.lives == 1,
    "exit": lambda record: "ended" if record.status is None else "exited",
    "failing": lambda record: (
        f"{record.status}, because its ranks hung" if record.status == RANKS_HUNG else record.status or None
    ),
    "silent_ns": lambda record: record.silence_ns or None,
    "repeated": lambda record: record.again or None,
    "was_away": lambda record: seconds(record.away_ns / 1e9) if record.away_ns else None,
    "stood": lambda record: seconds(record.paused_ns / 1e9) if record.paused_ns else None,
    "refused": lambda record: _REFUSALS[record.refusal],
    "lingered": lambda record: _LINGERED.get(record.setting, "has lasted"),
    "trained_times": lambda record: f"{record.tokens / record.of_tokens if record.of_tokens else 0:.3g}",
    "most_times": lambda record: f"{record.epochs_max:.3g}",
    "lost_tokens": lambda record: record.tokens or None,
    "where": lambda record: ", ".join(f"{each.file}:{each.line} ({each.function})" for each in record.places) or None,
    "everywhere": lambda record: raised(record.error, ", in every learner, again after a restart"),
    "healthy": lambda record: f"{HEALTHY / 1e9:.0f} s",
    "on_machine": "[ on {machine}]",
    "excused": "[{is_in_script}away in its script, which holds the interpreter|{is_unheard}unheard, because its "
    "machine {machine} does not answer|stopped by a signal or a debugger; "
    "`kill -CONT {pid}`{on_machine} lets it go on, `kill -KILL {pid}` has it replaced]",
    "usually": "{usual_ns} +- {deviation_ns} are usual",
    "fault": "[field {field}, ]expected {expected}, found {found}",
    "starving": "{source_call} takes {made_ns}, a step {rest_ns}",
    "superseding": "the run goes on under another home, {home} (term {term}); this was its home in term {was_term}",
}
"""What templates name beside the fields of a record."""

_LINGERED: Final[Mapping[str, str]] = {
    bounds.IDLE: "its script has done nothing",
    bounds.AWAY: "its script has been away",
    bounds.START: "its process has sent no heartbeat",
    bounds.SILENT: "it has been silent (its code may hold the interpreter)",
    bounds.STUCK: "it has made no step",
    bounds.END: "it has gone on behind the end of the run",
    bounds.GRACE: "it has gone on behind a notice to leave",
}
"""What a bound is about, by its setting."""

CATALOGUE: Final[Mapping[str, Wording]] = {
    # Verdicts
    "silence": Wording(
        "no heartbeat for {silence_ns}: {usually}, phi is {phi:.1f}[{is_longest}, and no silence may last longer]"
        "[, {patience} times the patience]",
        "was silent for {silence_ns}, and was killed by the daemon (run.silent_seconds)",
    ),
    "long-excuse": Wording(
        "no heartbeat for {silence_ns}: {excuse} for {excused_ns}, which is as long as is allowed",
        "was {excuse} for {excused_ns}, which is as long as is allowed, and was killed by the daemon",
    ),
    "stall": Wording(
        "stuck: no step for {stalled_ns}, in one firing of node {node:quoted}: {usually}[{is_of_role} in its role], "
        "phi is {phi:.1f}[, {patience} times the patience]",
        "was stuck, without a step for {stalled_ns} in one firing of its node {node}, and was killed "
        "(run.stuck_seconds)",
    ),
    "no-first-heartbeat": Wording(
        "no word from it within {limit_ns} of its start, as long as run.first_beat_seconds allows",
        "said nothing within {limit_ns} of its start, and was killed by run.first_beat_seconds",
    ),
    "not-ended": Wording(
        "its process did not leave the loop within {limit_ns} of the end of the run, as long as run.end_seconds allows",
        "did not leave its loop within {limit_ns} of the end of the run, and was killed by run.end_seconds",
    ),
    "lingered": Wording(
        "{lingered} for {lasted_ns}: {setting} allows {bound_ns}",
        "was ended by {setting}: {lingered} for {lasted_ns}",
    ),
    "hurried": Wording("silent while the run came to its end", "was {itself}, and was killed"),
    "unreached": Wording(
        "cut off for {lasted_ns}: its heartbeats came, but it has no data connection to {other_hosts}"
        "[, {patience} times the patience]",
        "was cut off for {lasted_ns}, without a data connection to any other host, and was killed",
    ),
    "gang-member-lost": Wording(
        "part of an island whose process {of} is gone",
        "is part of the same island as {of}, which is gone, and was killed",
    ),
    "too-few-processes": Wording(
        "part of an island that needs {least} processes, of which {processes} are there",
        "is {itself}, and was killed to begin again with it",
    ),
    "misbehaved": Wording(
        "sent {count item}, refused by {by} on {edge}: {fault}",
        "sent {count item} that {by} refused, and was killed by the daemon",
    ),
    # Ends
    "exited": Wording(
        "[killed by signal {signal}|exited with status {failing}|{exit}][; it was at {where}]",
        "[was killed by signal {signal}|{itself}]",
    ),
    "unseen": Wording("ended while no daemon watched"),
    "not-started": Wording("could not be started: {error}"),
    "machine-lost": Wording(
        "ended with its machine {machine}, which [has not been heard of for {silent_ns}|does not answer]"
    ),
    "machine-taken": Wording("{how} with its machine {machine}", "[{is_expelled}was ]{itself}"),
    "parted": Wording("left in order", "left in order"),
    "departed": Wording("left in order with [its machine {machine}|its home], which was told to leave"),
    # Incidents
    "suspected": Wording(
        "[{silence}|silent: nothing excuses it any more]",
        "is silent (suspect): [no heartbeat for {silence.silence_ns}|nothing excuses it any more]",
    ),
    "excused": Wording("no heartbeat for {silence_ns}: {excused}", "is {excused}"),
    "heard-again": Wording("heard again after {silence_ns}", "is {itself}"),
    "cut-off": Wording("cut off: it speaks to its daemon, but has no data connection to {other_hosts}", "is {itself}"),
    "reached": Wording("reached again, after it was cut off for {lasted_ns}", "is {itself}"),
    "pace": Wording("{own_ns} a step, {other_paces} {usual_ns}"),
    "slow": Wording("slow: {pace}", "is {itself}"),
    "keeps-up": Wording("keeps up again: {pace}"),
    "same-data": Wording(
        "began with the data of {other}: draw them by island.seed, or divide them by island.slot",
        "began with the data of {other}: draw them by island.seed, or divide them by island.slot",
    ),
    "starved": Wording("data is the bottleneck: {starving}", "waits for its data: {starving}"),
    "failed": Wording("failed: {error}"),
    "condemned": Wording("killed: {verdict}", "{verdict.predicate}"),
    "ended": Wording(
        "[{verdict}; ]{end}[: {error}][, after {was_away} in its script]",
        "[{verdict.predicate}|{end.predicate}: {error}|{end.predicate}][, after {was_away} in its script]",
    ),
    "restarted": Wording("restarted", "was {itself}"),
    "adopted": Wording("adopted by a new daemon", "was {itself}"),
    "joined": Wording("joined with its machine {machine}"),
    "given-up": Wording("given up after {lives life}; the last time: {last}", "was given up after {lives life}"),
    "left": Wording("left: its loop has ended", "has {itself}"),
    "data-spent": Wording(
        "left: it has trained its own data, {of_tokens token}, {trained_times} times of at most {most_times}",
        "has {itself}",
    ),
    "was-away": Wording(
        "back after {away_ns} in its script[; {lost_tokens token} of its work before were overwritten]", "is {itself}"
    ),
    "lingers": Wording(
        "{lingered} for {lasted_ns}: in {left_ns} {setting} ends it",
        "is ended in {left_ns} by {setting}: {lingered} for {lasted_ns}",
    ),
    "never-stepped": Wording(
        "its script has made no step for {waited_ns}: it has to call island.step after each step of the optimizer",
        "has made no step for {waited_ns}: its script has to call island.step after each step of the optimizer",
    ),
    "goes-on": Wording(
        "its script makes steps though the run is over; they count for nothing. Leave the loop: ask island.is_over, or "
        "write `for batch in island(loader)`",
        "makes steps though the run is over; they count for nothing. Leave the loop: ask island.is_over, or write "
        "`for batch in island(loader)`",
    ),
    "script-unfinished": Wording(
        "its script did not come to its end: {last}", "did not come to the end of its script: {last}"
    ),
    "delayed": Wording("not started yet: {error}", "is {itself}"),
    "refused": Wording("refused: {refused}", "was {itself}"),
    "item-refused": Wording("{refusal}"),
    "process-lost": Wording(
        "its island {predicate}", "lost its process {process}, and goes on with {processes} of {whole} processes"
    ),
    "process-missing": Wording(
        "its island {predicate}",
        "begins with {processes} of {whole} processes, without {process}, which did not come within {waited_ns}",
    ),
    "process-back": Wording(
        "its island {predicate}", "has its process {process} back, and goes on with {processes} of {whole} processes"
    ),
    "reformed": Wording(
        "its island {predicate}",
        "trains again with {processes} of {whole} processes, after {stall_ns} without a step"
        "[, and {repeated} steps were made again]",
    ),
    "numbers-lost": Wording(
        "the daemon's ledger was lost or torn: lives are numbered from {next_number} on",
        "lost its ledger, or a part of it: lives are numbered from {next_number} on",
    ),
    "ledger-removed": Wording(
        "the daemon's ledger was deleted while it was in use, and was written anew",
        "wrote its ledger anew, which was deleted while it was in use: no number is lost",
    ),
    "home-taken": Wording(
        "the run's home is {home} (term {term}), in place of {former}, which was lost",
        "is that of {home} (term {term}), in place of {former}, which was lost",
    ),
    "home-set-aside": Wording(
        "the home was told to leave by a signal: its hosts end, and its next daemon goes on",
        "was told to leave by a signal: the hosts of the home end, and its next daemon goes on",
    ),
    "went-on": Wording(
        "the run goes on[, after {stood} in which nothing of it lived: they are no time of it]",
        "goes on with the run[, after {stood} in which nothing of it lived: they are no time of it]",
    ),
    "superseded": Wording("{superseding}", "ended its hosts: {superseding}"),
    "report-refused": Wording(
        "a report of the machine {machine} was dropped: {fault}", "dropped a report of the machine {machine}: {fault}"
    ),
    "shares-unbounded": Wording(
        "all learners are of one party, on {machines} machines: no share of a merge is bounded",
        "bounds no share of a merge: all learners are of one party, on {machines} machines",
    ),
    "shares-bounded": Wording(
        "learners are of {parties} parties: their shares of a merge are bounded again",
        "bounds the shares of a merge again: learners are of {parties} parties",
    ),
    # Failures
    "recorder-failed": Wording("{error}"),
    "ordered": Wording("{reason}"),
    "restarts-exhausted": Wording(
        "{host} ended again and again before it had served for {healthy}; the last time: {last}.[ Look at {log}.]"
    ),
    "never-healthy": Wording(
        "{host} raised in [{is_only}its only life|each of its last {lives} lives], before it had served for {healthy}: "
        "{last}.[ Look at {log}.]"
    ),
    "program-failed": Wording("{everywhere}."),
    "loop-refused": Wording("the loop of {host}: {error}."),
    "models-differ": Wording(
        "the model of {host} is not the one that the run has trained: [{leaf:quoted}|one of its leaves] has other "
        "values after it adopted the last version of every fragment. Look for tensors that share memory, or for code "
        "beside the loop that writes into them. The run's model is in snapshots/final."
    ),
    "no-machine-left": Wording("{host} has no machine any more: {last}."),
    "unserved": Wording("{host} did not serve the run for {lasted_ns}[: {why}]."),
    "superseded-home": Wording("{superseding}."),
}
"""By the kind of a record; `tests/programs/engine/results/test_incident_words.py` holds it total."""


def store_line(store: Any) -> str:
    """A line about a store of a status or a summary that does not take snapshots; '' if it does, or there is none."""
    if not isinstance(store, dict) or not store.get("error"):
        return ""
    text = "snapshots do not reach {url}: {error}; [the last one there is number {last}|there is none there yet]"
    return say(text, store, last=store.get("number") or None)

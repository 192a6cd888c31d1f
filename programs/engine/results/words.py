"""Figures, incidents, verdicts, ends, failures and differences between books in words: the one place that words them.

Decides sentences and the form of numbers: few digits, a unit; ASCII only as far as names and errors are, because the
fonts and encodings of terminals and logs are unknown. An unknown number (None, NaN, infinite) is a dash. Incidents
travel as records (`runtime.supervision.incidents`), and nothing parses words: `reason` stands by itself, with every
figure that a decision rests on; `predicate` follows the name of a host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, assert_never

from isthmus.runtime.cores.membership_messages import LongExcuse, Pace, Refusal, Silence, Stall
from isthmus.runtime.supervision.incidents import (
    Adopted,
    BodyRaised,
    Condemned,
    CutOff,
    Delayed,
    End,
    Ended,
    Excused,
    Exited,
    Failure,
    GangMemberLost,
    GivenUp,
    HeardAgain,
    HomeTaken,
    Hurried,
    Incident,
    ItemRefused,
    Joined,
    KeepsUp,
    LedgerRemoved,
    MachineLost,
    MachineTaken,
    Misbehaved,
    NeverHealthy,
    NoFirstHeartbeat,
    NoMachineLeft,
    NotStarted,
    NumbersLost,
    Ordered,
    ProcessBack,
    ProcessLost,
    ProcessMissing,
    ProgramFailed,
    Raised,
    Reached,
    RecorderFailed,
    Reformed,
    Refused,
    ReportRefused,
    Restarted,
    RestartsExhausted,
    SlowHost,
    Starved,
    Superseded,
    SupersededHome,
    Suspected,
    TooFewProcesses,
    Unreached,
    Unseen,
    Unserved,
    Verdict,
)
from isthmus.runtime.supervision.liveness import HEALTHY

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


def not_evaluated(summary: Mapping[str, Any]) -> str:
    """Why a run that was evaluated has no loss of its final model; '' where it has, or is never evaluated."""
    last, at = summary.get("eval_loss_last"), summary.get("eval_tokens_last")
    if at is None or summary.get("eval_loss_final") is not None:
        return ""
    if last is None:
        return "the last loss was not finite"
    total = summary.get("tokens_total")
    share = percent(at / total) if total else UNKNOWN
    return f"the final model was not evaluated; the last evaluation was {decimal(last)}, at {share} of the tokens"


def snapshot_lines(faults: Sequence[str]) -> list[str]:
    """Lines about snapshots that could not be read."""
    return [f"damaged, an older one was taken, or none: {fault}" for fault in faults]


def _difference(difference: Mapping[str, Any]) -> str:
    if difference["kind"] == "merges":
        return f"merges.jsonl has {difference['recorded']} of {difference['shards']} merges"
    count = abs(difference["difference"] or difference.get("gap", 0))
    who = f"learner {difference['learner']}, life {difference['incarnation']}"
    if difference["kind"] == "steps":
        by_steps = f"its {difference['steps']} steps make {difference['tokens_by_steps']}"
        return f"{who}: {difference['tokens_reported']} tokens reported, {by_steps}"
    if difference["kind"] == "heard":
        return (
            f"{who}: {difference['tokens_reported']} tokens reported, others have heard of {difference['tokens_heard']}"
        )
    sides = f"its account has {difference['learner_merged']} merged, the shards' has {difference['shard_merged']}"
    return f"{who}, fragment {difference['fragment']}: {count} of {difference['trained']} tokens do not add up; {sides}"


_REFUSALS: Final[dict[Refusal, str]] = {
    "no slot": "its role has no such slot",
    "gone": "it announced itself as gone",
    "older incarnation": "a newer life of it is known",
    "ended incarnation": "this life of it has ended",
    "unannounced": "it sent a heartbeat before it announced itself",
}
DATA: Final = "data"
"""The node of every shipped program that calls `batch`."""
_EXCUSED_NO_MORE: Final = "nothing excuses it any more"


def reason(incident: Incident) -> str:
    """An incident in words that stand by themselves, with every figure."""
    match incident:
        case Suspected():
            return f"silent: {_EXCUSED_NO_MORE}" if incident.silence is None else verdict(incident.silence)
        case Excused():
            return f"no heartbeat for {_time(incident.silence_ns)}: {_excuse(incident)}"
        case HeardAgain():
            return f"heard again after {_time(incident.silence_ns)}"
        case CutOff():
            return f"cut off: it speaks to its daemon, but {_reaches_none(incident.peers)}"
        case Reached():
            return f"reached again, after it was cut off for {_time(incident.lasted_ns)}"
        case SlowHost():
            return f"slow: {_pace(incident.pace)}"
        case Starved():
            return f"data is the bottleneck: {_starved(incident)}"
        case KeepsUp():
            return f"keeps up again: {_pace(incident.pace)}"
        case BodyRaised():
            return f"failed: {raised(incident.error)}"
        case Condemned():
            return f"killed: {verdict(incident.verdict)}"
        case Ended():
            why = "" if incident.verdict is None else f"{verdict(incident.verdict)}; "
            return f"{why}{end(incident.end)}{_error(incident)}"
        case Restarted():
            return "restarted"
        case Adopted():
            return "adopted by a new daemon"
        case Joined():
            return f"joined with its machine {incident.machine}"
        case GivenUp():
            return f"given up after {_lives(incident.lives)}; the last time: {reason(incident.last)}"
        case Delayed():
            return f"not started yet: {incident.error}"
        case Refused():
            return f"refused: {refusal(incident.refusal)}"
        case LedgerRemoved():
            return "the daemon's ledger was deleted while it was in use, and was written anew"
        case ItemRefused():
            return verdict(incident.refusal)
        case ProcessLost() | ProcessMissing() | ProcessBack() | Reformed():
            return f"its island {predicate(incident)}"
        case ReportRefused():
            return f"a report of the machine {incident.machine} was dropped: {_field_difference(incident)}"
        case NumbersLost():
            return f"the daemon's ledger was lost or torn: lives are numbered from {incident.next_number} on"
        case HomeTaken():
            return f"the run's home is {_home(incident)}, in place of {incident.former}, which was lost"
        case Superseded():
            return _superseded(incident)
        case _:
            assert_never(incident)


def predicate(incident: Incident) -> str:
    """An incident in words that follow the name of its host; `NumbersLost` and `LedgerRemoved`, which are about the
    daemon, that of the daemon."""
    match incident:
        case Suspected():
            silence = incident.silence
            why = _EXCUSED_NO_MORE if silence is None else f"no heartbeat for {_time(silence.silence_ns)}"
            return f"is silent (suspect): {why}"
        case Excused():
            return f"is {_excuse(incident)}"
        case Condemned():
            return _condemnation(incident.verdict)
        case Ended():
            if incident.verdict is not None:
                return _condemnation(incident.verdict)
            return f"{'was ' if _is_done_to_it(incident.end) else ''}{end(incident.end)}{_error(incident)}"
        case GivenUp():
            return f"was given up after {_lives(incident.lives)}"
        case LedgerRemoved():
            return "wrote its ledger anew, which was deleted while it was in use: no number is lost"
        case ReportRefused():
            return f"dropped a report of the machine {incident.machine}: {_field_difference(incident)}"
        case NumbersLost():
            return f"lost its ledger, or a part of it: lives are numbered from {incident.next_number} on"
        case HomeTaken():
            return f"is that of {_home(incident)}, in place of {incident.former}, which was lost"
        case Superseded():
            return f"ended its hosts: {_superseded(incident)}"
        case ProcessLost():
            return f"lost its process {incident.process}, and goes on with {_part(incident.processes, incident.whole)}"
        case ProcessMissing():
            waited = f"{incident.process}, which did not come within {_time(incident.waited_ns)}"
            return f"begins with {_part(incident.processes, incident.whole)}, without {waited}"
        case ProcessBack():
            return (
                f"has its process {incident.process} back, and goes on with {_part(incident.processes, incident.whole)}"
            )
        case Reformed():
            again = f", and {incident.again} steps were made again" if incident.again else ""
            which = _part(incident.processes, incident.whole)
            return f"trains again with {which}, after {_time(incident.stall_ns)} without a step{again}"
        case BodyRaised() | KeepsUp() | Joined() | ItemRefused():
            return reason(incident)
        case Starved():
            return f"waits for its data: {_starved(incident)}"
        case HeardAgain() | SlowHost() | Delayed() | CutOff() | Reached():
            return f"is {reason(incident)}"
        case Restarted() | Adopted() | Refused():
            return f"was {reason(incident)}"
        case _:
            assert_never(incident)


def verdict(verdict: Verdict) -> str:
    """Why a life is killed, with every figure."""
    match verdict:
        case Silence():
            most = ", and no silence may last longer" if verdict.is_longest else ""
            return f"no heartbeat for {_time(verdict.silence_ns)}: {_usual(verdict)}{most}{_patience(verdict)}"
        case LongExcuse():
            reason_text = f"{verdict.excuse} for {_time(verdict.excused_ns)}, which is as long as is allowed"
            return f"no heartbeat for {_time(verdict.silence_ns)}: {reason_text}"
        case Stall():
            reason_text = f"stuck: no step for {_time(verdict.stalled_ns)}, in one firing of node {verdict.node!r}"
            return f"{reason_text}: {_usual(verdict)}{_patience(verdict)}"
        case NoFirstHeartbeat():
            return f"no word from it within {_time(verdict.limit_ns)} of its start"
        case Hurried():
            return "silent while the run came to its end"
        case Unreached():
            reason_text = (
                f"cut off for {_time(verdict.lasted_ns)}: its heartbeats came, but it {_reaches_none(verdict.peers)}"
            )
            return f"{reason_text}{_times(verdict.patience_times)}"
        case GangMemberLost():
            return f"part of an island whose process {verdict.of} is gone"
        case TooFewProcesses():
            return f"part of an island that needs {verdict.least} processes, of which {verdict.processes} are there"
        case Misbehaved():
            return f"sent {_items(verdict.count)}, refused{_mismatch(verdict)}"
        case _:
            assert_never(verdict)


def end(end: End) -> str:
    """The end of a life, in words."""
    match end:
        case Exited():
            if end.signal:
                return f"killed by signal {end.signal}"
            if end.status is None:
                return "ended"
            return f"exited with status {end.status}" if end.status else "exited"
        case Unseen():
            return "ended while no daemon watched"
        case NotStarted():
            return f"could not be started: {end.error}"
        case MachineLost():
            silence = f"has not been heard of for {_time(end.silence_ns)}" if end.silence_ns else "does not answer"
            return f"ended with its machine {end.machine}, which {silence}"
        case MachineTaken():
            return f"{end.how} with its machine {end.machine}"
        case _:
            assert_never(end)


def text_is_on(machine: str, host: str) -> str:
    """Where a text is that its machine keeps."""
    return f"the text is on machine {machine}, in its log of {host}"


def raised(error: Raised, more: str = "") -> str:
    """A body's error with its place, `more` about it, and where its text is that is not here."""
    where = f" ({error.file}:{error.line})" if error.file else ""
    if error.kept is not None:
        return f"{error.exception or 'an error'}{where}{more}; {text_is_on(error.kept.machine, error.kept.host)}"
    kind = f"{error.exception}: " if error.exception else ""
    return f"{kind}{error.message}{where}{more}"


def refusal(refusal: Refusal) -> str:
    """Why a host is no member of the run."""
    return _REFUSALS[refusal]


def failure(failure: Failure, log: Path | None = None) -> str:
    """Why a run failed: a sentence, or the words of the recorder or of a person; `log` is that of the host that failed
    it."""
    match failure:
        case RecorderFailed():
            return failure.error
        case Ordered():
            return failure.reason
        case SupersededHome():
            return _sentence(_superseded(failure))
        case RestartsExhausted():
            text = f"{failure.host} ended again and again before it had served for {HEALTHY / 1e9:.0f} s"
            look = "" if log is None else f" Look at {log}."
            return f"{_sentence(f'{text}; the last time: {reason(failure.last)}')}{look}"
        case NeverHealthy():
            lives = "its only life" if failure.lives == 1 else f"each of its last {failure.lives} lives"
            text = f"{failure.host} raised in {lives}, before it had served for {HEALTHY / 1e9:.0f} s"
            look = "" if log is None else f" Look at {log}."
            return f"{_sentence(f'{text}: {reason(failure.last)}')}{look}"
        case ProgramFailed():
            return _sentence(raised(failure.error, ", in every learner, again after a restart"))
        case NoMachineLeft():
            return _sentence(f"{failure.host} has no machine any more: {reason(failure.last)}")
        case Unserved():
            text = f"{failure.host} did not serve the run for {_time(failure.lasted_ns)}"
            return _sentence(text if failure.why is None else f"{text}: {reason(failure.why)}")
        case _:
            assert_never(failure)


def _home(incident: HomeTaken | Superseded | SupersededHome) -> str:
    return f"{incident.home} (term {incident.term})"


def _superseded(event: Superseded | SupersededHome) -> str:
    return f"the run goes on under another home, {_home(event)}; this was its home in term {event.was_term}"


def _condemnation(verdict: Verdict) -> str:
    """The killing of a host and its reason, in words that follow its name."""
    match verdict:
        case Silence():
            return f"was silent for {_time(verdict.silence_ns)}, and was killed by the daemon"
        case LongExcuse():
            took = _time(verdict.excused_ns)
            return f"was {verdict.excuse} for {took}, which is as long as is allowed, and was killed by the daemon"
        case Stall():
            took = _time(verdict.stalled_ns)
            return f"was stuck, without a step for {took} in one firing of its node {verdict.node}, and was killed"
        case NoFirstHeartbeat():
            return f"said nothing within {_time(verdict.limit_ns)} of its start, and was killed"
        case Hurried():
            return "was silent while the run came to its end, and was killed"
        case Unreached():
            took = _time(verdict.lasted_ns)
            return f"was cut off for {took}, without a data connection to any other host, and was killed"
        case GangMemberLost():
            return f"is part of the same island as {verdict.of}, which is gone, and was killed"
        case TooFewProcesses():
            need = f"needs {verdict.least} processes, of which {verdict.processes} are there"
            return f"is part of an island that {need}, and was killed to begin again with it"
        case Misbehaved():
            return f"sent {_items(verdict.count)} that {verdict.by} refused, and was killed by the daemon"
        case _:
            assert_never(verdict)


def _is_done_to_it(end: End) -> bool:
    """Whether the words of an end follow 'was'."""
    return (isinstance(end, Exited) and bool(end.signal)) or (isinstance(end, MachineTaken) and end.how == "expelled")


def _part(processes: int, whole: int) -> str:
    return f"{processes} of {whole} processes"


def _excuse(incident: Excused) -> str:
    """The excuse for a host's silence, and the remedy, in words that follow 'it is'."""
    pid, machine = incident.pid, incident.machine
    if incident.excuse == "unheard":
        return f"unheard, because its machine {machine} does not answer"
    where = f" on {machine}" if machine else ""
    how = f"`kill -CONT {pid}`{where} lets it go on, `kill -KILL {pid}` has it replaced"
    return f"stopped by a signal or a debugger; {how}"


def _error(incident: Ended) -> str:
    return "" if incident.error is None else f": {raised(incident.error)}"


def _usual(finding: Silence | Stall) -> str:
    """The usual time, and the suspicion phi."""
    whose = " in its role" if isinstance(finding, Stall) and finding.is_of_role else ""
    figures = f"{_time(finding.usual_ns)} +- {_time(finding.deviation_ns)} are usual{whose}"
    return f"{figures}, phi is {finding.phi:.1f}"


def _patience(finding: Silence | Stall) -> str:
    return _times(finding.patience_times)


def _times(times: int) -> str:
    return f", {times} times the patience" if times > 1 else ""


def _reaches_none(peers: int) -> str:
    """A host's lack of data connections, in words that follow 'it'."""
    which = "the other host" if peers == 1 else f"any of {peers} other hosts"
    return f"has no data connection to {which}"


def _pace(pace: Pace) -> str:
    others = "the others" if pace.others > 1 else "the other"
    return f"{_time(pace.own_ns)} a step, {others} {_time(pace.usual_ns)}"


def _starved(incident: Starved) -> str:
    """The times of the slow source and of a step."""
    what = "batch()" if incident.source == DATA else f"a firing of {incident.source}"
    return f"{what} takes {_time(incident.made_ns)}, a step {_time(incident.rest_ns)}"


def _mismatch(verdict: Misbehaved) -> str:
    """The edge, and the fault of the first item."""
    return f" by {verdict.by} on {verdict.edge}: {_field_difference(verdict)}"


def _field_difference(wrong: Misbehaved | ReportRefused) -> str:
    """The field that is wrong, and how."""
    field = f"field {wrong.field}, " if wrong.field else ""
    return f"{field}expected {wrong.expected}, found {wrong.found}"


def _items(count: int) -> str:
    return f"{count} {'item' if count == 1 else 'items'}"


def _lives(count: int) -> str:
    return f"{count} {'life' if count == 1 else 'lives'}"


def _sentence(text: str) -> str:
    """A text with one full stop; an error in it may end with its own."""
    return f"{text.rstrip('.')}."


def _time(duration_ns: float) -> str:
    return seconds(duration_ns / 1e9)


def store_line(store: Any) -> str:
    """A line about a store of a status or a summary that does not take snapshots; '' if it does, or there is none."""
    if not isinstance(store, dict) or not store.get("error"):
        return ""
    number = store.get("number")
    last = f"the last one there is number {number}" if number else "there is none there yet"
    return f"snapshots do not reach {store.get('url')}: {store['error']}; {last}"

"""The figures of a run from its folder alone: those of a recorder that opened it now.

A summary is made of them, so that the figures agree with the files beside them even if the recorder ended before it
could publish its last lines. Decides nothing but which of the two knows more, the folder or that status.

The figures of a run, `summary.json`: computed once, at the end, from the recorder's knowledge and from the trace.

Token accounts. Every trained token is, per fragment, one of merged, overlapped, refused, lost or pending; `balance`
defines the source of each count, and the meaning of disagreements. `fragment_accounts` holds the integers; the totals
are their means, weighted by the sizes of the fragments.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from isthmus.ops.exchange.token_accounts import FATES
from isthmus.ops.step_tokens import StepTokens
from isthmus.programs.engine.recorder.accounts import (
    Known,
    LifeTokens,
    allocated_seconds,
    away_ns,
    books,
    entries,
    fragment_accounts,
    goodput,
    merged_share,
    share_of,
    uptime,
)
from isthmus.programs.engine.recorder.books import Books, read_into
from isthmus.programs.engine.recorder.lines import recorded
from isthmus.programs.engine.recorder.sites import SiteSummary
from isthmus.programs.engine.results.agreement import LearnerAgreement, by_learner
from isthmus.programs.engine.results.lines import MergeRecord
from isthmus.programs.program_graph import REGION, regions_in, training_of
from isthmus.runtime.graph.template import Every, Template
from isthmus.runtime.host.contract import Span
from isthmus.runtime.ids import LEARNER, RECORDER, Replica
from isthmus.runtime.supervision.flows import EdgeTotal, NodeTotal, RunFlows
from isthmus.runtime.supervision.incidents import EVENTS, DataSpent, Ended, of_line
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_bytes


def figures(folder: Path, status: Mapping[str, Any], *, sizes: Sequence[int], learners: int) -> dict[str, Any]:
    """The last published status, with the figures of the folder where these are ahead."""
    try:
        books = Books(sizes=sizes)
        read_into(books, folder, DISK, 0, is_whole=True)
        of_folder = books.figures(learners)
    except (OSError, KeyError, TypeError):  # Nothing was recorded, or nothing of it can be read.
        return dict(status)
    return {**status, **of_folder} if _extent(of_folder) >= _extent(status) and of_folder["learners"] else dict(status)


def note_ends(record: Mapping[str, Any], folder: Path) -> None:
    """Note in the reports of lives what their ends say: how long one was away then, in the user's own code, and what
    one has trained of its own data, which were spent."""
    reports = {(int(slot), report["incarnation"]): report for slot, report in record.get("learners", {}).items()} | {
        (report["slot"], report["incarnation"]): report for report in record.get("former", ())
    }
    try:
        lines = read_bytes(folder / EVENTS).splitlines()
    except OSError:  # Nothing has happened.
        return
    for line in lines:
        with suppress(ValueError):  # One that is torn.
            happened = of_line(json.loads(line))
            life = happened.member.replica.slot, happened.member.incarnation
            if happened.member.replica.role != LEARNER or life not in reports:
                continue
            match happened.incident:
                case Ended(away_ns=away):
                    reports[life]["away_at_end"] = away
                case DataSpent(tokens=tokens, of_tokens=of_tokens, epochs_max=most):
                    reports[life]["data_spent"] = {"tokens": tokens, "of_tokens": of_tokens, "epochs_max": most}


def merges(folder: Path) -> int:
    """The merges in merges.jsonl, the file that it was rotated to included; each counts once."""
    return len(_merges(folder))


def agreement(folder: Path, fragments: int) -> list[LearnerAgreement]:
    """How far learners agree, by merges.jsonl."""
    return by_learner(_merges(folder).values(), fragments)


def _merges(folder: Path) -> dict[tuple[int, int, int], MergeRecord]:
    """Each merge on the way, by fragment, epoch and round."""
    lines = (line for former in (".1", "") for line in recorded(folder, DISK, MergeRecord, former=former))
    return {(line.fragment, line.epoch, line.round): line for line in lines if line.kind == "merge" and line.version}


def _extent(status: Mapping[str, Any]) -> tuple[int, ...]:
    """The figures of a status that only grow, for comparison."""
    return tuple(int(status.get(name) or 0) for name in ("tokens", "outer_steps", "evaluations"))


FinalEvaluation: TypeAlias = Literal["made", "left_out", "missing", "later", "not_asked"]
"""What became of the evaluation of the final model: it was made in the run, left out because the run was stopped, did
not come, was made later (`programs.trained.final_evaluation`), or is not made in a run that evaluates nothing."""


class SpentSummary(TypedDict):
    """What a learner has trained of its own data, all that it may."""

    tokens: int
    of_tokens: int
    epochs_max: float


class LearnerSummary(TypedDict):
    """One slot over all its lives."""

    learner: int
    path: int | None
    steps: int | None
    tokens: int
    tokens_lost: float | None
    stall_seconds: float | None
    bytes_sent: int | None
    bytes_received: int | None
    payload_bytes_sent: int | None
    answers: int | None
    losses_not_finite: int | None
    restarts: int
    away_seconds: float | None
    device_kind: str | None
    data_spent: SpentSummary | None


class RegionSummary(TypedDict):
    """One region over all lives of its syncer."""

    region: int
    tokens: int
    rounds: int
    answers: int
    answer_bytes_sent: int


class EdgeSummary(TypedDict):
    """One edge of the graph, over all hosts: 'node.port' at both ends."""

    source: str
    target: str
    items: int
    bytes: int
    wait_seconds: float


class NodeSummary(TypedDict):
    """One node of one replica, over all its lives; one that fires by a timer awaits nothing."""

    name: str
    replica: str
    firings: int
    wait_seconds: float | None


class Summary(TypedDict):
    """`summary.json`: figures that were not measured are None."""

    program: str
    outcome: str
    learners: int
    syncer_shards: int
    regions: int
    fragments: int
    tokens_budget: int | None
    tokens_total: int
    tokens_undone: int
    tokens_merged: float
    tokens_overlapped: float
    tokens_refused: float
    tokens_lost: float
    tokens_pending: float
    outer_steps: int
    contributors_mean: float
    merged_share: float
    cpu_seconds_total: float
    eval_loss_initial: float | None
    eval_loss_final: float | None
    eval_loss_last: float | None
    eval_tokens_last: int | None
    final_evaluation: FinalEvaluation | None
    eval_loss_error: float | None
    eval_windows: int | None
    eval_windows_there: int | None
    metrics: dict[str, float]
    eval_metrics: dict[str, float]
    final_figures: dict[str, float | None]
    final_figures_better: dict[str, str]
    final_figures_fault: dict[str, str] | None
    losses_not_finite: int | None
    start_seconds: float
    wall_seconds: float
    trained_seconds: float | None
    evaluated_seconds: float | None
    ending_seconds: float | None
    paused_seconds: float
    goodput: float | None
    uptime: float | None
    bytes_sent_total: int | None
    bytes_home_total: int | None
    edges: list[EdgeSummary] | None
    nodes: list[NodeSummary] | None
    lines_lost: int
    lines_torn: int
    disk_error: str | None
    snapshot_faults: list[str]
    snapshot_store: Any
    kept_bytes: int | None
    changes: int
    alterations: list[dict[str, Any]]
    fragment_accounts: list[dict[str, int]]
    books: dict[str, Any]
    per_learner: list[LearnerSummary]
    sites: list[SiteSummary]
    per_region: list[RegionSummary]
    agreement: list[LearnerAgreement]
    begins_from: str | None
    scripts_unfinished: list[str]
    scripts_unfinished_why: dict[str, str]
    scripts_dismissed: list[str]
    error: str | None


def summarise(
    status: Mapping[str, Any],
    spans: Iterable[Span],
    *,
    program: str,
    outcome: str,
    learners: int,
    shards: int,
    fragment_sizes: Sequence[int],
    ended: int,
    cpu_seconds: float,
    graph: Template | None,
    flows: RunFlows,
    merges_recorded: int | None = None,
    step_tokens: StepTokens = (),
    evaluations: int | None = None,
    paused_ns: int = 0,
) -> dict[str, Any]:
    """All keys of `summary.json`.

    Arguments:
        status: the recorder's last.
        spans: those of all hosts.
        program: its name.
        outcome: how the run ended.
        learners: how many it had.
        shards: likewise.
        fragment_sizes: in values.
        ended: the instant of the end.
        cpu_seconds: those of all processes.
        graph: none where it cannot be built any more.
        flows: what hosts have moved and awaited.
        merges_recorded: the merges in merges.jsonl.
        step_tokens: the task's, empty if unknown.
        evaluations: how many were asked for at most.
        paused_ns: for how long the run's clock has stood still.
    """
    reports: Mapping[int, Mapping[str, Any]] = status.get("learners", {})
    former: Sequence[Mapping[str, Any]] = status.get("former", ())
    lives = [*former, *reports.values()]
    zero = status.get("zero")
    wall = 0.0 if zero is None else max(0.0, (ended - zero) / 1e9)
    if outcome in ("done", "stopped") and status.get("merged_until"):  # What follows is no training.
        wall = min(wall, float(status["merged_until"]))
    knowledge = Known.of(status)
    in_model = _in_model(reports.values())
    by_slot = {
        slot: max(sum(trained for life, trained in knowledge.trained.items() if life[0] == slot), in_model.get(slot, 0))
        for slot in sorted({*(slot for slot, _ in knowledge.trained), *in_model})
    }
    tokens = sum(by_slot.values())
    life_tokens = entries(status, len(fragment_sizes))
    accounts = fragment_accounts(life_tokens, len(fragment_sizes))
    checked_tokens = step_tokens if fragment_sizes else ()
    means = _means(accounts, fragment_sizes, tokens, status.get("tokens_final"))
    share_good = goodput(lives, life_tokens, fragment_sizes, allocated_seconds(status, status.get("slots", learners)))
    if share_good is not None:
        share_good *= 1.0 if accounts or not tokens else 1.0 - means["lost"] / tokens
    share_up = uptime(spans, zero, ended if zero is None else zero + round(wall * 1e9))
    rows = [
        _learner(
            [life for life in lives if life["slot"] == slot],
            by_slot.get(slot, 0),
            [entry for entry in life_tokens if entry.learner == slot],
            fragment_sizes,
            in_model,
            None if graph is None else _of_reporting(graph, flows, slot),
            status.get("stepping_until", 0),
            status.get("paths"),
        )
        for slot in sorted(reports)
    ]
    return {
        "program": program,
        "outcome": outcome,
        "learners": status.get("slots", learners),
        "syncer_shards": shards,
        "regions": 0 if graph is None else regions_in(graph),
        "fragments": len(fragment_sizes),
        "tokens_budget": status.get("tokens_budget"),
        "tokens_total": tokens,
        "tokens_undone": status.get("tokens_undone", 0),
        **{f"tokens_{part}": means[part] for part in FATES},
        "outer_steps": status.get("outer_steps", 0),
        "contributors_mean": round(status.get("contributors_mean", 0.0), 6),
        "merged_share": merged_share(accounts, fragment_sizes),
        "cpu_seconds_total": round(cpu_seconds, 3),
        "eval_loss_initial": status.get("eval_loss_initial"),
        "eval_loss_final": status.get("eval_loss_final"),
        "eval_loss_last": status.get("eval_loss"),
        "eval_tokens_last": status.get("eval_tokens"),
        "final_evaluation": _final_evaluation(status, outcome, evaluations),
        **{name: status.get(name) for name in ("eval_loss_error", "eval_windows", "eval_windows_there")},
        "metrics": status.get("metrics", {}),
        "eval_metrics": {} if status.get("tokens_final") is None else status.get("eval_metrics", {}),
        "final_figures": status.get("figures") or {},
        "final_figures_better": status.get("figures_better") or {},
        "final_figures_fault": status.get("figures_fault"),
        "losses_not_finite": _sum(row["losses_not_finite"] for row in rows) if rows else None,
        "start_seconds": round((zero or 0) / 1e9, 6),
        "wall_seconds": round(wall, 3),
        **_times(status, ended),
        "paused_seconds": round(paused_ns / 1e9, 3),
        "goodput": None if share_good is None else round(share_good, 6),
        "uptime": None if share_up is None else round(share_up, 6),
        **_moved(graph, flows),
        **lines_missing(status.get("files", {})),
        "snapshot_faults": status.get("snapshots", {}).get("faults", []),
        "snapshot_store": status.get("snapshots", {}).get("store"),
        "kept_bytes": None,
        "changes": status.get("changes", {}).get("count", 0),
        "alterations": status.get("alterations", []),
        "fragment_accounts": accounts,
        "books": books(status, life_tokens, merges_recorded, checked_tokens),
        "per_learner": rows,
        "sites": status.get("sites", []),
        "per_region": [] if graph is None else _per_region(graph, flows, by_slot),
        "agreement": [],
        "begins_from": None,
        "scripts_unfinished": [],
        "scripts_unfinished_why": {},
        "scripts_dismissed": [],
    }


def _final_evaluation(status: Mapping[str, Any], outcome: str, asked: int | None) -> FinalEvaluation | None:
    """None of a run that failed before it had one, and of a task that evaluates nothing."""
    if asked == 0:
        return "not_asked" if outcome in ("done", "stopped") else None
    if status.get("tokens_final") is not None:
        is_of_task = status.get("eval_loss") is not None or status.get("eval_loss_initial") is not None
        return "made" if is_of_task else None
    if status.get("evaluation_left_out"):
        return "left_out"
    return "missing" if outcome in ("done", "stopped") and status.get("eval_loss_initial") is not None else None


def _times(status: Mapping[str, Any], ended: int) -> dict[str, float | None]:
    """How long the run trained, from the first step to the last one and its merge; for how long of the time behind that
    it awaited nothing but the evaluation of the final model; and the rest, to its end. None without a step."""
    zero, evaluated = status.get("zero"), status.get("evaluated_seconds")
    if zero is None:
        return dict.fromkeys(("trained_seconds", "evaluated_seconds", "ending_seconds"))
    whole = max(0.0, (ended - zero) / 1e9)
    last = max(float(status.get("merged_until") or 0.0), (status.get("stepping_until", 0) - zero) / 1e9)
    trained = min(whole, max(last, 0.0))
    ending = max(0.0, whole - trained - (evaluated or 0.0))
    return {
        "trained_seconds": round(trained, 3),
        "evaluated_seconds": None if evaluated is None else round(evaluated, 3),
        "ending_seconds": round(ending, 3),
    }


def _per_region(graph: Template, flows: RunFlows, by_slot: Mapping[int, int]) -> list[RegionSummary]:
    """A row for each region, whose learners are the slots that are its number modulo that of regions."""
    regions = regions_in(graph)
    own = [(index, edge) for index, edge in enumerate(graph.edges) if edge.source.node.role == REGION]
    rounds = [index for index, edge in own if edge.target.name == "gradient"]
    answers = [index for index, edge in own if edge.source.name == "answer"]
    rows = []
    for region in range(regions):
        hosts = {each for each, _ in flows.of_groups if Replica.parse(each).slot % regions == region}
        moved = [(index, total) for (replica, index), total in flows.of_groups.items() if replica in hosts]
        row = RegionSummary(
            region=region,
            tokens=sum(tokens for slot, tokens in by_slot.items() if slot % regions == region),
            rounds=sum(total.items for index, total in moved if index in rounds),
            answers=sum(total.items for index, total in moved if index in answers),
            answer_bytes_sent=sum(total.size_bytes for index, total in moved if index in answers),
        )
        rows.append(row)
    return rows


def _moved(graph: Template | None, flows: RunFlows) -> dict[str, Any]:
    """The keys about what hosts moved and awaited; None where the graph is unknown."""
    if graph is None:
        return dict.fromkeys(("bytes_sent_total", "bytes_home_total", "edges", "nodes"))
    edges: list[EdgeSummary] = []
    sent, home = 0, 0
    apart = _roles_apart(graph)
    for index, edge in enumerate(graph.edges):
        total = flows.edges.get(index, EdgeTotal())
        edges.append(
            EdgeSummary(
                source=f"{edge.source.node.name}.{edge.source.name}",
                target=f"{edge.target.node.name}.{edge.target.name}",
                items=total.items,
                bytes=total.size_bytes,
                wait_seconds=round(total.waited / 1e9, 6),
            )
        )
        if apart.isdisjoint((edge.source.node.role, edge.target.node.role)):
            sent += total.size_bytes
        else:
            home += total.size_bytes
    nodes = [
        NodeSummary(
            name=graph.nodes[index].name,
            replica=replica,
            firings=total.firings,
            wait_seconds=None if isinstance(graph.nodes[index].fires, Every) else round(total.waited / 1e9, 6),
        )
        for (replica, index), total in sorted(flows.nodes.items())
        if index < len(graph.nodes)
    ]
    return {"bytes_sent_total": sent, "bytes_home_total": home, "edges": edges, "nodes": nodes}


def _roles_apart(graph: Template) -> set[str]:
    """The roles that neither train nor merge: the recorder's, and one that only evaluates."""
    training = training_of(graph)
    working = {port.node.role for port in (training.reports, training.model, training.merges) if port is not None}
    evaluating = set() if training.evaluation is None else {training.evaluation.node.role}
    return {RECORDER, *(evaluating - working)}


def _of_reporting(graph: Template, flows: RunFlows, slot: int) -> NodeTotal | None:
    """What the node that reports for a slot has awaited."""
    reports = training_of(graph).reports
    if reports is None:
        return None
    index = next(number for number, node in enumerate(graph.nodes) if node is reports.node)
    return flows.nodes.get((f"{reports.node.role}/{slot}", index))


def lines_missing(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of lines that the disk did not take (`lines_lost`) and of torn ones, and the `disk_error`.

    `files` are the recorder's counts of its files of lines; lines that still wait count as lost.
    """
    counts = [files[name] for name in sorted(files)]
    errors = [str(count["error"]) for count in counts if count["error"]]
    return {
        "lines_lost": sum(count["lost"] + count["waiting"] for count in counts),
        "lines_torn": sum(count["torn"] for count in counts),
        "disk_error": errors[0] if errors else None,
    }


def _means(
    accounts: Sequence[Mapping[str, int]], sizes: Sequence[int], tokens: int, tokens_final: int | None
) -> dict[str, float]:
    """The parts of all trained tokens, as means over fragments weighted by size. Without fragments all are pending but
    those that are not in the final model, which was trained with `tokens_final`, because it went back to a snapshot."""
    if not accounts:
        lost = 0 if tokens_final is None else max(0, tokens - tokens_final)
        return {**dict.fromkeys(FATES, 0.0), "lost": float(lost), "pending": float(tokens - lost)}
    return {part: tokens * share_of(part, accounts, sizes) for part in FATES}


def _learner(
    lives: Sequence[Mapping[str, Any]],
    tokens: int,
    life_tokens: Sequence[LifeTokens],
    sizes: Sequence[int],
    in_model: Mapping[int, int],
    reporting: NodeTotal | None,
    stepping_until: int,
    paths: int | None,
) -> dict[str, Any]:
    """One slot over all its lives, the present one last; what its body does not report is measured, or None."""
    slot = lives[-1]["slot"]
    tokens_lost = float(max(0, tokens - in_model.get(slot, 0))) if in_model else None
    if sizes:
        weights = sum(sizes[fragment] for fragment in {entry.fragment for entry in life_tokens})
        tokens_lost = sum(entry.lost * sizes[entry.fragment] for entry in life_tokens) / weights if weights else 0.0
    names = ("step", "bytes_sent", "bytes_received", "payload_bytes_sent", "answers", "not_finite", "waited")
    total = {name: _sum(life.get(name) for life in lives) for name in names}
    total["away"] = _sum(away_ns(life, stepping_until) for life in lives)
    if total["waited"] is None and reporting is not None:
        total["waited"] = reporting.waited
    return {
        "learner": slot,
        "path": None if paths is None else slot % paths,
        "steps": total["step"],
        "tokens": tokens,
        "tokens_lost": tokens_lost,
        "stall_seconds": None if total["waited"] is None else round(total["waited"] / 1e9, 6),
        "bytes_sent": total["bytes_sent"],
        "bytes_received": total["bytes_received"],
        "payload_bytes_sent": total["payload_bytes_sent"],
        "answers": total["answers"],
        "losses_not_finite": total["not_finite"],
        "restarts": lives[-1]["incarnation"] - 1,
        "away_seconds": None if total["away"] is None else round(total["away"] / 1e9, 6),
        "device_kind": lives[-1]["device_kind"],
        "data_spent": lives[-1].get("data_spent"),
    }


def _in_model(reports: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """The tokens of each slot in the final model, as most learners say, which may be more than a life that ended had
    reported; empty where none says so."""
    said = Counter(tuple((slot, tokens) for slot, tokens in report.get("in_model") or ()) for report in reports)
    ordered = sorted(said, key=lambda rows: (said[rows], sum(tokens for _, tokens in rows)))
    return dict(ordered[-1]) if ordered else {}


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if any of them is unknown."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)

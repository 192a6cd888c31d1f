"""What a run left behind, compared with itself: summary, lines, books and tapes tell the same, however it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.programs.wings.simulation.taped_tokens import contradictions, taped_of
from isthmus.runtime.graph.plans import lower

FATES = ("merged", "overlapped", "refused", "lost", "pending")


def disagreements(folder: Path) -> list[str]:
    """In words, what the files of a run that is over say otherwise than its summary; none in a sound run."""
    summary = json.loads((folder / "summary.json").read_text())
    merges = _lines(folder, "merges")
    taped = taped_of(lower(spec.load(folder).graph()), tapes.of_lives(folder))
    return [
        *contradictions(taped, summary, merges),
        *(f"the books: {each}" for each in summary["books"]["differences"] if each["kind"] != "merges"),
        *_of_accounts(summary),
        *_of_metrics(summary, _lines(folder, "metrics")),
        *_of_merges(summary, merges),
        *_of_evaluations(summary, _lines(folder, "evaluations")),
    ]


def _of_accounts(summary: dict[str, Any]) -> Iterator[str]:
    for account in summary["fragment_accounts"]:
        parts = [account[fate] for fate in FATES]
        if min(parts) < 0 or sum(parts) != account["trained"] or account["trained"] != summary["tokens_total"]:
            yield f"an account that does not add up to {summary['tokens_total']} tokens: {account}"


def _of_metrics(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> Iterator[str]:
    """No line has tokens, or a life, that the summary does not have."""
    known = {(life["learner"], life["incarnation"]): life["tokens_known"] for life in summary["books"]["lives"]}
    for line in metrics:
        life = line["learner"], line["incarnation"]
        if line["tokens"] > known.get(life, 0):
            yield f"life {life}: {line['tokens']} tokens in metrics.jsonl, {known.get(life, 0)} in the summary"


def _of_merges(summary: dict[str, Any], merges: list[dict[str, Any]]) -> Iterator[str]:
    """The last count of each epoch of a shard is what the summary counts, and no more lines are there than merges."""
    counts: dict[tuple[int, int], int] = {}
    for line in merges:
        epoch = line["shard"], line["epoch"]
        counts[epoch] = max(counts.get(epoch, 0), line["merges"])
    if sum(counts.values()) != summary["outer_steps"]:
        yield f"{sum(counts.values())} merges by merges.jsonl, {summary['outer_steps']} in the summary"
    written = sum(line["kind"] == "merge" and line["version"] is not None for line in merges)
    if written != summary["books"]["merges"]["recorded"] or written > summary["outer_steps"]:
        yield f"{written} lines of merges, {summary['books']['merges']} in the books"


def _of_evaluations(summary: dict[str, Any], evaluations: list[dict[str, Any]]) -> Iterator[str]:
    """The last loss is that of the last line, and the final model's too where that line is of the final model."""
    losses = [line["eval_loss"] for line in evaluations] or [None]
    if (losses[0], losses[-1]) != (summary["eval_loss_initial"], summary["eval_loss_last"]):
        told = summary["eval_loss_initial"], summary["eval_loss_last"]
        yield f"losses from {losses[0]} to {losses[-1]} in evaluations.jsonl, {told} in the summary"
    if (final := summary["eval_loss_final"]) is None:
        if summary["outcome"] == "done" and evaluations:
            yield f"a run that is done, and no loss of its final model beside {losses[-1]}"
    elif (evaluations[-1]["kind"], losses[-1]) != ("final", final):
        yield f"{final} of the final model in the summary, {evaluations[-1]} in evaluations.jsonl"
    if len({(line["tokens"], line["kind"]) for line in evaluations}) < len(evaluations):
        yield "an evaluation is there twice"


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

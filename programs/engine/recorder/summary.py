"""The figures of a run from its folder alone: those of a recorder that opened it now.

A summary is made of them, so that the figures agree with the files beside them even if the recorder ended before it
could publish its last lines. Decides nothing but which of the two knows more, the folder or that status.

The figures of a run, `summary.json`: computed once, at the end, from the recorder's knowledge and from the trace.

Token accounts. Every trained token is, per fragment, one of merged, overlapped, refused, lost or pending; `balance`
defines the source of each count, and the meaning of disagreements. `fragment_accounts` holds the integers; the totals
are their means, weighted by the sizes of the fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.token_accounts import FATES, StepTokens
from isthmus.programs.engine.recorder import lines
from isthmus.programs.engine.recorder.accounts import (
    Books,
    Known,
    LifeTokens,
    allocated_seconds,
    books,
    entries,
    fragment_accounts,
    goodput,
    merged_share,
    uptime,
)
from isthmus.programs.engine.recorder.lines import FILES
from isthmus.runtime.graph.template import Template
from isthmus.runtime.host.contract import Span
from isthmus.runtime.ids import Replica
from isthmus.runtime.system.disk import DISK


def figures(folder: Path, status: Mapping[str, Any], *, sizes: Sequence[int], learners: int) -> dict[str, Any]:
    """The last published status, with the figures of the folder where these are ahead."""
    try:
        recorded = _books(folder, sizes).figures(learners)
    except (OSError, KeyError, TypeError):  # Nothing was recorded, or nothing of it can be read.
        return dict(status)
    return {**status, **recorded} if _extent(recorded) >= _extent(status) and recorded["learners"] else dict(status)


def merges(folder: Path) -> int:
    """The merges in merges.jsonl, the file that it was rotated to included; each counts once."""
    return len({(line["fragment"], line["epoch"], line["round"]) for line in _merge_lines(folder)})


def _merge_lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for name in ("merges.jsonl.1", "merges.jsonl"):
        for line in lines.lines(folder / name, DISK, is_tail=False):
            if line.get("kind") == "merge" and line.get("version") is not None:
                yield line


def _books(folder: Path, sizes: Sequence[int]) -> Books:
    books = Books(sizes)
    memory = lines.load(folder, DISK)
    if memory is not None:
        books.recall(memory)
    for name in FILES:
        for line in lines.lines(folder / f"{name}.jsonl", DISK, is_tail=False):
            books.recall_line(name, line, 0)
    return books


def _extent(status: Mapping[str, Any]) -> tuple[int, ...]:
    """The figures of a status that only grow, for comparison."""
    return tuple(int(status.get(name) or 0) for name in ("tokens", "outer_steps", "evaluations"))


FRAGMENTS_NAMED_MAX = 16
"""Fragments that the message of a lost shard lists."""


def fragment_sizes(graph: Template) -> list[int]:
    """The sizes of a program's fragments, in values; none if it exchanges whole trees."""
    return [fragment.size for fragment in _fragments(graph)]


def fragments_of(graph: Template, shard: Replica) -> str:
    """The fragments that a syncer shard serves, for people: 'fragments 1 (head), 3 (norm and 2 more)'; '' if none."""
    shards = next((role.replicas_max for role in graph.roles if role.name == shard.role == "syncer"), 0)
    own = [fragment for fragment in _fragments(graph) if shards and fragment.index % shards == shard.slot]
    named = [f"{fragment.index} ({_first([unit.name for unit in fragment.units], 1)})" for fragment in own]
    return f"fragment{'s' if len(own) > 1 else ''} {_first(named, FRAGMENTS_NAMED_MAX)}" if own else ""


def _first(names: Sequence[str], count: int) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def _fragments(graph: Template) -> Sequence[Fragment]:
    for node in graph.nodes:
        if node.role == "learner" and node.keywords.get("fragments"):
            fragments: Sequence[Fragment] = node.keywords["fragments"]
            return fragments
    return ()


def roster_counts(graph: Template, learners: int) -> dict[str, int]:
    """The number of replicas of each role at the start: `learners`, and the minimum of every other role."""
    counts = {role.name: max(1, role.replicas_min) for role in graph.roles}
    return {**counts, "learner": learners} if "learner" in counts else counts


class LearnerSummary(TypedDict):
    """One slot over all its lives."""

    learner: int
    steps: int
    tokens: int
    tokens_lost: float
    stall_seconds: float
    bytes_sent: int
    bytes_received: int
    restarts: int
    device_kind: str


class Summary(TypedDict):
    """`summary.json`: figures that were not measured are None."""

    program: str
    outcome: str
    learners: int
    syncer_shards: int
    fragments: int
    tokens_total: int
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
    metrics: dict[str, float]
    eval_metrics: dict[str, float]
    start_seconds: float
    wall_seconds: float
    goodput: float
    uptime: float
    bytes_sent_total: int
    lines_lost: int
    lines_torn: int
    disk_error: str | None
    snapshot_faults: list[str]
    snapshot_store: Any
    changes: int
    fragment_accounts: list[dict[str, int]]
    books: dict[str, Any]
    per_learner: list[LearnerSummary]
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
    bytes_sent_by_shards: int,
    merges_recorded: int | None = None,
    step_tokens: StepTokens = (),
) -> dict[str, Any]:
    """All keys of `summary.json`. `status` is the recorder's last, `ended` the instant of the end; `merges_recorded`
    counts the merges in merges.jsonl, `step_tokens` are the task's, empty if unknown.
    """
    reports: Mapping[int, Mapping[str, Any]] = status.get("learners", {})
    former: Sequence[Mapping[str, Any]] = status.get("former", ())
    lives = [*former, *reports.values()]
    zero = status.get("zero")
    wall = 0.0 if zero is None else max(0.0, (ended - zero) / 1e9)
    knowledge = Known.of(status)
    tokens = sum(knowledge.trained.values())
    life_tokens = entries(status, len(fragment_sizes))
    accounts = fragment_accounts(life_tokens, len(fragment_sizes))
    checked_tokens = step_tokens if fragment_sizes else ()
    means = _means(accounts, fragment_sizes, tokens, status.get("tokens_final"))
    bytes_sent = sum(life["bytes_sent"] for life in lives) + bytes_sent_by_shards
    return {
        "program": program,
        "outcome": outcome,
        "learners": learners,
        "syncer_shards": shards,
        "fragments": len(fragment_sizes),
        "tokens_total": tokens,
        **{f"tokens_{part}": means[part] for part in FATES},
        "outer_steps": status.get("outer_steps", 0),
        "contributors_mean": round(status.get("contributors_mean", 0.0), 6),
        "merged_share": merged_share(accounts, fragment_sizes),
        "cpu_seconds_total": round(cpu_seconds, 3),
        "eval_loss_initial": status.get("eval_loss_initial"),
        "eval_loss_final": status.get("eval_loss"),
        "metrics": status.get("metrics", {}),
        "eval_metrics": status.get("eval_metrics", {}),
        "start_seconds": round((zero or 0) / 1e9, 6),
        "wall_seconds": round(wall, 3),
        "goodput": round(
            goodput(lives, life_tokens, fragment_sizes, allocated_seconds(status, status.get("slots", learners)))
            * (1.0 if accounts or not tokens else 1.0 - means["lost"] / tokens),
            6,
        ),
        "uptime": round(uptime(spans, zero, ended), 6),
        "bytes_sent_total": bytes_sent,
        **lines_missing(status.get("files", {})),
        "snapshot_faults": status.get("snapshots", {}).get("faults", []),
        "snapshot_store": status.get("snapshots", {}).get("store"),
        "changes": status.get("changes", {}).get("count", 0),
        "fragment_accounts": accounts,
        "books": books(status, life_tokens, merges_recorded, checked_tokens),
        "per_learner": [
            _learner(
                [life for life in lives if life["slot"] == slot],
                sum(trained for life, trained in knowledge.trained.items() if life[0] == slot),
                [entry for entry in life_tokens if entry.learner == slot],
                fragment_sizes,
            )
            for slot in sorted(reports)
        ],
    }


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
    total = sum(sizes)
    return {
        part: sum(account[part] * size for account, size in zip(accounts, sizes, strict=True)) / total for part in FATES
    }


def _learner(
    lives: Sequence[Mapping[str, Any]], tokens: int, life_tokens: Sequence[LifeTokens], sizes: Sequence[int]
) -> dict[str, Any]:
    """One slot over all its lives, the present one last."""
    tokens_lost = sum(entry.lost * sizes[entry.fragment] for entry in life_tokens)
    total = {name: sum(life[name] for life in lives) for name in ("step", "bytes_sent", "bytes_received")}
    return {
        "learner": lives[-1]["slot"],
        "steps": total["step"],
        "tokens": tokens,
        "tokens_lost": tokens_lost / sum(sizes) if sizes else 0.0,
        "stall_seconds": round(sum(life["waited"] for life in lives) / 1e9, 6),
        "bytes_sent": total["bytes_sent"],
        "bytes_received": total["bytes_received"],
        "restarts": lives[-1]["incarnation"] - 1,
        "device_kind": lives[-1]["device_kind"],
    }

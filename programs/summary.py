"""The figures of a run, `summary.json`: computed once, at the end, from what the recorder knows and from the trace.

Token accounts. Every trained token is, per fragment, exactly one of merged, overlapped, refused, lost or pending. What
was merged is the shards' count; what was overlapped or refused is the learners'; lost is what a former incarnation had
trained beyond its last account; pending is the rest, and can only be what the end cut off. `fragment_accounts` holds
the integers; the totals are their means, weighted by the sizes of the fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from isthmus.runtime.graph import Graph
from isthmus.runtime.trace import Span

PARTS = ("merged", "overlapped", "refused", "lost", "pending")
UPTIME_STEPS = 3
"""A learner counts as up for so many median steps after the end of its last step."""


def fragment_sizes(graph: Graph) -> list[int]:
    """The sizes of the fragments that a program exchanges, in values; none where it exchanges whole trees."""
    for node in graph.nodes:
        if node.role == "learner" and node.keywords.get("fragments"):
            return [fragment.size for fragment in node.keywords["fragments"]]
    return []


def roster_counts(graph: Graph, learners: int) -> dict[str, int]:
    """How many replicas of each role a run starts with: the learners asked for; of every other role the fewest."""
    counts = {role.name: max(1, role.replicas_min) for role in graph.roles}
    return {**counts, "learner": learners} if "learner" in counts else counts


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
) -> dict[str, Any]:
    """All keys of `summary.json`. `status` is what the recorder published last, `ended` the instant of the end."""
    reports: Mapping[int, Mapping[str, Any]] = status.get("learners", {})
    former: Sequence[Mapping[str, Any]] = status.get("former", ())
    lives = [*former, *reports.values()]
    zero = status.get("zero")
    wall = 0.0 if zero is None else max(0.0, (ended - zero) / 1e9)
    stepped = 0.0 if zero is None else max(0.0, (status["stepping_until"] - zero) / 1e9)
    tokens = sum(life["tokens"] for life in lives)
    merged = status.get("merged_tokens", {})
    accounts = [
        _account(p, tokens, former, list(reports.values()), sum(merged.get(p, {}).values()))
        for p in range(len(fragment_sizes))
    ]
    means = _means(accounts, fragment_sizes, tokens)
    bytes_sent = sum(life["bytes_sent"] for life in lives) + bytes_sent_by_shards
    return {
        "program": program,
        "outcome": outcome,
        "learners": learners,
        "syncer_shards": shards,
        "fragments": len(fragment_sizes),
        "tokens_total": tokens,
        **{f"tokens_{part}": means[part] for part in PARTS},
        "outer_steps": status.get("outer_steps", 0),
        "contributors_mean": round(status.get("contributors_mean", 0.0), 6),
        "merged_share": means["merged"] / tokens if tokens else 0.0,
        "cpu_seconds_total": round(cpu_seconds, 3),
        "eval_loss_initial": status.get("eval_loss_initial"),
        "eval_loss_final": status.get("eval_loss"),
        "wall_seconds": round(wall, 3),
        "goodput": round(_goodput(lives, len(fragment_sizes), learners * stepped), 6),
        "uptime": round(_uptime(spans, zero, ended), 6),
        "bytes_sent_total": bytes_sent,
        "fragment_accounts": accounts,
        "per_learner": [
            _learner(slot, [*(life for life in former if life["slot"] == slot), report])
            for slot, report in sorted(reports.items())
        ],
    }


def _account(
    p: int, tokens: int, former: Sequence[Mapping[str, Any]], present: Sequence[Mapping[str, Any]], merged: int
) -> dict[str, int]:
    """The account of one fragment, over all lives of all learners; integers that add up to `tokens`.

    What a former life had pending is lost, but for answers that were merged after its last report: those show as the
    difference between the shards' count of merged tokens and the learners'.
    """
    ended = [life["accounts"][p] for life in former if len(life["accounts"]) > p]
    known = [*ended, *(life["accounts"][p] for life in present if len(life["accounts"]) > p)]
    merged_late = max(0, merged - sum(parts[0] for parts in known))
    account = {
        "fragment": p,
        "trained": tokens,
        "merged": merged,
        "overlapped": sum(parts[1] for parts in known),
        "refused": sum(parts[2] for parts in known),
        "lost": max(0, sum(parts[4] for parts in ended) - merged_late),
    }
    account["pending"] = tokens - sum(account[part] for part in PARTS[:-1])
    return account


def _means(accounts: Sequence[Mapping[str, int]], sizes: Sequence[int], tokens: int) -> dict[str, float]:
    """The parts of all trained tokens, as means over fragments weighted by size; all pending without fragments."""
    if not accounts:
        return {part: float(tokens if part == "pending" else 0) for part in PARTS}
    total = sum(sizes)
    return {
        part: sum(account[part] * size for account, size in zip(accounts, sizes, strict=True)) / total for part in PARTS
    }


def _goodput(lives: Sequence[Mapping[str, Any]], fragments: int, allocated: float) -> float:
    """Inner-step wall time whose tokens were neither lost nor refused, over the `allocated` seconds: those of all slots
    from the run's first step to the last report of a step.
    """
    good = 0.0
    for life in lives:
        wasted = sum(account[2] + account[3] for account in life["accounts"]) / max(fragments, 1)
        share = 1.0 - wasted / life["tokens"] if life["tokens"] else 0.0
        good += share * max(0, life["stepping"] - life["waited"]) / 1e9
    return min(1.0, good / allocated) if allocated > 0 else 0.0


def _uptime(spans: Iterable[Span], zero: int | None, ended: int) -> float:
    """The share of the time in which learners step (to the last step of any) at which some learner was up."""
    if zero is None:
        return 0.0
    ends: dict[str, list[int]] = {}
    for span in spans:
        if span.name == "inner-step" and not span.peer and span.host.startswith("learner/") and span.ended >= zero:
            ends.setdefault(span.host, []).append(span.ended)
    covered: list[tuple[int, int]] = []
    for instants in ends.values():
        gaps = [after - before for before, after in pairwise(instants)]
        reach = round(UPTIME_STEPS * median(gaps)) if gaps else 0
        covered.extend((instant, instant + reach) for instant in instants)
    if not covered:
        return 0.0
    last = min(ended, max(begin for begin, _ in covered))
    first = min(begin for begin, _ in covered)
    up, reached = 0, first
    for begin, end in sorted(covered):
        up += max(0, min(end, last) - max(begin, reached))
        reached = max(reached, min(end, last))
    return up / (last - first) if last > first else 1.0


def _learner(slot: int, lives: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One slot over all its lives, the present one last."""
    total = {name: sum(life[name] for life in lives) for name in ("step", "tokens", "bytes_sent", "bytes_received")}
    return {
        "learner": slot,
        "steps": total["step"],
        "tokens": total["tokens"],
        "stall_seconds": round(sum(life["waited"] for life in lives) / 1e9, 6),
        "bytes_sent": total["bytes_sent"],
        "bytes_received": total["bytes_received"],
        "restarts": lives[-1]["incarnation"] - 1,
        "device_kind": lives[-1]["device_kind"],
    }

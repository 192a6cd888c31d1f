"""The books of a run in words: a line for each difference, and the estimates beside the books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.programs.results import numbers

LINES_MAX: Final = 4
"""Differences that are shown one by one; summary.json has all of them."""


def book_lines(books: Mapping[str, Any]) -> list[str]:
    """Lines about the books of a summary; none if they agree, and every token was reported.

    A recorder samples ten times a second, so `merges.jsonl` may have fewer merges than were made: summary.json has the
    difference.
    """
    differences = [each for each in books.get("differences", []) if each["kind"] != "merges"]
    lines = [_difference(each) for each in differences[:LINES_MAX]]
    if more := len(differences) - len(lines):
        lines.append(f"{more} more differences between the books are in summary.json")
    if estimate := books.get("unreported_estimate"):
        told = numbers.scaled(estimate)
        lines.append(
            f"about {told} tokens more were trained by learners that ended before they told of them: an estimate"
        )
    return lines


def snapshot_lines(faults: Sequence[str]) -> list[str]:
    """Lines about snapshots that could not be read."""
    return [f"damaged, an older one was taken, or none: {fault}" for fault in faults]


def _difference(told: Mapping[str, Any]) -> str:
    count = abs(told["difference"] or told.get("gap", 0))
    who = f"learner {told['learner']}, life {told['incarnation']}"
    if told["kind"] == "steps":
        by_steps = f"its {told['steps']} steps make {told['tokens_by_steps']}"
        return f"{who}: {told['tokens_reported']} tokens reported, {by_steps}"
    if told["kind"] == "heard":
        return f"{who}: {told['tokens_reported']} tokens reported, others have heard of {told['tokens_heard']}"
    sides = f"its account has {told['learner_merged']} merged, the shards' has {told['shard_merged']}"
    return f"{who}, fragment {told['fragment']}: {count} of {told['trained']} tokens do not add up; {sides}"

"""The absences of a run from its files: the daemon's records, and the times at which hosts are seen to work again.

A learner works when it reports a step of its new life, a syncer when it merges under its new epoch, the evaluator when
it has evaluated, the recorder when it writes. Silences at the end of a run, where hosts write their last files, are no
absences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from isthmus.programs.results.absences import Absence, Absences, Fact, Works
from isthmus.programs.results.record import Evaluation, MergeRecord, Report
from isthmus.runtime.supervision.incidents import Restarted

_END_SECONDS: Final = 3.5
"""A silence that begins so late, and never ends, is that of a host that closes: it is suspected after 3.3 s."""
_STALE_SECONDS: Final = 0.5
"""A record sooner after a restart is still from the life before: a process takes longer to start."""


def told_absences(
    facts: Sequence[Fact],
    reports: Sequence[Report],
    evaluations: Sequence[Evaluation],
    merges: Sequence[MergeRecord],
    shards: int = 1,
) -> tuple[Absence, ...]:
    """All absences, in the order in which they began; fragment p belongs to shard p modulo `shards`."""
    works = [
        *_learners(reports),
        *_syncers(merges, shards),
        *_first_after(facts, "evaluator", [evaluation.time for evaluation in evaluations]),
        *_first_after(facts, "recorder", [report.time for report in reports]),
    ]
    times = [item.time for items in (reports, evaluations, merges) for item in items]
    last = max(times, default=math.inf) - _END_SECONDS
    found = Absences(sorted([*facts, *works], key=lambda fact: fact.at)).all
    kept = [item for item in found if not (item.kind == "silent" and item.ended is None and item.begun >= last)]
    return tuple(sorted(kept, key=lambda item: item.begun))


def _learners(reports: Sequence[Report]) -> Iterator[Fact]:
    """The first step of every life of a learner."""
    seen = set()
    for report in reports:
        life = (report.learner, report.incarnation)
        if report.phase == "stepping" and life not in seen:
            seen.add(life)
            yield Fact(report.time, f"learner/{report.learner}", report.incarnation, Works())


def _syncers(merges: Sequence[MergeRecord], shards: int) -> Iterator[Fact]:
    """The first merge of a shard under every epoch: a shard serves under the number of its life."""
    seen = set()
    for merge in merges:
        if merge.kind in ("merge", "final") and merge.version:
            life = (merge.fragment % shards, merge.version[0])
            if life not in seen:
                seen.add(life)
                yield Fact(merge.time, f"syncer/{life[0]}", life[1], Works())


def _first_after(facts: Sequence[Fact], role: str, times: Sequence[float]) -> Iterator[Fact]:
    """The first of `times` after every restart of a host of `role`."""
    for fact in facts:
        if fact.role == role and isinstance(fact.what, Restarted):
            at = next((time for time in times if time >= fact.at + _STALE_SECONDS), None)
            if at is not None:
                yield Fact(at, fact.host, fact.life, Works())

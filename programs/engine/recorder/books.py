"""The books of a run: what is known of learners, merges, evaluations and settings, folded from what is recorded.

Decides which of an input is news, so that nothing is written twice; which of the tokens that were ever merged are in
the model; and the figures of a status. A recorder folds a line as it writes it, one that comes back folds those of the
folder, and so does the summary. Everything here only grows, so lines may be folded in any order, and twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from isthmus.ops.exchange.messages import MERGES_KEPT, StepReport
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.programs.engine.recorder.accounts import (
    Life,
    allocated_seconds,
    entries,
    fragment_accounts,
    goodput,
    merged_share,
)
from isthmus.programs.engine.recorder.lines import mean_of, recorded
from isthmus.programs.engine.recorder.sites import SiteMemory, summaries
from isthmus.programs.engine.results import alterations
from isthmus.programs.engine.results.alterations import Alteration
from isthmus.programs.engine.results.lines import (
    KINDS,
    ChangeRecord,
    EvaluationLine,
    Line,
    MergeRecord,
    ReportLine,
    metrics_of,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import ONE_MACHINE
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import write_bytes

LAST_COUNT: Final = 16
"""Changes that a status shows; changes.jsonl has all."""


class Changes:
    """Changes of all shards."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        self._in_use: dict[tuple[int, str, int], str] = {}
        """Of the shards that have the model's merges: not those of regions."""
        self._last: deque[dict[str, Any]] = deque(maxlen=LAST_COUNT)
        self._count = 0

    def add(self, change: ChangeRecord) -> bool:
        """Take in a change; returns whether it is new. A shard's arrive in order."""
        shard, newest = change.shard, (change.epoch, change.number)
        newest_known = self._newest.get((change.role, shard), (0, 0))
        if newest <= newest_known:
            return False
        self._newest[change.role, shard] = newest
        if not change.role:
            if newest[0] > newest_known[0]:  # A life begins with the requested settings.
                self._in_use = {key: value for key, value in self._in_use.items() if key[0] != shard}
            self._in_use[shard, change.setting, -1 if change.slot is None else change.slot] = change.after
        self._last.append({**msgspec.structs.asdict(change), "time": change.time or None})
        self._count += 1
        return True

    def figures(self) -> dict[str, Any]:
        """For a status: the number of changes, the last ones, and the values in use of all settings that ever changed:
        [shard, setting, slot or None, format or steps]."""
        in_use = [
            [shard, setting, None if slot < 0 else slot, value]
            for (shard, setting, slot), value in sorted(self._in_use.items())
        ]
        return {"count": self._count, "in_use": in_use, "last": list(self._last)}


KEPT_MAX: Final = 8
"""Merges of a fragment in an epoch that are kept one by one, beside those of versions on disk: a shard that comes back
is given the newest version of all holders, which is the last one that its former life published, or one of the few
before it; without any holder, the one on disk."""
KEPT_NOW_MAX: Final = 64
"""The same in the newest epoch: that a version is on disk is heard of some merges later."""
SAVED_MAX: Final = 4
"""Versions of a fragment that are taken to be on disk: those of the last two snapshots, and of two that have gone."""


class ShardBooks(msgspec.Struct):
    """The merges of shards by fragment and epoch; the books only grow, and take items in any order and twice.

    A shard that comes back begins with a version that others hold, its *origin*; merges of its former life beyond that
    version are *undone*. So the model's tokens are those of the newest epoch, of the epoch before it up to the origin,
    and so on. Where a recorder has missed a merge, the counts of its fragment are only a bound, and are marked so.
    """

    _newest: dict[tuple[int, int], MergeRecord] = {}
    """By fragment and epoch, as all of these but the last two."""
    _kept: dict[tuple[int, int], dict[int, list[list[int]]]] = {}
    _origins: dict[tuple[int, int], list[int]] = {}
    _claimed: dict[tuple[int, int], int] = {}
    _saved: dict[int, list[tuple[int, int]]] = {}
    """Fragment -> versions on disk, the newest last."""
    _rounds: dict[tuple[int, int], set[int]] = {}
    """(shard, epoch) -> the rounds that were added, of the last MERGES_KEPT; the next life has them from the lines."""

    def add(self, merging: MergeRecord) -> bool:
        """Take in a merge; returns whether it is new. A shard's records may arrive in any order."""
        fragment, epoch, version = merging.fragment, merging.epoch, merging.version
        if not self._is_news(merging):
            return False
        last = self._newest.get((fragment, epoch))
        if last is None or last.round < merging.round:
            self._newest[fragment, epoch] = merging
        if merging.origin is not None:
            self._begun(fragment, epoch, merging.origin)
        if version is not None and version[0] == epoch:
            self._keep(fragment, epoch, version[1], merging.merged_tokens)
        return True

    def _is_news(self, merging: MergeRecord) -> bool:
        """Whether this merge was never added; a round behind the last MERGES_KEPT has no mailbox any more."""
        of, number = (merging.shard, merging.epoch), merging.round
        rounds = self._rounds.setdefault(of, set())
        if number in rounds or number <= max(rounds, default=0) - MERGES_KEPT:
            return False
        rounds.add(number)
        if len(rounds) > 2 * MERGES_KEPT:
            oldest = max(rounds) - MERGES_KEPT
            self._rounds[of] = {each for each in rounds if each > oldest}
        return True

    def claimed(self, versions: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note the versions of fragments that learners hold, or that epochs began with: lower bounds of the merges."""
        for fragment, version in versions:
            of = (fragment, version[0])
            self._claimed[of] = max(self._claimed.get(of, 0), version[1])

    def _begun(self, fragment: int, epoch: int, origin: Sequence[int]) -> None:
        if (fragment, epoch) not in self._origins:
            self._origins[fragment, epoch] = list(origin)
            self._drop(fragment, origin[0], KEPT_MAX)
        self.claimed([(fragment, origin)])

    def saved(self, versions: Iterable[Sequence[int]]) -> None:
        """Note the versions on disk, as [fragment, epoch, count]: their merges are kept."""
        for fragment, epoch, count in versions:
            versions_saved = self._saved.setdefault(fragment, [])
            if (epoch, count) not in versions_saved:
                self._saved[fragment] = sorted([*versions_saved, (epoch, count)])[-SAVED_MAX:]

    def _keep(self, fragment: int, epoch: int, count: int, merged: list[list[int]]) -> None:
        self._kept.setdefault((fragment, epoch), {})[count] = merged
        newest = max(each for p, each in self._kept if p == fragment)
        self._drop(fragment, epoch, KEPT_NOW_MAX if epoch == newest else KEPT_MAX)

    def _drop(self, fragment: int, epoch: int, most: int) -> None:
        """Keep so many of the newest merges, and those of versions on disk, or with which an epoch began."""
        kept = self._kept.get((fragment, epoch), {})
        needed = {*self._saved.get(fragment, ()), *(tuple(o) for (p, _), o in self._origins.items() if p == fragment)}
        for old in sorted(kept)[:-most]:
            if (epoch, old) not in needed:
                del kept[old]

    # -- results -------------------------------------------------------------------------------------------------------

    def mergings(self) -> list[MergeRecord]:
        """The newest merge of each fragment in each epoch of its shard, in this order."""
        return [merging for _, merging in sorted(self._newest.items())]

    def in_model(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that are in the newest version of a fragment, and whether no merge that is in it is
        missing in that count."""
        epoch = max((epoch for p, epoch in self._origins if p == fragment), default=None)
        is_whole = all(self._is_known(*of) for of in self._claimed if of[0] == fragment and of[1] >= (epoch or 0))
        if epoch is None:
            return Counter(), is_whole
        merged = _counted(self._newest[fragment, epoch].merged_tokens)
        while (origin := self._origins.get((fragment, epoch), [epoch, 0]))[0] < epoch:
            epoch = origin[0]
            before, is_exact = self._at(fragment, epoch, origin[1])
            merged.update(before)
            is_whole = is_whole and is_exact
        return merged, is_whole

    def ever(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that were merged by any epoch, undone or not, and whether no merge is missing in that
        count."""
        merged: Counter[Life] = Counter()
        for (p, _), merging in self._newest.items():
            merged.update(_counted(merging.merged_tokens) if p == fragment else {})
        return merged, all(self._is_known(*of) for of in self._claimed if of[0] == fragment)

    def _is_known(self, fragment: int, epoch: int) -> bool:
        """Whether no host holds a newer version of an epoch than its shard has reported to the recorder."""
        origin = self._origins.get((fragment, epoch))
        counts = [*self._kept.get((fragment, epoch), {}), *([] if origin is None else [origin[1]])]
        return not epoch or self._claimed[fragment, epoch] <= max(counts, default=-1)

    def _at(self, fragment: int, epoch: int, count: int) -> tuple[Counter[Life], bool]:
        """The tokens that an epoch had merged up to a version, and whether it is known; else those known before it."""
        kept = self._kept.get((fragment, epoch), {})
        before = [each for each in kept if each <= count]
        origin = self._origins.get((fragment, epoch), [0, -1])
        if not before:
            return Counter(), count == origin[1]
        return _counted(kept[max(before)]), max(before) == count


def _point_of(point: EvaluationLine) -> tuple[Any, ...]:
    """What tells an evaluation from others. A run that has undone tokens may have another model after as many."""
    if point.kind != "final":
        return point.tokens, point.kind
    return point.tokens, point.kind, point.eval_loss, tuple(point.figures.items())


def _counted(rows: Iterable[Sequence[int]]) -> Counter[Life]:
    return Counter({(slot, incarnation): tokens for slot, incarnation, tokens in rows})


_LEARNER_FIELDS: Final = (
    *("incarnation", "phase", "step", "tokens", "loss", "staleness", "sick", "sick_step", "accounts", "stepping"),
    *("waited", "bytes_sent", "bytes_received", "device_kind", "slot"),
)
_WHERE_TOLD: Final = ("payload_bytes_sent", "answers", "not_finite", "away", "lacks_memory")
"""Those of programs that merge, and what a body of the user's own need not count."""
SNAPSHOT_FAULTS_MAX: Final = 16
"""A life of the recorder reads two snapshots."""
_NOTED_FIELDS: Final = ("reported_at", "reported_paused", "gone_at", "gone_paused", "accounted", "accounted_steps")
"""Noted beside a report: when it arrived, and when its life was known to be gone, and how long this recorder had been
paused by then; and its own tokens and steps, where lines of metrics.jsonl have more."""
Report: TypeAlias = dict[str, Any]
"""A `StepReport`, and what is noted beside it."""


class BooksMemory(msgspec.Struct):
    """What a life of a recorder leaves to the next one. Instants are those of the recorder's clock."""

    incarnation: int = 0
    """That of the writer."""
    trained: list[list[int]] = []
    """[slot, incarnation, tokens]."""
    reports: dict[int, Report] = {}
    """The last of each slot."""
    former: list[Report] = []
    """Those of lives that are over."""
    shards: ShardBooks = msgspec.field(default_factory=ShardBooks)
    evaluations: list[EvaluationLine] = []
    final: set[int] = set()
    final_at: int | None = None
    """The write of the last of the `final` fragments."""
    zero: int | None = None
    """The first inner step of any learner."""
    stepping_until: int = 0
    """The last report of a step."""
    since: dict[int, int] = {}
    """When a life of each slot was first seen."""
    versions: dict[int, list[int]] = {}
    """The newest merged ones, [epoch, count] by fragment."""
    publishers: dict[int, list[int]] = {}
    """The shards' lives that published a fragment last, [shard, epoch] by fragment."""
    snapshot_faults: list[str] = []
    """What is wrong with damaged snapshots."""
    early: list[tuple[int, Line]] = []
    """Lines that wait for the first step, each with its instant."""
    went_on_at: int = -1
    """The tokens of the last evaluation before a run that was over went on, or those that counted then, if these are
    more: an evaluation of before is not its last."""
    undone: list[list[int]] = []
    """[slot, incarnation, tokens] of what was trained after the snapshots from which the run was resumed."""
    final_digests: dict[int, list[int]] = {}
    """[epoch, count, digest] of the last version of each fragment that is written."""
    alterations: list[Alteration] = []
    """What was not as before at the resumes of the run, the oldest first."""
    sites: dict[str, SiteMemory] = {}
    """Machines with data of their own, by name."""

    def undo(self, undone: Iterable[Sequence[int]]) -> None:
        """Note what of some lives is undone; of one that was undone before, the larger part is."""
        known = _counted(self.undone) | _counted(undone)
        self.undone = [[*life, tokens] for life, tokens in sorted(known.items())]


class Books(BooksMemory, kw_only=True):
    """The books of one run. `sizes` of the fragments in values, none where whole trees are exchanged.

    `paused`: for how long this recorder was stopped, in nanoseconds, with all else that was. `has_regions`: learners
    hold versions of their regions, which say nothing of the model's. `paths`: of a model made of modules.
    """

    sizes: Sequence[int]
    totals: Totals = msgspec.field(default_factory=Totals)
    changes: Changes = msgspec.field(default_factory=Changes)
    paused: int = 0
    merged_until: float = 0.0
    """When the last merge was published, in seconds since the first step, as far as lines have it."""
    has_regions: bool = False
    paths: PathParts | None = None
    _points: tuple[list[EvaluationLine] | None, set[tuple[Any, ...]]] = (None, set())
    _live: Set[Life] | None = None
    _zero_max: int | None = None
    _recalled: Set[Life] = frozenset()
    """Lives of which only the recorder before this one has heard, which heard of any until `_heard_until`."""
    _heard_until: int = 0

    # -- from life to life ---------------------------------------------------------------------------------------------

    def recall(self, memory: BooksMemory) -> None:
        """Load the memory of an earlier recorder."""
        for name in memory.__struct_fields__:
            setattr(self, name, getattr(memory, name))
        self.totals.raise_to(memory.trained)
        self._heard_until = max([self.stepping_until, *(each.get("reported_at", 0) for each in self.reports.values())])
        self._recalled = {(slot, report["incarnation"]) for slot, report in self.reports.items()}

    def memory(self, incarnation: int, early: Sequence[tuple[int, Line]]) -> BooksMemory:
        """The memory for the next recorder, with the lines that wait for the first step."""
        self.incarnation, self.early, self.trained = incarnation, list(early), self.totals.rows()
        kept = {name: getattr(self, name) for name in BooksMemory.__struct_fields__}
        return BooksMemory(**{**kept, "shards": msgspec.structs.replace(self.shards, _rounds={})})

    # -- input ---------------------------------------------------------------------------------------------------------

    def accept(self, line: Line, now: int) -> Line | None:
        """Fold a line; returns it as it is to be written, None if it is known."""
        match line:
            case MergeRecord():
                return line if self._add_merge(line) else None
            case EvaluationLine():
                return self._add_evaluation(line)
            case ChangeRecord():
                return line if self.changes.add(line) else None
            case ReportLine():
                self._add_line(line, now)
                return line

    def _add_line(self, line: ReportLine, now: int) -> None:
        """Take in a life's trained tokens, and an upper bound of zero, in case that is forgotten."""
        self.totals.raise_to([[line.learner, line.incarnation, line.tokens]])
        for report in (*self.former, *self.reports.values()):
            is_its = (report["slot"], report["incarnation"]) == (line.learner, line.incarnation)
            if is_its and line.tokens > report["tokens"]:
                report.setdefault("accounted", report["tokens"])
                report.setdefault("accounted_steps", report["step"])
                report["tokens"], report["step"] = line.tokens, line.step
        since_zero = round(line.time * 1e9)
        if self.zero is not None and line.phase == "stepping":
            self.stepping_until = max(self.stepping_until, self.zero + since_zero)
        self._zero_max = min(now - since_zero, self._zero_max or now)

    def add_report(self, report: StepReport, now: int) -> bool:
        """Take in a report; whether it is of the newest life of its slot."""
        self.totals.raise_to([[report["slot"], report["incarnation"], report["tokens"]]])
        if self.zero is None and report["tokens"]:
            self.zero = min(now - report["stepping"], self._zero_max or now)
        if report["phase"] == "stepping":
            self.stepping_until = now
        noted = {**report, "totals": [], "reported_at": now, "reported_paused": self.paused}
        last = self.reports.get(report["slot"])
        if last is not None and last["incarnation"] > report["incarnation"]:
            return False
        if last is not None and last["incarnation"] < report["incarnation"]:
            self._note_gone(last, now)
            self.former.append(last)
        if last is not None and last["incarnation"] == report["incarnation"] and not report["metrics"]:
            noted["metrics"] = last["metrics"]
        self.reports[report["slot"]] = noted
        self._recalled -= {(report["slot"], report["incarnation"])}
        if not self.has_regions:
            self.shards.claimed(enumerate(report["versions"]))
        return True

    def note_site(self, report: StepReport, machine: str) -> None:
        """Take in what the learner of a machine with data of its own reports of these."""
        if (site := report.get("site")) is not None:
            known = self.sites.setdefault(machine or ONE_MACHINE, SiteMemory())
            known.add((report["slot"], report["incarnation"]), site)

    def note_final(self, fragment: int, version: Sequence[int], digest: int, now: int) -> None:
        """Take in the last version of a fragment, which is written. A merge in it need not be known: it may have died
        with its shard and the recorder before."""
        self.final.add(fragment)
        self.final_digests[fragment] = [*version, digest]
        self.final_at = now
        self.shards.claimed([(fragment, version)])

    def unlike(self) -> list[tuple[int, str]]:
        """The slots whose leaves are not the last model that is written, and the first leaf of each, '' where it is not
        known. Only of learners that have adopted all of it: others have left, or are gone."""
        found = list[tuple[int, str]]()
        for slot, report in sorted(self.reports.items()):
            last, versions = report.get("last"), report["versions"]
            if not last or not last["digests"]:
                continue
            own = {p: [*versions[p], digest] for p, digest in enumerate(last["digests"])}
            has_last = [each[:2] for each in own.values()] == [
                each[:2] for _, each in sorted(self.final_digests.items())
            ]
            if has_last and (own != self.final_digests or last["leaf"]):
                found.append((slot, last["leaf"]))
        return found

    def note_live(self, lives: Set[Life], now: int) -> None:
        """Note which lives of learners, as (slot, incarnation), are live: of the others, since when they are not."""
        self._live = lives
        for slot, _ in sorted(lives):
            self.since.setdefault(slot, now)
        for slot, report in self.reports.items():
            if (slot, report["incarnation"]) in lives:
                for name in ("gone_at", "gone_paused"):
                    report.pop(name, None)
            else:
                self._note_gone(report, now)

    def _note_gone(self, report: Report, now: int) -> None:
        """Note since when a life is known to be gone.

        A life that only an earlier recorder heard may have died with all others: it is gone since that heard any.
        """
        is_recalled = (report["slot"], report["incarnation"]) in self._recalled
        report.setdefault("gone_at", self._heard_until if is_recalled else now)
        report.setdefault("gone_paused", self.paused)

    def note_snapshots(self, faults: Iterable[str]) -> None:
        """Note faults of snapshots, the first SNAPSHOT_FAULTS_MAX."""
        for fault in faults:
            if fault not in self.snapshot_faults and len(self.snapshot_faults) < SNAPSHOT_FAULTS_MAX:
                self.snapshot_faults.append(fault)

    def _add_merge(self, merge: MergeRecord) -> bool:
        """Take in a merge; returns whether it is new."""
        fragment, version = merge.fragment, merge.version
        self.totals.raise_to(merge.merged_tokens)  # A lower bound for lives whose reports are missing or refused.
        if not self.shards.add(merge):
            return False
        self.merged_until = max(self.merged_until, merge.time)
        if version is not None and merge.epoch >= self.publishers.get(fragment, [0, 0])[1]:
            self.publishers[fragment] = [merge.shard, merge.epoch]
        if version is not None and version[1]:
            self.versions[fragment] = max(self.versions.get(fragment, [0, 0]), list(version))
        return True

    def is_later_life(self, merge: MergeRecord) -> bool:
        """Whether a merge is of a later life of its shard than the fragment was published by."""
        return merge.epoch > self.publishers.get(merge.fragment, [0, 0])[1]

    def _add_evaluation(self, point: EvaluationLine) -> EvaluationLine | None:
        """Take in a point of the curve; returns the point as it enters the curve, None if it is known.

        From a restarted evaluator only points beyond the known ones count, and none as the initial one.
        """
        if point.kind == "initial" and self.evaluations:
            if point.tokens <= self.evaluations[-1].tokens:
                return None
            point = msgspec.structs.replace(point, kind="during")
        if _point_of(point) in self._known_points():
            return None
        self.evaluations.append(point)
        self._points[1].add(_point_of(point))
        return point

    def _known_points(self) -> Set[tuple[Any, ...]]:
        """What tells each evaluation from others: made anew once a memory brought others."""
        if self._points[0] is not self.evaluations:
            self._points = self.evaluations, {_point_of(known) for known in self.evaluations}
        return self._points[1]

    # -- results -------------------------------------------------------------------------------------------------------

    def since_zero(self, at: int) -> float:
        """Seconds from the first step to an instant, as lines have them; 0 before a step is known."""
        return 0.0 if self.zero is None else round((at - self.zero) / 1e9, 6)

    @property
    def undone_tokens(self) -> int:
        """The trained tokens that a resume has undone."""
        return sum(tokens for _, _, tokens in self.undone)

    @property
    def counted(self) -> int:
        """The trained tokens that count for the budget."""
        return self.totals.trained - self.undone_tokens

    def counted_rows(self) -> list[list[int]]:
        """The same by life, [slot, incarnation, tokens]."""
        undone = {(slot, incarnation): tokens for slot, incarnation, tokens in self.undone}
        return [[*life, tokens - undone.get((life[0], life[1]), 0)] for *life, tokens in self.totals.rows()]

    def published(self) -> list[list[int]]:
        """The newest version of each fragment that is known to be merged, as [fragment, epoch, count]."""
        return [[fragment, *version] for fragment, version in sorted(self.versions.items())]

    def is_evaluated(self) -> bool:
        """Whether the last evaluation is known."""
        return self._last_evaluation() is not None

    def _last_evaluation(self) -> EvaluationLine | None:
        """That of the final model, if it is known."""
        since = self.went_on_at
        return next((e for e in reversed(self.evaluations) if e.kind == "final" and e.tokens > since), None)

    def note_last(self, evaluation: EvaluationLine) -> None:
        """An evaluator has said this now: a final one is the last, even where no token was trained since another."""
        if evaluation.kind == "final":
            self.went_on_at = min(self.went_on_at, evaluation.tokens - 1)

    def figures(self, learners: int) -> dict[str, Any]:
        """The figures of a status, from which the summary is made; the run has `learners` slots."""
        former = [_learner(report) for report in self.former]
        present = {slot: _learner(report) for slot, report in sorted(self.reports.items())}
        lives = [*former, *present.values()]
        merges, votes = self._merge_counts()
        status = {
            "former": former,
            "learners": present,
            "totals": self.totals.rows(),
            "zero": self.zero,
            "stepping_until": self.stepping_until,
            "merged_until": self.merged_until or None,
            "has_regions": self.has_regions,
            "joined": [[slot, at] for slot, at in sorted(self.since.items()) if slot >= learners],
            **self._by_shards(),
        }
        if self.paths is not None:
            status |= {"paths": self.paths.count, "holders": [list(each) for each in self.paths.holders]}
        if self._live is not None:
            status["gone"] = self._unheard(self._live)
        life_tokens = entries(status, len(self.sizes))
        last = self._last_evaluation()
        not_finite = [life.get("not_finite") for life in lives]
        return {
            **status,
            "tokens": self.counted,
            "tokens_undone": self.undone_tokens,
            "losses_not_finite": sum(not_finite) if not_finite and None not in not_finite else None,
            "outer_steps": merges,
            "contributors_mean": votes / merges if merges else 0.0,
            "merged_share": merged_share(fragment_accounts(life_tokens, len(self.sizes)), self.sizes),
            "goodput": goodput(lives, life_tokens, self.sizes, allocated_seconds(status, learners)),
            "eval_loss": self.evaluations[-1].eval_loss if self.evaluations else None,
            "eval_tokens": self.evaluations[-1].tokens if self.evaluations else None,
            "eval_loss_final": None if last is None else last.eval_loss,
            "eval_loss_initial": self.evaluations[0].eval_loss if self.evaluations else None,
            "eval_loss_error": self.evaluations[-1].eval_loss_error if self.evaluations else None,
            "eval_windows": self.evaluations[-1].windows if self.evaluations else None,
            "eval_windows_there": self.evaluations[-1].windows_there if self.evaluations else None,
            "evaluations": len(self.evaluations),
            "eval_seconds": self.evaluations[-1].seconds if self.evaluations else None,
            "tokens_final": None if last is None else last.tokens,
            "metrics": metrics_of(mean_of(present.values()).items()),
            "eval_metrics": self.evaluations[-1].metrics if self.evaluations else {},
            "figures": {} if last is None else last.figures,
            "figures_better": {} if last is None else last.better,
            "figures_fault": None if last is None else last.figures_fault,
            "epochs": self._epochs(),
            "changes": self.changes.figures(),
            "alterations": alterations.as_data(self.alterations),
            "sites": summaries(self.sites, self.counted_rows()),
        }

    def accounts(self, status: Mapping[str, Any]) -> list[dict[str, int]]:
        """The account of each fragment, by the figures of a status."""
        return fragment_accounts(entries(status, len(self.sizes)), len(self.sizes))

    def _unheard(self, live: Set[tuple[int, int]]) -> list[list[int]]:
        """Lives that are gone and never reported: known from others' reports only."""
        reported = {(report["slot"], report["incarnation"]) for report in (*self.former, *self.reports.values())}
        mentioned = {(slot, incarnation) for slot, incarnation, _ in self.totals.rows()}
        return [[*life] for life in sorted(mentioned - reported - live)]

    def _epochs(self) -> dict[int, int]:
        """Shard -> the newest epoch in which it has merged."""
        newest: dict[int, int] = {}
        for merging in self.shards.mergings():
            if merging.kind in ("merge", "final"):
                newest[merging.shard] = max(merging.epoch, newest.get(merging.shard, 0))
        return newest

    def _merge_counts(self) -> tuple[int, int]:
        """Merges and votes of all shards: the newest count of each epoch of a shard stands for it."""
        newest: dict[tuple[int, int], tuple[int, int]] = {}
        for merging in self.shards.mergings():
            of = (merging.shard, merging.epoch)
            newest[of] = max(newest.get(of, (0, 0)), (merging.merges, merging.votes))
        return sum(count for count, _ in newest.values()), sum(votes for _, votes in newest.values())

    def _by_shards(self) -> dict[str, Any]:
        """The shards' figures by fragment.

        Tokens of each life in the model, and undone ones; whether all merges in the model are known, and all merges
        ever.
        """
        sums: dict[str, Any] = {"merged_tokens": {}, "undone_tokens": {}, "model_whole": {}, "merges_whole": {}}
        for p in range(len(self.sizes)):
            merged, sums["model_whole"][p] = self.shards.in_model(p)
            undone, sums["merges_whole"][p] = self.shards.ever(p)
            undone.subtract(merged)
            sums["merged_tokens"][p] = [[*life, tokens] for life, tokens in sorted(merged.items())]
            sums["undone_tokens"][p] = [[*life, tokens] for life, tokens in sorted(undone.items()) if tokens]
        return sums


def _learner(report: Report) -> dict[str, Any]:
    shown: Report = {name: report[name] for name in _LEARNER_FIELDS}
    shown |= {name: report[name] for name in _WHERE_TOLD if name in report}
    shown |= {name: report[name] for name in ("began", "in_model") if report.get(name)}
    shown["metrics"] = dict(report["metrics"])
    shown |= {name: report[name] for name in _NOTED_FIELDS if name in report}
    return {**shown, "step_ms": report["step_time"] / 1e6}


FILE: Final = "recorder.state"


class _Writer(msgspec.Struct):
    """Whose memory it is, of all that it says."""

    incarnation: int


class Remembering:
    """The file, as one life of a recorder writes it.

    The latest life that has written may write: one that was replaced may live on for a while, cut off from its daemon,
    and its writes would be behind those of the next one. The file is written whole, once a second; later changes are in
    the lines, which are read when a recorder opens. All that is known only grows, so reading something twice changes
    nothing.
    """

    def __init__(self, folder: Path, disk: Disk, incarnation: int) -> None:
        self._folder, self._disk, self._incarnation = folder, disk, incarnation
        self._saved: bytes | None = None

    def is_replaced(self) -> bool:
        """Whether a later life has written; False if the disk cannot be read."""
        try:
            data = self._disk.read(self._folder / FILE)
            return msgspec.msgpack.decode(data, type=_Writer).incarnation > self._incarnation
        except (OSError, ValueError):
            return False

    def save(self, books: Books, early: Sequence[tuple[int, Line]]) -> None:
        """Write the memory durably if it has changed; a failed write is repeated with the next call."""
        data = msgspec.msgpack.encode(books.memory(self._incarnation, early))
        if data == self._saved or self.is_replaced():
            return
        try:
            write_bytes(self._folder / FILE, data, self._disk)
        except OSError:
            return
        self._saved = data


def read_into(books: Books, folder: Path, disk: Disk, now: int, *, is_whole: bool = False) -> None:
    """Fold what is in a run folder into books: the memory of a recorder, and the lines that are newer, or all of them.

    OSError if the disk cannot be read; then it may be done again.
    """
    memory = load(folder, disk)
    if memory is not None:
        books.recall(memory)
    for kind in KINDS:
        for line in recorded(folder, disk, kind, is_tail=memory is not None and not is_whole):
            books.accept(line, now)


def go_on(folder: Path, disk: Disk, counted: int) -> None:
    """Have the memory of a run that was over say that it goes on, where so many tokens count. OSError of the disk.

    They may be fewer than at an evaluation that was the last, which the memory need not know yet: lines are before it.
    """
    memory, known = load(folder, disk), Books(sizes=())
    if memory is None:
        return
    read_into(known, folder, disk, 0)
    tokens = [each.tokens for each in known.evaluations if each.kind == "final"]
    if memory.final or tokens:
        memory.final, memory.final_at, memory.went_on_at = set(), None, max([counted, *tokens])
        memory.final_digests = {}
        write_bytes(folder / FILE, msgspec.msgpack.encode(memory), disk)


def undo(folder: Path, disk: Disk, undone: Iterable[Sequence[int]]) -> None:
    """Have the memory of a run that is resumed say what of its lives, [slot, incarnation, tokens], was trained after
    the snapshot. A life that was undone before stays so. OSError of the disk."""
    memory = load(folder, disk)
    if memory is not None:
        memory.undo(undone)
        write_bytes(folder / FILE, msgspec.msgpack.encode(memory), disk)


def note_alteration(folder: Path, disk: Disk, alteration: Alteration, at: int) -> None:
    """Have the memory of a run that is resumed at an instant of its clock say what is not as before; once, however
    often the resume is begun. OSError of the disk."""
    memory, known = load(folder, disk), Books(sizes=())
    read_into(known, folder, disk, 0, is_whole=memory is None)
    if memory is None:  # What a recorder would have said that had opened the folder now.
        memory = known.memory(0, [])
    time = None if known.zero is None else known.since_zero(at)
    others = [each for each in memory.alterations if not _is_again(each, alteration)]
    memory.alterations = [*others, msgspec.structs.replace(alteration, time=time)]
    write_bytes(folder / FILE, msgspec.msgpack.encode(memory), disk)


def _is_again(noted: Alteration, alteration: Alteration) -> bool:
    """Whether a resume that did not come about has noted the same."""
    # As they are written: a list that was read is none that equals a tuple.
    one, other = (msgspec.msgpack.encode(msgspec.structs.replace(each, time=None)) for each in (noted, alteration))
    return one == other


def check(folder: Path, disk: Disk, doing: str) -> None:
    """ConfigError if the memory of an earlier recorder is whole, and of another form: that of another version of
    isthmus, which is not to be taken for a damaged one."""
    try:
        data = disk.read(folder / FILE)
        msgspec.msgpack.decode(data)
    except (OSError, ValueError):
        return
    try:
        msgspec.msgpack.decode(data, type=BooksMemory)
    except ValueError as error:
        do = "Go on with the version of isthmus that wrote it."
        raise ConfigError(doing, f"a {FILE} as this version of isthmus writes it", str(error), do) from None


def load(folder: Path, disk: Disk) -> BooksMemory | None:
    """The memory of an earlier recorder; None if there was none, or its file is torn.

    OSError if the disk cannot be read.
    """
    try:
        return msgspec.msgpack.decode(disk.read(folder / FILE), type=BooksMemory)
    except (FileNotFoundError, ValueError):
        return None

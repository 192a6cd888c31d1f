"""A process's statuses as families of metrics.

Decides names, units and labels. Every name begins with `isthmus_`; labels are `run`, `slot`, `machine`, `site`,
`scalar` and `quantile`, and nothing that grows with steps is one. A status is that of a run's home, with the figures of
its recorder, or of a machine that takes part, with those of its own hosts alone: both have a learner's series, so sums
over processes take the maximum by run and slot first. Nothing is counted here: every value is one of a status.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isthmus.programs.engine.metrics.run_status import RunStatus
from isthmus.programs.engine.results.crowd import QUANTILES, looked_for, lost_share, quantile

RUN: Final = ("run",)
LEARNER: Final = ("run", "slot", "machine")
MACHINE: Final = ("machine",)
SCALAR: Final = ("run", "scalar")
SITE: Final = ("run", "site")
SHARE: Final = ("run", "quantile")
Labels: TypeAlias = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Family:
    """A family of metrics: its name without `isthmus_`, what it says, and its labels. A counter only grows within one
    life of what it counts."""

    name: str
    says: str
    labels: Labels
    is_counter: bool = False


_RUN: Final[Mapping[str, Family]] = {
    "tokens": Family("run_tokens", "Tokens that all learners have trained.", RUN, is_counter=True),
    "tokens_budget": Family("run_budget_tokens", "Tokens that are to be trained.", RUN),
    "outer_steps": Family("run_merges", "Merges of fragments.", RUN, is_counter=True),
    "contributors_mean": Family("run_merge_learners", "Learners in a merge, the mean over the run.", RUN),
    "merged_share": Family("run_merged_ratio", "Tokens in the global model over those trained.", RUN),
    "goodput": Family("run_goodput_ratio", "Learners' time whose tokens are kept, over all of it.", RUN),
    "eval_loss": Family("run_evaluation_loss", "The last loss on held-out data, in the task's unit.", RUN),
}
"""Figures of a recorder's status, by their keys there."""
_SCALARS: Final = Family(
    "run_evaluation_scalar", "The last other scalars of the evaluation; loss/NAME of a held-out set.", SCALAR
)
_SITE: Final[Mapping[str, Family]] = {
    "tokens": Family("site_tokens", "Tokens that a site's learners have trained.", SITE, is_counter=True),
    "epochs": Family("site_epochs", "Passes of a site's learners over its own data.", SITE),
    "data_tokens": Family("site_data_tokens", "Tokens of a site's own data.", SITE),
    "global_last": Family("site_global_loss", "The global model's last loss on a site's own held-out data.", SITE),
    "own_last": Family("site_own_loss", "The same of the model that the site's learners had by themselves.", SITE),
}
"""Figures of a site, by their keys in a recorder's status."""
_LEARNERS_LIVE: Final = Family("run_learners", "Learners whose hosts are alive.", RUN)
_LINES_LOST: Final = Family("run_lost_lines", "Lines that the disk did not take.", RUN, is_counter=True)
_SNAPSHOTS_FAIL: Final = Family(
    "run_snapshots_failing", "1 while the disk, or the store, does not take snapshots; else 0.", RUN
)
_STORED: Final = Family("run_stored_snapshot_number", "The newest snapshot in the store.", RUN)
_REPORT: Final[Mapping[str, tuple[Family, float]]] = {
    "step": (Family("learner_steps", "Inner steps of this life.", LEARNER, is_counter=True), 1.0),
    "tokens": (Family("learner_tokens", "Tokens trained in this life.", LEARNER, is_counter=True), 1.0),
    "loss": (Family("learner_loss", "The loss of its last steps, in the task's unit.", LEARNER), 1.0),
    "staleness": (Family("learner_staleness_steps", "The most steps since it adopted a fragment.", LEARNER), 1.0),
    "step_ms": (Family("learner_step_seconds", "The duration of a step.", LEARNER), 1e-3),
    "waited": (
        Family("learner_waited_seconds", "Waits for an item or a credit in this life.", LEARNER, is_counter=True),
        1e-9,
    ),
}
"""Figures of a learner's report, and what they are multiplied by."""
_OF_ALL: Final[Mapping[str, tuple[Family, float]]] = {
    "step": (Family("run_learner_steps", "Inner steps of a life, of a share of all learners at most.", SHARE), 1.0),
    "tokens": (Family("run_learner_tokens", "Tokens trained in a life, likewise.", SHARE), 1.0),
    "loss": (Family("run_learner_loss", "The loss of the last steps, likewise.", SHARE), 1.0),
    "staleness": (Family("run_learner_staleness_steps", "Steps since an adoption, likewise.", SHARE), 1.0),
    "step_ms": (Family("run_learner_step_seconds", "The duration of a step, likewise.", SHARE), 1e-3),
}
"""The same of many learners: quantiles."""
_LOST: Final = Family("run_learner_lost_ratio", "Tokens that were not merged over those settled, likewise.", SHARE)
_HOST: Final[Mapping[str, Family]] = {
    "bytes_sent": Family("learner_sent_bytes", "Bytes sent to other hosts in this life.", LEARNER, is_counter=True),
    "bytes_received": Family("learner_received_bytes", "Bytes received in this life.", LEARNER, is_counter=True),
    "cpu_seconds": Family("learner_cpu_seconds", "Processor time of this life.", LEARNER, is_counter=True),
    "memory_bytes": Family(
        "learner_memory_bytes", "Proportional memory (PSS), the most of looks every five seconds.", LEARNER
    ),
    "incarnation": Family("learner_life_number", "Which life of its slot this is.", LEARNER),
}
"""Figures of a learner's host."""
_UP: Final = Family("learner_up", "1 while its host is heard of; else 0.", LEARNER)
_GIVEN_UP: Final = Family("learner_given_up", "1 once it is not started again; else 0.", LEARNER)
_TIME: Final = Family("machine_time_seconds", "The time of day of the machine, since 1970.", MACHINE)
_RUNS: Final = Family("machine_runs", "Runs that have hosts on the machine, or their home.", MACHINE)
SERIES_MAX: Final = 128
"""Learners of a run each of which has its series: some twelve lines each. Of more, those that are looked for."""
_HEARD: Final = frozenset({"alive", "slow", "away"})


def families(machine: str, runs: Iterable[RunStatus]) -> list[Metric]:
    """The families of all runs of one process; a figure that is not known has no sample."""
    made = _Samples()
    count = 0
    for each in runs:
        count += 1
        made.add_run(each)
    made.add(_TIME, (machine,), time.time())
    made.add(_RUNS, (machine,), count)
    return list(made.families.values())


@final
class _Samples:
    """Samples by family; of a series that comes twice, the first."""

    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}
        self._seen = set[tuple[str, Labels]]()

    def add(self, family: Family, labels: Labels, value: Any) -> None:
        """Add a sample, if its value is a finite number."""
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or (family.name, labels) in self._seen:
            return
        self._seen.add((family.name, labels))
        if family.name not in self.families:
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            self.families[family.name] = kind(f"isthmus_{family.name}", family.says, labels=family.labels)
        self.families[family.name].add_metric(labels, float(value))  # type: ignore[attr-defined]

    def add_run(self, status: RunStatus) -> None:
        """Add what a status has."""
        run, training = (status.run,), status.training
        hosts = {str(host["name"]): host for host in status.hosts}
        learners = {name: host for name, host in hosts.items() if name.startswith("learner/")}
        if training:
            self._add_training(run, training)
            alive = sum(host["state"] in _HEARD for host in learners.values())
            self.add(_LEARNERS_LIVE, run, alive)
        reports = {int(slot): report for slot, report in training.get("learners", {}).items()}
        shown = self._add_crowd(status.run, learners, reports)
        for name, host in learners.items():
            slot = int(name.rpartition("/")[2])
            if slot not in shown:
                continue
            self._add_learner((status.run, str(slot), str(host.get("machine", ""))), host, reports.get(slot, {}))
        for slot, report in reports.items():
            if slot in shown and f"learner/{slot}" not in hosts:  # All hosts are in one process.
                self._add_report((status.run, str(slot), ""), report)

    def _add_crowd(
        self, run: str, learners: Mapping[str, Mapping[str, Any]], reports: Mapping[int, Mapping[str, Any]]
    ) -> set[int]:
        """Add the quantiles of many learners; the slots of those that have series of their own."""
        states = {slot: str(report.get("phase", "")) for slot, report in reports.items()}
        states |= {int(name.rpartition("/")[2]): str(host["state"]) for name, host in learners.items()}
        if len(states) <= SERIES_MAX:
            return set(states)
        lost = {slot: lost_share(report) for slot, report in reports.items()}
        for share, _ in QUANTILES:
            labels = run, f"{share:g}"
            for key, (family, unit) in _OF_ALL.items():
                value = quantile((report.get(key) for report in reports.values()), share)
                self.add(family, labels, None if value is None else value * unit)
            self.add(_LOST, labels, quantile(lost.values(), share))
        return set(looked_for(states, {slot: report.get("step_ms") for slot, report in reports.items()}, lost))

    def _add_training(self, run: Labels, training: Mapping[str, Any]) -> None:
        merges = bool(training.get("model_whole"))
        for key, family in _RUN.items():
            if merges or key not in ("outer_steps", "contributors_mean", "merged_share"):
                self.add(family, run, training.get(key))
        for name, value in training.get("eval_metrics", {}).items():
            self.add(_SCALARS, (*run, str(name)), value)
        for site in training.get("sites", ()):
            for key, family in _SITE.items():
                self.add(family, (*run, str(site["site"])), site.get(key))
        files = training.get("files", {}).values()
        self.add(_LINES_LOST, run, sum(count["lost"] for count in files))
        snapshots = training.get("snapshots") or {}
        store = snapshots.get("store") or {}
        self.add(_SNAPSHOTS_FAIL, run, int(bool(snapshots.get("error") or store.get("error"))))
        self.add(_STORED, run, store.get("number"))

    def _add_learner(self, labels: Labels, host: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        is_present = report.get("incarnation") == host.get("incarnation")
        self._add_report(labels, report if is_present else {"step": host.get("steps")})
        for key, family in _HOST.items():
            self.add(family, labels, host.get(key))
        self.add(_UP, labels, int(host["state"] in _HEARD))
        self.add(_GIVEN_UP, labels, int(host["state"] == "given up"))

    def _add_report(self, labels: Labels, report: Mapping[str, Any]) -> None:
        for key, (family, unit) in _REPORT.items():
            value = report.get(key)
            self.add(family, labels, value * unit if isinstance(value, int | float) else None)


def every() -> Iterator[Family]:
    """All families, in the order of the documentation."""
    yield from _RUN.values()
    yield _SCALARS
    yield from _SITE.values()
    yield from (_LEARNERS_LIVE, _LINES_LOST, _SNAPSHOTS_FAIL, _STORED)
    yield from (family for family, _ in _REPORT.values())
    yield from (family for family, _ in _OF_ALL.values())
    yield _LOST
    yield from (*_HOST.values(), _UP, _GIVEN_UP, _TIME, _RUNS)

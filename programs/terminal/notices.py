"""The events of a run since a viewer attached: absences of hosts, reported as they begin and as they end.

It reads `events.jsonl` in the run folder as far as it has grown, and takes from the statuses which hosts work again. A
run in one process has no such file, and no news.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.adapted.words import change_of, is_better, sentence
from isthmus.programs.books.words import snapshot_lines
from isthmus.programs.results.absence_words import away, back
from isthmus.programs.results.absences import Absence, Absences, Fact, Works, fact_of
from isthmus.programs.results.remarks import Tone, remark
from isthmus.programs.results.store_words import store_line
from isthmus.programs.results.who_waits import Waiting, waiting_of
from isthmus.runtime.supervision.incidents import Restarted

WORKING: Final = frozenset({"stepping", "serving", "final"})
"""The phases of a host that does its work."""
_READ_BYTES_MAX: Final = 1 << 20


class Notice(NamedTuple):
    """A line for the user; `at`: seconds since the first inner step, None before it."""

    at: float | None
    text: str
    tone: Tone


class News:
    """Follows one run. `now_ns` is the monotonic clock of the machine, on which the daemon's facts are as well."""

    def __init__(self, folder: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.absences = Absences()
        self.notices: list[Notice] = []
        self._folder, self._now_ns = folder, now_ns
        self._offset = 0
        self._submitted_ns: int | None = None
        self._zero: int | None = None
        self._waiting: Waiting | None = None
        self._is_data_told = False
        self._told_errors = set[tuple[str, ...]]()
        self._told_faults: list[str] = []
        self._told_changes = set[tuple[int, int, int]]()
        self._is_store_away = False
        self._told_began = set[tuple[int, int, str]]()
        self._sick_steps: dict[int, tuple[int, int]] = {}

    def update(self, status: Mapping[str, Any]) -> list[Notice]:
        """The notices since the last call."""
        # A daemon that has just taken over does not know the time of the first step yet.
        self._zero = status.get("zero", self._zero)
        facts = [*self._written(), *self._works(status)]
        new = [*self._sick(status), *self._damaged(status), *self._stored(status), *self._begun(status)]
        new += self._changed(status)
        for fact in facts:
            self._waiting = self._waiting or waiting_of(self._folder)
            remarked = remark(fact, self._waiting)
            if remarked is not None and remarked.topic == "data" and self._is_data_told:
                continue  # They all have the same batch().
            if remarked is not None:
                self._is_data_told |= remarked.topic == "data"
                new.append(Notice(self._since(fact.at), remarked.text, remarked.tone))
                continue
            changed = self.absences.take(fact)
            # Hosts that end with the run are silent, because they are writing their files.
            if changed is None or (changed.kind == "silent" and status.get("phase") == "done"):
                continue
            text = self._told(changed, fact)
            if text:
                # A silence is detected some time after it began.
                at = changed.begun if changed.kind == "silent" and changed.ended is None else fact.at
                new.append(Notice(self._since(at), text, _tone(changed)))
        self.notices += new
        return new

    def _told(self, changed: Absence, fact: Fact) -> str:
        """The text for a change of an absence; '' for a restart alone, which the state of the host shows."""
        if changed.ended is not None and (returned := back(changed)):
            return returned
        if isinstance(fact.what, Restarted) and changed.ended is None:
            return ""
        return away(changed, self._waiting, is_known=_is_known(changed, self._told_errors))

    def _sick(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The learners whose loss was not finite since the last call, each life and step once."""
        for slot, report in status.get("learners", {}).items():
            step = report.get("sick_step", 0)
            if step and self._sick_steps.get(int(slot)) != (report["incarnation"], step):
                self._sick_steps[int(slot)] = (report["incarnation"], step)
                told = f"learner {slot}: loss not finite at step {step}, goes on from the global model"
                yield Notice(status.get("time"), told, "bad")

    def _changed(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The settings that followed the links since the last call, each change once."""
        for told in status.get("changes", {}).get("last", ()):
            which = told["shard"], told["epoch"], told["number"]
            if which not in self._told_changes:
                self._told_changes.add(which)
                change = change_of(told)
                yield Notice(told["time"], sentence(change), "good" if is_better(change) else "odd")

    def _damaged(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The snapshots that a recorder could not read, each once."""
        for fault in status.get("snapshots", {}).get("faults", ()):
            if fault not in self._told_faults:
                self._told_faults.append(fault)
                yield Notice(None, f"a snapshot is {snapshot_lines([fault])[0]}", "bad")

    def _begun(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The source of the moments with which later lives of learners go on, each once."""
        for slot, report in status.get("learners", {}).items():
            began, life = report.get("began"), report.get("incarnation", 1)
            if began and (int(slot), life, began[0]) not in self._told_began:
                self._told_began.add((int(slot), life, began[0]))
                kind, former, step = began
                told = f"with its moments after step {step} of life {former}, from its machine"
                if kind == "snapshot":
                    told = f"as life {former} was at version {step}, from the snapshot"
                elif kind == "peer":
                    told = f"with the moments of learner {former} after step {step}"
                elif kind != "copy":
                    told = "with moments that begin anew: its machine has no copy"
                yield Notice(status.get("time"), f"learner {slot} goes on as life {life} {told}", "good")

    def _stored(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """Notices of a store that stops taking snapshots, or takes them again."""
        store = status.get("snapshots", {}).get("store")
        line = store_line(store)
        if line and not self._is_store_away:
            yield Notice(status.get("time"), f"{line}; training goes on, and it is tried again", "bad")
        elif store and not line and self._is_store_away:
            yield Notice(status.get("time"), f"snapshots reach {store['url']} again", "good")
        self._is_store_away = bool(line) if store else self._is_store_away

    def _since(self, at: float) -> float | None:
        """A time of the run as one since the first inner step; None before it."""
        return None if self._zero is None or at < self._zero / 1e9 else at - self._zero / 1e9

    def _written(self) -> Iterator[Fact]:
        """The facts that the daemon has written since the last call; times count from the run's submission."""
        submitted = self._submitted()
        if submitted is None:
            return
        try:
            with (self._folder / "events.jsonl").open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES_MAX)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            fact = _parsed(line, submitted)
            if fact is not None:
                yield fact

    def _works(self, status: Mapping[str, Any]) -> Iterator[Fact]:
        """The hosts that are seen to work."""
        submitted = self._submitted()
        if submitted is None:
            return
        now = (self._now_ns() - submitted) / 1e9
        epochs = {int(shard): epoch for shard, epoch in status.get("epochs", {}).items()}
        for host in status.get("hosts", ()):
            if host["phase"] not in WORKING or self.absences.open_of(host["name"]) is None:
                continue
            # A syncer serves as soon as it is up, but works only once it merges under its own epoch.
            if host["role"] != "syncer" or epochs.get(int(host["name"].rpartition("/")[2]), 0) >= host["incarnation"]:
                yield Fact(now, host["name"], host["incarnation"], Works())

    def _submitted(self) -> int | None:
        """The instant of the machine's clock from which the times of the run count."""
        if self._submitted_ns is None:
            try:
                self._submitted_ns = int(json.loads((self._folder / "spec.json").read_bytes())["zero_ns"])
            except (OSError, ValueError, KeyError):
                return None
        return self._submitted_ns


def notices_of(absences: Iterable[Absence], waiting: Waiting | None) -> list[Notice]:
    """The notices of absences whose times count from the first inner step, in order."""
    found, errors = [], set[tuple[str, ...]]()
    for absence in absences:
        gone = replace(absence, ended=None) if absence.kind != "replaced" else absence
        found.append((absence.begun, away(absence, waiting, is_known=_is_known(absence, errors)), _tone(gone)))
        if absence.ended is not None and back(absence):
            found.append((absence.ended, back(absence), _tone(absence)))
    return [Notice(at if at >= 0 else None, text, tone) for at, text, tone in sorted(found)]


def newest(notices: Sequence[Notice], count: int) -> Sequence[Notice]:
    """The last `count` of them."""
    return notices[-count:] if count > 0 else []


def _parsed(line: bytes, submitted: int) -> Fact | None:
    try:
        told = json.loads(line)
        return fact_of(told, submitted) if isinstance(told, dict) else None
    except (ValueError, RecursionError, OverflowError):
        return None


def _tone(changed: Absence) -> Tone:
    if changed.kind == "replaced" or (changed.kind == "silent" and changed.ended is None):
        return "odd"
    return "bad" if changed.ended is None else "good"


def _is_known(absence: Absence, errors: set[tuple[str, ...]]) -> bool:
    """Whether the error behind an absence is among these; it is from now on."""
    if absence.error is None:
        return False
    is_known = absence.error.mistake in errors
    errors.add(absence.error.mistake)
    return is_known

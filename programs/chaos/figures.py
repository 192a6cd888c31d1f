"""The figures of one run under a plan, from its run folder: the results of `isthmus chaos` for a program.

Everything comes from the run's own files: figures are those of `summary.json`, a recovery ends where the files show
that a host works again, waits are on the tapes. Only the beginning of a fault comes from the strikes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.programs.chaos.plan import FORK_SERVER
from isthmus.programs.chaos.strikes import Strike
from isthmus.programs.request import spec
from isthmus.programs.results import reading
from isthmus.programs.results.record import RunRecord
from isthmus.programs.tapes import tape_files
from isthmus.programs.tapes.waits import Wait, waits_on_others
from isthmus.runtime.graph.plans import Plan, lower

_BEFORE_SECONDS: Final = 0.5
"""A daemon may have written of an end a moment before the strike was noted."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time from the strike (for a pause: from its end) until the process, or its next life, worked again.

    For a machine until the last of its hosts did. None if the files do not show it.
    """

    strike: Strike
    seconds: float | None

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        fault = self.strike.fault
        return {"role": fault.role, "fault": fault.kind, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run: `summary` is its summary.json, `waits` counts those of inner steps on other hosts; `zero` is
    its first inner step, in seconds of the monotonic clock."""

    folder: Path
    summary: Mapping[str, Any]
    strikes: Sequence[Strike]
    recoveries: Sequence[Recovery]
    waits: int
    zero: float

    def number(self, name: str) -> float | None:
        """A figure of the summary."""
        value = self.summary.get(name)
        return None if value is None else float(value)


def figures_of(folder: Path, strikes: Sequence[Strike] = ()) -> Figures:
    """The figures of the run in `folder`, which is over."""
    record = reading.load(folder)
    told = spec.load(folder)
    zero = told.zero_ns / 1e9 + float(record.summary.get("start_seconds") or 0.0)
    happened = [strike for strike in strikes if strike.proof]
    plan = lower(told.graph()).get("learner")
    waits = 0 if plan is None else _waits(folder, plan, happened, told.zero_ns)
    return Figures(folder, record.summary, strikes, [_recovery(record, each, zero) for each in happened], waits, zero)


def _waits(folder: Path, plan: Plan, strikes: Sequence[Strike], zero_ns: int) -> int:
    """The number of waits of learners on other hosts while they were not struck themselves."""
    count = 0
    for file in tape_files.found(folder)[0]:
        if file.member is None or file.member.replica.role != "learner":
            continue
        own = [each for each in strikes if str(file.member.replica) in (each.fault.host, *each.hosts)]
        for segment in tape_files.read(file).segments:
            found = waits_on_others(plan, segment.records)
            count += sum(not any(_meet(wait, strike, zero_ns) for strike in own) for wait in found)
    return count


def _meet(wait: Wait, strike: Strike, zero_ns: int) -> bool:
    begun, ended = (zero_ns + wait.begun) / 1e9, (zero_ns + wait.ended) / 1e9
    return begun <= strike.ended and ended >= strike.begun


# -- recoveries --------------------------------------------------------------------------------------------------------


def _recovery(record: RunRecord, strike: Strike, zero: float) -> Recovery:
    """When it worked again, by the files."""
    fault = strike.fault
    if fault.kind == "kill" and fault.host == FORK_SERVER:
        back = None if strike.back is None else strike.back - zero
        begun = strike.begun - zero
    elif fault.kind == "kill":
        begun = strike.begun - zero
        came = [_back_from_the_dead(record, host, begun) for host in strike.hosts or (fault.host,)]
        back = None if None in came else max(at for at in came if at is not None)
    else:
        begun = strike.ended - zero
        back = next((at for at in _works(record, fault.host) if at > begun), None)
    return Recovery(strike, None if back is None else round(max(0.0, back - begun), 3))


def _back_from_the_dead(record: RunRecord, host: str, begun: float) -> float | None:
    ends = [each.ended for each in record.absences if each.host == host and each.begun >= begun - _BEFORE_SECONDS]
    return next((end for end in ends if end is not None), None)


def _works(record: RunRecord, host: str) -> Iterator[float]:
    """The moments at which files show a host at its work, in order."""
    role, _, slot = host.partition("/")
    shows: Mapping[str, Callable[[], Iterator[float]]] = {
        "learner": lambda: (each.time for each in record.reports if each.learner == int(slot)),
        "syncer": lambda: (each.time for each in record.merges if each.fragment % record.shards == int(slot)),
        "evaluator": lambda: (each.time for each in record.evaluations),
        "recorder": lambda: (each.time for each in record.reports),
    }
    return shows[role]() if role in shows else iter(())

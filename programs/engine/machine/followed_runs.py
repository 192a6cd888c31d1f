"""The runs that a daemon follows which ends with them: its own, and those of homes that it is linked to.

Pure. A run is followed from when it is known to go on, or once it is over and this machine took part. A home answers
every announcement with the outcomes of the runs that the machine follows; an outcome that no answer brought is unknown,
and the machine stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, final

RUNNING, FAILED = "running", "failed"
_OVER: Final = ("done", "stopped", FAILED)
"""Outcomes of runs that do not go on. One that was interrupted does, once its home is started again."""
FOLLOWED_MAX: Final = 64
"""Runs of whose outcomes a daemon thinks at once; those that are over make room."""


@final
class FollowedRuns:
    """Outcomes by home and name of the run; whether any `has_failed`."""

    def __init__(self) -> None:
        self.has_failed = False
        self._outcomes: dict[tuple[str, str], str] = {}

    def note(self, home: str, outcomes: Mapping[str, str]) -> None:
        """Note the outcomes of a home's runs."""
        for run, outcome in outcomes.items():
            self._outcomes.pop((home, run), None)
            over = [each for each, last in self._outcomes.items() if last in _OVER]
            if len(self._outcomes) == FOLLOWED_MAX and over:
                del self._outcomes[over[0]]
            if len(self._outcomes) < FOLLOWED_MAX:
                self._outcomes[home, run] = outcome
                self.has_failed |= outcome == FAILED

    def of(self, home: str) -> list[str]:
        """The runs of a home whose outcomes are to come."""
        return [run for (each, run), outcome in self._outcomes.items() if each == home and outcome not in _OVER]

    @property
    def are_over(self) -> bool:
        """Whether there was a run, and none goes on, or may go on."""
        return bool(self._outcomes) and all(outcome in _OVER for outcome in self._outcomes.values())

    @property
    def words(self) -> str:
        """Their outcomes, for people."""
        return ", ".join(f"{run}: {outcome}" for (_, run), outcome in self._outcomes.items())


@final
class FormerRuns:
    """The outcomes of a home's last runs that are over, and the machines that took part."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._runs: dict[str, tuple[str, frozenset[str]]] = {}

    def add(self, run: str, outcome: str, machines: Iterable[str]) -> None:
        self._runs.pop(run, None)
        self._runs[run] = outcome, frozenset(machines)
        if len(self._runs) > self._count_max:
            del self._runs[next(iter(self._runs))]

    def for_machine(self, machine: str, follows: Iterable[str]) -> dict[str, str]:
        """The outcomes of those that a machine follows, or took part in."""
        wanted = set(follows)
        return {run: outcome for run, (outcome, machines) in self._runs.items() if run in wanted or machine in machines}

"""The invariants of snapshots, for any moment at which everything dies."""

from __future__ import annotations

from typing import Any, Final

from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import RecorderFailed

RECORDER: Final = Replica("recorder", 0)


class SnapshotsChecker(Checker):
    """The next life of a recorder reads a snapshot that was reported as taken, or a newer one.

    A model with a snapshot is never lost.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._known: set[Life] = set()

    def asked(self, universe: Universe) -> None:
        """Check the recorders' status of snapshots: the first number of a life is the one it has read, or the next."""
        for life in universe.living():
            is_home = life.member.replica == RECORDER and life.machine == universe.home
            told = _told(life) if is_home else None
            if told is None or told["error"] is not None:
                continue
            if life not in self._known:
                self._known.add(life)
                if told["number"] < self._taken:
                    found = f"snapshot {told['number']}, and {self._taken} had been taken"
                    raise ViolationError(f"{life.member} goes on from {found}: {told['faults']}")
            self._taken = max(self._taken, told["number"])

    def finished(self, universe: Universe, home: Home) -> None:
        """Check the claim that the model is lost."""
        failure = home.failure
        is_lost = isinstance(failure, RecorderFailed) and failure.error.startswith("the model is lost")
        if is_lost and self._taken and not universe.disks[universe.home].troubles:
            raise ViolationError(f"the model is lost, of which snapshot {self._taken} was taken")


def _told(life: Life) -> dict[str, Any] | None:
    """A recorder's status of its snapshots, once it has listed them; else None."""
    shown = [each for each in life.host.published.values() if "taken_at" in each]
    return dict(shown[0]) if shown else None

"""Invariants of universes in which machines lie: such a machine harms its own share, and no other.

Decides what counts as harm: an end of the run that its recorder did not reach, and, where nothing but lies happened,
the end of a life on another machine, or a token of its learner that is lost.
"""

from __future__ import annotations

from isthmus.programs.engine.recorder.accounts import entries
from isthmus.runtime.ids import LEARNER, RECORDER, Replica
from isthmus.runtime.sim.checkers import Checker, ViolationError, is_of_liar
from isthmus.runtime.sim.faults import Lie
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import Condemned, Ended, GivenUp, Happened, RecorderFailed

ONE_RECORDER = Replica(RECORDER, 0)


class LiesChecker(Checker):
    """Lies end no run, and no life elsewhere, and lose no token of the others."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Check the ends of lives."""
        is_end = isinstance(happened.incident, Condemned | Ended | GivenUp)
        if is_end and _are_alone(universe) and not is_of_liar(universe, happened.member.replica):
            raise ViolationError(f"{happened.member} ends by a lie: {happened.incident}")

    def finished(self, universe: Universe, home: Home) -> None:
        """Compare the outcome with what the recorder has reached."""
        if not universe.injector.liars:
            return
        recorder = universe.last(ONE_RECORDER)
        status = {} if recorder is None else recorder.host.published.get("record", {})
        if home.outcome == "done" and status.get("phase") != "done":
            share = f"{status.get('tokens', 0)} of {status.get('tokens_budget')} tokens"
            raise ViolationError(f"the run is over as 'done', and its recorder had come to {share}")
        # The recorder counts what was trained: a machine may end its own learner, whose last tokens nobody knows of.
        is_counted = isinstance(home.failure, RecorderFailed)
        if _are_alone(universe) and home.outcome != "done" and not is_counted:
            raise ViolationError(f"the run is over as {home.outcome!r} by a lie: {home.failure}")

    def ended(self, universe: Universe) -> None:
        """Check the tokens of the others."""
        recorder = universe.last(ONE_RECORDER)
        if recorder is None or not _are_alone(universe):
            return
        status = recorder.host.published.get("record", {})
        for entry in entries(status, len(status["merged_tokens"])):
            if entry.lost and not is_of_liar(universe, Replica(LEARNER, entry.learner)):
                raise ViolationError(f"learner {entry.learner}#{entry.incarnation} lost {entry.lost} tokens by a lie")


def _are_alone(universe: Universe) -> bool:
    """Whether lies are the only faults that have happened."""
    happened = [fault for fault, _ in universe.injector.happened]
    return bool(happened) and all(isinstance(fault, Lie) for fault in happened)

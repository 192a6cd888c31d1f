"""The host of a follower process of an elastic island: it runs a worker in every form that includes it."""

from __future__ import annotations

from typing import Any, Final, final

from isthmus.ops.elastic.learner import ElasticError
from isthmus.ops.elastic.told import Told
from isthmus.ops.mesh.island import ElasticGang, Form

AGAIN_SECONDS: Final = 0.1
"""Delay between two attempts of a worker to join the same form."""


@final
class Attendance:
    """The worker of one host.

    It is ended when a member of its form is missing in the newest form. Where the newest form only has more members,
    the leader ends the present form, in its own time, and thereby this worker.
    """

    def __init__(self, gang: ElasticGang) -> None:
        assert gang.workers is not None
        self._gang, self._workers = gang, gang.workers
        self._worker: Any = None
        self._form: Form | None = None

    def look(self, seconds: float) -> None:
        """Follow the newest form; takes at most `seconds`. ElasticError for an exception of the task."""
        newest = self._gang.form()
        if self._worker is not None and self._form is not newest and not self._is_kept(newest):
            self._end()
        if self._worker is None and newest is not None:
            self._begin(newest)
        if self._worker is None:
            self._gang.wait(seconds)
        elif self._worker.poll(seconds):
            self._hear()

    def _is_kept(self, newest: Form | None) -> bool:
        assert self._form is not None
        return newest is not None and set(self._form.members) <= set(newest.members)

    def _begin(self, form: Form) -> None:
        """Start a worker for a form, if this process is in it and its leader's address is known."""
        lead = form.members[0][1]
        there, mine = self._gang.find(lead), (self._gang.number, self._gang.incarnation)
        if mine in form.members and there is not None:
            names = tuple(self._gang.names[number] for number, _ in form.members)
            told = Told(list(form.members).index(mine), form.number, names, lead, there)
            self._form, self._worker = form, self._workers.start(told._asdict())

    def _hear(self) -> None:
        """Handle a message of the worker."""
        try:
            said, *told = self._worker.recv()
        except (EOFError, OSError):
            said, told = "broken", []
        if said == "raised":
            raise ElasticError(f"Computing in a process of {self._gang.names[0]}'s island:\n{told[0]}")
        if said == "broken":  # If its form is not given up, its leader has not joined it yet.
            self._end()
            self._gang.wait(AGAIN_SECONDS)

    def _end(self) -> None:
        self._workers.end()
        self._worker = None

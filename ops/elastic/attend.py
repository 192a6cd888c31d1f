"""What the host of a process that follows in an elastic island does: it has a worker in every form that it is in."""

from __future__ import annotations

from typing import Any, Final, final

from isthmus.ops.elastic.learner import ElasticError
from isthmus.ops.elastic.told import Told
from isthmus.ops.mesh.island import ElasticGang, Form

AGAIN_SECONDS: Final = 0.1
"""Between two attempts of a worker to come to the same form."""


@final
class Attendance:
    """Of one host. Its worker is ended where one of its form is in the newest form no more. Where that has more than
    those, the leader ends the form before, in its own time, and thereby this worker."""

    def __init__(self, gang: ElasticGang) -> None:
        assert gang.workers is not None
        self._gang, self._workers = gang, gang.workers
        self._worker: Any = None
        self._form: Form | None = None

    def look(self, seconds: float) -> None:
        """Do what the newest form asks for; takes no longer than so many seconds. ElasticError for what the task
        raises."""
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
        """Begin a worker for a form, where this process is in it, and it is known where its leader is."""
        lead = form.members[0][1]
        there, mine = self._gang.find(lead), (self._gang.number, self._gang.incarnation)
        if mine in form.members and there is not None:
            names = tuple(self._gang.names[number] for number, _ in form.members)
            told = Told(list(form.members).index(mine), form.number, names, lead, there)
            self._form, self._worker = form, self._workers.start(told._asdict())

    def _hear(self) -> None:
        """Take what the worker says."""
        try:
            said, *told = self._worker.recv()
        except (EOFError, OSError):
            said, told = "broken", []
        if said == "raised":
            raise ElasticError(f"Computing in a process of {self._gang.names[0]}'s island:\n{told[0]}")
        if said == "broken":  # Where its form is not given up, its leader has not come to it yet.
            self._end()
            self._gang.wait(AGAIN_SECONDS)

    def _end(self) -> None:
        self._workers.end()
        self._worker = None

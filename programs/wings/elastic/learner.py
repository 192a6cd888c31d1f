"""The host of a follower process of an elastic island: it runs a worker in every form that includes it.

The learner of an elastic island, for the leader's inner-step: a call takes until the island has formed again.

Then it returns what it would have returned. Decides what is repeated. The state is in a process of its own (`worker`),
which copies it to this host's memory now and then. Requests since the newest copy are remembered here: where a process
of the island dies, this host starts a new worker, with those that are left, from that copy, and repeats the
requests, with the same batches and values. So no token is lost, and inner-step's accounts need not know: the state is
the same, but for the rounding of sums that another mesh adds up in another order. A process that comes back is taken in
before a step, from a copy made then.

A new life takes up what is left of the one before, if other processes of the island have it: it receives the fragments,
like every new life, and the state that is not merged (the optimizer's) continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, final

from isthmus.ops.data.positions import Step
from isthmus.ops.gang.mesh_island import ElasticGang, IslandForm
from isthmus.ops.gang.orders import RemoteLearner
from isthmus.programs.wings.elastic.copies import WorkerSpec

LOOK_SECONDS: Final = 0.02
"""Interval of checks for a new form while an answer is awaited."""
COPY_SHARE: Final = 20
"""A copy is made once the time since the last one is this many times its duration: a twentieth of the time is spent on
copies, and repeated work never takes longer than twenty copies."""
BROKEN_MAX: Final = 5
"""Forms in a row without a step, though enough processes were there: more are not the fault of a single process."""


class _GoneError(Exception):
    """The worker, or another process of its form, is gone."""


class ElasticError(RuntimeError):
    """An island that fails to form, or whose computation raised an exception."""


@final
class ElasticLearner(RemoteLearner):
    """`where` returns the position of the batch that comes with a step; `now` the time. `has_kept`: the local leaves
    were created, and are those of the life before."""

    def __init__(self, gang: ElasticGang, *, where: Callable[[], Step], now: Callable[[], int]) -> None:
        assert gang.workers is not None
        self._gang, self._workers = gang, gang.workers
        self._where, self._now = where, now
        self._worker: Any = None
        self._form: IslandForm | None = None
        self._since: list[tuple[Any, ...]] = []
        self._copied: tuple[int, int] | None = None
        self._inherits = self.has_kept = False
        self._copied_at = self._copy_took = 0
        self._broken = 0
        self._kind = self._why = ""

    @property
    def device_kind(self) -> str:
        return self._kind

    def compile(self, batch: Any) -> None:
        """Form for the first time; the workers compile with batches of their own."""
        del batch
        self._form_anew(None)

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        newer = self._newer()
        if newer is not None:
            self._grow()
        metrics: Mapping[str, Any] = self._change("step", batch, progress, self._where())
        self._broken = 0
        if self._now() - self._copied_at >= COPY_SHARE * self._copy_took:
            self._copy()
        return metrics

    def restart(self) -> None:
        """Initialize the local leaves; the first time, those that were taken over from the life before are kept."""
        self.has_kept = self._inherits
        if not self._inherits:
            super().restart()
        self._inherits = False

    def lend(self) -> list[Any]:
        """The empty list: an elastic island lends no moments."""
        return []

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """False: an elastic island borrows no moments."""
        del leaves
        return False

    # -- requests to the worker ----------------------------------------------------------------------------------------

    def _change(self, *request: Any) -> Any:
        result = self._read(*request)
        self._since.append(request)
        return result

    def _read(self, *request: Any) -> Any:
        """The worker's answer, in whichever form of the island."""
        begun = self._now()
        while True:
            try:
                return self._ask(request)
            except _GoneError:
                self._form_anew(begun)

    def _ask(self, request: tuple[Any, ...]) -> Any:
        """This worker's answer; _GoneError if it does not come."""
        with suppress(OSError):  # Its last message can still be read.
            self._worker.send(request)
        return self._answer()[1]

    def _answer(self) -> tuple[Any, ...]:
        while True:
            if self._worker.poll(LOOK_SECONDS):
                try:
                    answer: tuple[Any, ...] = self._worker.recv()
                except (EOFError, OSError):
                    raise _GoneError from None
                if answer[0] == "raised":
                    raise ElasticError(f"Computing in a process of {self._gang.names[0]}'s island:\n{answer[1]}")
                if answer[0] == "broken":
                    self._why = str(answer[1])
                    raise _GoneError
                return answer
            newer = self._newer()
            if newer is not None and not self._is_grown(newer):
                raise _GoneError

    # -- forms ---------------------------------------------------------------------------------------------------------

    def _newer(self) -> IslandForm | None:
        form = self._gang.form()
        return form if form is not None and (self._form is None or form.number > self._form.number) else None

    def _is_grown(self, newer: IslandForm) -> bool:
        """Whether all members of the present form are in the newer one, so that the present one still works."""
        assert self._form is not None
        return set(self._form.members) <= set(newer.members)

    def _grow(self) -> None:
        """Form with new members, from the present state."""
        begun = self._now()
        with suppress(_GoneError):
            self._copy_now()
        self._form_anew(begun)

    def _form_anew(self, begun: int | None) -> None:
        """Join the newest form, and restore the island's state; `begun` is when it stopped, None for the first time.

        ElasticError if that fails again and again.
        """
        while True:
            self._workers.end()
            if self._broken >= BROKEN_MAX:
                reason = self._why or "its process ended"
                raise ElasticError(
                    f"Forming the island of {self._gang.names[0]}: expected a step within {BROKEN_MAX} forms, "
                    f"found none; the last one: {reason}. Look at the logs of its processes."
                )
            self._broken += 1
            self._gang.forming(0 if self._form is None else self._form.number)
            self._form = self._next()
            try:
                again = self._take_up(self._form, is_first=begun is None)
            except _GoneError:
                continue
            stall = 0 if begun is None else self._now() - begun
            self._gang.formed(self._form.number, len(self._form.members), stall, again)
            return

    def _take_up(self, form: IslandForm, *, is_first: bool) -> int:
        """Restore the island's state in this form; returns the number of repeated steps. _GoneError if that fails."""
        has_state = self._start(form)
        for request in self._since:
            self._ask(request)
        again = [request[0] for request in self._since].count("step")
        self._inherits |= has_state and is_first
        self._copy_now()
        self._copy_took = 0  # This duration included a compilation.
        return again

    def _next(self) -> IslandForm:
        """The next form, once the home has announced it."""
        while (form := self._newer()) is None:
            self._gang.wait(LOOK_SECONDS)
        return form

    def _start(self, form: IslandForm) -> bool:
        """Start the worker for a form; returns whether it has taken up a state."""
        names = tuple(self._gang.names[number] for number, _ in form.members)
        spec = WorkerSpec(0, form.number, names, self._gang.incarnation, None, self._copied)
        self._worker = self._workers.start(spec._asdict())
        _, self._kind, has_state = self._answer()
        return bool(has_state)

    # -- copies --------------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        begun = self._now()
        try:
            self._copy_now()
        except _GoneError:
            self._form_anew(begun)

    def _copy_now(self) -> None:
        begun = self._now()
        self._copied = self._ask(("copy",))
        self._since.clear()
        self._copied_at = self._now()
        self._copy_took = self._copied_at - begun


AGAIN_SECONDS: Final = 0.1
"""Delay between two attempts of a worker to join the same form."""


@final
class HostWorker:
    """The worker of one host.

    It is ended when a member of its form is missing in the newest form. Where the newest form only has more members,
    the leader ends the present form, in its own time, and thereby this worker.
    """

    def __init__(self, gang: ElasticGang) -> None:
        assert gang.workers is not None
        self._gang, self._workers = gang, gang.workers
        self._worker: Any = None
        self._form: IslandForm | None = None

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
            self._receive()

    def _is_kept(self, newest: IslandForm | None) -> bool:
        assert self._form is not None
        return newest is not None and set(self._form.members) <= set(newest.members)

    def _begin(self, form: IslandForm) -> None:
        """Start a worker for a form, if this process is in it and its leader's address is known."""
        lead = form.members[0][1]
        there, mine = self._gang.find(lead), (self._gang.number, self._gang.incarnation)
        if mine in form.members and there is not None:
            names = tuple(self._gang.names[number] for number, _ in form.members)
            spec = WorkerSpec(list(form.members).index(mine), form.number, names, lead, there)
            self._form, self._worker = form, self._workers.start(spec._asdict())

    def _receive(self) -> None:
        """Handle a message of the worker."""
        try:
            kind, *details = self._worker.recv()
        except (EOFError, OSError):
            kind, details = "broken", []
        if kind == "raised":
            raise ElasticError(f"Computing in a process of {self._gang.names[0]}'s island:\n{details[0]}")
        if kind == "broken":  # If its form is not given up, its leader has not joined it yet.
            self._end()
            self._gang.wait(AGAIN_SECONDS)

    def _end(self) -> None:
        self._workers.end()
        self._worker = None

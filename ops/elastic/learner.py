"""The learner of an elastic island, as the leader's inner-step has it: a call takes as long as it takes the island to
come together again, and then gives what it would have given.

Decides what is done again. The state is in a process of its own (`worker`), which copies it into this host's memory
now and then. What was asked since the newest copy is remembered here: where a process of the island dies, this host
begins its worker anew, with those that are left, from that copy, and asks it the same again, with the same batches and
values. So no token is lost, and inner-step's books need not know: the state is the same, but for the rounding of sums
that another mesh adds up in another order. One that comes back is taken in before a step, from a copy made then.

A life that begins takes up what is left of the one before, where other processes of the island have it: fragments are
given to it anew, as to every new life, and what is not merged (the optimizer's state) goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, final

from isthmus.ops.elastic.told import Told
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.mesh.island import ElasticGang, Form

LOOK_SECONDS: Final = 0.02
"""How soon it is seen that an island is formed anew while something is waited for."""
COPY_SHARE: Final = 20
"""A copy is made once the time since the last one is so many times what that took: a twentieth of the time is spent on
copies, and nothing that is done again takes longer than twenty copies."""
BROKEN_MAX: Final = 5
"""So many forms in a row that came to no step, though processes enough were there, are not the fault of one of them."""


class _GoneError(Exception):
    """The worker, or another process of its form, is gone."""


class ElasticError(RuntimeError):
    """An island that does not come together, or whose computation raised something."""


@final
class ElasticLearner:
    """`position` tells which batch of its slot comes with a step; `now` the time."""

    def __init__(self, gang: ElasticGang, *, position: Callable[[], int], now: Callable[[], int]) -> None:
        assert gang.workers is not None
        self._gang, self._workers = gang, gang.workers
        self._position, self._now = position, now
        self._worker: Any = None
        self._form: Form | None = None
        self._since: list[tuple[Any, ...]] = []
        self._copied: tuple[int, int] | None = None
        self._inherits = False
        self._copied_at = self._copy_took = 0
        self._broken = 0
        self._kind = self._why = ""

    @property
    def device_kind(self) -> str:
        return self._kind

    def compile(self, batch: Any) -> None:
        """Come together with the others for the first time; they compile by batches of their own."""
        del batch
        self._form_anew(None)

    def begin(self) -> None:
        self._do("begin")

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        newer = self._newer()
        if newer is not None:
            self._grow()
        metrics: Mapping[str, Any] = self._do("step", batch, progress, self._position())
        self._broken = 0
        if self._now() - self._copied_at >= COPY_SHARE * self._copy_took:
            self._copy()
        return metrics

    def extract(self, fragment: int) -> Vector:
        values: Vector = self._asked(("extract", fragment))
        return values

    def adopt(self, fragment: int, values: Vector) -> None:
        self._do("adopt", fragment, values)

    def replace(self, fragment: int, values: Vector) -> None:
        self._do("replace", fragment, values)

    def restart(self) -> None:
        """Make the local leaves anew; those that were taken over from the life before are kept, the first time."""
        if not self._inherits:
            self._do("restart")
        self._inherits = False

    # -- what the worker is asked --------------------------------------------------------------------------------------

    def _do(self, *asked: Any) -> Any:
        """Have something done that changes the state."""
        result = self._asked(asked)
        self._since.append(asked)
        return result

    def _asked(self, asked: tuple[Any, ...]) -> Any:
        """What the worker answers, in whatever form of the island."""
        begun = self._now()
        while True:
            try:
                return self._ask(asked)
            except _GoneError:
                self._form_anew(begun)

    def _ask(self, asked: tuple[Any, ...]) -> Any:
        """What this worker answers; _GoneError if it does not."""
        with suppress(OSError):  # What it said at its end is still there.
            self._worker.send(asked)
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

    def _newer(self) -> Form | None:
        form = self._gang.form()
        return form if form is not None and (self._form is None or form.number > self._form.number) else None

    def _is_grown(self, newer: Form) -> bool:
        """Whether all of the present form are in the newer one, so that nothing is wrong with it."""
        assert self._form is not None
        return set(self._form.members) <= set(newer.members)

    def _grow(self) -> None:
        """Let others in, from where this island is now."""
        begun = self._now()
        with suppress(_GoneError):
            self._copy_now()
        self._form_anew(begun)

    def _form_anew(self, begun: int | None) -> None:
        """Come together in the newest form, and be where this island was; `begun` is when it stopped, None for the
        first time. ElasticError if that fails again and again."""
        while True:
            self._workers.end()
            if self._broken >= BROKEN_MAX:
                found = self._why or "its process ended"
                raise ElasticError(
                    f"Forming the island of {self._gang.names[0]}: expected a step within {BROKEN_MAX} forms, "
                    f"found none; the last one: {found}. Look at the logs of its processes."
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

    def _take_up(self, form: Form, *, is_first: bool) -> int:
        """Be in this form where this island was; how many steps were made again. _GoneError if nothing comes of it."""
        has_state = self._start(form)
        for asked in self._since:
            self._ask(asked)
        again = [asked[0] for asked in self._since].count("step")
        self._inherits |= has_state and is_first
        self._copy_now()
        self._copy_took = 0  # It compiled what it takes.
        return again

    def _next(self) -> Form:
        """The next form, once the home has told it."""
        while (form := self._newer()) is None:
            self._gang.wait(LOOK_SECONDS)
        return form

    def _start(self, form: Form) -> bool:
        """Begin the worker for a form; whether it has taken up a state."""
        names = tuple(self._gang.names[number] for number, _ in form.members)
        told = Told(0, form.number, names, self._gang.incarnation, None, self._copied)
        self._worker = self._workers.start(told._asdict())
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

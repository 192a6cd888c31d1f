"""The host that a process of the user's script is: a learner's, beside the user's loop, or the evaluator's.

The event loop of the host, with channel, daemon link and tape, runs in a thread of its own, and so do all nodes but
one: inner-step has the thread of the user's loop, which lends it from one step to the next (`LentThread`). A firing
begins with adoptions and answers, is interrupted for the user's step, and ends with its count. So the core, the bodies
and everything that looks at a run see an ordinary learner.

Decides how the loop's thread enters and leaves that: it waits for the first model at the beginning and for the last one
at the end, and for another host at no step. The evaluator's host has the script's thread until the run is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.contract import Evaluating, OwnJudging, SoleLearning
from isthmus.ops.island.life import IslandSlot, LearnerLife, lower_priority
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.faults import looped
from isthmus.programs.engine.run.host_process import host_of, settle_on_core
from isthmus.programs.loop_task import LoopLife, layout_rows, leaf_rows, unlike
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.host.threads import LentThread
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system.forks import close_in_forks
from isthmus.runtime.system.processes import name_process

END_SECONDS: Final = 10.0
"""Time limit for the thread of a host to end once it has been told to: it closes bodies, and writes its tape."""

Make = Callable[[Sequence[Fragment], LearnerLife, float], SoleLearning]


@final
class LoopHost:
    """The host of one life, from `begin` to `end`; all calls are those of the thread that the loop runs in."""

    def __init__(
        self,
        life: LoopLife,
        found: Sequence[ModelLeaf],
        *,
        in_forks: Callable[[], None],
        make: Make | None = None,
        judge: Evaluating | None = None,
        own_judge: OwnJudging | None = None,
        is_guest: bool = False,
    ) -> None:
        """ConfigError unless the leaves `found` are those of the run; `make` and the judges as in LoopTask.

        A process that `is_guest` was started by its user, and keeps its name, its cores and its priority. `in_forks` is
        called in each process that is forked from this one, which has none of its connections.
        """
        folder, replica = Path(life.run), Replica.parse(life.replica)
        run_spec = spec.load(folder)
        if (fault := unlike(leaf_rows(found), layout_rows(run_spec.job.layout))) is not None:
            raise ConfigError.of([fault])
        if not is_guest:
            name_process(f"isthmus {replica}")
            settle_on_core(replica, run_spec.here.learners)
            lower_priority()  # As of every learner: messages of this process go before its steps.
        task = reference.resolve(run_spec.job.task)
        reference.bind(run_spec.job.task, replace(task, make=make, judge=judge, own_judge=own_judge))
        plan = run_spec.plans()[replica.role]
        node = looped(plan)
        assert node is not None  # Or the request would have been refused.
        self._node, self._is_guest = node, is_guest
        self._thread, self._is_there = LentThread(), False
        member = Member(replica, life.incarnation)
        lent = self._node.index, self._thread
        close_in_forks(in_forks)  # Before anything is dialled.
        self._host = host_of(folder, run_spec, member, life.daemon, plan, lent=lent)
        self._status: int | None = None
        self._served = threading.Thread(target=self._serve, name=f"isthmus {replica}", daemon=True)
        self.place = IslandSlot(replica.slot, run_spec.job.slots_max, run_spec.job.seed)
        self.tokens_most = run_spec.job.tokens_at_most

    @property
    def is_over(self) -> bool:
        """Whether no further step is to be made."""
        return not self._is_there

    @property
    def position(self) -> int:
        """The batches of this slot that were trained on, as far as this life knows; 0 in an evaluator."""
        body = self._host.bodies[self._node.index]
        return body.position if isinstance(body, InnerStep) else 0

    def begin(self) -> None:
        """Join, and wait for the model; returns before the first step, or when the run that it evaluates is over.

        RunError if this host cannot, or if it was told to end before this learner had the run's model: what follows the
        loop would take the script's own values for that.
        """
        self._served.start()
        self._go_on(lambda: False)
        body = self._host.bodies[self._node.index]
        if isinstance(body, InnerStep) and body.phase == "ready" and not (self._is_there or self._host.leave_requested):
            raise RunError(f"this island has not had the run's model: {self._host.exit_reason}")

    def go_on(self) -> None:
        """End the boundary of the step that was made, and do what precedes the next."""
        self._go_on(lambda: self._body().is_idle)

    def leave(self) -> None:
        """Give what is left to give, and end; where the run is over, wait for its last model."""
        if self._is_there:
            self._host.request_leave()
        self._is_there = False
        self._thread.run(lambda: False)
        self._end()
        if leaf := self._body().write_last_model():
            raise RunError(f"the leaves of this island are not the run's last model: first {leaf!r} has other values")

    def request_leave(self) -> None:
        """Have the loop leave at its next boundary; from a handler of a signal, too."""
        threading.Thread(target=self._host.request_leave, daemon=True).start()  # The turn may be this very thread's.

    def fail(self, error: BaseException) -> None:
        """End because of an exception of the loop's. What is refused of a script that the run has started fails the
        run; a process that its user has started is no more than gone."""
        if self._served.is_alive():
            is_refusal = isinstance(error, ConfigError) and not self._is_guest
            self._host.fail(self._node.name, error, is_refusal=is_refusal)
        self._is_there = False
        self._served.join(END_SECONDS)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _body(self) -> InnerStep:
        body = self._host.bodies[self._node.index]
        assert isinstance(body, InnerStep)
        return body

    def _go_on(self, is_enough: Callable[[], bool]) -> None:
        self._is_there = self._thread.run(is_enough)
        if self._thread.is_closed:
            self._end()

    def _serve(self) -> None:
        try:
            self._status = self._host.run()
        finally:
            self._thread.works.put(None)

    def _end(self) -> None:
        """Wait for the end of the host; RunError if it has failed."""
        self._served.join(END_SECONDS)
        if self._status != 0:
            raise RunError("this island has ended: its log has the reason")

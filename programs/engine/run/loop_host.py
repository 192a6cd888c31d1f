"""The host that a process of the user's script is: a learner's, beside the user's loop, or the evaluator's.

The event loop of the host, with channel, daemon link and tape, runs in a thread of its own, and so do all nodes but
one: inner-step has the thread of the user's loop, which lends it from one step to the next (`LentThread`). A firing
begins with adoptions and answers, is interrupted for the user's step, and ends with its count. So the core, the bodies
and everything that looks at a run see an ordinary learner.

Decides how the loop's thread enters and leaves that: it waits for the first model at the beginning, for the last one in
the step that ends the run, and for another host at no step between. Outside of these calls the thread is the user's,
and the host says for how long. A life that is told to end before it has the last model, because it began when the run
was over, reads that from the run's folder. The evaluator's host has the script's thread until the run is over.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.contract import Evaluating, SoleLearning
from isthmus.ops.island.life import IslandSlot, LearnerLife, lower_priority
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.last_model import LastModel
from isthmus.ops.learner.local_copies import newest_copy
from isthmus.ops.learner.own_evaluation import OwnJudging
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.faults import looped
from isthmus.programs.engine.request.weights import weights_of
from isthmus.programs.engine.run.host_process import host_of, settle_on_core
from isthmus.programs.engine.run.logs import log_of, opened_log
from isthmus.programs.loop_script import LoopLife
from isthmus.programs.loop_task import layout_rows, leaf_rows, unlike
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.host.threads import LentThread
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.forks import close_in_forks
from isthmus.runtime.system.processes import name_process, name_thread, print_stacks_at_signal
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import SCRIPT_GOES_ON
from isthmus.runtime.wire.daemon_notes import note_of

END_SECONDS: Final = 10.0
"""Time limit for the thread of a host to end once it has been told to: it closes bodies, and writes its tape."""

CLOSED_STATUS: Final = 71
"""The exit status of a process whose script has closed the descriptors of its host: EX_OSERR."""
CLOSED: Final = (
    "isthmus: this script has closed descriptors that it had not opened (os.closerange, os.close), among them those of "
    "its island, which ends with it.\n  Close only files of your own. A process that subprocess starts has none of "
    "them anyway.\n"
)


@final
class DescriptorWatch:
    """Whether the descriptors that this process had as it began are still what they were.

    libzmq aborts the process at its next call after one of its own was closed, and says no more than that.
    """

    def __init__(self) -> None:
        self._ends = os.pipe()  # A pipe has an inode of its own, so that no other file passes for it.
        self._known = self._found()

    def is_whole(self) -> bool:
        """Whether they are."""
        return self._found() == self._known

    def close(self) -> None:
        """Watch no longer."""
        if self.is_whole():
            for each in self._ends:
                os.close(each)

    def _found(self) -> tuple[int, int] | None:
        return identity_of(self._ends[0])


def identity_of(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of an open file; None for a descriptor that is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        raise
    return found.st_dev, found.st_ino


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
        first_batch: Callable[[], int] = lambda: 0,
        is_guest: bool = False,
    ) -> None:
        """ConfigError unless the leaves `found` are those of the run; `make`, judges and first batch as in LoopTask.

        A process that `is_guest` was started by its user, and keeps its name, its cores and its priority. `in_forks` is
        called in each process that is forked from this one, which has none of its connections.
        """
        folder, replica = Path(life.run), Replica.parse(life.replica)
        run_spec = spec.load(folder)
        if (fault := unlike(leaf_rows(found), layout_rows(run_spec.job.layout))) is not None:
            raise ConfigError.of([fault])
        self._folder, self._replica, self._is_guest = folder, replica, is_guest
        if not is_guest:
            # The name of the process is its first thread's, which is the user's, and whose threads inherit it.
            name_process(f"isthmus {replica}", f"loop-{replica}")
            print_stacks_at_signal()
            settle_on_core(replica, run_spec.here)
            lower_priority()  # As of every learner: messages of this process go before its steps.
        task = reference.resolve(run_spec.job.task)
        self._make = None if make is None else partial(self._kept_learner, make)
        self._learner: SoleLearning | None = None
        self._life = LearnerLife(run_spec.job.seed, replica.slot, life.incarnation)
        own = replace(task, make=self._make, judge=judge, own_judge=own_judge, first_batch=first_batch)
        reference.bind(run_spec.job.task, own)
        plan = run_spec.plans()[replica.role]
        node = looped(plan)
        assert node is not None  # Or the request would have been refused.
        self._node = node
        self._thread, self._is_there, self._has_ended = LentThread(), False, False
        self._has_taken_copy = False
        member = Member(replica, life.incarnation)
        lent = self._node.index, self._thread
        close_in_forks(in_forks)  # Before anything is dialled.
        self._host = host_of(folder, run_spec, member, life.daemon, plan, lent=lent)
        self._status: int | None = None
        self._descriptors = DescriptorWatch()
        self._served = threading.Thread(target=self._serve, name=f"isthmus {replica}", daemon=True)
        self.place = IslandSlot(replica.slot, run_spec.job.slots_max, run_spec.job.seed)
        self.tokens_most = run_spec.job.tokens_at_most
        self.over_seconds = run_spec.settings.loop_over_seconds

    @property
    def is_over(self) -> bool:
        """Whether no further step is to be made."""
        return not self._is_there

    @property
    def position(self) -> int:
        """The batches of this slot that were trained on, as far as this life knows; 0 in an evaluator."""
        body = self._host.bodies[self._node.index]
        return body.position if isinstance(body, InnerStep) else 0

    @property
    def progress(self) -> float:
        """The share of the budget that is known to be trained, also after the last step; 0 in an evaluator."""
        body = self._host.bodies[self._node.index] if self._host.bodies else None
        return body.share if isinstance(body, InnerStep) else 0.0

    def begin(self) -> None:
        """Join, and wait for the model; returns before the first step, or when the run that it evaluates is over.

        RunError if this host cannot, or if it was told to end before this learner had the run's model, and that is not
        here: what follows the loop would take the script's own values for that.
        """
        self._served.start()
        self._go_on(lambda: False)

    def go_on(self) -> None:
        """End the boundary of the step that was made, and do what precedes the next; after the last one, wait for the
        run's last model. RunError if this host cannot, or if that model is not here."""
        self._go_on(lambda: self._body().is_idle)
        if not self._is_there:
            self._finish()

    def leave(self) -> None:
        """Give what is left to give, and end; where the run is over, wait for its last model. A loop that has gone on
        since it had that has it again."""
        self._check_descriptors()
        if not self._has_ended:
            self._host.back(self._node.name)
            if self._is_there and not self._host.is_run_over:
                self._host.request_leave()
            self._is_there = False
            self._finish()
        self._write_last_model()

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

    def _check_descriptors(self) -> None:
        """End this process, and say why, if its script has closed what the host needs: without that it cannot leave."""
        if self._has_ended or self._descriptors.is_whole():
            return
        if self._is_guest:
            with suppress(OSError):  # It may be closed, too.
                os.write(2, CLOSED.encode())
        else:
            with opened_log(log_of(self._folder, self._replica)) as log:
                log.write(CLOSED.encode())
        os._exit(CLOSED_STATUS)

    def _go_on(self, is_enough: Callable[[], bool]) -> None:
        self._check_descriptors()
        self._host.back(self._node.name)
        self._is_there = self._thread.run(is_enough)
        if self._is_there:
            self._host.left(self._node.name)
        elif self._thread.is_closed:
            self._end()

    def _finish(self) -> None:
        """Do what is left to do for a loop that makes no step any more."""
        if not self._has_ended:
            self._thread.run(lambda: False)
            self._end()

    def _serve(self) -> None:
        name_thread("isthmus-host")
        try:
            self._status = self._host.run()
        finally:
            self._thread.works.put(None)

    def _end(self) -> None:
        """Wait for the end of the host, and see that the loop has the run's last model, where the run is over; RunError
        if it has failed, or that model is not here."""
        self._has_ended = True
        self._descriptors.close()
        self._served.join(END_SECONDS)
        if self._status != 0:
            raise RunError("this island has ended: its log has the reason")
        if self._make is None or self._host.leave_requested:
            return
        if not self._host.is_run_over:
            raise RunError(f"this island is no part of the run any more: {self._host.exit_reason}")
        if not self._has_last_model():
            self._take_last_model()

    def _has_last_model(self) -> bool:
        """Whether this learner has adopted the last version of each fragment."""
        body = self._host.bodies[self._node.index] if self._learner is not None else None
        return isinstance(body, InnerStep) and body.phase == "final"

    def _write_last_model(self) -> None:
        """Have the loop's model be the last one once more: what it did after the end is no part of it. RunError if its
        leaves do not take it."""
        if self._make is None or self._host.leave_requested or not self._host.is_run_over:
            return
        if not self._has_last_model():
            self._take_last_model()
        elif leaf := next(each for each in self._body().companions if isinstance(each, LastModel)).write():
            raise RunError(f"the leaves of this island are not the run's last model: first {leaf!r} has other values")

    def _take_last_model(self) -> None:
        """Have the loop's model be the last one of the run, from its folder; RunError if that is not here."""
        fragments: Sequence[Fragment] = self._node.keywords["fragments"]
        try:
            values = weights_of(self._folder, fragments).values(fragments)
        except ConfigError as error:
            if self._is_guest:
                do = "take the model from the home: isthmus export RUN, there"
            else:
                do = "look at snapshots/final in its folder, on its home"
            raise RunError(f"the run is over, and this island has not had its last model; {do} ({error})") from error
        if self._learner is None:
            assert self._make is not None
            self._make(fragments, self._life, 0.0)
        assert self._learner is not None
        for index, vector in enumerate(values):
            self._learner.replace(index, vector)
        if not self._has_begun():
            self._take_copy(self._learner)

    def _has_begun(self) -> bool:
        """Whether this life has had what those before it have left, and the script may have changed it since."""
        body = self._host.bodies[self._node.index] if self._host.bodies else None
        has_begun = isinstance(body, InnerStep) and body.phase in ("stepping", "leaving", "final")
        return self._has_taken_copy or has_begun

    def _take_copy(self, learner: SoleLearning) -> None:
        """Give the script what a former life has left beside the model: its optimizer's state, and what it kept."""
        self._has_taken_copy = True
        slot, incarnation = self._life.slot, self._life.incarnation
        copy = newest_copy(self._folder, DISK, slot, incarnation, time.monotonic_ns)
        if copy is not None:
            learner.take_local(copy.leaves)

    def _kept_learner(self, make: Make, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> SoleLearning:
        self._learner = make(fragments, life, alpha)
        return self._learner


TOLD_SECONDS: Final = 5.0
"""For the daemon to take a word."""


def tell_goes_on(life: LoopLife) -> None:
    """Tell the run's daemon that the loop of this life makes steps though the run is over; soon, if there is one."""

    def tell() -> None:
        message = {"type": SCRIPT_GOES_ON, "replica": life.replica, "incarnation": life.incarnation}
        with suppress(ConfigError, OSError):
            if (note := note_of(Path(life.run))) is not None:
                ask(note.endpoint, message, TOLD_SECONDS)

    threading.Thread(target=tell, name="isthmus goes on", daemon=True).start()

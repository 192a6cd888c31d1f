"""The process that computes for a host of an elastic island.

It joins the processes of the other hosts, takes up the newest copy of the state, and then serves requests until it is
killed.

Decides from which copy all of them continue, and sends it to those that have another one, or none. It is that of the
leader's host, where everything since is known; in a leader's first form it is the newest of any process, because it may
be the state of the leader before it. A new process is started for each form, because a process that has started jax
with others cannot continue when one of them is gone. Its host is its parent, and has the copies in its memory.

Objects between host and worker are pickled: both run one program, over a private connection.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn, final

import numpy as np

from isthmus.ops.data.batches import first_batch
from isthmus.ops.data.positions import Step
from isthmus.ops.gang.meeting import GangError, join, lead
from isthmus.ops.gang.orders import CALLS, TAKES, Following, Leader, LeaderOrders, call, follow
from isthmus.ops.island.kind import Computed
from isthmus.ops.island.life import LearnerLife, lower_priority
from isthmus.programs.wings.elastic import copies
from isthmus.programs.wings.elastic.copies import FormedGang, WorkerPlace, WorkerSpec

ORDER_SECONDS: Final = 60.0
STATUSES: Final = frozenset({"ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"})
"""The statuses of XLA (absl::StatusCode) that a lost connection with a peer may have."""


def work(computed: Computed, spec: Mapping[str, Any], host: Any, *, seed: int, slot: int, place: WorkerPlace) -> None:
    """Serve `host`, a connection, until it or the island is gone.

    `spec` are the fields of WorkerSpec. Exceptions of the task are sent to the host.
    """
    fields = WorkerSpec(**{**spec, "basis": None if spec["basis"] is None else tuple(spec["basis"])})
    try:
        _Worker(computed, LearnerLife(seed, slot, fields.incarnation), fields, place).serve(host)
    except (EOFError, OSError, GangError) as error:  # Another process is gone: a new form will follow.
        _tell(host, "broken", f"{type(error).__name__}: {error}")
    except Exception as error:
        kind = "broken" if is_of_execution(error) else "raised"
        _tell(host, kind, "".join(traceback.format_exception(error)))


def is_of_execution(error: Exception) -> bool:
    """Whether jax raises this where the execution of a compiled function fails, as it does when a peer is gone.

    A call that runs at once, in the caller's thread, raises a ValueError that begins with the status, not a
    JaxRuntimeError.
    """
    import jax

    is_status = isinstance(error, ValueError) and str(error).partition(":")[0] in STATUSES
    return is_status or isinstance(error, jax.errors.JaxRuntimeError)


def _tell(host: Any, kind: str, what: str) -> None:
    with suppress(OSError):
        host.send((kind, what))


@final
class _Worker:
    def __init__(self, computed: Computed, life: LearnerLife, spec: WorkerSpec, place: WorkerPlace) -> None:
        lower_priority()
        task, fragments, alpha, self._batches = computed
        from isthmus.ops.island.jax_learner import Learner

        self._spec, self._files = spec, place.files
        newest = copies.newest(place.files)
        gang = FormedGang.of(spec, place, copies.NOTHING if newest is None else newest[0].name)
        self._following = join(gang) if spec.number else None
        self._orders = LeaderOrders([], [gang.copy]) if spec.number or gang.size == 1 else lead(gang)
        learner = self._learner = Learner(task, fragments, life=life, alpha=alpha, island=gang)
        self._size = sum(leaf.nbytes for leaf in learner.shapes)
        basis = self._chosen() if self._following is None else self._ordered_of(self._following)
        if basis is not None:
            what, file = basis
            learner.restore(copies.read(file, what, learner.shapes), (what.steps, what.restarts))
        # A copy of before the beginning has zeros, where the local leaves are to be made.
        self.has_state = basis is not None and basis[0].steps > 0
        mine = [number for life, number in self._orders.copies if life == spec.incarnation]
        self._copies = max(mine, default=0)
        # All processes wait for a form that is not the first; most of it is in the cache of compiled programs.
        compiled = learner.compile if basis is None else learner.compile_step
        compiled(first_batch(task, life.seed, life.slot))

    # -- the copy to continue from -------------------------------------------------------------------------------------

    def _chosen(self) -> tuple[copies.Stored, int] | None:
        """Make all processes hold the copy from which they continue; None for none."""
        held, orders = self._orders.copies, self._orders
        chosen = max(held) if self._spec.basis is None else self._spec.basis
        if chosen not in (copies.NOTHING, held[0]) and chosen in held:
            owner = held.index(chosen)
            orders.give_one(owner, "bring")
            copies.receive(copies.oldest(self._files), self._size, orders.link(owner))
        basis = copies.keep(self._files, chosen)
        for number in range(1, len(held)):
            if basis is None:
                orders.give_one(number, "empty")
            elif held[number] == chosen:
                orders.give_one(number, "hold", *chosen)
            else:
                orders.give_one(number, "take", *chosen)
                copies.send(basis[1], basis[0], orders.link(number))
        if basis is None and chosen != copies.NOTHING:
            raise ValueError(f"going on from copy {chosen}: expected it in the memory of this host, found {held[0]}")
        return basis

    def _ordered_of(self, following: Following) -> tuple[copies.Stored, int] | None:
        """The same for a follower, on its leader's orders."""
        while True:
            match following.next(ORDER_SECONDS):
                case ["empty"]:
                    return None
                case ["hold", int(life), int(number)]:
                    return copies.keep(self._files, (life, number))
                case ["take", int(life), int(number)]:
                    copies.receive(copies.oldest(self._files), self._size, following)
                    return copies.keep(self._files, (life, number))
                case ["bring"]:
                    newest = copies.newest(self._files)
                    assert newest is not None  # Otherwise the leader would not ask this process.
                    copies.send(newest[1], newest[0], following)
                case None:
                    continue
                case _:
                    raise EOFError("the leader of this island did not say from where to go on")

    def _copy(self, number: int) -> tuple[int, int]:
        """Copy the state to the memory of this host; returns the name of the copy."""
        what = copies.Stored(self._spec.incarnation, number, *self._learner.counts, self._size)
        copies.write(copies.oldest(self._files), what, self._learner.whole())
        return what.name

    # -- service -------------------------------------------------------------------------------------------------------

    def serve(self, host: Any) -> NoReturn:
        """Serve requests, for ever."""
        if self._following is None:
            self._lead(host)
        following, batches = self._following, self._batches
        assert following is not None
        assert batches is not None
        following.ready()
        host.send(("formed", self._learner.device_kind, self.has_state))
        while True:
            order = following.next(ORDER_SECONDS)
            if order is not None and order[0] == "copy":
                self._copy(order[1])
            elif order is not None:
                follow(self._learner, order, batches, following)

    def _lead(self, host: Any) -> NoReturn:
        where = Step(0)
        learner = Leader(self._learner, self._orders, lambda: where)
        self._orders.wait()
        host.send(("formed", self._learner.device_kind, self.has_state))
        while True:
            result: Any = None
            match host.recv():
                case ("step", batch, progress, where):
                    result = {name: np.asarray(each) for name, each in learner.step(batch, progress).items()}
                case ("extract", fragment):
                    result = np.asarray(learner.extract(fragment), np.float32)
                case ("copy",):
                    self._copies += 1
                    self._orders.give("copy", self._copies)
                    result = self._copy(self._copies)
                case (name, *arguments) if name in CALLS or name in TAKES.values():
                    result = call(learner, name, *arguments)
                    result = [*result] if name == "local" else result  # An iterator, which cannot be sent.
                case request:
                    raise ValueError(f"nothing that a host asks: {request[0]!r}")
            host.send(("done", result))

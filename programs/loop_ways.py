"""The ways in which a process of a user's script comes to a life of a learner.

- `StartedLoop`: `isthmus train --loop` has started it with a life.
- `WaitingLoop`: it was started before its run, tells of its model after a first step, and is given its life then; or it
  ends there, if it is only asked.
- `JoiningLoop`: it joins a home by itself, with a daemon of its own.

An island asks its way at the points where these differ, and knows nothing of them beside. The life itself, and what a
loop's user sees, are in `island`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.contract import Evaluating
from isthmus.ops.island.life import IslandSlot, Tensors
from isthmus.programs.loop_script import INVITE, ISLAND, LoopAhead, LoopHome, LoopLife
from isthmus.programs.loop_task import LoopModel, ModelFound
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import LEARNER, Replica

if TYPE_CHECKING:
    from isthmus.programs.engine.machine.own_daemon import OwnDaemon

MAKING: Final = "Making an island"
LIVES_MAX: Final = 10_000
"""So many lives of a slot draw from seeds that no life of another has."""


class LoopWay:
    """How a process of a script comes to a life. What is here is so where a way says nothing else."""

    replica: Replica | None = None
    """The learner that it is or will be; None where that is not known."""
    incarnation: int = 1
    """The life of its slot that it is or will be, from 1 on."""
    is_guest: bool = False
    """Whether it is no child of a run: its signals are its own, and it may evaluate between two steps."""

    @property
    def place(self) -> IslandSlot | None:
        """The slot that it will have, while it has no life; None where that is not known."""
        return None

    @property
    def lost(self) -> str:
        """Why it has no place in the run any more; '' while it has."""
        return ""

    def fault(self, faults: Sequence[Fault]) -> None:
        """Tell faults of the user's to whoever waits for this process, which ends it there; nothing if nobody does."""

    def enter(self, model: LoopModel, *, evaluates: bool) -> LoopLife | None:
        """The life with which the `with` begins; None where the model's first step comes first."""
        return None

    def begin(self, found: ModelFound, model: LoopModel) -> tuple[LoopWay, LoopLife]:
        """The life that the process is given once it has told of its model, and its way from then on; a process that is
        only asked ends here."""
        raise AssertionError("a process that enters with its life has no model to tell of")

    def own_judge(self, judge: Evaluating) -> OwnJudge | None:
        """The evaluation between two steps, where this process is the one that is asked for it."""
        return None

    def tell_goes_on(self) -> None:
        """Tell the run's daemon that this loop goes on though the run is over; the user has read it on stderr."""

    def leave_unbegun(self, error: BaseException | None, model: LoopModel) -> None:
        """The `with` ends before a life has begun, in order or by an error."""

    def give_up(self, model: LoopModel) -> None:
        """The `with` cannot be entered."""

    def close(self, status: int, *, is_over: bool) -> None:
        """The `with` has ended, with an exit status; `is_over`: so is the run."""


def way_of(
    environment: Mapping[str, str],
    *,
    invite: str | os.PathLike[str] | None = None,
    address: str | None = None,
    name: str | None = None,
) -> LoopWay:
    """The way of this process, where `isthmus train --loop` has started it, or to the home that it is to join by
    itself; ConfigError where there is neither."""
    if (text := environment.get(ISLAND)) is not None:
        fields = json.loads(text)
        return WaitingLoop(LoopAhead(**fields)) if "asks" in fields else StartedLoop(LoopLife(**fields))
    invitation = environment.get(INVITE) if invite is None and address is None else None
    if (invite, address, invitation) == (None, None, None):
        do = 'Start the script by: isthmus train --loop train.py --learners 2; or pass invite="NAME.invite" of a home.'
        raise ConfigError(MAKING, "a process that `isthmus train --loop` has started, or a home", "neither", do)
    if invite is not None and address is not None:
        raise ConfigError(MAKING, "invite= or address=", "both", "Leave address= out: the invitation has it.")
    return JoiningLoop(LoopHome(address, None if invite is None else os.path.abspath(invite), invitation, name))


def seed_of_life(seed: int, way: LoopWay) -> int | None:
    """A seed for a trainer that is begun with `seed` in all processes, another one in each life of each slot; None for
    a process that does not know its slot."""
    return None if way.replica is None else seed + LIVES_MAX * way.replica.slot + way.incarnation


def is_first_slot(way: LoopWay) -> bool:
    """Whether this process is, or will be, the learner of slot 0."""
    return way.replica == Replica(LEARNER, 0)


@contextmanager
def answering(way: LoopWay | None) -> Iterator[None]:
    """Where this process is asked for its model, answer with the faults of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        if way is not None:
            way.fault(error.faults)
        raise


def end_process() -> NoReturn:
    """End a process of the script that trains nothing: what follows is not for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@final
class StartedLoop(LoopWay):
    """A process that was started with its life, or that was given one: the run's daemon watches it, and a process of
    its own evaluates."""

    def __init__(self, life: LoopLife) -> None:
        self._life = life
        self.replica = Replica.parse(life.replica)
        self.incarnation = life.incarnation

    def enter(self, model: LoopModel, *, evaluates: bool) -> LoopLife:
        os.environ.pop(ISLAND, None)  # Processes that the loop starts are no islands.
        return self._life

    def tell_goes_on(self) -> None:
        from isthmus.programs.engine.run.loop_host import tell_goes_on

        tell_goes_on(self._life)

    def close(self, status: int, *, is_over: bool) -> None:
        if status:
            # The next life waits for the end of this process. The interpreter would look through all objects at its
            # end, for seconds where torch was imported and cores are few.
            gc.freeze()


@final
class WaitingLoop(LoopWay):
    """A process that was started before its run, and is asked for its model, which its first step completes."""

    def __init__(self, ahead: LoopAhead) -> None:
        self._ahead = ahead
        self.replica = None if ahead.is_only_asked else Replica.parse(ahead.replica)

    @property
    def place(self) -> IslandSlot:
        return IslandSlot(self._ahead.slot, self._ahead.slots, self._ahead.seed)

    def fault(self, faults: Sequence[Fault]) -> NoReturn:
        self._tell({"faults": [list(each) for each in faults]})
        end_process()

    def begin(self, found: ModelFound, model: LoopModel) -> tuple[LoopWay, LoopLife]:
        if model.ranks.is_leader:
            self._tell(found.answer())
        life = None if self._ahead.is_only_asked else model.ranks.told(self._awaited_life)
        if life is None:
            end_process()
        return StartedLoop(life), life

    def _awaited_life(self) -> LoopLife | None:
        """The life that this process is given; None where there is to be no run."""
        from isthmus.programs.engine.run.script_processes import life_of_waiting

        os.environ.pop(ISLAND, None)  # As `StartedLoop` does.
        return life_of_waiting(self._ahead)

    def leave_unbegun(self, error: BaseException | None, model: LoopModel) -> None:
        if error is None:
            do = f"Call {model.step_call} after each step of the optimizer."
            self.fault([Fault("Running the loop to its first step", "a step", "none", do)])

    def _tell(self, answer: Mapping[str, Any]) -> None:
        with os.fdopen(self._ahead.asks, "w") as file:
            json.dump(answer, file)


@final
class JoiningLoop(LoopWay):
    """A process that joins a home with a daemon of its own: a run that goes on, or one that begins with the model of
    this loop.

    Of several ranks the first one has the daemon, and the others hear from it what that has said. The home's daemon
    knows from it whether this loop goes on.
    """

    is_guest = True

    def __init__(self, home: LoopHome) -> None:
        self.home: Final = home
        self._place: IslandSlot | None = None
        self._daemon: OwnDaemon | None = None

    @property
    def place(self) -> IslandSlot | None:
        return self._place

    @property
    def lost(self) -> str:
        return "" if self._daemon is None else self._daemon.lost

    def enter(self, model: LoopModel, *, evaluates: bool) -> LoopLife | None:
        from isthmus.programs.engine.machine.own_daemon import OwnDaemon

        if model.ranks.is_leader:
            self._daemon = OwnDaemon(self.home, model.leaves(), evaluates=evaluates)
        answer = model.ranks.told(self._answer_of_home)
        if isinstance(answer, LoopLife):
            return answer
        self._place = IslandSlot(0, answer["slots"], answer["seed"])
        return None

    def begin(self, found: ModelFound, model: LoopModel) -> tuple[LoopWay, LoopLife]:
        return self, model.ranks.told(lambda: self._life_with(found._replace(evaluates=False)))

    def own_judge(self, judge: Evaluating) -> OwnJudge | None:
        return None if self._daemon is None else OwnJudge(judge, self._daemon)

    def leave_unbegun(self, error: BaseException | None, model: LoopModel) -> None:
        model.ranks.close()

    def give_up(self, model: LoopModel) -> None:
        model.ranks.close()
        self.close(1, is_over=False)

    def close(self, status: int, *, is_over: bool) -> None:
        if self._daemon is not None:
            self._daemon.close(status, is_over=is_over)

    def _answer_of_home(self) -> LoopLife | dict[str, int]:
        assert self._daemon is not None
        return self._daemon.wait()

    def _life_with(self, found: ModelFound) -> LoopLife:
        """The life of this process in the run that begins with its model."""
        assert self._daemon is not None
        self._daemon.tell(found)
        life = self._daemon.wait()
        while not isinstance(life, LoopLife):  # The home has begun anew, and asks again.
            life = self._daemon.wait()
        return life


@final
class OwnJudge:
    """The evaluation of a loop that has started itself (`OwnJudging`), while its home has chosen that loop for it.

    `fault` is what the user's function has raised.
    """

    def __init__(self, judge: Evaluating, daemon: OwnDaemon) -> None:
        self._judge, self._daemon = judge, daemon
        self.fault: Exception | None = None

    @property
    def is_on(self) -> bool:
        return self._daemon.evaluates

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The scalars of these merged leaves."""
        try:
            return self._judge.metrics(tensors)
        except Exception as error:
            self.fault = error
            raise

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Any]) -> Tensors:
        """The merged leaves that the fragments make up."""
        return self._judge.assemble(fragments, values)

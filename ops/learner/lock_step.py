"""Steps in lock-step: a learner steps when its gate permits it, and the gate waits for the syncer.

Decides at which of a learner's steps an update is adopted and a fragment captured. Does not decide the order and the
members of merges (`conductor`), and computes nothing: adoption, capture and step are those of `inner_step`. All
learners are at one boundary when they have answered a turn, so a cut is made there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

from isthmus.ops.data.positions import Cursor
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Permit, Progress, Restored, Round, Turn, Update, WantedCut, is_withdrawn
from isthmus.ops.island.kind import Computed
from isthmus.ops.island.life import DeviceCall
from isthmus.ops.learner.follow import Follow
from isthmus.ops.learner.fragment_exchange import PLAIN, FragmentExchange
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms


class LockStep:
    """inner-step that waits for a permit: a batch and a permit in; captured fragments, progress and reports out.

    `update` and `pull` take the messages before the first step and after the last. The state that only this learner has
    leaves (`own`) after the turn of the cut that is `wanted`, and a later life continues with it (`restored`).
    `overlap` is that of the gate; the other arguments are those of InnerStep.
    """

    outputs = ("fragment", "progress", "report", "own")
    collects = ("update", "pull", "wanted", "restored")
    schemas: Final = {"wanted": WantedCut, "restored": Restored}
    follower: Final = Follow

    def __init__(
        self,
        task: Any,
        *,
        fragments: Sequence[Fragment],
        report_every: int,
        run: RunTerms,
        overlap: int,
        exchange: FragmentExchange = PLAIN,
    ) -> None:
        self._step = InnerStep(
            task,
            fragments=fragments,
            report_every=report_every,
            run=run,
            exchange=replace(exchange, answers_last=False),  # A turn is everybody's: none is held for one who leaves.
        )
        self._overlap = overlap
        self._wanted: WantedCut | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it follows no permits: it has not begun, or has finished, as the conductor decides."""
        return self._step.phase != "stepping"

    def prepare(self) -> None:
        """Trace every function, which needs no device."""
        self._step.prepare()

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[DeviceCall]:
        """Every function that a learner in this slot calls on these devices, for compilation ahead of time."""
        return self._step.calls_on(devices, seed, slot)

    def computes(self, seed: int, slot: int) -> Computed:
        """As of InnerStep."""
        return self._step.computes(seed, slot)

    def open(self, context: Any) -> None:
        """Compile every function."""
        self._step.open(context)

    def close(self) -> None:
        """As of InnerStep."""
        self._step.close()

    def __call__(
        self,
        batch: Any,
        permit: Permit | None,
        update: Any = None,
        pull: Mapping[Any, Round] | None = None,
        cursor: Cursor | None = None,
        wanted: Mapping[Any, WantedCut] | None = None,
        restored: Mapping[Any, Restored] | None = None,
    ) -> Generator[list[tuple[str, Any]] | None, None, list[tuple[str, Any]]]:
        """Execute the permit; `batch` and `permit` are None where this node is idle."""
        for cut in (wanted or {}).values():
            self._wanted = cut
        for kept in (restored or {}).values():
            self._step.give(kept)
        emitted: list[tuple[str, Any]] = []
        if update or pull or cursor or permit is None:
            emitted += yield from self._step(None, update, pull, cursor=cursor)
        if permit is not None:
            if batch is not None and not permit["trains"]:
                self._step.drop()
            adopted = {("permit", item["fragment"]): item for item in permit["updates"]}
            if adopted or permit["trains"]:
                emitted += yield from self._step(batch if permit["trains"] else None, adopted or None)
            if permit["pulls"]:
                is_cut = any(map(self._is_wanted, permit["pulls"]))
                emitted += _whole(self._step(None, pull={item["round"]: item for item in permit["pulls"]}))
                own = self._step.own(self._overlap) if is_cut else None
                emitted += [] if own is None else [("own", own)]
        return emitted

    def _is_wanted(self, pull: Round) -> bool:
        """Whether a cut is made after this turn."""
        p, wanted = pull["fragment"], self._wanted
        if wanted is None or pull["kind"] != "merge" or p != wanted["fragment"]:
            return False
        return wanted["counts"][p : p + 1] == [self._step.will_make(p)]


def _whole(
    firing: Generator[list[tuple[str, Any]] | None, None, list[tuple[str, Any]]],
) -> list[tuple[str, Any]]:
    """All that a firing emits, at its end: a capture after a step does not leave before the step is over."""
    emitted: list[tuple[str, Any]] = []
    while True:
        try:
            yielded = next(firing)
            emitted += yielded or []
        except StopIteration as end:
            return [*emitted, *end.value]


@dataclass(slots=True)
class _WaitingTurn:
    """A turn of this learner's: captured at boundary `at`, and its update once that has arrived."""

    turn: Turn
    at: int
    is_captured: bool = False
    update: Update | None = None


class StepGate:
    """Updates, turns and the learner's own progress in; permits out, in the order of steps. Fires on any.

    `fragments` is P, `overlap` the steps between a capture and the adoption of the resulting update, `free` the steps
    after a capture that a learner may make without knowing the next turn.

    Boundary n is before step n, counted from 0. The conductor's turns define after how many steps each fragment is
    captured; `overlap` steps after its capture, its update is adopted. So the gate permits step n when

        the updates of all fragments captured at boundary n - overlap are here, and are adopted before it; and
        the next turn is known, or boundary n + 1 is too early for one: within `free` steps of the last capture.

    A capture at boundary n + 1 happens at the end of step n, because with an overlap of 0 step n + 1 waits for its
    update. Before a learner holds every fragment, and after the end, there are no steps: messages then go directly to
    the learner. A syncer that comes back begins a new count of rounds, and all turns that were open before are dropped.
    It asks for the newest version: a learner that steps answers at a boundary, by a permit, and one that waits to
    begin, which takes no permits, at once; where a request and the first step may have crossed, both.
    """

    outputs = ("update", "pull", "permit")
    collects = ("update", "pull")
    schemas: Final = {"update": Update, "pull": Turn}

    def __init__(self, *, fragments: int, overlap: int, free: int) -> None:
        self._fragments, self._overlap, self._free = fragments, overlap, free
        self._held: set[int] = set()
        self._waiting: list[_WaitingTurn] = []
        self._ending: list[Turn] = []
        self._loose: dict[int, Update] = {}
        self._due_turns: list[Round] = []
        self._straight: dict[int, Turn] = {}
        """By fragment, the request to a learner that was not known to step, until the resulting update is here."""
        self._steps = False
        self._position = self._captured_at = self._free_until = self._ends_at = 0
        self._epoch = 0
        self._is_over = False

    def open(self, context: Any) -> None:
        """Store the slot and the incarnation of this gate's learner."""
        self._member = [context.member.replica.slot, context.member.incarnation]

    def __call__(
        self,
        update: Mapping[Any, Update] | None = None,
        pull: Mapping[Any, Turn] | None = None,
        progress: Progress | None = None,
    ) -> list[tuple[str, Any]]:
        """The permits that follow from the inputs; messages that concern no step are passed on at once."""
        if progress is not None and progress["phase"] == "stepping" and not self._steps:
            self._steps = True
            turns, self._straight = self._straight, {}
            self._due_turns += [turn for turn in turns.values() if not _has_come(turn, update)]
        # Turns first: an update does not name its turn, so the turns must be known.
        due_turns = [each for turn in _in_order(pull, "round") for each in self._accept_turn(turn)]
        # And updates first on their way: a pull is answered on the newest version that has arrived.
        emitted = [each for item in _in_order(update, "fragment") for each in self._keep_update(item)] + due_turns
        while not self._is_over and (permit := self._next()) is not None:
            emitted.append(("permit", permit))
        return emitted

    @property
    def _is_stepping(self) -> bool:
        return len(self._held) == self._fragments and not self._is_over

    def _accept_turn(self, turn: Turn) -> list[tuple[str, Any]]:
        """Store a turn, if it is this learner's."""
        epoch = turn["round"] >> 32
        if epoch > self._epoch:
            self._epoch, self._captured_at = epoch, self._position
            self._waiting.clear()
            self._ending.clear()
        if self._member not in turn["members"]:
            return []
        if not self._is_stepping:
            return [("pull", turn)]
        if turn["kind"] == "merge":
            last = self._waiting[-1].at if self._waiting else self._captured_at
            self._waiting.append(_WaitingTurn(turn, max(last + turn["steps"], self._position + 1)))
        elif turn["kind"] == "final":
            last = self._waiting[-1].at if self._waiting else self._captured_at
            self._ends_at = max(last + turn["steps"], self._position)
            self._ending.append(turn)
        elif self._steps:
            self._due_turns.append(turn)
        else:
            self._straight[turn["fragment"]] = turn
            return [("pull", turn)]
        return []

    def _keep_update(self, item: Update) -> list[tuple[str, Any]]:
        """Keep an update until its boundary; one that no turn waits for, until the next."""
        if item["kind"] == "copy" and (self._is_stepping or is_withdrawn(item)):
            return []
        turn = self._straight.get(item["fragment"])
        if turn is not None and _answers(item, turn):
            del self._straight[item["fragment"]]
        if not self._is_stepping:
            self._held.add(item["fragment"])
            return [("update", item)]
        for waiting in self._waiting:
            if waiting.is_captured and waiting.update is None and waiting.turn["fragment"] == item["fragment"]:
                waiting.update = item
                return []
        self._loose[item["fragment"]] = item
        return []

    def _next(self) -> Permit | None:
        """The permit of the next step, or of a boundary without one; None as long as the gate must wait."""
        if not self._is_stepping:
            return None
        n = self._position
        due = [waiting for waiting in self._waiting if waiting.is_captured and waiting.at + self._overlap <= n]
        turns, self._due_turns = self._due_turns, []
        if any(waiting.update is None for waiting in due):
            return Permit(updates=[], pulls=turns, trains=False) if turns else None
        is_end = len(self._ending) == self._fragments and n >= self._ends_at
        if is_end or self._is_free(n):
            pulls = [*turns, *(self._ending if is_end else self._capture(n + 1))]
            self._is_over = is_end
            self._position += not is_end
            return Permit(updates=self._adopted(due), pulls=pulls, trains=not is_end)
        return Permit(updates=[], pulls=turns, trains=False) if turns else None

    def _is_free(self, n: int) -> bool:
        """Whether step n passes no boundary at which a capture may yet be requested."""
        if len(self._ending) == self._fragments:
            return n < self._ends_at
        return n < self._free_until or any(not waiting.is_captured for waiting in self._waiting)

    def _capture(self, boundary: int) -> list[Round]:
        """The turns that ask for a capture at a boundary."""
        reached = [waiting for waiting in self._waiting if not waiting.is_captured and waiting.at <= boundary]
        for waiting in reached:
            waiting.is_captured, self._captured_at, self._free_until = True, boundary, boundary + self._free
        return [waiting.turn for waiting in reached]

    def _adopted(self, due: list[_WaitingTurn]) -> list[Update]:
        """The updates to adopt now: those that are due, and those that no turn waited for."""
        updates = {**self._loose, **{each.turn["fragment"]: each.update for each in due if each.update is not None}}
        self._loose.clear()
        self._waiting = [waiting for waiting in self._waiting if waiting not in due]
        return [updates[fragment] for fragment in sorted(updates)]


def _in_order(items: Mapping[Any, Any] | None, by: str) -> list[Any]:
    return sorted((items or {}).values(), key=itemgetter(by))


def _answers(item: Update, turn: Turn) -> bool:
    """Whether an update is the result of a request, or newer: a recovered version keeps its epoch."""
    return item["kind"] == "recover" or item["version"][0] > turn["round"] >> 32


def _has_come(turn: Turn, update: Mapping[Any, Update] | None) -> bool:
    came = (update or {}).values()
    return any(item["fragment"] == turn["fragment"] and _answers(item, turn) for item in came)

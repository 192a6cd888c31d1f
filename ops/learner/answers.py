"""A learner's answers to pulls, its progress in the batches of its slot, and the scalars of its steps.

Decides whether a pull is answered now, later, or not at all, and which step is the first whose loss is not finite. What
an answer says of its work is made here, whole; its values are not looked at, and what becomes of it is in the ledger
(`exchange.token_accounts`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, final

import numpy as np

from isthmus.ops.data.positions import Cursor, State
from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Capture, Round, Vector
from isthmus.ops.exchange.token_accounts import FragmentLedger, Odometer
from isthmus.ops.island.contract import Coding, Learning

STATES_MAX: Final = 16
"""States ahead of the batches taken: the data node makes at most eight batches a firing, with a state in each firing;
two may wait. The oldest of any more are dropped: an older state only costs batches that are read again and discarded.
"""


class Feed:
    """`reached` is the position after the last batch trained on; `is_placed` tells whether the start is known.

    It does not decide which batches are trained: it counts those that were taken, from the position at which the data
    node starts this life, and keeps the states of a stream until their positions are reached.
    """

    def __init__(self) -> None:
        self.reached = self._position = 0
        self.is_placed = True
        self._left_out: list[list[int]] = []
        self._ahead: deque[tuple[int, State]] = deque(maxlen=STATES_MAX)
        self._state: tuple[int, State] | None = None

    def open(self, context: Any) -> None:
        """Start at 0 in a first life, and in every life of a graph without a `cursor` edge."""
        self.is_placed = context.member.incarnation == 1 or "cursor" not in context.connected

    @property
    def latest(self) -> int:
        """The position of the batch that was taken last."""
        return self._position - 1

    def accept(self, cursor: Cursor) -> None:
        """Store the position at which this life begins, the positions without a batch, and the state of a later one."""
        if not self.is_placed:
            self.reached = self._position = cursor["begin"]
            self.is_placed = True
        self._left_out = cursor["left_out"]
        if cursor["state"] is not None:
            self._ahead.append((cursor["position"], cursor["state"]))
            self._settle()

    def advance(self, *, is_trained: bool = True) -> None:
        """Count a batch that was taken; at the end of a run it is not trained on."""
        for begin, end in self._left_out:
            if begin <= self._position < end:
                self._position = end
        self._position += 1
        if is_trained:
            self.reached = self._position
            self._settle()

    def reached_state(self) -> list[Any] | None:
        """The newest state whose position is reached, as [position, state]."""
        return None if self._state is None else list(self._state)

    def _settle(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.reached:
            self._state = self._ahead.popleft()


@dataclass(slots=True)
class HeldFragment:
    """A learner's state of one fragment: the version that it adopted last, with its clock, and the ledger since then.

    `answered` is the round of its last answer and the number of steps before it, until something else is adopted, and
    `sent` its values at that answer, where a learner `carries` over what it trains from there: always, or as long as
    the last pull said so.
    """

    ledger: FragmentLedger
    anchor: Vector
    clock: list[list[int]]
    positions: list[list[int]]
    answered: tuple[int, int] | None = None
    sent: Any = None
    carries: bool = False

    @property
    def may_carry(self) -> bool:
        """Whether an adoption may keep what was trained: the values at the last answer, if any, are there."""
        return self.carries and (self.answered is None or self.sent is not None)


@final
class Answers:
    """The answers of one life of a learner. `is_final`: the last pull has arrived.

    Arguments:
        slot: that of the learner.
        incarnation: that of the life.
        learner: has the values.
        fragments: its own.
        held: its versions, by fragment; their owner changes that list, too.
        odometer: its steps and tokens.
        feed: its position in its data.
        push: the format of answers, where rounds do not ask for one.
        begun_from: makes the first version of a fragment from the values of the task's `init`.
        own_of: which own fragment one of a message is, or is like, where it is not this learner's; as its own without
            it.
        numbers: those of its own in messages; as its own without them.
        carries: the values at each answer are kept, whatever pulls say.
    """

    def __init__(
        self,
        slot: int,
        incarnation: int,
        *,
        learner: Learning,
        fragments: Sequence[Fragment],
        held: list[HeldFragment | None],
        odometer: Odometer,
        feed: Feed,
        push: str = "float32",
        begun_from: Callable[[int, Any], Any] = lambda p, values: values,
        own_of: Mapping[int, int] | None = None,
        numbers: Sequence[int] | None = None,
        carries: bool = False,
    ) -> None:
        self._carries = carries
        self._slot, self._incarnation, self._learner, self._push = slot, incarnation, learner, push
        self._coding = learner if isinstance(learner, Coding) else None
        self._held, self._odometer, self._feed = held, odometer, feed
        self._begun_from = begun_from
        everything = range(len(fragments))
        self._own_of = dict(enumerate(everything)) if own_of is None else own_of
        self._numbers = everything if numbers is None else numbers
        self._sizes = [[unit.size for unit in fragment.units] for fragment in fragments]
        self.given = self.payload_bytes = 0
        """Answers with outer gradients in them, and the bytes of their codes and scales."""
        self._postponed: dict[int, Round] = {}
        self._has_begun = False
        self.is_final = False

    def to(self, pull: Mapping[Any, Round]) -> list[tuple[str, Capture]]:
        """The captures that answer these pulls, in the order of their rounds."""
        return [
            answer for request in sorted(pull.values(), key=itemgetter("round")) for answer in self._answer(request)
        ]

    def _answer(self, request: Round) -> list[tuple[str, Capture]]:
        """The capture that answers a pull, if it is addressed to this incarnation and was not answered before."""
        if [self._slot, self._incarnation] not in request["members"]:
            return []
        p = self._own_of.get(request["fragment"])
        if p is None:
            return []
        held = self._held[p]
        if request["kind"] == "initial":
            return self._first_version(request, p)
        if self._numbers[p] != request["fragment"]:
            return []
        if request["kind"] == "recover":
            return self._recovery(request, held) if held is not None else []
        if held is None or (held.answered is not None and held.answered[0] == request["round"]):
            return []
        held.carries = self._carries or self._slot in request.get("carry", ())
        self._postponed.pop(p, None)
        if request["kind"] == "final":
            self.is_final = True
        elif self._odometer.steps and not held.ledger.steps and request["grace"] is not None:
            self._postponed[p] = request
            return []
        return self._give(request, held)

    def postponed(self, *, is_last: bool) -> list[tuple[str, Capture]]:
        """The answers to pulls that came with an update of their fragment, once it contains an interval's work.

        The two come together behind a link that cannot carry the traffic that is due. An immediate answer would be
        empty, and one that is late for its round counts in the next. A round that waits for all learners is answered at
        once. So is every round, regardless of the work in it, once no more steps are made: `is_last`.
        """
        answers: list[tuple[str, Capture]] = []
        for p, request in list(self._postponed.items()):
            held = self._held[p]
            assert held is not None  # Or the pull would not have been postponed.
            if is_last or held.ledger.steps >= request["interval"]:
                answers += self._give(self._postponed.pop(p), held)
        return answers

    def _give(self, request: Round, held: HeldFragment) -> list[tuple[str, Capture]]:
        p, push = self._own_of[request["fragment"]], self._push_of(request)
        if self._coding is not None and push in self._coding.codes:
            capture = self._capture(request, held, None)
            capture["coded"] = self._coding.code(p, held.anchor, push)
            held.sent = self._learner.extract(p) if held.carries else None
        else:
            capture = self._capture(request, held, self._learner.extract(p))
            held.sent = capture["values"] if held.carries else None
        self.given += 1
        self.payload_bytes += FORMATS[push].payload(self._sizes[p])
        held.ledger.answered(self._odometer.tokens)
        held.answered = (request["round"], self._odometer.steps)
        return [("fragment", capture)]

    def _first_version(self, request: Round, p: int) -> list[tuple[str, Capture]]:
        """The first version of a fragment: that of this learner's initial model, if no learner has given one yet.

        It is the version that it holds, where a shard died after it published one and its successor does not know it.
        That of a module that no live learner has is this learner's, of its own module.
        """
        held = self._held[p]
        if held is not None:
            if self._numbers[p] != request["fragment"]:
                return [("fragment", self._capture(request, None, held.anchor))]
            return self._recovery(request, held)
        if not self._has_begun:
            self._learner.begin()
            for number, other in enumerate(self._held):
                if other is not None:
                    self._learner.replace(number, other.anchor)
            self._has_begun = True
        first = self._begun_from(request["fragment"], self._learner.extract(p))
        return [("fragment", self._capture(request, None, first))]

    def _capture(self, request: Round, held: HeldFragment | None, values: Any) -> Capture:
        capture = Capture(
            fragment=request["fragment"],
            round=request["round"],
            kind=request["kind"],
            slot=self._slot,
            incarnation=self._incarnation,
            base=None if held is None else list(held.ledger.base),
            begin=0 if held is None else held.ledger.begin,
            end=0 if held is None else self._odometer.tokens,
            steps=0 if held is None else held.ledger.steps,
            clock=[],
            values=values,
            anchor=None if held is None else held.anchor,
            positions=[[self._slot, self._feed.reached]],
            state=self._feed.reached_state(),
        )
        if held is not None and held.ledger.former:
            capture["former"] = held.ledger.former
        if "asked" in request:
            capture["push"] = self._push_of(request)
        return capture

    def _push_of(self, request: Round) -> str:
        """The format in which the answer to a pull leaves."""
        if "asked" not in request:
            return self._push
        return str(dict(request["asked"]["push"]).get(self._slot, "float32"))

    def _recovery(self, request: Round, held: HeldFragment) -> list[tuple[str, Capture]]:
        """The newest global version that this learner has, for a shard that lost it."""
        capture = self._capture(request, held, held.anchor)
        capture["begin"], capture["steps"] = capture["end"], 0
        capture["clock"], capture["anchor"] = held.clock, None
        capture.pop("former", None)
        capture["positions"], capture["state"] = held.positions, None
        return [("fragment", capture)]


WAITING_MAX: Final = 64
"""Steps whose scalars may wait to be read: a learner is found sick within so many steps, or at the next full report."""


FIRST_LOSSES: Final = 4
"""Losses of a life that are kept, to be compared with those of others."""


class StepMetrics:
    """The scalars since the last report, as sums by name; and the first losses of all.

    `not_finite` counts the steps, of those whose scalars were read, with a loss that is not finite.
    """

    def __init__(self) -> None:
        self.first_losses: list[float] = []
        self.not_finite = 0
        self._waiting: list[Mapping[str, Any]] = []
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Any]) -> bool:
        """Keep the scalars of one step, 'loss' among them; returns whether to read now, because too many wait."""
        self._waiting.append(metrics)
        return len(self._waiting) > WAITING_MAX

    def read(self, *, left: int) -> int | None:
        """Read the scalars of all steps but the last `left`.

        Returns how many steps ago the first step was whose loss is not finite, None if there is none.
        """
        count = max(0, len(self._waiting) - left)
        if not count:
            return None
        read, self._waiting = self._waiting[:count], self._waiting[count:]
        self._count += count
        losses: list[float] = []
        for name in read[0]:
            values = [float(np.asarray(metrics[name])) for metrics in read]  # A sixth of what jax's own float() takes.
            self._sums[name] = self._sums.get(name, 0.0) + sum(values)
            losses = values if name == "loss" else losses
        self.first_losses += losses[: FIRST_LOSSES - len(self.first_losses)]
        if math.isfinite(sum(losses)):
            return None
        self._count_losses(losses)
        first = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), count - 1)
        return len(self._waiting) + count - 1 - first

    def forget(self) -> None:
        """Drop the scalars that wait, but for the count of losses that are not finite."""
        self._count_losses([float(np.asarray(metrics["loss"])) for metrics in self._waiting])
        self._waiting.clear()

    def _count_losses(self, losses: Sequence[float]) -> None:
        self.not_finite += sum(not math.isfinite(loss) for loss in losses)

    def means(self) -> dict[str, float]:
        """The means of the scalars read since the previous call, by name; empty if none was."""
        means = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

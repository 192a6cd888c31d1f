"""A learner's answers to pulls: the fragment that a round asks for, in its state at a boundary.

Decides whether a pull is answered: now, later, or not at all. The fragment is captured on the device; the node that
sends it waits for the capture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, final

from isthmus.ops.exchange.messages import Capture, Round, Vector
from isthmus.ops.exchange.token_accounts import FragmentLedger, Odometer
from isthmus.ops.island.contract import Coding, Learning
from isthmus.ops.learner.feed import Feed


@dataclass(slots=True)
class Held:
    """A learner's state of one fragment: the version that it adopted last, with its clock, and the ledger since then.

    `answered` is the round of its last answer and the number of steps before it, until something else is adopted.
    """

    ledger: FragmentLedger
    anchor: Vector
    clock: list[list[int]]
    positions: list[list[int]]
    answered: tuple[int, int] | None = None


@final
class Answers:
    """The answers of one life of a learner, from its versions `held` by fragment; their owner changes that list, too.

    `is_final`: the last pull has arrived. `push`: their format, where rounds do not ask for one.
    """

    def __init__(
        self,
        slot: int,
        incarnation: int,
        *,
        learner: Learning,
        held: list[Held | None],
        odometer: Odometer,
        feed: Feed,
        push: str = "float32",
    ) -> None:
        self._slot, self._incarnation, self._learner, self._push = slot, incarnation, learner, push
        self._coding = learner if isinstance(learner, Coding) else None
        self._held, self._odometer, self._feed = held, odometer, feed
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
        p = request["fragment"]
        held = self._held[p]
        if [self._slot, self._incarnation] not in request["members"]:
            return []
        if request["kind"] == "initial":
            return self._first_version(request)
        if request["kind"] == "recover":
            return self._recovery(request, held) if held is not None else []
        if held is None or (held.answered is not None and held.answered[0] == request["round"]):
            return []
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

    def _give(self, request: Round, held: Held) -> list[tuple[str, Capture]]:
        p, push = request["fragment"], self._push_of(request)
        if self._coding is not None and push in self._coding.codes:
            capture = self._capture(request, held, None)
            capture["coded"] = self._coding.code(p, held.anchor, push)
        else:
            capture = self._capture(request, held, self._learner.extract(p))
        held.ledger.answered(self._odometer.tokens)
        held.answered = (request["round"], self._odometer.steps)
        return [("fragment", capture)]

    def _first_version(self, request: Round) -> list[tuple[str, Capture]]:
        """The first version of a fragment: that of this learner's initial model, if no learner has given one yet.

        It is the version that it holds, where a shard died after it published one and its successor does not know it.
        """
        held = self._held[request["fragment"]]
        if held is not None:
            return self._recovery(request, held)
        if not self._has_begun:
            self._learner.begin()
            for p, other in enumerate(self._held):
                if other is not None:
                    self._learner.replace(p, other.anchor)
            self._has_begun = True
        return [("fragment", self._capture(request, None, self._learner.extract(request["fragment"])))]

    def _capture(self, request: Round, held: Held | None, values: Any) -> Capture:
        capture = Capture(
            fragment=request["fragment"],
            round=request["round"],
            kind=request["kind"],
            slot=self._slot,
            incarnation=self._incarnation,
            base=None if held is None else list(held.ledger.base),
            begin=0 if held is None else held.ledger.begin,
            end=self._odometer.tokens,
            steps=0 if held is None else held.ledger.steps,
            clock=[],
            values=values,
            anchor=None if held is None else held.anchor,
            positions=[[self._slot, self._feed.reached]],
            state=self._feed.told(),
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

    def _recovery(self, request: Round, held: Held) -> list[tuple[str, Capture]]:
        """The newest global version that this learner has, for a shard that lost it."""
        capture = self._capture(request, held, held.anchor)
        capture["begin"], capture["steps"] = capture["end"], 0
        capture["clock"], capture["anchor"] = held.clock, None
        capture.pop("former", None)
        capture["positions"], capture["state"] = held.positions, None
        return [("fragment", capture)]

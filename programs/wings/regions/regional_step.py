"""The regional-step node: a region's outer step, and its part as a learner of the global syncer.

Two levels; the nearest publication is HALoS (arXiv 2506.04531), whose code simulates.

Decides what a region answers, and how it adopts a global version. For each fragment it has Theta, which its own merges
move, and the anchor G, the global version that it adopted last. Its *own* work is o = G - Theta. It answers a pull with
s = Q(o), and adopts G' by

    Theta <- Theta + (G' - (G - s))        G <- G'

where s is the answer that is merged in G', or 0 where none is: so what the region has merged since it answered stays,
and so does what coding took from the answer, and what is merged in no global version. Where the region is alone and the
global step is (1, 0), G - s are the bits of G', and nothing moves. Theta reaches the learners with the region's next
merge of the fragment; none waits for it, nor does the region for anything global.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    Begun,
    Gradient,
    Merging,
    Progress,
    RegionAnswer,
    Round,
    RunTotals,
    Standing,
    Update,
    Vector,
    WantedValues,
    is_withdrawn,
)
from isthmus.ops.exchange.requested import Format
from isthmus.ops.exchange.token_accounts import RegionWork, Totals
from isthmus.ops.learner.fragment_offer import KeptValues
from isthmus.ops.syncer.answer_rules import owner_of
from isthmus.ops.syncer.answer_work import work_of
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.schedule import Phase
from isthmus.programs.wings.regions.region_parts import ONE_REGION, RegionParts

if TYPE_CHECKING:
    from types import ModuleType

MERGE_TIME_DECAY: Final = 0.9


class SentAnswer(NamedTuple):
    """An answer whose fate is open: its vector, decoded, its fields, and the region's count of merges at that time."""

    vector: Vector
    fields: dict[str, Any]
    merges: int


@dataclass(slots=True)
class RegionFragment:
    """A region's state of one fragment toward the global syncer."""

    anchor: Vector
    version: list[int] | None
    """None before there is a global one."""
    clock: list[list[int]]
    """That of the version."""
    positions: list[list[int]]
    """Likewise."""
    reached: list[list[int]]
    """The positions in Theta."""
    work: RegionWork = field(default_factory=RegionWork)
    sent: dict[int, SentAnswer] = field(default_factory=dict)
    """The open answers, by their number in `work`."""
    round_last: int = 0
    has_ended: bool = False


class RegionalStep:
    """Gradients of the region's merges, global versions (`above`) and pulls in; updates, and answers, out.

    `update`, `state` and `merged` are those of `OuterStep`, whose format of updates is `update`; `begun` goes to
    merge and pacer where a fragment begins from the global version, `first` to the pacer where the global syncer asks
    for the first version, `totals` to the pacer with each global version; `answer` and `progress` to the global
    syncer. `push` is the format of answers, "auto" the one that a pull asks for; with `tells_links`, its reports have
    the goodput of its links. `standing` tells that there are learners. By `parts` it has its own fragments. Where
    owners may have less than the whole of a merge, `share_max` or what the directory says, its answers say what each
    of them has.
    """

    outputs: ClassVar[tuple[str, ...]] = ("update", "merged", "begun", "first", "totals", "answer", "progress", "state")
    collects: ClassVar[tuple[str, ...]] = ("above", "pull")
    schemas: ClassVar = {"above": Update, "pull": Round}
    noted: ClassVar = {"merged": ("kind", "epoch", "round", "version", "voters"), "answer": ("begin", "end", "work")}

    def __init__(
        self,
        fragments: Sequence[Fragment],
        *,
        lr: float,
        momentum: float,
        push: Format | Literal["auto"] = "float32",
        tells_links: bool = False,
        parts: RegionParts = ONE_REGION,
        share_max: float = 1.0,
        update: Format | Literal["auto"] = "float32",
    ) -> None:
        self._parts, self._share_max = parts, share_max
        self._fragments, self._push, self._tells_links = tuple(fragments), push, tells_links
        self._outer = OuterStep(fragments, lr=lr, momentum=momentum, update=update)
        self._held: dict[int, RegionFragment] = {}
        self._asked: dict[int, Round] = {}
        """Fragment -> the pull that waits: for the first version, or for the last merge of the region."""
        self._most: dict[str, float] = {}
        """The most that owners may have of a merge of the model, by name."""
        self._totals = Totals()
        self._merges = self._delay = 0
        self._merge_time = 0.0
        self._merged_at: int | None = None

    def open(self, context: Any) -> None:
        """Load the kernels."""
        from isthmus.ops.kernels import averaging, coding, nesterov

        coding.warm_pushes()
        coding.warm_updates()
        averaging.warm()
        self._context = context
        self._slot, self._life = context.member.replica.slot, context.member.incarnation
        self._own = [p for p in range(len(self._fragments)) if self._parts.has(self._slot, p)]
        # What is not read is not made: a state has all values.
        self._passed_on = ("update", "state", "merged") if "state" in context.connected else ("update", "merged")
        self._coding: ModuleType = coding
        self._norms, self._descent = averaging.unit_norms, nesterov.descent
        self._outer.open(context)

    def __call__(
        self,
        gradient: Gradient | None = None,
        above: Mapping[Any, Update] | None = None,
        pull: Mapping[Any, Round] | None = None,
        standing: Standing | None = None,
    ) -> list[tuple[str, Any]]:
        """Adopt, step, answer, and report, in this order: an answer has the newest version as its base."""
        emitted: list[tuple[str, Any]] = []
        for update in sorted((above or {}).values(), key=itemgetter("fragment", "version")):
            emitted += self._take(update)
        if above:  # Also without news: the pacer learns that it is not cut off.
            emitted.append(("totals", RunTotals(totals=self._totals.rows())))
        if gradient is not None:
            emitted += self._step(gradient)
        for request in sorted((pull or {}).values(), key=itemgetter("round")):
            emitted += self._accept(request)
        emitted += [each for p in sorted(self._asked) if self._is_due(p) for each in self._give(self._asked.pop(p))]
        return [*emitted, ("progress", self._progress())]

    # -- the region's own merges ---------------------------------------------------------------------------------------

    def _step(self, gradient: Gradient) -> list[tuple[str, Any]]:
        p = gradient["fragment"]
        emitted = self._outer(gradient)
        theta = self._outer.values(p)
        if p not in self._held and theta is not None:  # The first version of all: this region gives it.
            self._held[p] = RegionFragment(theta, None, [], [], gradient["positions"])
        if gradient["direction"] is not None and gradient["kind"] != "initial":
            self._count_merge()
        if p in self._held:
            held = self._held[p]
            held.work.merged(gradient["work"], self._shares_of(gradient["merging"]))
            held.reached = gradient["positions"]
            held.has_ended |= gradient["kind"] == "final"
        self._totals.raise_to(gradient["totals"])
        return [(port, emitted[port]) for port in self._passed_on if port in emitted]

    def _shares_of(self, merging: Merging) -> dict[str, float]:
        """What the owners whose shares are bounded had of a merge."""
        shares: dict[str, float] = {}
        for slot, share in zip(merging["voters"], merging["weights"], strict=True):
            name, most = owner_of(self._context, slot, self._share_max)
            if most < 1.0:
                self._most[name] = most
                shares[name] = shares.get(name, 0.0) + share
        return shares

    def _count_merge(self) -> None:
        now, self._merges = self._context.now(), self._merges + 1
        if self._merged_at is not None:
            took = now - self._merged_at
            self._merge_time = MERGE_TIME_DECAY * (self._merge_time or took) + (1 - MERGE_TIME_DECAY) * took
        self._merged_at = now

    # -- global versions -----------------------------------------------------------------------------------------------

    def _take(self, update: Update) -> list[tuple[str, Any]]:
        """Begin from a global version, or adopt it."""
        if is_withdrawn(update):
            return []
        self._totals.raise_to(update["totals"])
        p = update["fragment"]
        if p not in self._held:
            return self._begin(update)
        held = self._held[p]
        if held.version is None or update["version"] > held.version:
            self._adopt(held, update)
        return []

    def _begin(self, update: Update) -> list[tuple[str, Any]]:
        """Begin a fragment in this life: what a former life of this region had merged alone is lost with it."""
        p, values, version = update["fragment"], update["values"], [self._life, 0]
        self._outer.begin(p, values, version)
        clock, positions = update["clock"], update["positions"]
        self._held[p] = RegionFragment(values, update["version"], clock, positions, positions)
        largest = self._coding.largest(values)
        begun = Begun(fragment=p, version=version, largest=largest, clock=clock, positions=positions)
        first = Update(
            fragment=p,
            version=version,
            kind="initial",
            values=values,
            clock=clock,
            positions=positions,
            totals=self._totals.rows(),
            refused=[],
        )
        return [("begun", begun), ("update", self._outer.item(first))]

    def _adopt(self, held: RegionFragment, update: Update) -> None:
        p, values = update["fragment"], update["values"]
        number = held.work.adopted(update["clock"])
        expected = held.anchor
        if number is not None:
            sent = held.sent[number]
            expected = self._without(p, expected, sent.vector)
            self._delay = self._merges - sent.merges
            held.sent = {}
        if not np.array_equal(values, expected):  # Not by adding zeros: that makes 0 of -0.
            theta = self._outer.values(p)
            assert theta is not None
            self._outer.replace(p, np.add(theta, np.subtract(values, expected), dtype=np.float32))
        held.anchor, held.version = values, update["version"]
        held.clock, held.positions = update["clock"], update["positions"]

    def _without(self, p: int, anchor: Vector, sent: Vector) -> Vector:
        """The global version that an answer alone makes of the anchor, by a step of (1, 0): the same bits."""
        fragment = self._fragments[p]
        ones = np.ones(len(fragment.units), np.float32)
        without: Vector = self._descent(anchor, sent, ones, fragment, 1.0)
        return without

    # -- answers -------------------------------------------------------------------------------------------------------

    def _accept(self, request: Round) -> list[tuple[str, Any]]:
        """Store a pull until it is due; the pacer is told of one for a fragment that has not begun here."""
        p = request["fragment"]
        held = self._held.get(p)
        if [self._slot, self._life] not in request["members"] or (held and held.round_last == request["round"]):
            return []
        if held is None and request["kind"] != "initial":
            return []
        self._asked[p] = request
        return [("first", {"fragment": p})] if held is None else []

    def _is_due(self, p: int) -> bool:
        """Whether the pull that waits can be answered: the last one not before the region's own last merge."""
        held = self._held.get(p)
        return held is not None and (self._asked[p]["kind"] != "final" or held.has_ended)

    def _give(self, request: Round) -> list[tuple[str, Any]]:
        p, kind = request["fragment"], request["kind"]
        held, theta = self._held[p], self._outer.values(p)
        assert theta is not None
        is_begun = held.version is not None
        if not is_begun and kind != "initial":
            return []
        held.round_last = request["round"]
        is_own = kind in ("merge", "final")
        work = held.work.pending() if is_own else []
        fields = (
            self._own_fields(p, held, theta, self._push_of(request))
            if work
            else self._fields(p, held.anchor - theta if is_own else held.anchor)
        )
        answer: Any = RegionAnswer(
            fragment=p,
            round=request["round"],
            kind=kind,
            slot=self._slot,
            incarnation=self._life,
            base=held.version,
            begin=0,
            end=sum(end - begin for *_, begin, end, _ in work),
            steps=sum(steps for *_, steps in work),
            clock=[] if is_own else held.clock,
            positions=held.reached if is_own else held.positions,
            state=None,
            work=work,
            gradient=fields["gradient"],
            norms=fields["norms"],
        )
        answer.update(fields)
        if work and (shares := held.work.shares()):
            answer["owners"] = [[name, share, self._most[name]] for name, share in sorted(shares.items())]
        # As `RegionAnswers.checked` demands at the other end: the work of a region is that of its learners.
        assert work_of(answer) == (answer["end"] - answer["begin"], answer["steps"]), answer["work"]
        return [("answer", answer)]

    def _push_of(self, request: Round) -> str:
        """The format in which the answer to a pull leaves."""
        if self._push != "auto" or "asked" not in request:
            return "float32" if self._push == "auto" else self._push
        return str(dict(request["asked"]["push"]).get(self._slot, "float32"))

    def _own_fields(self, p: int, held: RegionFragment, theta: Vector, push: str) -> dict[str, Any]:
        """The fields of an answer that have its vector: of an open answer with the same work the same ones, because
        either of the two may be merged."""
        number = held.work.answered()
        if number not in held.sent:
            whole, fragment = held.anchor - theta, self._fragments[p]
            if push == "float32":
                held.sent[number] = SentAnswer(whole, self._fields(p, whole), self._merges)
            else:
                coded = self._coding.encode(whole, fragment, push)
                fields = {**self._fields(p, whole), **self._coding.item_fields("gradient", coded)}
                decoded = self._coding.add(np.zeros_like(whole), coded, fragment)
                held.sent[number] = SentAnswer(decoded, fields, self._merges)
        held.sent = {each: held.sent[each] for each in held.work.open_answers()}
        return held.sent[number].fields

    def _fields(self, p: int, vector: Vector) -> dict[str, Any]:
        return {"gradient": vector, "norms": self._norms(vector, self._fragments[p]).astype(np.float32)}

    # -- reports -------------------------------------------------------------------------------------------------------

    @property
    def _phase(self) -> Phase:
        if len(self._held) < len(self._own) or any(each.version is None for each in self._held.values()):
            return "ready"
        return "final" if all(each.has_ended for each in self._held.values()) else "stepping"

    def _progress(self) -> Progress:
        versions = [self._held[p].version if p in self._held else None for p in range(len(self._fragments))]
        progress = Progress(
            slot=self._slot,
            incarnation=self._life,
            phase=self._phase,
            step=self._merges,
            tokens=0,
            step_time=round(self._merge_time),
            delay_steps=self._delay,
            epochs=[0 if version is None else version[0] for version in versions],
            totals=self._totals.rows(),
        )
        if self._tells_links:
            progress["links"] = [[*link, *rate] for link, rate in sorted(self._context.traffic.goodput.items())]
        return progress


class RegionalOffer(RegionalStep):
    """A `RegionalStep` whose answers are told ahead: to global shards that keep sums."""

    outputs: ClassVar = (*RegionalStep.outputs, "values")
    collects: ClassVar = (*RegionalStep.collects, "wanted")
    schemas: ClassVar = {**RegionalStep.schemas, "wanted": WantedValues}

    def __init__(self, fragments: Sequence[Fragment], **terms: Any) -> None:
        super().__init__(fragments, **terms)
        self._values = KeptValues()

    def __call__(
        self,
        gradient: Gradient | None = None,
        above: Mapping[Any, Update] | None = None,
        pull: Mapping[Any, Round] | None = None,
        standing: Standing | None = None,
        wanted: Mapping[Any, WantedValues] | None = None,
    ) -> list[tuple[str, Any]]:
        """Values that are wanted, before newer answers may replace them; then as a `RegionalStep`."""
        emitted: list[tuple[str, Any]] = []
        for each in (wanted or {}).values():
            if (each["slot"], each["incarnation"]) == (self._slot, self._life):
                emitted.append(("values", self._values.values(each)))
        if wanted and all(each is None for each in (gradient, above, pull, standing)):  # Nothing to report.
            return emitted
        for port, item in super().__call__(gradient, above, pull, standing):
            emitted.append((port, self._values.told(item) if port == "answer" else item))
        return emitted

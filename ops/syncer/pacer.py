"""The pacer of a syncer shard: when a round opens, for which fragment, and with which learners (Decoupled DiLoCo, arXiv
2604.21428).

Decides, from the reports of learners and merges, which rounds are open at any time. It does not collect votes, wait, or
touch values: the quorum of the merge node reads `members`, `count_min`, `grace`, `required` and `deadline` of the
rounds that it opens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from isthmus.ops.data.positions import Place, of_slot
from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.adaptive import LEARNER, REGION, FollowedSettings
from isthmus.ops.exchange.messages import (
    Begun,
    Change,
    Control,
    Held,
    Kind,
    Merging,
    Progress,
    ReachedPositions,
    Round,
    RunTotals,
    Standing,
)
from isthmus.ops.exchange.paths import FragmentHolders
from isthmus.ops.exchange.wanted_settings import Steps, WantedSettings
from isthmus.ops.recovery.hold import RelayedTotals, ShardMemory, is_majority
from isthmus.ops.step_tokens import AtMost, StepTokens, tokens_now
from isthmus.ops.syncer.schedule import (
    LearnerReport,
    LearnerRoster,
    Placing,
    Schedule,
    StepClock,
    learners_live,
    rounds_in_flight_max,
)
from isthmus.ops.syncer.slow_learners import NO_SPEEDS, SlowLearners, SpeedTerms
from isthmus.ops.syncer.terms import EDGE_WAIT, Conditions, Terms

START_WAIT: Final = 60_000_000_000
"""Nanoseconds from the first report after which a run starts with the learners that there are."""
EDGE_INTERVALS: Final = 2
"""The last rounds are those that open within so many intervals of the end of the budget: reports are late."""
PARTINGS_MAX: Final = 3
"""Rounds of a fragment that open for one learner that leaves: its answer may be late for the first, and more often it
is not there."""
TRIES_MAX: Final = 16
"""Rounds in which the first version of a fragment may fail to come before the run fails."""


class Start:
    """Chooses the learners that give the first versions. Members are [slot, incarnation].

    Ready learners wait until as many as the run was configured for have compiled, at most START_WAIT: the only wait of
    a run. All shards ask the live learner of the lowest slot, so that the first versions of all fragments are of one
    model; where it fails, the next.
    """

    def __init__(self, learners: int) -> None:
        """`learners` is the number that a start waits for."""
        self._learners = learners
        self._waits_until: int | None = None
        self._tried: list[list[int]] = []
        self._failures: dict[int, int] = {}
        self.has_waited = False
        """Whether it began with fewer learners than the run was configured for, after the wait."""

    def giver(
        self, live: Sequence[list[int]], now: int, *, has: Callable[[int], bool] = lambda slot: True
    ) -> list[int] | None:
        """The member to ask now, of those `live` (by slot); None as long as the start must wait.

        One of a slot that `has` the fragment, if there is one. Once all that are live have failed, they are asked again
        from the lowest slot on.
        """
        if not live:
            return None
        if self._waits_until is None:
            self._waits_until = now + START_WAIT
        if len(live) < self._learners and now < self._waits_until:
            return None
        self.has_waited |= len(live) < self._learners
        self._waits_until = now  # It has started: a learner that dies now is not waited for again.
        if all(member in self._tried for member in live):
            self._tried = []
        untried = [member for member in live if member not in self._tried]
        return next((member for member in untried if has(member[0])), untried[0])

    def failed(self, fragment: int, member: list[int], reason: str) -> None:
        """Record that a member did not give the first version of a fragment.

        Raises RuntimeError after TRIES_MAX failures of one fragment: then the fault is not with the learner.
        """
        if member not in self._tried:
            self._tried.append(member)
        self._failures[fragment] = self._failures.get(fragment, 0) + 1
        if self._failures[fragment] >= TRIES_MAX:
            raise RuntimeError(
                f"starting fragment {fragment}: expected its first version from one of the learners, found none in "
                f"{TRIES_MAX} rounds (the last: {reason}). Look at the logs of the learners."
            )


class PacerContext(Protocol):
    """The part of the host's context that the pacer uses."""

    @property
    def member(self) -> Any:
        """This shard: `member.replica.slot` is its number."""

    @property
    def traffic(self) -> Any:
        """By (role, slot), `traffic.goodput` is the rate of this host's links, (mean, best) bytes a second, and
        `traffic.round_trips` that of an item without size, in nanoseconds."""

    def now(self) -> int:
        """The time in nanoseconds, on the same clock as the times in a Merging."""

    def members(self) -> frozenset[Any]:
        """The live members, of any role."""

    def publish(self, statistics: dict[str, Any], /) -> None:
        """Show these in the host's status."""


OVERDUE: Final = 1.25
"""The age, in graces, at which a final round is closed even if no learner has answered."""
RECOVERY_GRACE: Final = 1_000_000_000
"""Nanoseconds for which a shard that came back waits for more learners than the first: for their reports, and then for
the versions that they hold. Only the newest version includes everything in the others."""


COPY_WAIT: Final = 10_000_000_000
"""Nanoseconds from then on for which it waits for the copy of its neighbour, where that is newer than what learners
have."""


Tier: TypeAlias = Literal["flat", "region", "regions"]
"""Whose rounds: of all learners; of those of one region, by its syncer; of the regions, by the global syncer."""
RENEWED_AT_ONCE: Final = 64
"""Members of an open round up to which it is renewed for each learner that begins to step."""
RENEWAL_NS: Final = 2_000_000
"""For each member of a larger one, between two attempts: 2 s of a thousand."""
NEWS_NS: Final = 5_000_000_000
"""Nanoseconds from the last news of other regions from which on it counts as cut off: recorders tell once a second."""
REGIONS_NS: Final = 30_000_000_000
"""Nanoseconds for which the end waits, once a region has made its last merges, for regions that have not."""


@dataclass(slots=True)
class PacedRound:
    """A round whose merge has not been reported yet, opened at `opened_at` (nanoseconds).

    `item` is its newest attempt, `first` its first, `seen` the roster's list with which its members were compared last;
    `is_at_edge`: it waits for every live learner, so that its duration says nothing of other rounds.
    """

    item: Round
    first: Round
    opened_at: int
    seen: Sequence[LearnerReport] = ()
    is_at_edge: bool = False
    renewed_at: int = 0
    """The last attempt of a round of many members."""


@dataclass(frozen=True, slots=True)
class RoundAhead:
    """The number of a round that is not open yet, and the slots that were asked ahead."""

    number: int
    slots: frozenset[int]


class Pacer:
    """Opens the rounds of one shard: the same Round item on ports `round` (to merge) and `pull` (to the learners).

    Fires on AnyOf("progress", "merged", "control"). Several rounds may leave in one firing, never two of one fragment.
    `is_finished` once every own fragment's final round has come back. Changes of the settings that follow the links
    leave on `changed`; the merges known to learners that have died, on `held`.

    Shard s of S has the fragments p with p mod S = s. Each is in one of these states, and never has two rounds open:

        unborn --its initial round--> resting <--is due, its merge round--> merging
                                      resting --stopping and no round open, its final round--> ended

    - *initial*: the learner in the lowest slot sends the first version of all fragments that were never published.
    - *recover*: a shard that came back waits for reports of all learners that have trained, at most a second, before it
      asks the holders of a fragment for the newest version, which takes the place of the first.
    - *merge*: fragments are due on a grid of H steps of the fastest learner (`schedule`), on the terms of `terms`.
    - Where a learner *leaves*, the fragments in which it has work are merged at once, with all learners that step.
    - *final*: once the tokens are spent, or a stop is requested, all fragments are merged a last time with all
      learners; a live learner that does not answer is waited for within a learned bound.

    Initial and merge rounds respect the bound of rounds in flight, so a shard holds the answers of no more rounds than
    that. Recover and final rounds open all at once: they wait for learners that may be silent, and wait for them once.

    On the `tier` of a region, replica i is shard i // N of region i mod N; its fragments begin from the global version
    (`begun`), and an initial round opens only where a global shard has asked this one for the first version (`first`).
    On that of the regions, their shards take the place of learners, each of which has its own fragments (`paths`): a
    step is a merge of a region, and final rounds open once regions have made their last merges.

    By `speeds`, learners with long steps are asked ahead, all or those that are slow (`slow_learners`; DyLU, arXiv
    2401.09135, has as many steps a learner as its speed allows): the pull of a round leaves for them before it opens,
    by as many steps of the fastest learner as one of theirs is longer. They answer after fewer steps, and in time. The
    quorum holds votes of rounds that are not open yet. Where another round opens first, the number of an asked one is
    void, and that fragment is asked for again. Slow ones are told with each pull that they carry work over.

    Of a model made of modules (`paths`), the learners of a round are those whose path has its fragment; a fragment that
    no live learner has rests, and its first version is that of a learner whose model is made of other modules. A shard
    that comes back has it from a host that only holds the model where no learner may ever come back that has it
    (`gives_copies`).

    An open round is renewed (same number, next attempt) when a learner begins to step or comes back in a new life,
    unless the lives of all its members are over: then it closes by itself. A shard receives no notice of deaths. A
    member that neither answered nor was left out alive, in two closed rounds in a row, counts as gone until its next
    report.
    """

    outputs = ("round", "pull", "place", "changed", "held", "standing")
    collects = ("progress", "merged", "control", "held", "reached", "begun", "first", "totals")

    @staticmethod
    def schemas(*, fragments: int, step_tokens: StepTokens, **_: Any) -> dict[str, Any]:
        """The forms of the messages of learners, recorder and holders."""
        report = schemas.progress(fragments, step_tokens)
        return {"progress": report, "control": Control, "held": Held}

    def __init__(
        self,
        *,
        fragments: int,
        shards: int,
        interval: Steps,
        overlap: Steps,
        quorum: int,
        grace: bool,
        gamma: float,
        learners: int,
        tokens: int,
        step_tokens: StepTokens = 1,
        push: str = "float32",
        update: str = "float32",
        sizes: Sequence[int] = (),
        late: Literal["count", "refuse"] = "count",
        tier: Tier = "flat",
        regions: int = 1,
        paths: FragmentHolders | None = None,
        speeds: SpeedTerms = NO_SPEEDS,
    ) -> None:
        """Set the parameters of the run.

        P, S, H, tau, K of the run; whether there is grace, and its safety margin gamma in [0, 1); whether answers that
        are late for their round count in the next of the fragment; how many learners the start waits for; the tokens of
        the whole run; those of one step, as `schemas` needs them; the formats of answers and updates; and, where one of
        them, H or tau is "auto", the number of values of each fragment. On the tier of a region, the number of them.
        What follows from the speeds of learners.
        """
        self.is_finished = False
        self._fragments, self._shards = fragments, shards
        self._tokens = tokens
        self._tier, self._regions, self._paths = tier, regions, paths
        self._learners = learners
        self._region = 0
        self._asked: set[int] = set()
        self._own_at_news = self._news_at = 0
        """The tokens of this region's learners, and the time, when the recorder or a global version last told of
        others."""
        self._final_at: int | None = None
        """When a region was first heard to have made its last merges."""
        self._standing: Standing | None = None
        self._wanted = WantedSettings.of(push=push, update=update, interval=interval, overlap=overlap)
        self._sizes = tuple(sizes)
        self._counts_late = late == "count"
        self._changes: list[Change] = []
        self._followed = 0
        first = self._wanted
        self._terms = Terms(first.interval, first.overlap, quorum, gamma if grace else None, first.auto)
        self._roster, self._clock = LearnerRoster(), StepClock()
        self._relayed = RelayedTotals()
        self._totals = self._relayed.totals
        self._learners_live = 0
        self._members: frozenset[Any] | None = None
        """Who was live when they were counted."""
        self._rounds: dict[int, PacedRound] = {}  # By fragment.
        self._born: set[int] = set()
        self._merged: set[int] = set()
        """The fragments that this life has merged."""
        self._step_tokens = tokens_now(step_tokens)
        self._partings: dict[tuple[int, int, int], int] = {}
        """Rounds that have opened for learners that leave, by fragment, slot and incarnation; no more once it answered.
        """
        self._ended: set[int] = set()
        self._round_last = 0
        self._speeds, self._slow = speeds, SlowLearners()
        self._ahead: dict[int, RoundAhead] = {}
        """By fragment."""
        self._recovers_at: int | None = None
        self._copies_at: dict[int, int] = {}
        """When a fragment that no learner holds may be asked for again."""
        neighbours = shards if tier != "region" else 0
        self._memory = ShardMemory(is_of_modules=paths is not None, neighbours=neighbours)
        self._placing = Placing()
        self._is_stopping = False

    def open(self, context: PacerContext) -> None:
        """Set the shard and its fragments."""
        self._context = context
        slot = context.member.replica.slot
        self._shard, learners = slot, self._learners
        if self._tier == "region":
            self._shard, self._region = divmod(slot, self._regions)
            learners = len(range(self._region, self._learners, self._regions))
        self._start = Start(learners)
        self._own = list(range(self._shard, self._fragments, self._shards))
        # Answers to the rounds of a former life may still be on their way.
        self._round_last = (context.member.incarnation - 1) << 32
        self._schedule = Schedule(self._own, self._fragments, self.interval)
        sizes = [self._sizes[p] for p in self._own if p < len(self._sizes)]
        peers = REGION if self._tier == "regions" else LEARNER
        self._following = FollowedSettings(self._wanted, sizes, context.member, peers=peers)

    @property
    def interval(self) -> int:
        """The present H, in inner steps."""
        return self._terms.adaptation.interval

    @property
    def overlap(self) -> int:
        """The present tau, in inner steps."""
        return self._terms.adaptation.overlap

    def __call__(
        self,
        progress: Mapping[Any, Progress] | None = None,
        merged: Mapping[Any, Merging] | None = None,
        control: Mapping[Any, Control] | None = None,
        held: Mapping[Any, Held] | None = None,
        reached: Mapping[Any, ReachedPositions] | None = None,
        begun: Mapping[Any, Begun] | None = None,
        first: Mapping[Any, Any] | None = None,
        totals: Mapping[Any, RunTotals] | None = None,
    ) -> list[tuple[str, Any]] | None:
        """Process the inputs, open or renew the rounds that follow from them, and place new lives of learners."""
        members = self._context.members()
        if progress and members is not self._members:
            self._members, self._learners_live = members, len(learners_live(progress, members))
        for report in sorted((progress or {}).values(), key=lambda report: (report["slot"], report["incarnation"])):
            self._record_report(report)
        self._placing.add_merges(reached)
        self._clock.close_up(self._lag_max())
        self._memory.add_holders(held)
        for known in (totals or {}).values():
            self._relayed.add_recorder(known["totals"])
        for order in (control or {}).values():
            self._relayed.add_recorder(order["totals"])
            self._memory.add_recorder(order)
            self._is_stopping |= order["stop"] and self._tier != "regions"
        if self._tier == "region" and (totals or control):
            self._own_at_news, self._news_at = self._own_trained(), self._context.now()
        self._born.update(item["fragment"] for item in (begun or {}).values())
        self._asked.update(item["fragment"] for item in (first or {}).values())
        self._is_stopping |= self._are_regions_over() if self._tier == "regions" else self._is_spent()
        for merging in sorted((merged or {}).values(), key=lambda merging: merging["round"]):
            self._end(merging)
        self._follow_links()
        opened = [*self._renewals(), *self._openings()]
        self.is_finished = self._is_stopping and len(self._ended) == len(self._own)
        if opened or merged:
            self._context.publish(self.statistics())
        rounds = [(port, item) for item in opened for port in ("round", "pull")]
        rounds += [("pull", item) for item in self._asked_ahead()]  # After the openings, whose numbers are lower.
        changes, self._changes = self._changes, []
        emitted = [*rounds, *(("place", place) for place in self._places())]
        news = [*self._memory.news(self._context), *self._standing_news()]
        return [*emitted, *(("changed", change) for change in changes), *news] or None

    def statistics(self) -> dict[str, Any]:
        """The figures for the status: counts, inner steps, and durations in nanoseconds."""
        return {
            "rounds_opened": self._round_last & 0xFFFFFFFF,
            "rounds_in_flight": len(self._rounds),
            "rounds_in_flight_max": self._in_flight_max(),
            "fragments_ended": len(self._ended),
            "is_stopping": self._is_stopping,
            **self._terms.statistics(self._roster.stepping()),
            **self._following.statistics(),
            **({"slow": sorted(self._slow.slots)} if self._slow.slots else {}),
        }

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _is_spent(self) -> bool:
        return self._trained() >= self._tokens

    def _trained(self) -> float:
        """The tokens of the whole run. What is known of other regions may be old: they count as having trained on since
        in the proportion of then. So a region that is cut off stops at its share of the budget. Not while news come:
        a new life may hear of what its own learners have trained after it has heard of others."""
        is_told = not self._own_at_news or self._context.now() - self._news_at < NEWS_NS
        if self._tier != "region" or is_told:
            return self._totals.trained
        own = self._own_trained()
        return own + (self._totals.trained - own) * max(1.0, own / self._own_at_news)

    def _own_trained(self) -> int:
        """The tokens of the learners of this region."""
        return sum(tokens for slot, _, tokens in self._totals.rows() if slot % self._regions == self._region)

    def _are_regions_over(self) -> bool:
        """Whether all regions that answer have made their last merges, or the wait for them is over."""
        live = self._roster.live()
        if not any(region.phase == "final" for region in live):
            return False
        now = self._context.now()
        self._final_at = now if self._final_at is None else self._final_at
        return all(region.phase == "final" for region in live) or now - self._final_at >= REGIONS_NS

    def _standing_news(self) -> list[tuple[str, Standing]]:
        standing = Standing(learners=len(self._roster.live()))
        if self._tier != "region" or standing == self._standing:
            return []
        self._standing = standing
        return [("standing", standing)]

    def _record_report(self, report: Progress) -> None:
        """Store a learner's report. The totals of a former life still count; nothing else of it does."""
        report = self._of_all_fragments(report)
        slot, incarnation = report["slot"], report["incarnation"]
        newest = self._roster.incarnation(slot)
        if self._tier == "regions":
            self._totals.raise_to(report["totals"])
        else:
            self._relayed.add_learner(report, lambda: self._roster.live_slots() | {slot}, self._learners_live)
        if incarnation < newest:
            return
        if self._tier != "regions":
            self._placing.add_learner(slot, incarnation, self._round_numbers(), report.get("reached", 0))
        if incarnation > newest:
            self._clock.forget(slot)
            self._terms.forget(slot)
            self._following.forget(slot)
            self._slow.forget(slot)
        self._roster.record(report, self._context.now())
        if report["phase"] == "stepping":
            self._clock.report(slot, report["step"])
        self._is_stopping |= self._tier != "regions" and report["phase"] == "final" and self._is_final()

    def _of_all_fragments(self, report: Progress) -> Progress:
        """The report of a region's shard, counted as if it merged all P fragments at its pace: P steps for each sweep
        of its own. So one of two fragments of five is not slower than one of three."""
        if self._tier != "regions" or self._paths is None:
            return report
        having = sum(self._paths.has(report["slot"], p) for p in range(self._fragments)) or self._fragments
        steps = {name: report[name] * self._fragments // having for name in ("step", "delay_steps")}
        return cast(Progress, {**report, **steps, "step_time": report["step_time"] * having // self._fragments})

    def _is_final(self) -> bool:
        """Whether more than half of the learners report the end of the run; a shard that comes back may learn of it so.

        The report of a single learner is not believed, because the others would lose the work that they have yet to do.
        """
        live = self._roster.live()
        final = sum(learner.phase == "final" for learner in live)
        return is_majority(final, max(len(live), self._learners_live))

    def _report_steps(self) -> int:
        """The greatest number of steps between two reports of a learner: ceil(H / P)."""
        return -(-self.interval // self._fragments)

    def _lag_max(self) -> int:
        """The greatest lag: two learners' reports are stale by a period each; half an interval covers transfer."""
        return max(self.interval // 2, 2 * self._report_steps())

    def _end(self, merging: Merging) -> None:
        """End the round of a merge that is reported; a merge of a round that is no longer open is ignored."""
        fragment = merging["fragment"]
        paced = self._rounds.get(fragment)
        if paced is None or paced.item["round"] != merging["round"]:
            return
        del self._rounds[fragment]
        answered = sorted({*merging["voters"], *(refused[0] for refused in merging["refused"])})
        self._note_missing(paced, {*answered, *merging["left_out"]})
        match paced.item["kind"]:
            case "initial" if merging["version"] is None:
                self._start.failed(fragment, paced.item["members"][0], merging["reason"])
            case "initial" | "recover" if merging["version"] is not None:
                self._born.add(fragment)
            case "merge":
                self._end_merge(paced, merging, answered)
            case "final":
                self._ended.add(fragment)

    def _note_missing(self, paced: PacedRound, accounted: set[int]) -> None:
        """Record members without a trace. Only of the first attempt: a renewal may follow the round's close."""
        for slot, incarnation in paced.first["members"]:
            is_listed = [slot, incarnation] in paced.item["members"]
            if is_listed and slot not in accounted and self._roster.miss(slot, incarnation):
                self._clock.forget(slot)

    def _end_merge(self, paced: PacedRound, merging: Merging, answered: list[int]) -> None:
        if not answered:
            return
        self._merged.add(merging["fragment"])
        for learner in self._roster.leaving():
            if learner.slot in answered:
                self._partings[merging["fragment"], learner.slot, learner.incarnation] = PARTINGS_MAX
        self._terms.observe(
            merging,
            answered,
            paced.item["required"],
            self._having(merging["fragment"], self._roster.stepping()),
            is_usual=paced.first["grace"] is not None and not paced.is_at_edge,
            is_late=self._is_late(),
            sweep=len(self._own),
        )
        self._stretch()

    def _stretch(self) -> None:
        if self.interval != self._schedule.interval:
            self._schedule.stretch(self.interval, self._clock.count)

    def _follow_links(self) -> None:
        """Adapt the settings that follow the links, once in each turn of a fragment: rounds may not come to an end."""
        following, adaptation = self._following, self._terms.adaptation
        if not following.is_needed or self._clock.count - self._followed < self.interval / len(self._own):
            return
        self._followed, stepping = self._clock.count, self._roster.stepping()
        following.set_numbers(adaptation.interval, adaptation.overlap)
        self._changes += following.observe(
            stepping,
            self._context.traffic.goodput,
            self._context.traffic.round_trips,
            round_trip=self._terms.round_trip_steps(stepping),
            round_steps=self._terms.round_steps(stepping),
            is_late=self._is_late(),
            round_number=self._round_last + 1,
            now=self._context.now(),
        )
        adaptation.interval, adaptation.overlap = following.interval, following.overlap
        self._stretch()

    def _is_late(self) -> bool:
        """Whether a fragment waits too long for room in flight.

        That is longer than the time between two fragments of the shard, plus the delay that a report may have.
        """
        answering = self._roster.answering()
        waiting = [fragment for fragment in self._own if fragment not in self._rounds]
        if self._paths is not None:
            waiting = [fragment for fragment in waiting if self._having(fragment, answering)]
        late = max((self._schedule.late_steps(fragment, self._clock.count) for fragment in waiting), default=0.0)
        return late > self.interval * self._shards / self._fragments + self._report_steps()

    # -- rounds to open ------------------------------------------------------------------------------------------------

    def _places(self) -> list[Place]:
        """The lives that can be placed: none before the progress of all own fragments is known."""
        if len(self._born) < len(self._own):
            return []
        return self._placing.due(self._round_numbers(), shard=self._shard, shards=self._shards)

    def _round_numbers(self) -> list[int]:
        return [paced.item["round"] for paced in self._rounds.values()]

    def _openings(self) -> list[Round]:
        if len(self._born) < len(self._own):
            return self._open_initial()
        if self._is_stopping:
            return self._open_final()
        # What the global syncer has of a region is held: the holders are not told of the rest.
        if self._tier != "region" and not self._memory.is_kept(self._own, self._context):
            return []
        return [*self._open_partings(), *self._open_merges()]

    def _open_initial(self) -> list[Round]:
        """The first version of all fragments that have none: the one that learners hold, if this shard comes back."""
        unborn = [fragment for fragment in self._own if fragment not in self._born | self._rounds.keys()]
        if self._tier == "region":
            return self._open_asked([fragment for fragment in unborn if fragment in self._asked])
        holders = {fragment: _members(self._roster.holding(fragment)) for fragment in unborn}
        # Of these, hosts that only hold the model have sent copies to this life of the shard, or its neighbour has.
        is_given = self._paths is not None and self._paths.gives_copies
        near = [each for each in unborn if self._given(each)]
        copied = [each for each in unborn if is_given and self._has_copy(each)]
        orphans = [each for each in unborn if each in (*copied, *near) and not holders[each]]
        if any(holders.values()) or orphans:
            if self._awaits_holders():
                return []
            wanted = [each for each in unborn if holders[each] or each in orphans]
            # A round of one that comes from elsewhere, too, may close before it is there.
            held = [each for each in wanted if each not in (*near, *orphans) or self._may_ask_again(each)]
            return [self._open_round(each, "recover", holders[each]) for each in held]
        return self._open_asked(self._memory.fresh(unborn, self._context))

    def _has_copy(self, fragment: int) -> bool:
        """Whether hosts that only hold the model have a version for this life, and not its digest alone."""
        return bool(self._memory.known(fragment)) and self._memory.is_held(fragment, self._context)

    def _given(self, fragment: int) -> list[int] | None:
        """The version of a fragment that this life's neighbour gives it."""
        return self._memory.given(fragment, self._context)

    def _may_ask_again(self, fragment: int) -> bool:
        """Whether a round without members may open for a fragment: its copy may still be on its way."""
        now = self._context.now()
        if now < self._copies_at.get(fragment, now):
            return False
        self._copies_at[fragment] = now + RECOVERY_GRACE
        return True

    def _open_asked(self, fresh: Sequence[int]) -> list[Round]:
        """The initial rounds of fragments, as far as there is room in flight."""
        opened, live, now = list[Round](), _members(self._roster.live()), self._context.now()
        for each in fresh[: self._room()]:
            has = partial(self._has, each)
            # A learner can make any fragment; a shard of a region has its own alone, and may be in its next life.
            able = [member for member in live if has(member[0])] if self._tier == "regions" else live
            giver = self._start.giver(able, now, has=has)
            if giver is None:
                break
            opened.append(self._open_round(each, "initial", [giver]))
        return opened

    def _awaits_copy(self) -> bool:
        """Whether a version that only the neighbour has is worth the wait: the copy may never come."""
        assert self._recovers_at is not None
        return self._context.now() < self._recovers_at + COPY_WAIT

    def _awaits_holders(self) -> bool:
        """Whether a report is missing of a learner that has trained in this run, and may hold the newest version."""
        now = self._context.now()
        if self._recovers_at is None:
            self._recovers_at = now + RECOVERY_GRACE
        heard = {learner.slot for learner in self._roster.live()}
        is_heard = self._relayed.slots() <= heard and self._memory.has_heard_holders(self._context)
        return now < self._recovers_at and not is_heard

    def _open_merges(self) -> list[Round]:
        """The rounds of due fragments, the longest overdue first, as far as there is room in flight."""
        answering = self._roster.answering()
        due = [
            fragment
            for fragment in self._schedule.due(self._clock.count)
            if fragment not in self._rounds and self._having(fragment, answering)
        ]
        opened = []
        for fragment in due[: self._room()]:
            self._schedule.serve(fragment, self._clock.count)
            opened.append(self._open_round(fragment, "merge", _members(self._having(fragment, answering))))
            self._judge_paces()
        return opened

    def _judge_paces(self) -> None:
        """Judge who is slow, once for each ordinary round, and tell what has changed."""
        if self._speeds.by_speed:
            number, now, special = self._round_last + 1, self._context.now(), self._speeds.special
            for verdict in self._slow.observe(self._roster.stepping()):
                change = self._following.pace_change(*verdict, special=special, round_number=number, now=now)
                self._changes.append(change)

    def _asked_ahead(self) -> list[Round]:
        """The pulls for learners with long steps, ahead of their rounds."""
        stepping, ahead = self._roster.stepping(), self._speeds.ahead
        is_off = not ahead or (ahead == "auto" and not self._slow.slots)
        if is_off or self._is_stopping or len(self._born) < len(self._own):
            return []
        times = [learner.step_time for learner in stepping if learner.step_time > 0]
        early = [each for each in stepping if ahead is True or each.slot in self._slow.slots]
        leads = {each.slot: each.step_time // min(times) - 1 for each in early if each.step_time > 0}
        asked = []
        # In the order in which they are due, as rounds open: a number that is out of turn would be void. So a fragment
        # whose round is open holds up those that are due after its next one, where a lead is longer than the interval.
        for fragment in self._schedule.due(self._clock.count + max(leads.values(), default=0)):
            if fragment in self._rounds:
                break
            steps = -self._schedule.late_steps(fragment, self._clock.count)
            early = [each for each in self._having(fragment, stepping) if leads.get(each.slot, 0) >= max(1.0, steps)]
            slots, before = frozenset(each.slot for each in early), self._ahead.get(fragment)
            if not slots or (before is not None and slots <= before.slots):
                continue
            if before is None:
                self._round_last += 1
            number = self._round_last if before is None else before.number
            self._ahead[fragment] = RoundAhead(number, slots)
            asked.append(self._round(number, fragment, 1, "merge", _members(early), is_at_edge=False))
        return asked

    def _next_number(self, fragment: int, kind: Kind) -> int:
        """The number of a round that opens: of an ordinary one that with which its fragment was asked for, if any."""
        ahead = self._ahead.pop(fragment, None) if kind == "merge" else None
        if ahead is None:
            self._round_last += 1
        number = self._round_last if ahead is None else ahead.number
        # Rounds open in the order of their numbers: lower ones are void.
        self._ahead = {each: other for each, other in self._ahead.items() if other.number > number}
        return number

    def _open_partings(self) -> list[Round]:
        """The rounds of fragments in which learners that leave have work, as far as there is room in flight."""
        opened = []
        for fragment in self._own:
            leaving = [each for each in self._roster.leaving() if self._awaits_parting(fragment, each)]
            if leaving and fragment not in self._rounds and self._room():
                for learner in leaving:
                    key = fragment, learner.slot, learner.incarnation
                    self._partings[key] = self._partings.get(key, 0) + 1
                members = _members(self._having(fragment, self._roster.answering()))
                opened.append(self._open_round(fragment, "merge", members, leaving=leaving))
        return opened

    def _awaits_parting(self, fragment: int, learner: LearnerReport) -> bool:
        key = fragment, learner.slot, learner.incarnation
        return fragment in learner.unmerged and self._partings.get(key, 0) < PARTINGS_MAX

    def _in_flight_max(self) -> int:
        return rounds_in_flight_max(self.overlap, self._fragments, self.interval, self._shards)

    def _room(self) -> int:
        """How many more rounds may be open."""
        return max(0, self._in_flight_max() - len(self._rounds))

    def _open_final(self) -> list[Round]:
        """All final rounds at once, when no other round is open and some learner has adopted the model.

        Not as many as may be in flight: a silent learner would be waited for once in each batch of them.
        """
        finishing = self._roster.finishing()
        if self._rounds or not finishing:
            return []
        left = [each for each in self._own if each not in self._ended]
        return [self._open_round(each, "final", _members(self._having(each, finishing))) for each in left]

    def _renewals(self) -> list[Round]:
        """New attempts of the open rounds whose members have changed by more than deaths."""
        renewed = []
        for _, paced in sorted(self._rounds.items()):
            item = paced.item
            if item["kind"] in ("initial", "recover"):
                continue  # Its members are few or all, and it closes without an answer when they are gone.
            if item["kind"] == "final" and self._is_overdue(paced):
                if item["members"]:  # No member is waited for any more: the merges so far are the end.
                    renewed.append(self._renew(paced, []))
                continue
            learners = self._roster.finishing() if item["kind"] == "final" else self._roster.answering()
            if learners is paced.seen or self._waits_to_renew(paced):
                continue
            paced.seen, listed = learners, {tuple(member) for member in item["members"]}
            members = _members(self._having(item["fragment"], learners))
            is_over = [self._roster.incarnation(slot) > incarnation for slot, incarnation in listed]
            has_joined = any(tuple(member) not in listed for member in members)
            if members and not all(is_over) and (any(is_over) or has_joined):
                renewed.append(self._renew(paced, members))
        return renewed

    def _waits_to_renew(self, paced: PacedRound) -> bool:
        """Whether more members may come before a round of many is renewed: each new attempt names all of them to each,
        and while many start one begins to step at any moment."""
        many = len(paced.item["members"])
        return many > RENEWED_AT_ONCE and self._context.now() < paced.renewed_at + many * RENEWAL_NS

    def _is_overdue(self, paced: PacedRound) -> bool:
        """Whether a final round is open for longer than an answer and all that may follow it can take."""
        grace = paced.item["grace"] or 0
        return self._context.now() - paced.opened_at > OVERDUE * grace

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _open_round(
        self, fragment: int, kind: Kind, members: list[list[int]], *, leaving: Sequence[LearnerReport] = ()
    ) -> Round:
        is_at_edge = kind == "merge" and self._is_at_edge(fragment)
        number = self._next_number(fragment, kind)
        item = self._round(number, fragment, 1, kind, members, is_at_edge=is_at_edge, leaving=leaving)
        is_unusual = is_at_edge or bool(leaving)
        self._rounds[fragment] = PacedRound(item, item, self._context.now(), is_at_edge=is_unusual)
        return item

    def _has(self, fragment: int, slot: int) -> bool:
        """Whether the path of a slot has a fragment."""
        return self._paths is None or self._paths.has(slot, fragment)

    def _having(self, fragment: int, learners: Sequence[LearnerReport]) -> Sequence[LearnerReport]:
        """Those of these learners whose path has a fragment."""
        return learners if self._paths is None else [each for each in learners if self._paths.has(each.slot, fragment)]

    def _present(self, stepping: Sequence[LearnerReport]) -> Sequence[LearnerReport]:
        """Those of these learners that are not away; all, where each is. What steps with regions is no user's code."""
        now = self._context.now()
        if self._tier == "regions":
            return stepping
        return [learner for learner in stepping if not learner.is_away(now)] or stepping

    def _is_at_edge(self, fragment: int) -> bool:
        """Whether a round of a fragment that opens now is its first in this life, or may be its last before the end."""
        if not self._counts_late:  # As published: an answer that is too late is refused in any case.
            return False
        each = self._step_tokens  # Of a step that counts its own: the most, so that its last rounds begin early.
        slots = [learner.slot for learner in self._roster.stepping()]
        a_step = sum(each.tokens if isinstance(each, AtMost) else of_slot(each, slot) for slot in slots)
        left = self._tokens - self._totals.trained
        return fragment not in self._merged or left <= EDGE_INTERVALS * self.interval * a_step

    def _renew(self, paced: PacedRound, members: list[list[int]]) -> Round:
        item = paced.item
        at, edge = (item["round"], item["fragment"], item["attempt"] + 1, item["kind"]), paced.is_at_edge
        paced.item = self._round(*at, members, is_at_edge=edge)
        if len(members) > RENEWED_AT_ONCE:
            paced.renewed_at = self._context.now()
        return paced.item

    def _round(
        self,
        number: int,
        fragment: int,
        attempt: int,
        kind: Kind,
        members: list[list[int]],
        *,
        is_at_edge: bool,
        leaving: Sequence[LearnerReport] = (),
    ) -> Round:
        """The item of one attempt, on the present terms."""
        here = self._having(fragment, self._roster.stepping())
        stepping = self._present(here)
        away = {learner.slot for learner in here} - {learner.slot for learner in stepping}
        if not stepping:  # All of its members leave.
            leaving = self._having(fragment, self._roster.leaving())
        match kind:
            case "initial":
                conditions = Conditions(1, 0, [], None)
            case "recover":
                conditions = Conditions(1, RECOVERY_GRACE, [], None)
            case "merge" if leaving:
                conditions = self._terms.parting(fragment, stepping, leaving)
            case "merge":
                conditions = self._terms.of(fragment, stepping)
                if is_at_edge and conditions.grace is not None:
                    required = [slot for slot, _ in members if slot not in away]
                    conditions = conditions._replace(required=required, deadline=EDGE_WAIT)
            case "final":
                conditions = self._terms.final(len(self._own), stepping)
        item = Round(
            round=number,
            fragment=fragment,
            attempt=attempt,
            kind=kind,
            members=members,
            count_min=conditions.count_min,
            grace=conditions.grace,
            required=conditions.required,
            deadline=conditions.deadline,
            chain=fragment if kind == "merge" and self._counts_late else None,
            interval=self.interval,
            totals=self._totals.rows(),
            known=self._memory.known(fragment) if kind == "recover" else [],
        )
        given = self._given(fragment) if kind == "recover" else None
        if given is not None and self._awaits_copy():
            item["given"] = given
        if self._following.is_needed and kind in ("merge", "final"):
            item["asked"] = self._following.requests(members)
        if kind == "merge" and self._speeds.carry == "auto" and self._slow.slots:
            item["carry"] = sorted(self._slow.slots)
        return item


def _members(learners: Iterable[LearnerReport]) -> list[list[int]]:
    return [learner.member for learner in learners]

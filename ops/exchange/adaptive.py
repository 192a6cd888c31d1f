"""Settings that follow the links of a shard: formats, interval and overlap, as requested by a program and as they are
in use.

Decides which settings fit the links (`best`), and when a better choice is taken up (`Chooser`). Reads no clock: it
counts turns, in each of which one fragment is due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.messages import Change
from isthmus.ops.exchange.requested import Format, RequestedSettings
from isthmus.ops.exchange.wanted_settings import LADDER, Setting, WantedSettings

SHARE: Final = 0.5
"""A finer format, or a shorter interval, is taken up at this load: other traffic of the link, and the excess of a
goodput that was learned from few bytes, have as much again."""
KEEP: Final = 0.8
"""Present settings are kept up to this load: above it a link that once fell behind hardly catches up."""
FRAGMENT_SHARE: Final = 4
REACH: Final = 4
"""A link that needs more than this many times the requested interval does not set the pace for the others, unless they
need half as much."""
OUTLIER: Final = 2
SLACK_STEPS: Final = 1.5
"""Steps beside the transfers of the values: half a step until an answer is sent, and one of slack."""
INTERVAL_GROWTH_MAX: Final = 64
ROUND_TRIP_SHARE: Final = 4
"""A round trip may take a quarter of the interval, as where the interval is a number (`syncer.schedule`)."""
DELAYS_OVERLAP: Final = 2
"""Delays in an overlap: its grace is gamma = 0.8 of what is left beside the transfer of an update, half a delay at most
(`syncer.terms`), so 1.2 delays."""
DELAY_SHARE: Final = 8
"""The delay of a link, which no format shortens, may take an eighth of the interval: what is trained meanwhile is
overwritten, and four fifths of all are to be merged, though the shortest of delays is not the usual one, and those
tokens count that are trained before the interval is found."""


class LinkRate(NamedTuple):
    """Goodput of a link in one direction, in bytes a second, 0 where unknown.

    Present settings are judged by the `mean`, new ones chosen by the `best`. The difference between them is other
    delays.
    """

    mean: int = 0
    best: int = 0


class LinkGoodput(NamedTuple):
    """Goodput of the link of the learner in a `slot`, to the shard (`up`) and from it (`down`), and the nanoseconds
    that an item without size takes there and back, 0 where unknown."""

    slot: int
    up: LinkRate
    down: LinkRate
    round_trip: int = 0


class Needs(NamedTuple):
    """The traffic of an interval: `values` in all fragments of the shard, the `largest` of which has so many.

    Steps take `step` nanoseconds (0: not known yet); rounds now take a `round_trip` in steps, and the `overlap` would
    leave a step of slack.
    """

    values: int
    largest: int
    step: int
    round_trip: float
    overlap: int

    def bytes_per_second(self, format_name: str, interval: int) -> float:
        """The traffic of one link in one direction."""
        if not self.step:
            return 0.0
        values = max(self.values, FRAGMENT_SHARE * self.largest)
        return FORMATS[format_name].bits / 8 * values / (interval * self.step / 1e9)

    def trip_steps(self, link: LinkGoodput, push: str, update: str) -> float:
        """The steps of an overlap in which the largest fragment is there and back on a link; 0 where unknown."""
        if not self.step:
            return 0.0
        seconds = 0.0
        if link.up.mean and link.down.mean:
            seconds = self.largest / 8 * (FORMATS[push].bits / link.up.mean + FORMATS[update].bits / link.down.mean)
        return (seconds * 1e9 + DELAYS_OVERLAP * link.round_trip) / self.step

    def delay_interval(self, link: LinkGoodput) -> int:
        """The interval of which the round trip of a link, with a step of slack, takes the part for delays; 0 where
        unknown."""
        return DELAY_SHARE * (math.ceil(link.round_trip / self.step) + 1) if link.round_trip and self.step else 0

    def load(self, goodput: int, format_name: str, interval: int) -> float:
        """The load of a link with this goodput; 0 where that is unknown."""
        return self.bytes_per_second(format_name, interval) / goodput if goodput else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Formats by name, of pushes by slot; interval and overlap in inner steps."""

    push: Mapping[int, str]
    update: str
    interval: int
    overlap: int


def finest(needs: Needs, rate: LinkRate, interval: int) -> str:
    """The finest format with which a link's load is at most SHARE; the coarsest if there is none."""
    return next((name for name in LADDER if needs.load(rate.best, name, interval) <= SHARE), LADDER[-1])


def coarsest(wanted: WantedSettings) -> tuple[str, str]:
    """(push, update) with the fewest bits that may be chosen."""
    push = LADDER[-1] if "push" in wanted.auto else wanted.push
    return push, LADDER[-1] if "update" in wanted.auto else wanted.update


def within_reach(wanted: WantedSettings, links: Sequence[LinkGoodput], needs: Needs) -> list[LinkGoodput]:
    """The links that count for what all have in common: updates, and the interval."""
    push, update = coarsest(wanted)
    steps = [steps_needed(needs, link, push, update) for link in links]
    if not steps:
        return []
    limit = max(REACH * wanted.interval, OUTLIER * median_low(steps))
    return [link for link, needed in zip(links, steps, strict=True) if needed <= limit]


def steps_needed(needs: Needs, link: LinkGoodput, push: str, update: str) -> float:
    """The interval, in steps, with which these formats load a link by SHARE."""
    loads = needs.load(link.up.best, push, 1), needs.load(link.down.best, update, 1)
    return max(loads) / SHARE


def within_hearing(wanted: WantedSettings, links: Sequence[LinkGoodput], needs: Needs) -> list[LinkGoodput]:
    """The links whose round trip counts for the interval. Of two links both count, of more than two not those that are
    alone: a delay cannot be met with fewer bits, so what half of the learners need is for all."""
    steps = [needs.delay_interval(link) for link in links]
    if not steps:
        return []
    limit = max(REACH * wanted.interval, OUTLIER * median_high(steps))
    return [link for link, needed in zip(links, steps, strict=True) if needed <= limit]


def best(wanted: WantedSettings, links: Sequence[LinkGoodput], needs: Needs, now: Choice) -> Choice:
    """The choice that fits the links, if nothing were in use yet; settings that are not "auto" stay as requested.

    In each interval of H steps every learner sends each of the shard's fragments once, and receives each once. The
    share of a link's goodput that this takes is its *load*:

        load = bits / 8 * max(values, 4 * largest fragment) / (H * seconds a step * goodput)

    With P fragments of one size both directions of a round take 2 load / P of an interval; a fragment counts as at
    least a quarter of all, so that with a load of SHARE both directions of the largest one take a quarter of an
    interval, the limit of a round trip. What costs the least in loss is given up first: bits before steps
    (`formats.MEASURED`), so the interval grows only where the coarsest formats do not fit it. Formats are the finest
    that fit it then, or, as long as it is shorter, the one in use.
    """
    requested = wanted.interval if "interval" in wanted.auto else now.interval
    reach = within_reach(wanted, links, needs)
    interval = present = requested
    if "interval" in wanted.auto:
        steps = max((steps_needed(needs, link, *coarsest(wanted)) for link in reach), default=0.0)
        delays = round_trip_interval(needs, now), delay_interval(wanted, links, needs, now)
        interval = max(requested, min(math.ceil(steps), INTERVAL_GROWTH_MAX * requested), *delays)
        present = min(interval, max(requested, now.interval))
    push, update, overlap = {link.slot: wanted.push for link in links}, wanted.update, now.overlap
    if "push" in wanted.auto:
        push = {link.slot: finest(needs, link.up, present) for link in links}
    if "update" in wanted.auto:
        formats = [finest(needs, link.down, present) for link in reach]
        update = max(formats, key=LADDER.index, default=LADDER[0])
    if "overlap" in wanted.auto:
        heard = within_hearing(wanted, links, needs)
        trips = [needs.trip_steps(link, push[link.slot], update) for link in reach if link in heard]
        needed = max([needs.overlap, *(math.ceil(trip + SLACK_STEPS) for trip in trips if trip)])
        overlap = max(wanted.overlap, min(needed, interval // ROUND_TRIP_SHARE))
    return Choice(push, update, interval, overlap)


def round_trip_interval(needs: Needs, now: Choice) -> int:
    """The interval of which a round trip takes a quarter, with a step of slack.

    One of which it takes less, but more than three quarters of that, is left as it is.
    """
    if needs.round_trip * ROUND_TRIP_SHARE > now.interval:
        return ROUND_TRIP_SHARE * (math.ceil(needs.round_trip) + 1)
    if needs.round_trip * ROUND_TRIP_SHARE > 0.75 * now.interval:
        return now.interval
    return ROUND_TRIP_SHARE * math.ceil(needs.round_trip)


def delay_interval(wanted: WantedSettings, links: Sequence[LinkGoodput], needs: Needs, now: Choice) -> int:
    """The interval that the delays of links need; the present one, where that is longer by less than a quarter."""
    needed = max((needs.delay_interval(link) for link in within_hearing(wanted, links, needs)), default=0)
    return now.interval if 0.75 * now.interval < needed <= now.interval else needed


CROWDED: Final = 2
"""Turns: a goodput is a mean already."""
PATIENCE: Final = 8
"""Turns; as many rounds, where interval and overlap are numbers (`syncer.schedule`)."""
SETTLING: Final = 16
"""Turns: more rounds than `syncer.grace` keeps."""
RELAPSE: Final = 8
"""Sweeps."""
RELAPSES_MAX: Final = 6

Key: TypeAlias = tuple[Setting, int]
"""A setting; for pushes with a slot, else with EVERYBODY."""
EVERYBODY: Final = -1
USUAL_PACE: Final = "usual"
Reason: TypeAlias = Literal["carries less", "carries more", "slow rounds", "quick rounds", "slow steps", "usual steps"]


class Cause(NamedTuple):
    """The `link` of a learner's slot, its `goodput`, and the goodput `needed`, in bytes a second.

    That is what the setting needs that is given up, or taken up. None, 0, 0 where no link is known.
    """

    link: int | None
    goodput: int
    needed: int


class Move(NamedTuple):
    """A change of a setting, for pushes, and the pace, of a `slot`.

    `before` and `after` are formats, steps as text, or 'slow' and 'usual'; `round_trip` is that of rounds, in steps.
    """

    setting: Setting | Literal["pace"]
    slot: int | None
    before: str
    after: str
    reason: Reason
    cause: Cause
    round_trip: float


NO_LINK: Final = Cause(None, 0, 0)


@dataclass(slots=True)
class Patience:
    """Counts of a setting: failures and surpluses in a row, when it was last taken up, and its relapses."""

    short: int = 0
    room: int = 0
    taken_up: int | None = None
    relapses: int = 0

    def falls(self, turns: int) -> bool:
        """Count that the present setting does not fit; returns whether that was often enough."""
        self.short, self.room = self.short + 1, 0
        return self.short >= turns

    def rises(self, turns: int) -> bool:
        """Count that a better setting would fit; returns whether that was often enough."""
        self.short, self.room = 0, self.room + 1
        return self.room >= turns << self.relapses

    def rest(self) -> None:
        """Reset the counts."""
        self.short = self.room = 0

    def moved(self, now: int, sweep: int, *, is_better: bool) -> None:
        """Record a move in turn number `now`, where a sweep has `sweep` turns."""
        if is_better:
            self.taken_up = now
        elif self.taken_up is not None:
            is_relapse = now - self.taken_up <= RELAPSE * sweep << self.relapses
            self.relapses = min(self.relapses + 1, RELAPSES_MAX) if is_relapse else 0
            self.taken_up = None
        self.rest()


class Chooser:
    """The settings of one shard; `choice` is in use.

    Each setting (of pushes one a learner) is kept, or moved to what `best` finds, in one move:

        a link does not carry the format in use, CROWDED turns in a row  -> what it carries
        nor the coarsest, or rounds take too long, PATIENCE in a row     -> a longer overlap, or interval
        it carries something finer, or shorter, for a whole sweep        -> that

    New settings load a link by at most SHARE, present ones by up to KEEP, so goodputs that differ by less than 1.6
    change nothing. On some links (a token bucket, for example) small items promise more than large ones find: a setting
    that is given up within RELAPSE sweeps after it was taken up waits twice as long before the next try, up to 64
    times.
    """

    def __init__(self, wanted: WantedSettings) -> None:
        self.wanted = wanted
        self.choice = Choice({}, wanted.update, wanted.interval, wanted.overlap)
        self._patience: dict[Key, Patience] = {}
        self._turns = self._settled = 0

    def push(self, slot: int) -> str:
        """The format of a learner's answers."""
        return self.choice.push.get(slot, self.wanted.push)

    def set_numbers(self, interval: int, overlap: int) -> None:
        """Set interval and overlap where they are numbers."""
        if "interval" not in self.wanted.auto:
            self.choice = replace(self.choice, interval=interval)
        if "overlap" not in self.wanted.auto:
            self.choice = replace(self.choice, overlap=overlap)

    def forget(self, slot: int) -> None:
        """Forget a learner's life: the next one may be elsewhere."""
        self.choice = replace(self.choice, push={s: name for s, name in self.choice.push.items() if s != slot})
        self._patience.pop(("push", slot), None)

    def observe(self, links: Sequence[LinkGoodput], needs: Needs, sweep: int) -> list[Move]:
        """Add the state of links and rounds after one more turn, of `sweep` in a sweep; returns the changes."""
        self._turns += 1
        self.choice = replace(self.choice, push={link.slot: self.push(link.slot) for link in links})
        if not self.wanted.auto or not needs.step:
            return []
        sweep = max(sweep, PATIENCE)
        fitting = best(self.wanted, links, needs, self.choice)
        moves = self._pushes(fitting, links, needs, sweep) + self._update(fitting, links, needs, sweep)
        pushes = {move.slot: move.after for move in moves if move.slot is not None}
        update = next((move.after for move in moves if move.slot is None), self.choice.update)
        self.choice = replace(self.choice, push={**self.choice.push, **pushes}, update=update)
        if moves:
            self._settled = self._turns + SETTLING
        for move in self._interval(fitting, links, needs, sweep):
            self.choice = replace(self.choice, interval=int(move.after))
            moves.append(move)
        for move in self._overlap(fitting, needs, sweep, at_once=any(move.setting == "interval" for move in moves)):
            self.choice = replace(self.choice, overlap=int(move.after))
            moves.append(move)
        return moves

    def _pushes(self, fitting: Choice, links: Sequence[LinkGoodput], needs: Needs, sweep: int) -> list[Move]:
        if "push" not in self.wanted.auto:
            return []
        moves = (
            self._format(
                ("push", link.slot), self.push(link.slot), fitting.push[link.slot], link.up, link, needs, sweep
            )
            for link in links
        )
        return [move for move in moves if move is not None]

    def _update(self, fitting: Choice, links: Sequence[LinkGoodput], needs: Needs, sweep: int) -> list[Move]:
        measured = [link for link in within_reach(self.wanted, links, needs) if link.down.mean]
        if "update" not in self.wanted.auto or not links:
            return []
        slowest = min(measured, key=lambda link: link.down.best, default=LinkGoodput(EVERYBODY, LinkRate(), LinkRate()))
        key: Key = "update", EVERYBODY
        move = self._format(key, self.choice.update, fitting.update, slowest.down, slowest, needs, sweep)
        return [] if move is None else [move]

    def _format(
        self, key: Key, now: str, fitting: str, rate: LinkRate, link: LinkGoodput, needs: Needs, sweep: int
    ) -> Move | None:
        """The move of a format, if any, by the link that limits it."""
        patience, interval = self._patience.setdefault(key, Patience()), self.choice.interval
        is_finer = FORMATS[fitting].bits > FORMATS[now].bits
        if needs.load(rate.mean, now, interval) > KEEP and not is_finer and fitting != now:
            if not patience.falls(CROWDED):
                return None
        elif not is_finer:
            patience.rest()
            return None
        elif not patience.rises(sweep):
            return None
        needed = round(needs.bytes_per_second(fitting if is_finer else now, interval))
        cause = Cause(link.slot, rate.best if is_finer else rate.mean, needed) if rate.mean else NO_LINK
        return self._moved(key, now, fitting, "carries more" if is_finer else "carries less", cause, needs, sweep)

    def _interval(self, fitting: Choice, links: Sequence[LinkGoodput], needs: Needs, sweep: int) -> list[Move]:
        if "interval" not in self.wanted.auto:
            return []
        key: Key = "interval", EVERYBODY
        patience, now = self._patience.setdefault(key, Patience()), self.choice.interval
        cause, load = self._most_loaded(links, needs)
        is_shorter, is_crowded = fitting.interval < now, load > KEEP
        is_slow = self._turns >= self._settled and needs.round_trip * ROUND_TRIP_SHARE > now
        is_slow |= delay_interval(self.wanted, links, needs, self.choice) > now
        if fitting.interval > now and (is_crowded or is_slow):
            if not patience.falls(PATIENCE):
                return []
        elif not is_shorter:
            patience.rest()
            return []
        elif not patience.rises(sweep):
            return []
        reason: Reason = "carries more" if is_shorter else "carries less"
        if not (is_shorter or is_crowded) or cause is NO_LINK:
            reason, cause = "quick rounds" if is_shorter else "slow rounds", NO_LINK
        return [self._moved(key, str(now), str(fitting.interval), reason, cause, needs, sweep)]

    def _most_loaded(self, links: Sequence[LinkGoodput], needs: Needs) -> tuple[Cause, float]:
        """The link with the highest load of those that count, and that load."""
        most = (NO_LINK, 0.0)
        for link in within_reach(self.wanted, links, needs):
            for rate, name in ((link.up, self.push(link.slot)), (link.down, self.choice.update)):
                load = needs.load(rate.mean, name, self.choice.interval)
                if load > most[1]:
                    needed = round(needs.bytes_per_second(name, self.choice.interval))
                    most = Cause(link.slot, rate.mean, needed), load
        return most

    def _overlap(self, fitting: Choice, needs: Needs, sweep: int, *, at_once: bool) -> list[Move]:
        """The move of the overlap: `at_once` with a longer interval, or the answers of one of these would come in time
        for the round in which those of the one before count, which are late and are refused then."""
        if "overlap" not in self.wanted.auto:
            return []
        key: Key = "overlap", EVERYBODY
        patience, now = self._patience.setdefault(key, Patience()), self.choice.overlap
        room = max(self.wanted.overlap, self.choice.interval // ROUND_TRIP_SHARE)
        wanted = min(fitting.overlap, room)
        if wanted == now or self.wanted.overlap < wanted == now - 1:  # Goodputs are not that exact.
            patience.rest()
            return []
        is_due = (at_once or patience.falls(PATIENCE)) if wanted > now else patience.rises(sweep)
        if now <= room and not is_due:
            return []
        reason: Reason = "slow rounds" if wanted > now else "quick rounds"
        return [self._moved(key, str(now), str(wanted), reason, NO_LINK, needs, sweep)]

    def _moved(self, key: Key, before: str, after: str, reason: Reason, cause: Cause, needs: Needs, sweep: int) -> Move:
        is_better = reason in ("carries more", "quick rounds")
        self._patience[key].moved(self._turns, sweep, is_better=is_better)
        setting, slot = key
        of_slot = None if slot == EVERYBODY else slot
        return Move(setting, of_slot, before, after, reason, cause, round(needs.round_trip, 2))


LEARNER: Final = "learner"
"""The role at the other end of each link, but for that of a global syncer's links."""
REGION: Final = "region"
PLACES: Final = 64
"""Changes that wait for an absent recorder: more than there are settings, each of which changes seldom."""


class LearnerSteps(Protocol):
    """The fields that are read of a learner."""

    @property
    def slot(self) -> int:
        """Its slot."""

    @property
    def step_time(self) -> int:
        """Nanoseconds; 0 where not known yet."""

    @property
    def links(self) -> Sequence[Sequence[Any]]:
        """The goodput of its links, [role, slot, bytes a second in the mean, at best]."""


class FollowedSettings:
    """The settings of shard `member`, with fragments of these sizes. `is_needed`: some of them follow the links, to
    replicas of `peers`."""

    def __init__(self, wanted: WantedSettings, sizes: Sequence[int], member: Any, *, peers: str = LEARNER) -> None:
        self.is_needed = bool(wanted.auto)
        self._peers = peers
        self._chooser = Chooser(wanted)
        self._sizes = tuple(sizes)
        self._member = member
        self._changes_sent = 0

    @property
    def interval(self) -> int:
        """H, in inner steps."""
        return self._chooser.choice.interval

    @property
    def overlap(self) -> int:
        """tau, in inner steps."""
        return self._chooser.choice.overlap

    def set_numbers(self, interval: int, overlap: int) -> None:
        """Set H and tau where they are numbers."""
        self._chooser.set_numbers(interval, overlap)

    def forget(self, slot: int) -> None:
        """Forget a learner's former life."""
        self._chooser.forget(slot)

    def requests(self, members: Sequence[Sequence[int]]) -> RequestedSettings:
        """The requests of a round to its members."""
        choice = self._chooser.choice
        push = [[slot, self._chooser.push(slot)] for slot, _ in members]
        return RequestedSettings(
            push=push, update=cast(Format, choice.update), interval=choice.interval, overlap=choice.overlap
        )

    def observe(
        self,
        learners: Sequence[LearnerSteps],
        goodput: Mapping[tuple[str, int], Sequence[int]],
        round_trips: Mapping[tuple[str, int], int],
        *,
        round_trip: float,
        round_steps: float,
        is_late: bool,
        round_number: int,
        now: int,
    ) -> list[Change]:
        """The changes by one more turn.

        Arguments:
            learners: those that step, or regions that merge.
            goodput: that of this shard's own links, by (role, slot).
            round_trips: those of its links, in nanoseconds, by (role, slot), of items without size.
            round_trip: the duration of a round, without grace, in steps of the fastest learner.
            round_steps: the part of it that has to fit into the overlap, in steps of the slowest.
            is_late: whether a fragment waits too long for its turn.
            round_number: the next round's.
            now: this shard's clock.
        """
        times = [learner.step_time for learner in learners if learner.step_time > 0]
        slots = [(learner, (self._peers, learner.slot)) for learner in sorted(learners, key=lambda each: each.slot)]
        links = [
            LinkGoodput(key[1], self._up(learner), LinkRate(*goodput.get(key, ())), round_trips.get(key, 0))
            for learner, key in slots
        ]
        overlap = math.ceil(round_steps) + 1
        if is_late:
            overlap = max(overlap, self.overlap + 1)
        needs = Needs(sum(self._sizes), max(self._sizes), min(times, default=0), round_trip, overlap)
        return [self._change(move, round_number, now) for move in self._chooser.observe(links, needs, len(self._sizes))]

    def statistics(self) -> dict[str, Any]:
        """The settings in the status: formats, of pushes by slot."""
        if not self.is_needed:
            return {}
        choice = self._chooser.choice
        return {"push": dict(sorted(choice.push.items())), "update": choice.update, "changes": self._changes_sent}

    def _up(self, learner: LearnerSteps) -> LinkRate:
        """The goodput of a learner's link to this shard, as it reports it."""
        own = self._member.replica
        rates = (LinkRate(*rate) for role, slot, *rate in learner.links if (role, slot) == (own.role, own.slot))
        return next(rates, LinkRate())

    def pace_change(
        self, slot: int, is_slow: bool, step_time: int, median: int, *, special: str, round_number: int, now: int
    ) -> Change:
        """The change of a learner that is slow from this round on, or no longer: its `special` pace, or the usual one.

        `step_time` and `median` are nanoseconds of a step, its own and the median learner's.
        """
        before, after = (USUAL_PACE, special) if is_slow else (special, USUAL_PACE)
        reason: Reason = "slow steps" if is_slow else "usual steps"
        change = self._change(Move("pace", slot, before, after, reason, NO_LINK, 0.0), round_number, now)
        change["step_time"], change["median"] = step_time, median
        return change

    def _change(self, move: Move, round_number: int, now: int) -> Change:
        self._changes_sent += 1
        change = Change(
            shard=self._member.replica.slot,
            epoch=self._member.incarnation,
            number=self._changes_sent,
            place=self._changes_sent % PLACES,
            round=round_number,
            setting=move.setting,
            slot=move.slot,
            before=move.before,
            after=move.after,
            reason=move.reason,
            link=move.cause.link,
            goodput=move.cause.goodput,
            needed=move.cause.needed,
            round_trip=move.round_trip,
            at=now,
        )
        if self._member.replica.role == REGION:
            change["role"] = REGION
        return change

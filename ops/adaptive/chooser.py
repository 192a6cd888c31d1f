"""The present settings of a shard that follow its links: a core with the states of links and rounds as input.

Decides when to take up what fits (`choice`). Reads no clock: it counts *turns*, in each of which one fragment is due.

Theory of operation. Each setting (of pushes one a learner) is either kept, or moved to what `best` finds, in one move:

    a link does not carry the format in use, CROWDED turns in a row  -> what it carries
    nor the coarsest, or rounds take too long, PATIENCE in a row     -> a longer overlap, or interval
    it carries something finer, or shorter, for a whole sweep        -> that

The duration of rounds is a median of the last SETTLING, so it counts for an interval only that long after a change of
formats.

New settings load a link by at most SHARE of its goodput, present ones by up to KEEP, so that goodputs which differ by
less than 1.6 change nothing. A link on which small items promise more than large ones find (a token bucket, for
example) would be tried again and again: a setting that has to be given up within RELAPSE sweeps after it was taken up
waits twice as long before the next try, up to 64 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.ops.adaptive.choice import KEEP, ROUND_TRIP_SHARE, Choice, Link, Needs, Rate, best, within_reach
from isthmus.ops.adaptive.wanted import FORMATS, Setting, Wanted

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
Reason: TypeAlias = Literal["carries less", "carries more", "slow rounds", "quick rounds"]


class Cause(NamedTuple):
    """The `link` of a learner's slot, its `goodput`, and the goodput `needed`, in bytes a second.

    That is what the setting needs that is given up, or taken up. None, 0, 0 where no link is known.
    """

    link: int | None
    goodput: int
    needed: int


class Move(NamedTuple):
    """A change of a setting, for pushes of a `slot`.

    `before` and `after` are formats, or steps as text; `round_trip` is that of rounds, in steps.
    """

    setting: Setting
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
    """The settings of one shard; `choice` is in use."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.choice = Choice({}, wanted.update, wanted.interval, wanted.overlap)
        self._patience: dict[Key, Patience] = {}
        self._turns = self._settled = 0

    def push(self, slot: int) -> str:
        """The format of a learner's answers."""
        return self.choice.push.get(slot, self.wanted.push)

    def given(self, interval: int, overlap: int) -> None:
        """Set interval and overlap where they are numbers."""
        if "interval" not in self.wanted.auto:
            self.choice = replace(self.choice, interval=interval)
        if "overlap" not in self.wanted.auto:
            self.choice = replace(self.choice, overlap=overlap)

    def forget(self, slot: int) -> None:
        """Forget a learner's life: the next one may be elsewhere."""
        self.choice = replace(self.choice, push={s: name for s, name in self.choice.push.items() if s != slot})
        self._patience.pop(("push", slot), None)

    def observe(self, links: Sequence[Link], needs: Needs, sweep: int) -> list[Move]:
        """Add the state of links and rounds after one more turn, of `sweep` in a sweep; returns the changes."""
        self._turns += 1
        self.choice = replace(self.choice, push={link.slot: self.push(link.slot) for link in links})
        if not self.wanted.auto or not needs.step:
            return []
        sweep = max(sweep, PATIENCE)
        found = best(self.wanted, links, needs, self.choice)
        moves = self._pushes(found, links, needs, sweep) + self._update(found, links, needs, sweep)
        pushes = {move.slot: move.after for move in moves if move.slot is not None}
        update = next((move.after for move in moves if move.slot is None), self.choice.update)
        self.choice = replace(self.choice, push={**self.choice.push, **pushes}, update=update)
        if moves:
            self._settled = self._turns + SETTLING
        for move in self._interval(found, links, needs, sweep):
            self.choice = replace(self.choice, interval=int(move.after))
            moves.append(move)
        for move in self._overlap(found, needs, sweep):
            self.choice = replace(self.choice, overlap=int(move.after))
            moves.append(move)
        return moves

    def _pushes(self, found: Choice, links: Sequence[Link], needs: Needs, sweep: int) -> list[Move]:
        if "push" not in self.wanted.auto:
            return []
        moves = (
            self._format(("push", link.slot), self.push(link.slot), found.push[link.slot], link.up, link, needs, sweep)
            for link in links
        )
        return [move for move in moves if move is not None]

    def _update(self, found: Choice, links: Sequence[Link], needs: Needs, sweep: int) -> list[Move]:
        known = [link for link in within_reach(self.wanted, links, needs) if link.down.mean]
        if "update" not in self.wanted.auto or not links:
            return []
        slowest = min(known, key=lambda link: link.down.best, default=Link(EVERYBODY, Rate(), Rate()))
        key: Key = "update", EVERYBODY
        move = self._format(key, self.choice.update, found.update, slowest.down, slowest, needs, sweep)
        return [] if move is None else [move]

    def _format(self, key: Key, now: str, found: str, rate: Rate, link: Link, needs: Needs, sweep: int) -> Move | None:
        """The move of a format, if any, by the link that limits it."""
        patience, interval = self._patience.setdefault(key, Patience()), self.choice.interval
        is_finer = FORMATS.index(found) < FORMATS.index(now)
        if needs.load(rate.mean, now, interval) > KEEP and not is_finer and found != now:
            if not patience.falls(CROWDED):
                return None
        elif not is_finer:
            patience.rest()
            return None
        elif not patience.rises(sweep):
            return None
        needed = round(needs.bytes_per_second(found if is_finer else now, interval))
        cause = Cause(link.slot, rate.best if is_finer else rate.mean, needed) if rate.mean else NO_LINK
        return self._moved(key, now, found, "carries more" if is_finer else "carries less", cause, needs, sweep)

    def _interval(self, found: Choice, links: Sequence[Link], needs: Needs, sweep: int) -> list[Move]:
        if "interval" not in self.wanted.auto:
            return []
        key: Key = "interval", EVERYBODY
        patience, now = self._patience.setdefault(key, Patience()), self.choice.interval
        cause, load = self._most_loaded(links, needs)
        is_shorter, is_crowded = found.interval < now, load > KEEP
        is_slow = self._turns >= self._settled and needs.round_trip * ROUND_TRIP_SHARE > now
        if found.interval > now and (is_crowded or is_slow):
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
        return [self._moved(key, str(now), str(found.interval), reason, cause, needs, sweep)]

    def _most_loaded(self, links: Sequence[Link], needs: Needs) -> tuple[Cause, float]:
        """The link with the highest load of those that count, and that load."""
        found = (NO_LINK, 0.0)
        for link in within_reach(self.wanted, links, needs):
            for rate, name in ((link.up, self.push(link.slot)), (link.down, self.choice.update)):
                load = needs.load(rate.mean, name, self.choice.interval)
                if load > found[1]:
                    needed = round(needs.bytes_per_second(name, self.choice.interval))
                    found = Cause(link.slot, rate.mean, needed), load
        return found

    def _overlap(self, found: Choice, needs: Needs, sweep: int) -> list[Move]:
        if "overlap" not in self.wanted.auto:
            return []
        key: Key = "overlap", EVERYBODY
        patience, now = self._patience.setdefault(key, Patience()), self.choice.overlap
        room = max(self.wanted.overlap, self.choice.interval // ROUND_TRIP_SHARE)
        wanted = min(found.overlap, room)
        if wanted == now or self.wanted.overlap < wanted == now - 1:  # Goodputs are not that exact.
            patience.rest()
            return []
        if now <= room and not (patience.falls(PATIENCE) if wanted > now else patience.rises(sweep)):
            return []
        reason: Reason = "slow rounds" if wanted > now else "quick rounds"
        return [self._moved(key, str(now), str(wanted), reason, NO_LINK, needs, sweep)]

    def _moved(self, key: Key, before: str, after: str, reason: Reason, cause: Cause, needs: Needs, sweep: int) -> Move:
        is_better = reason in ("carries more", "quick rounds")
        self._patience[key].moved(self._turns, sweep, is_better=is_better)
        setting, slot = key
        of_slot = None if slot == EVERYBODY else slot
        return Move(setting, of_slot, before, after, reason, cause, round(needs.round_trip, 2))

"""A shard's pacer by hand: what its inputs look like, and a clock that stands still unless it is set."""

from types import SimpleNamespace

import msgpack

from isthmus.ops.syncer.pacer import Pacer
from isthmus.ops.syncer.slow_learners import NO_SPEEDS
from isthmus.runtime.ids import Member, Replica

MS = 1_000_000
SECOND = 1_000_000_000
ALL = {"overlap": 24}
"""So much is in flight then that rounds of all fragments may be open."""
SETTINGS = {
    "fragments": 4,
    "shards": 1,
    "interval": 24,
    "overlap": 2,
    "quorum": 1,
    "grace": True,
    "gamma": 0.8,
    "learners": 2,
    "tokens": 1_000_000,
}


class Shard:
    """A pacer with a clock that stands still unless it is set. `live` are the roles, of one replica each, that are live
    beside it and may hold the model."""

    def __init__(self, slot=0, *, incarnation=1, live=(), **settings):
        self.now = 5 * SECOND
        self.shown, self.ahead, self.changes = [], [], []
        self.live, self.is_ahead = set(live), bool(settings.get("speeds", NO_SPEEDS).ahead)
        self.pacer = Pacer(**(SETTINGS | settings))
        member = Member(Replica("syncer", slot), incarnation)
        context = SimpleNamespace(member=member, now=lambda: self.now, publish=self.shown.append, members=self.members)
        self.pacer.open(context)

    def members(self):
        return frozenset(Member(Replica(role, 0), 1) for role in self.live)

    def fire(self, *reports, merged=(), control=None, held=(), given=()):
        """Fire, check that both ports carry the same items, and return those; `ahead` are pulls before their rounds."""
        inputs = {}
        if reports:
            inputs["progress"] = {(Replica("learner", report["slot"]), i): report for i, report in enumerate(reports)}
        if merged:
            inputs["merged"] = {("syncer/0", merging["fragment"]): merging for merging in merged}
        if control is not None:
            inputs["control"] = {(Replica("recorder", 0), None): control}
        if held:
            inputs["held"] = holding(*held, given=given)
        emitted = self.pacer(**inputs)
        assert emitted is None or emitted
        rounds = [item for port, item in emitted or [] if port == "round"]
        pulls = [item for port, item in emitted or [] if port == "pull"]
        self.changes += [item for port, item in emitted or [] if port == "changed"]
        pulls, self.ahead = pulls[: len(rounds)], pulls[len(rounds) :]
        assert all(item is pull for item, pull in zip(rounds, pulls, strict=True))
        assert self.is_ahead or not self.ahead
        assert all(msgpack.unpackb(msgpack.packb(item)) == item for item in rounds)
        return rounds

    def started(self, *reports):
        """Through the start, up to the first reports of learners that step."""
        opened = self.fire(*(ready(report["slot"], report["incarnation"]) for report in reports))
        while opened:
            opened = self.fire(merged=[told(item, self.now) for item in opened])
        return self.fire(*reports)


def control(*published, stop=False, totals=()):
    """What the recorder says; `published` are [fragment, epoch, count]."""
    return {"stop": stop, "tokens": 1_000_000, "totals": list(totals), "published": list(published)}


def holding(*held, life=2, given=()):
    """What hosts say that they hold: each (role, fragments), all of them merged, or (role, fragments, merged), after
    they had a look for a life of shard 0."""
    told = [(role, fragments, more[0] if more else fragments) for role, fragments, *more in held]
    same = {"saved": [], "totals": [], "faults": [], "error": None, "store": None}
    same |= {"lives": [[0, life]], "given": list(given)}
    return {
        (Replica(role, 0), role): {"holder": role, "fragments": list(fragments), "merged": list(merged), **same}
        for role, fragments, merged in told
    }


def stepping(
    slot, step=0, *, incarnation=1, phase="stepping", step_time=MS, delay_steps=0, tokens=None, totals=(), epochs=()
):
    return {
        "slot": slot,
        "incarnation": incarnation,
        "phase": phase,
        "step": step,
        "tokens": step if tokens is None else tokens,
        "step_time": step_time,
        "delay_steps": delay_steps,
        "epochs": list(epochs),
        "totals": list(totals),
    }


def leaving(slot, step, *unmerged, incarnation=1):
    return stepping(slot, step, incarnation=incarnation, phase="leaving") | {"unmerged": list(unmerged)}


def ready(slot, incarnation=1):
    return stepping(slot, incarnation=incarnation, phase="ready", step_time=0)


def told(item, at=0, *, voters=None, left_out=(), refused=(), version=(1, 1), quorum=0, waited=0, publishing=0):
    """What came of a round that opened at `at`; everybody voted unless said otherwise."""
    return {
        "round": item["round"],
        "fragment": item["fragment"],
        "kind": item["kind"],
        "version": version,
        "voters": [slot for slot, _ in item["members"]] if voters is None else voters,
        "left_out": list(left_out),
        "refused": list(refused),
        "reason": "as told",
        "opened_at": at,
        "quorum_at": at + quorum,
        "closed_at": at + quorum + waited,
        "published_at": at + quorum + waited + publishing,
    }


def lost(item):
    """A round whose members were all gone."""
    return told(item, voters=[], version=None)


def numbers(rounds):
    return [(item["fragment"], item["kind"], item["attempt"], item["members"]) for item in rounds]

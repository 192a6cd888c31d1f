"""A small world for the pacer: learners of unlike speeds, links with delays, a naive quorum, in virtual time.

One step of the fastest learner is STEP nanoseconds. The world asserts what must hold at every opening.
"""

import heapq
from types import SimpleNamespace

from isthmus.ops.syncer.pacer import Pacer
from isthmus.runtime.ids import Replica

STEP = 1_000_000
SPEEDS = (1.0, 1.0, 0.8, 0.6)
UNEVEN = (1.0, 0.993, 0.81, 0.607)
"""Like SPEEDS, but such that boundaries fall against each other in every way."""


class Learner:
    """Steps without pause, adopts and answers at its boundaries (final rounds only if it `answers_end`), and reports
    every `report_steps`."""

    def __init__(self, world, slot, incarnation, speed):
        self.world, self.slot, self.incarnation = world, slot, incarnation
        self.step_time = round(STEP / speed)
        self.step, self.delay_steps, self.phase, self.is_alive = 0, 0, "ready", True
        self.answers_end = True
        self.adopted, self.updates, self.pulls, self.answered = set(), set(), {}, {}

    def member(self):
        return [self.slot, self.incarnation]

    def pulled(self, item):
        if not self.is_alive or self.member() not in item["members"]:
            return
        if item["kind"] == "final" and not self.answers_end:
            return
        if item["kind"] == "initial":
            self.world.after(self.world.link, self.world.voted, self, item["round"])
        elif self.phase == "stepping":
            self.pulls[item["fragment"]] = item

    def updated(self, fragment):
        self.updates.add(fragment)
        if self.phase == "ready":
            self.adopted |= self.updates
            if len(self.adopted) == self.world.settings["fragments"]:
                self.phase = "stepping"
                self.report()
                self.world.after(self.step_time, self.boundary)

    def boundary(self):
        if not self.is_alive:
            return
        self.step += 1
        self.world.trained += 1
        for fragment in sorted(self.updates & self.answered.keys()):
            self.delay_steps = self.step - self.answered.pop(fragment)
        self.updates.clear()
        for fragment, item in sorted(self.pulls.items()):
            self.answered[fragment] = self.step
            self.world.after(self.world.link, self.world.voted, self, item["round"])
        self.pulls.clear()
        if self.step % self.world.report_steps == 0:
            self.report()
        self.world.after(self.step_time, self.boundary)

    def report(self):
        progress = {
            "slot": self.slot,
            "incarnation": self.incarnation,
            "phase": self.phase,
            "step": self.step,
            "tokens": self.step,
            "step_time": self.step_time if self.step > 1 else 0,
            "delay_steps": self.delay_steps,
            "epochs": [],
            "totals": [],
        }
        self.world.after(
            self.world.link, self.world.fire, {"progress": {(Replica("learner", self.slot), None): progress}}
        )


class World:
    """One or more shards and their learners. `link` is the delay of every edge between machines, one way."""

    def __init__(self, *, speeds=SPEEDS, link_steps=0.25, merge_steps=0.1, **settings):
        defaults = {"fragments": 8, "shards": 1, "interval": 24, "overlap": 2, "quorum": 1, "grace": True, "gamma": 0.8}
        self.settings = {**defaults, "learners": len(speeds), "tokens": 10**9} | settings
        self.report_steps = -(-self.settings["interval"] // self.settings["fragments"])
        self.link, self.merging = round(link_steps * STEP), round(merge_steps * STEP)
        self.now, self.trained, self.events, self.sequence = 0, 0, [], 0
        self.rounds, self.log, self.mergings, self.closed = {}, [], [], set()
        self.pacers = [self._pacer(shard) for shard in range(self.settings["shards"])]
        self.learners = {}
        for slot, speed in enumerate(speeds):
            self.join(slot, speed)

    def _pacer(self, shard):
        pacer = Pacer(**self.settings)
        replica = SimpleNamespace(role="syncer", slot=shard)
        context = SimpleNamespace(
            member=SimpleNamespace(replica=replica, incarnation=1),
            now=lambda: self.now,
            members=frozenset,
            publish=lambda statistics: None,
        )
        pacer.open(context)
        return pacer

    # -- time and people -----------------------------------------------------------------------------------------------

    def after(self, delay, do, *arguments):
        self.sequence += 1
        heapq.heappush(self.events, (self.now + delay, self.sequence, do, arguments))

    def run(self, steps):
        until = self.now + round(steps * STEP)
        while self.events and self.events[0][0] <= until:
            self.now, _, do, arguments = heapq.heappop(self.events)
            do(*arguments)
        self.now = until
        return self

    def join(self, slot, speed=1.0):
        incarnation = self.learners[slot].incarnation + 1 if slot in self.learners else 1
        self.learners[slot] = learner = Learner(self, slot, incarnation, speed)
        learner.report()
        for fragment in {item["fragment"] for item in self.closed_initials()}:
            self.after(2 * self.link, learner.updated, fragment)

    def kill(self, slot):
        self.learners[slot].is_alive = False
        for key in sorted(self.rounds):
            self.settle(key)

    def closed_initials(self):
        return [merging for merging in self.mergings if merging["kind"] == "initial" and merging["version"]]

    # -- the shard -----------------------------------------------------------------------------------------------------

    def fire(self, inputs, shards=None):
        for shard in range(len(self.pacers)) if shards is None else shards:
            emitted = [each for each in self.pacers[shard](**inputs) or [] if each[0] != "place"]
            assert [port for port, _ in emitted] == ["round", "pull"] * (len(emitted) // 2)
            assert all(emitted[i][1] is emitted[i + 1][1] for i in range(0, len(emitted), 2))
            for port, item in emitted:
                if port == "round":
                    self.opened(shard, item)

    def opened(self, shard, item):
        key = (shard, item["round"])
        assert item["fragment"] % self.settings["shards"] == shard
        self.log.append((self.now, shard, item))
        if key in self.rounds:
            assert item["attempt"] == self.rounds[key].item["attempt"] + 1
            self.rounds[key].item = item
        elif item["attempt"] == 1:
            mine = [other for (of, _), other in self.rounds.items() if of == shard]
            assert item["fragment"] not in [other.item["fragment"] for other in mine], "two rounds of one fragment"
            if item["kind"] == "merge":
                assert len(mine) < self.pacers[shard].statistics()["rounds_in_flight_max"]
            self.rounds[key] = SimpleNamespace(item=item, opened_at=self.now, votes={}, quorum_at=None)
        for learner in self.learners.values():
            self.after(self.link, learner.pulled, item)
        self.settle(key)

    def voted(self, learner, number):
        for key in [key for key in self.rounds if key[1] == number]:
            found = self.rounds[key]
            if learner.is_alive and learner.member() in found.item["members"]:
                found.votes.setdefault(learner.slot, learner.incarnation)
                self.settle(key)

    def settle(self, key):
        if key not in self.rounds:
            return
        found = self.rounds[key]
        lives = {slot: learner.incarnation for slot, learner in self.learners.items() if learner.is_alive}
        live = [slot for slot, incarnation in found.item["members"] if lives.get(slot) == incarnation]
        missing = [slot for slot in live if slot not in found.votes]
        if found.quorum_at is None and len(found.votes) >= max(1, min(found.item["count_min"], len(live))):
            found.quorum_at = self.now
        if missing:
            if found.quorum_at is None or found.item["grace"] is None:
                return
            end = found.quorum_at + found.item["grace"]
            if any(slot in missing for slot in found.item["required"]):
                end = max(end, found.opened_at + found.item["deadline"])
            if self.now < end:
                self.after(end - self.now, self.settle, key)
                return
        del self.rounds[key]
        merging = {
            "round": found.item["round"],
            "fragment": found.item["fragment"],
            "kind": found.item["kind"],
            "version": [1, found.item["round"]] if found.votes else None,
            "voters": sorted(found.votes),
            "left_out": missing,
            "refused": [],
            "shortened": [],
            "reason": "",
            "opened_at": found.opened_at,
            "quorum_at": found.quorum_at or self.now,
            "closed_at": self.now,
            "published_at": self.now + self.merging,
            "opening": found.item,
        }
        self.after(self.merging, self.published, key[0], merging)

    def published(self, shard, merging):
        self.mergings.append(merging)
        if merging["version"] is not None:
            for learner in self.learners.values():
                self.after(self.link, learner.updated, merging["fragment"])
        self.fire({"merged": {("shard", merging["fragment"]): merging}}, [shard])

    # -- what was seen -------------------------------------------------------------------------------------------------

    def openings(self, kind="merge", fragment=None, since=0.0):
        """(fastest learner's steps, item) of first attempts."""
        return [
            (now / STEP, item)
            for now, _, item in self.log
            if item["kind"] == kind and item["attempt"] == 1 and now >= since * STEP
            if fragment in (None, item["fragment"])
        ]

    def intervals(self, since):
        """The mean interval between the rounds of each fragment."""
        found = []
        for fragment in range(self.settings["fragments"]):
            times = [time for time, _ in self.openings(fragment=fragment, since=since)]
            found.append((times[-1] - times[0]) / (len(times) - 1))
        return found

    def merges(self, since):
        """What came of the merge rounds that opened since."""
        return [each for each in self.mergings if each["kind"] == "merge" and each["opened_at"] >= since * STEP]

    def contributors_mean(self, since):
        voters = [len(merging["voters"]) for merging in self.merges(since)]
        return sum(voters) / len(voters)

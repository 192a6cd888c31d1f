"""A home and its shards, fed by hand: what is wanted is sent, and what is sent arrives, until nobody wants anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.messages import ShardState
from isthmus.ops.syncer.state_sender import StateSender
from isthmus.programs.engine.snapshots.taken_hold import TakenHold
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from tests.ops.bodies import Context

RUN = Path("/run")
EVERY = 15_000_000_000


def fragments(sizes: tuple[int, ...]) -> tuple[Fragment, ...]:
    """Fragments of so many values, of two units where they have two values."""
    return tuple(
        Fragment(p, tuple(Unit(f"leaf-{p}", at, at + 1, (size,)) for at in range(size))) for p, size in enumerate(sizes)
    )


class Shard:
    """One life of a shard."""

    def __init__(self, slot: int, life: int) -> None:
        self.member = Member(Replica("syncer", slot), life)
        self.sender = StateSender()
        self.sender.open(Context("syncer", slot, incarnation=life))

    def publish(self, *states: ShardState) -> list[tuple[str, Any]]:
        """What leaves for these states."""
        return self.sender(state={(self.member.replica, each["fragment"]): each for each in states}) or []


class TakenHome:
    """The hold node of a run's home, and the lives of its shards; `fire` lets as much time pass as is told."""

    def __init__(
        self,
        disk: SimulatedDisk,
        life: int = 1,
        *,
        sizes: tuple[int, ...],
        shards: int = 1,
        mount: Any = None,
        **more: Any,
    ) -> None:
        place = more.pop("place", None)
        self.hold = TakenHold(RUN, 15.0, place, role="syncer", shards=shards, fragments=fragments(sizes), **more)
        self.context: Any = Context("recorder", incarnation=life)
        self.context.disk = mount or Mount(disk)
        self.shards = [Shard(slot, 1) for slot in range(shards)]
        self.told: dict[str, list[Any]] = {}
        """What the last firings have emitted, by port."""
        self.wants: list[Any] = []
        """The wishes of the last `fire`, in order."""
        self.is_answered = True
        """Whether shards answer."""
        self.silent: dict[int, Any] = {}
        """Shards that cannot be reached, and what they were asked for last, which arrives once they are."""
        self.meet()
        self.hold.open(self.context)

    def meet(self, *others: Member) -> None:
        """Have the shards and these others be live."""
        self.context.live = {*(shard.member for shard in self.shards), *others}

    def reach(self, slot: int) -> None:
        """Have a shard be reached again."""
        shard, item = self.shards[slot], self.silent.pop(slot)
        self._deliver(shard, shard.sender(wanted={("recorder/0", None): item}) or [])

    def replace(self, slot: int) -> None:
        """A shard dies, and its next life begins."""
        self.shards[slot] = Shard(slot, self.shards[slot].member.incarnation + 1)
        self.meet()

    def fire(self, *states: ShardState, after: int = 0) -> dict[str, Any]:
        """Have shards publish states, and a timer fire; returns what is said to be held, if that is news."""
        self.context.at += after
        self.told, self.wants = {}, []
        for state in states:
            shard = self.shards[state["fragment"] % len(self.shards)]
            self._deliver(shard, shard.publish(state))
        self._call(tick={})
        held = self.told.get("held", [])
        return held[-1] if held else {}

    def _deliver(self, shard: Shard, sent: list[tuple[str, Any]]) -> None:
        for port, item in sent:
            name, key = {"published": ("published", item["fragment"]), "part": ("state", None)}[port]
            self._call(**{name: {(shard.member.replica, key): item}})

    def _call(self, **inputs: Any) -> None:
        for port, item in self.hold(**inputs) or []:
            self.told.setdefault(port, []).append(item)
            if port == "wanted_state":
                self.wants.append(item)
                shard = self.shards[item["fragment"] % len(self.shards)]
                if (slot := shard.member.replica.slot) in self.silent:
                    self.silent[slot] = item
                elif self.is_answered:
                    self._deliver(shard, shard.sender(wanted={("recorder/0", None): item}) or [])

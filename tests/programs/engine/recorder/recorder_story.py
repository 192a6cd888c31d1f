"""A short run as a recorder hears it, and a disk that ends with its process at any operation: what its tests share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.programs.engine.recorder.node import Recorder
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from isthmus.runtime.system.disk import DISK, Disk

SECOND = 1_000_000_000
TICK = SECOND // 10
ZERO = SECOND
FOLDER = Path("/run")
SIZES = (300, 100)
TICKS = 50


class KilledError(BaseException):
    """The process ends here."""


class Context:
    """What a recorder is opened with: a clock that the test moves, a disk, and those who are live."""

    def __init__(self, disk: Disk, at: int = 0, *, incarnation: int = 1) -> None:
        self.disk, self.at = disk, at
        self.member = Member(Replica("recorder", 0), incarnation)
        self.status: dict[str, Any] = {}
        self.live: set[Member] = set()
        self.is_stopping = False

    def now(self) -> int:
        return self.at

    def publish(self, status: dict[str, Any]) -> None:
        self.status = status

    def was_on(self, member: Any) -> str:
        return ""

    def members(self) -> frozenset[Member]:
        return frozenset(self.live)

    def leave_requested(self) -> bool:
        return False

    def stop_requested(self) -> bool:
        return self.is_stopping


class TickedRecorder:
    """A recorder of one learner's run whose clock moves by ticks; `live` are the hosts beside it."""

    def __init__(self, folder: Path, live: Iterable[Replica], *, has_evaluator: bool) -> None:
        self.context = Context(DISK, SECOND)
        self.context.live = {Member(each, 1) for each in live}
        self.body = Recorder(folder, tokens=64, learners=1, sizes=(), has_model=True, has_evaluator=has_evaluator)
        self.body.open(self.context)

    def tick(self, **came: Any) -> None:
        self.context.at += TICK
        self.body(**came)

    def until_finished(self, seconds_max: int) -> float:
        """Ticks until it is finished; the seconds that this took."""
        begun = self.context.at
        while not self.body.is_finished and self.context.at - begun < seconds_max * SECOND:
            self.tick()
        return (self.context.at - begun) / SECOND


class DeadlyMount:
    """A disk as a process sees it that is killed before its operation number `at`, or in the middle of that if it is a
    write: half of what is written is there. `count` is how many operations there were."""

    def __init__(self, disk: SimulatedDisk, at: int | None, *, tears: bool) -> None:
        self.mount, self.count = Mount(disk), 0
        self._disk, self._at, self._tears = disk, at, tears
        self.mount.disk = self.disk  # type: ignore[method-assign]

    def disk(self) -> Any:
        """The disk, for one operation."""
        if self.mount.is_gone:
            raise OSError("the process is gone")
        self.count += 1
        if self.count - 1 == self._at and self._tears:
            return Tearing(self._disk)
        if self._at is not None and self.count > self._at:
            self.mount.is_gone = True
            raise KilledError
        return self._disk


class Tearing:
    """A disk that takes half of what is written."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def ask(self, *, size: int = 0, makes: bool = False) -> int:
        return self._disk.ask(size=size // 2, makes=makes)


# -- what a recorder hears ---------------------------------------------------------------------------------------------


def report(
    slot: int, at: int, *, incarnation: int = 1, phase: str = "stepping", version: Any = (1, 1), **more: Any
) -> dict[str, Any]:
    """That of a learner which has made a step a tick since ZERO, eight tokens each."""
    steps = max(0, (at - ZERO) // TICK)
    tokens = 8 * steps
    return {
        "slot": slot,
        "incarnation": incarnation,
        "phase": phase if steps else "ready",
        "step": steps,
        "tokens": tokens,
        "stepping": max(0, at - ZERO),
        "step_time": TICK,
        "loss": 2.0 if steps else math.nan,
        "delay_steps": 0,
        "staleness": 1,
        "sick": False,
        "sick_step": 0,
        "accounts": [[tokens, 0, 0, 0, 0]] * 2,
        "versions": [list(version)] * 2,
        "epochs": [version[0]] * 2,
        "totals": [[slot, incarnation, tokens]],
        "bytes_sent": 10,
        "bytes_received": 20,
        "waited": 0,
        "device_kind": "cpu",
        **more,
    }


def merging(fragment: int, number: int, at: int, *, epoch: int = 1, kind: str = "merge", **more: Any) -> dict[str, Any]:
    """Merge `number` of a fragment in an epoch, of two votes; 0 is its first version there."""
    return {
        "shard": 0,
        "epoch": epoch,
        "round": ((epoch - 1) << 32) + 2 * number + fragment + 1,
        "place": ((epoch - 1) * 100 + 2 * number + fragment + 1) % 1024,
        "fragment": fragment,
        "kind": kind,
        "version": [epoch, number],
        "origin": [epoch, 0],
        "momentum": None,
        "voters": [0, 1],
        "weights": [0.5, 0.5],
        "left_out": [],
        "refused": [],
        "shortened": [],
        "opposed": [],
        "capped": [],
        "reason": "both have voted",
        "opened_at": at - 40,
        "quorum_at": at - 30,
        "closed_at": at - 20,
        "published_at": at,
        "merged_tokens": [[0, 1, 8 * number], [1, 1, 8 * number]],
        "merges": 2 * number,
        "votes": 4 * number,
        **more,
    }


def evaluated(kind: str, tokens: int, loss: float) -> dict[str, Any]:
    return {"kind": kind, "tokens": tokens, "loss": loss}


def story() -> Iterator[tuple[int, dict[str, dict[Any, Any]]]]:
    """What is sent at each tick of a short run, by port and (replica, key).

    Slot 1 is heard of last at tick 29, and in its next life from tick 42 on: what a life has told in its last second is
    not known to a recorder that ends with it. The shard has another life from tick 33 on.
    """
    for tick in range(TICKS):
        at, sent = tick * TICK, {"progress": {}, "merged": {}, "evaluation": {}, "final": {}}
        phase = "final" if tick >= 45 else "stepping"
        life = 1 + (tick >= 42)
        own, lives = report(0, at)["tokens"], report(0, min(at, 29 * TICK))["tokens"]
        totals = [[0, 1, own], [1, 1, lives], *([[1, 2, own]] if life == 2 else [])]
        sent["progress"][Replica("learner", 0), None] = report(0, at, phase=phase, totals=totals)
        if not 30 <= tick < 42:
            told = report(1, at, incarnation=life, phase=phase, totals=totals)
            sent["progress"][Replica("learner", 1), None] = told
        epoch, count = (1, (tick - 5) // 5) if tick < 33 else (2, (tick - 33) // 3)
        if tick in (5, 11, 16, 21, 26, 33, 36, 39, 42, 45):
            kind = {5: "initial", 33: "recover", 45: "final"}.get(tick, "merge")
            for fragment in range(2):
                told = merging(fragment, count, at - 50, epoch=epoch, kind=kind)
                sent["merged"][Replica("syncer", 0), told["place"]] = told
        if tick in (6, 24, 38, 46):
            kind = {6: "initial", 46: "final"}.get(tick, "during")
            sent["evaluation"][Replica("evaluator", 0), 100 * tick] = evaluated(kind, 100 * tick, 5.0 - tick / 10)
        if tick == 45:
            for fragment in range(2):
                tensors = {"fragment": fragment, "version": [2, 5], "tensors": {}}
                sent["final"][Replica("syncer", 0), fragment] = tensors
        yield at, sent


def sent_by(ticks: int) -> list[dict[str, dict[Any, Any]]]:
    """What was sent in so many ticks of the story."""
    return [sent for _, sent in islice(story(), ticks)]


def kept(sent: list[dict[str, dict[Any, Any]]]) -> dict[str, dict[Any, Any]]:
    """What those who are live send again to a recorder that comes back: the newest of each key."""
    return {port: {key: item for each in sent for key, item in each[port].items()} for port in sent[0]}


def made(folder: Path = FOLDER, **more: Any) -> Recorder:
    settings = {"tokens": 800, "learners": 2, "sizes": SIZES, "has_model": True, "has_evaluator": True}
    return Recorder(folder, **(settings | more))

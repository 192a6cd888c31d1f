"""What a killed life leaves in memory: whole, taken once, and none of it merged twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from isthmus.ops.exchange.token_accounts import FragmentAccount
from isthmus.ops.learner import recovery
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.kept_work import _without_means
from isthmus.ops.learner.local_copies import IN_MEMORY, SECOND_NS, SealedFile, opened
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.runtime.sim.machine import MEMORY, Mount, SimulatedDisk
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update
from tests.ops.learner.test_inner_step import batch, drive, reports

TASK = SmallTask()
PARTS = fragments_of(TASK, 2)
LOCAL = MEMORY / "run" / "local"
WORK = [LOCAL / f"learner-0.fragment-{p}" for p in range(2)]
COPIES = [LOCAL / "learner-0", *WORK]


class Learner:
    """One life of the learner in slot 0, on a machine with this disk."""

    def __init__(self, disk: SimulatedDisk, life: int, *, carries: bool = False) -> None:
        self.context = Context(incarnation=life)
        self.context.folder, self.context.disk = Path("/run"), Mount(disk)
        self.context.connected = frozenset({"fragment", "report", "progress"})
        exchange = FragmentExchange(carries=carries)
        self.body = InnerStep(TASK, fragments=PARTS, report_every=1, exchange=exchange, run=RunTerms(tokens=10_000))
        self.body.open(self.context)

    def adopt(self, p: int, count: int, values: Any = 0.5, clock: Any = ()) -> list[Any]:
        return reports(drive(self.body, update={("syncer/0", p): update(PARTS[p], count, values, clock=clock)})[1])

    def adopt_all(self, count: int = 0, values: Any = 0.5, clock: Any = ()) -> list[Any]:
        return [report for p in range(len(PARTS)) for report in self.adopt(p, count, values, clock)]

    def steps(self, count: int) -> list[Any]:
        told = list[Any]()
        for _ in range(count):
            self.context.at += SECOND_NS
            told += reports(drive(self.body, batch=batch(TASK, self.body.position))[1])
        return told

    def answer(self, p: int, number: int) -> Any:
        life = self.context.member.incarnation
        ((_, capture),) = drive(self.body, pull={("syncer/0", p): pull(p, number, members=((0, life),))})[0]
        return capture

    def values(self, p: int) -> Any:
        return np.array(self.body._learner.extract(p))

    def local(self) -> list[Any]:
        return [np.array(leaf) for leaf in self.body._learner.local()]


def killed(disk: SimulatedDisk, *, carries: bool = False) -> Learner:
    """A life that was killed right after its copy was made, all of whose work is in it."""
    life = Learner(disk, 1, carries=carries)
    life.adopt_all()
    until_left(disk, life)
    return life


def until_left(disk: SimulatedDisk, life: Learner) -> None:
    """Steps until all is left."""
    for _ in range(100):
        if all(disk.content(path) for path in COPIES):
            return
        life.steps(1)
    raise AssertionError


def test_the_next_life_has_the_values_the_moments_and_the_accounts_of_the_one_that_was_killed() -> None:
    disk = SimulatedDisk("seed")
    dead = killed(disk)
    after = Learner(disk, 2)
    told = after.adopt_all()
    assert told[-1]["began"] == ["memory", 1, IN_MEMORY.steps + 1]
    for p in range(2):
        np.testing.assert_allclose(after.values(p), dead.values(p), rtol=0, atol=0.02)
        assert not np.allclose(after.values(p), 0.5)
    assert [leaf.dtype for leaf in after.local()] == [leaf.dtype for leaf in dead.local()]
    assert any(np.any(leaf) for leaf in after.local())
    after.steps(2)
    capture = after.answer(0, 9)
    ((life, begin, end, steps),) = capture["former"]
    assert (life, begin, end, steps) == (1, 0, 8 * (IN_MEMORY.steps + 1), IN_MEMORY.steps + 1)
    assert (capture["begin"], capture["end"], capture["steps"]) == (0, 16, 2)
    assert [0, 1, end] in told[-1]["totals"]


def test_it_says_where_the_dead_life_was_in_its_data_until_it_steps() -> None:
    disk = SimulatedDisk("seed")
    dead = killed(disk)
    after = Learner(disk, 2)
    waiting = after.adopt(0, 0)[-1]
    assert IN_MEMORY.steps < waiting["reached"] <= dead.body.position
    assert "reached" not in [*after.adopt(1, 0), *after.steps(1)][-1]


def test_what_was_trained_is_carried_to_a_newer_version_that_does_not_have_it() -> None:
    disk = SimulatedDisk("seed")
    killed(disk)
    same, newer = Learner(disk, 2), Learner(disk, 2)
    same.adopt_all()
    disk_again = SimulatedDisk("seed")
    killed(disk_again)
    newer = Learner(disk_again, 2)
    newer.adopt_all(count=3, values=2.5)
    for p in range(2):
        np.testing.assert_allclose(newer.values(p) - 2.5, same.values(p) - 0.5, atol=1e-6)
    assert newer.answer(1, 9)["former"]


@pytest.mark.parametrize(
    ("count", "clock", "is_taken"),
    [
        (1, [(0, 1, 8)], False),  # An answer of it was merged: the rest of the work is not known apart.
        (1, [(3, 1, 800)], True),  # Another slot's.
        (5, [], False),  # The model has gone on for too long.
        (4, [], True),
        (1, [(0, 2, 0)], False),  # A later life's work is in it.
    ],
)
def test_only_work_that_is_in_no_version_is_taken(count: int, clock: Any, is_taken: bool) -> None:
    disk = SimulatedDisk("seed")
    killed(disk)
    after = Learner(disk, 3)
    told = after.adopt_all(count, 2.5, clock)
    assert told[-1]["began"][0] == ("memory" if is_taken else "copy")  # Its moments are of use in any case.
    assert np.allclose(after.values(0), 2.5) == (not is_taken)
    assert ("former" in after.answer(0, 9)) == is_taken


def test_the_work_after_an_answer_is_kept_where_it_is_carried() -> None:
    disk = SimulatedDisk("seed")
    dead = Learner(disk, 1, carries=True)
    dead.adopt_all()
    dead.steps(3)
    answered = [dead.answer(p, p + 1)["end"] for p in range(2)]
    until_left(disk, dead)
    after = Learner(disk, 2, carries=True)
    after.adopt_all(1, 2.5, [(0, 1, answered[0])])
    assert not np.allclose(after.values(0), 2.5)
    assert [row[:2] for row in after.answer(0, 9)["former"]] == [[1, answered[0]]]


def test_whatever_of_a_dead_life_arrives_late_is_merged_once() -> None:
    """Its own answer, and that of the life which goes on with the same work: in either order one is refused."""
    disk = SimulatedDisk("seed")
    dead = killed(disk)
    after = Learner(disk, 2)
    after.adopt_all()
    after.steps(1)
    late, capture = dead.answer(0, 8), after.answer(0, 9)
    for first, second in ((late, capture), (capture, late)):
        account = FragmentAccount((1, 0), 24)
        assert refusal(account, first) is None
        for life, begin, end, _ in [*first.get("former", ()), [first["incarnation"], first["begin"], first["end"], 1]]:
            account.merge(0, life, begin, end)
        assert refusal(account, second) in ("already merged", "former incarnation")


def refusal(account: FragmentAccount, capture: Any) -> str | None:
    begin, end = capture["begin"], capture["end"]
    work = capture["slot"], capture["incarnation"], (1, 0), begin, end, capture["steps"], end - begin
    return account.refusal(*work, capture.get("former", ()))


def test_a_life_that_died_of_what_it_took_up_is_followed_by_one_without() -> None:
    disk = SimulatedDisk("seed")
    killed(disk)
    second = Learner(disk, 2)
    assert second.adopt_all()[-1]["began"][0] == "memory"
    assert Learner(disk, 3).adopt_all()[-1]["began"][0] != "memory"
    # One that has left work of its own is none of these.
    disk = SimulatedDisk("seed")
    killed(disk)
    second = Learner(disk, 2)
    second.adopt_all()
    second.steps(IN_MEMORY.steps + 4)
    told = Learner(disk, 3).adopt_all()[-1]
    assert told["began"][:2] == ["memory", 2]


def test_a_fragment_that_was_adopted_has_no_file_of_what_was_dropped() -> None:
    disk = SimulatedDisk("seed")
    dead = killed(disk)
    dead.adopt(0, 1, 2.5)
    assert [disk.content(path) is None for path in WORK] == [True, False]
    after = Learner(disk, 2)
    after.adopt(0, 1, 2.5)
    after.adopt(1, 0)
    assert "former" not in after.answer(0, 9)
    assert after.answer(1, 9)["former"]


def test_carried_work_of_a_dead_life_stays_in_the_accounts_until_an_answer_has_it() -> None:
    disk = SimulatedDisk("seed")
    killed(disk, carries=True)
    after = Learner(disk, 2, carries=True)
    after.adopt_all()
    before = [after.values(p) for p in range(2)]
    after.adopt(0, 1, 2.5, [(3, 1, 800)])  # Others' work only.
    after.adopt(1, 1, 2.5, [(0, 1, 8)])  # A late answer of the dead life is in it.
    np.testing.assert_allclose(after.values(0) - 2.5, before[0] - 0.5, atol=1e-6)
    np.testing.assert_allclose(after.values(1), 2.5)
    assert after.answer(0, 9)["former"]
    assert "former" not in after.answer(1, 9)


def test_a_mean_is_that_of_a_newer_version() -> None:
    """As the variances of a BatchNorm."""
    disk = SimulatedDisk("seed")
    killed(disk)
    after = Learner(disk, 2)
    assert after.body._inheritance._kept is not None
    found = after.body._inheritance._kept.found[0]
    assert not found.trained.flags.writeable
    means = replace(PARTS[0], units=tuple(replace(unit, merge="mean") for unit in PARTS[0].units))
    assert not _without_means(found.trained, means).any()


def test_a_life_without_room_takes_what_is_there_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk("seed")
    killed(disk)
    asked = list[int]()

    def memory_of(mount: Mount, folder: Path, size: int) -> Path | None:
        asked.append(size)
        return None if size > 0 else MEMORY / folder.name

    monkeypatch.setattr(Mount, "memory_of", memory_of)
    monkeypatch.setattr(recovery, "own_bytes", lambda folder, disk, slot: 12)
    after = Learner(disk, 2)
    assert asked[-1] == 6 * 4 * sum(part.size for part in PARTS) - 12  # What is there is replaced.
    (told, *_) = [each for each in after.adopt_all() if each.get("began")]
    assert (told["began"][0], told["lacks_memory"]) == ("memory", 6 * 4 * sum(part.size for part in PARTS))
    before = {path: disk.content(path) for path in COPIES}
    after.steps(12)
    assert {path: disk.content(path) for path in COPIES} == before


@pytest.mark.parametrize("what", ["half", "bit", "other slot", "other fragment", "not finite", "gone"])
def test_one_that_is_damaged_or_foreign_is_none(what: str) -> None:
    disk = SimulatedDisk("seed")
    killed(disk)
    first, second = (disk.content(path) for path in WORK)
    assert first is not None
    assert second is not None
    match what:
        case "half":
            del first.data[len(first.data) // 2 :]
        case "bit":
            first.data[20] ^= 1
        case "other slot":
            first.data[:] = resealed(first.data, slot=1)
        case "other fragment":
            first.data[:] = second.data
        case "not finite":
            first.data[:] = resealed(first.data, np.inf)
        case "gone":
            disk.lose_power()
    after = Learner(disk, 2)
    after.adopt_all()
    assert np.allclose(after.values(0), 0.5)
    assert np.allclose(after.values(1), 0.5) == (what == "gone")


def resealed(data: bytes, value: float | None = None, **told: Any) -> bytearray:
    """The same file with other values, or with something else told of it."""
    written = bytearray()

    class Written:
        def write(self, data: bytes) -> int:
            written.extend(data)
            return len(data)

    values, last = opened(memoryview(bytes(data)))
    sealed = SealedFile(Written())
    sealed.write(values if value is None else memoryview(np.full(len(values) // 4, value, np.float32)).cast("B"))
    sealed.seal(msgspec.msgpack.encode({**msgspec.msgpack.decode(last), **told}))
    return written

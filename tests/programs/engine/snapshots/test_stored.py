"""Snapshots in a store that fails, is cut off and comes back: what is read is whole, and never older than what was
said to be there."""

from __future__ import annotations

import errno
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.programs.engine.snapshots import stored
from isthmus.programs.engine.snapshots.keeping import (
    LINES,
    PAUSE_NS,
    PAUSE_NS_MAX,
    Courier,
    Offers,
    fetch,
)
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import FragmentEntry, Manifest, OtherFormatError, Snapshots
from isthmus.programs.engine.snapshots.stored import (
    HEAD,
    VALUES,
    FolderStore,
    SnapshotHead,
    StoredSnapshots,
    StorePlace,
    StoreTerm,
    claim,
    encoded,
    head_name,
    newest,
    read_head,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.supervision.lives import NUMBERS_OF_TERM
from isthmus.runtime.system.disk import DISK
from tests.programs.engine.snapshots.taken_home import EVERY, RUN, TakenHome
from tests.programs.engine.snapshots.test_snapshots import SIZES, item, model, same

AWAY = Path("/away")
FIRST = StoreTerm()


class Home:
    """The snapshots of a run's home, and what a life of it stores on another disk."""

    def __init__(
        self, life: int = 1, term: StoreTerm = FIRST, disk: SimulatedDisk | None = None, run: str = "run-1"
    ) -> None:
        self.near, self.far = SimulatedDisk("near"), disk or SimulatedDisk("far")
        self.snapshots = Snapshots(RUN / FOLDER, SIZES, Mount(self.near), life)
        self.stored = StoredSnapshots(FolderStore(AWAY, Mount(self.far)), run, "here:/run", term, life)

    def take(self, *counts: int) -> Manifest:
        return self.snapshots.write(model(*counts))

    def bring(self, manifest: Manifest) -> Iterator[int]:
        read = Mount(self.near).read
        return self.stored.writing(
            manifest, lambda name: read(RUN / FOLDER / name), lambda: {"spec.json": b"{}"}, {("learner", 0): 3}, 7
        )

    def store(self, *counts: int) -> list[int]:
        return list(self.bring(self.take(*counts)))

    def names(self, prefix: str) -> list[str]:
        return [path.name for path in self.far.files() if path.name.startswith(prefix)]


def read(disk: SimulatedDisk) -> tuple[int, dict[int, Any], list[str]]:
    """The number of the snapshot that is read, its items as the next home has them, and what is wrong with others."""
    near = SimulatedDisk("next")

    def take(head: SnapshotHead, entry: FragmentEntry, data: bytes) -> None:
        file = Mount(near).create(RUN / FOLDER / entry.file)
        file.write(data)

    found = newest(FolderStore(AWAY, Mount(disk)), take)
    assert found is not None
    Mount(near).create(RUN / FOLDER / MANIFEST).write(msgspec.json.encode(found.head.manifest))
    return found.head.manifest.number, Snapshots(RUN / FOLDER, SIZES, Mount(near)).read().held, found.faults


def test_what_is_stored_is_read_elsewhere_and_only_what_is_new_is_sent() -> None:
    home = Home()
    assert len(home.store(1, 1)) == 3  # Two fragments, and the head.
    assert len(home.store(2, 1)) == 2
    number, held, faults = read(home.far)
    assert (number, faults) == (2, [])
    assert same(held, model(2, 1))


def test_one_of_another_format_is_not_damaged_and_nothing_is_put_beside_it() -> None:
    home = Home()
    home.store(1, 1)
    home.store(2, 1)
    store = FolderStore(AWAY, Mount(home.far))
    head = read_head(store, home.names(HEAD)[-1])
    later = msgspec.structs.replace(head, format=head.format + 1)
    store.put(head_name(FIRST, 1, 3), encoded(later))
    there = home.far.files()
    with pytest.raises(OtherFormatError):
        read(home.far)
    with pytest.raises(OSError) as refused:  # By its number.
        Home(life=2, disk=home.far).store(3, 1)
    assert refused.value.errno == errno.EEXIST
    assert home.far.files() == there


def test_the_two_newest_stay_and_what_they_name() -> None:
    home = Home()
    for count in range(5):
        home.store(count, 1)
    assert home.names(HEAD) == [head_name(FIRST, 1, 4), head_name(FIRST, 1, 5)]
    assert home.names(VALUES) == [
        f"{VALUES}{FIRST}-000000000001-fragment-{p}-1-{count}.safetensors" for p, count in ((0, 3), (0, 4), (1, 1))
    ]


def test_wherever_it_is_cut_off_the_one_before_is_read_and_the_next_life_goes_on() -> None:
    for pieces in range(3):
        home = Home()
        home.store(1, 1)
        work = home.bring(home.take(2, 2))
        for _ in range(pieces):
            next(work)
        home.far.lose_power()
        number, held, faults = read(home.far)
        assert (number, faults) == (1, [])
        assert same(held, model(1, 1))
        later = Home(life=2, disk=home.far)
        later.store(3, 3)
        later.store(4, 3)
        assert same(read(home.far)[1], model(4, 3))
        assert all("-000000000002-" in name for name in later.names(VALUES))  # What the life before left has gone.


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_and_whenever_the_power_goes_one_that_was_stored_is_read(seed: int) -> None:
    far, rng = SimulatedDisk(f"{seed}"), random.Random(seed)
    home, possible = Home(disk=far), [model(0, 0)]
    home.store(0, 0)
    for count in range(1, 12):
        far.troubles[0] = Trouble(lambda: None, share=0.15)
        possible.append(model(count, count // 2))
        with suppress(OSError):
            home.store(count, count // 2)
            del possible[:-1]
        far.troubles.clear()
        if rng.random() < 0.2:
            far.lose_power()
            home = Home(life=home.snapshots._life + 1, disk=far)
    far.lose_power()
    assert any(same(read(far)[1], each) for each in possible)


def test_a_head_names_nothing_that_the_store_has_lost() -> None:
    home = Home()
    home.store(1, 1)
    value, _ = home.names(VALUES)
    FolderStore(AWAY, Mount(home.far)).remove(value)
    with pytest.raises(OSError, match="has lost"):
        home.store(1, 2)
    assert read_head(FolderStore(AWAY, Mount(home.far)), home.names(HEAD)[-1]).manifest.number == 1
    home.store(1, 3)
    assert same(read(home.far)[1], model(1, 3))


def claims(folder: Path, count: int) -> list[StoreTerm | OSError]:
    """What becomes of so many claims at one moment."""

    def work(number: int) -> StoreTerm | OSError:
        barrier.wait()
        try:
            return claim(FolderStore(folder, DISK), FIRST, f"here:/{number}", f"{number:08x}")
        except OSError as error:
            return error

    barrier = threading.Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


def test_of_those_who_claim_a_term_at_one_moment_one_at_most_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_LOOK_SECONDS", 0.005)
    monkeypatch.setattr(stored, "WITHDRAWAL_SECONDS", 0.1)
    for number in range(10):
        came = claims(tmp_path / f"{number}", 2)
        winners = [each for each in came if isinstance(each, StoreTerm)]
        assert len(winners) == 1, came


def test_a_claim_whose_run_never_stored_anything_is_followed_by_the_next_term(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, DISK)
    second = claim(store, FIRST, "here:/7", f"{7:08x}")
    with pytest.raises(OSError, match="in here:/7"):  # Of one that had fetched the snapshot before.
        claim(store, FIRST, "here:/3", f"{3:08x}")
    assert stored.newest_claim(store) == (second, "here:/7")
    assert claim(store, second, "here:/3", f"{3:08x}") == StoreTerm(3, "00000003")


def damaged(disk: SimulatedDisk, name: str, data: bytes) -> None:
    content = disk.content(AWAY / name)
    assert content is not None
    content.data[:] = data


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        (head_name(FIRST, 1, 2), b"", "is not what was written: 0 bytes"),
        (head_name(FIRST, 1, 2), b"isthmus snapshot\n" + bytes(100), "is not what was written"),
        (f"{VALUES}{FIRST}-000000000001-fragment-0-1-2.safetensors", b"short", "is not what was written: 5 of"),
    ],
)
def test_one_that_is_damaged_is_named_and_the_one_before_it_is_read(name: str, data: bytes, told: str) -> None:
    home = Home()
    home.store(1, 1)
    home.store(2, 1)
    damaged(home.far, name, data)
    number, held, faults = read(home.far)
    assert number == 1
    assert same(held, model(1, 1))
    assert told in faults[0]


def test_a_life_that_was_replaced_stores_nothing_and_spoils_nothing() -> None:
    former = Home()
    former.store(1, 1)
    later = Home(life=1, term=StoreTerm(2), disk=former.far)  # The run went on from the store, elsewhere.
    later.store(5, 5)
    before = former.far.files()
    with pytest.raises(OSError, match="goes on elsewhere"):
        former.store(2, 2)
    assert former.far.files() == before
    assert same(read(former.far)[1], model(5, 5))


def test_a_life_that_is_replaced_while_it_stores_puts_no_head() -> None:
    former = Home()
    former.store(1, 1)
    storing = former.bring(former.take(2, 2))
    next(storing)
    later = Home(life=1, term=StoreTerm(2), disk=former.far)  # The run goes on elsewhere between values and head.
    later.store(5, 5)
    there = former.names(HEAD)
    with pytest.raises(OSError, match="goes on elsewhere"):
        list(storing)
    assert former.names(HEAD) == there
    assert same(read(former.far)[1], model(5, 5))


def test_names_are_in_the_order_of_lives_whose_numbers_grow_with_the_terms_of_a_home() -> None:
    lives = [2, 2 * NUMBERS_OF_TERM + 1, 9 * NUMBERS_OF_TERM + 1, 10 * NUMBERS_OF_TERM + 1]
    names = [head_name(StoreTerm(term), life, number) for term in (1, 2) for life in lives for number in (9, 10)]
    assert names == sorted(names)


def test_a_head_that_arrived_though_the_store_refused_it_is_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    home, put = Home(), FolderStore.put

    def arrives(self: FolderStore, name: str, data: bytes) -> None:
        put(self, name, data)
        if name.startswith(HEAD):
            raise OSError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "put", arrives)
        with pytest.raises(OSError, match="the answer was lost"):
            home.store(1, 1)
    home.store(2, 2)
    assert same(read(home.far)[1], model(2, 2))


def test_the_snapshots_of_another_run_are_not_touched() -> None:
    home = Home()
    home.store(1, 1)
    with pytest.raises(OSError, match="another run are there: run-1"):
        Home(disk=home.far, life=2, run="run-2").store(2, 2)
    assert same(read(home.far)[1], model(1, 1))


# -- when they are brought ---------------------------------------------------------------------------------------------


def manifest(number: int) -> Manifest:
    return Manifest(2, number, [])


def test_one_is_under_way_at_a_time_and_the_newest_is_next() -> None:
    offers = Offers()
    assert offers.offered(manifest(1), 0) == manifest(1)
    assert offers.offered(manifest(2), 1) is None
    offers.ended(None, 2)
    assert (offers.stored, offers.under_way) == (1, None)
    assert offers.offered(manifest(3), 3) == manifest(3)
    offers.ended(None, 4)
    assert offers.offered(manifest(3), 5) is None


def test_after_a_refusal_there_is_a_pause_which_grows_and_the_newest_is_tried() -> None:
    offers, now, pauses = Offers(), 0, []
    for number in range(1, 12):
        assert offers.offered(manifest(number), now) == manifest(number)
        offers.ended("no", now)
        refused_at = now
        while offers.offered(manifest(number + 1), now) is None:
            now += PAUSE_NS
        pauses.append(now - refused_at)
        offers.under_way = None
    assert pauses[:3] == [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS]
    assert pauses[-1] == PAUSE_NS_MAX
    assert (offers.stored, offers.error) == (0, "no")


def test_what_does_not_answer_is_told() -> None:
    offers = Offers()
    offers.offered(manifest(1), 0)
    offers.looked(119_000_000_000)
    assert offers.error is None
    offers.looked(120_000_000_000)
    assert offers.error == "no answer for 120 s"
    offers.ended(None, 130_000_000_000)
    assert offers.error is None


class Hold(TakenHome):
    """The hold node of a home whose snapshots go to another disk, too, a piece at each firing."""

    def __init__(self, near: SimulatedDisk, mount: Any = None) -> None:
        place = StorePlace(f"{AWAY}", "run-1", in_background=False)
        super().__init__(near, sizes=SIZES, mount=mount, place=place)
        self.near = near

    def store(self, *items: Any, after: int = 0) -> dict[str, Any]:
        self.fire(*items, after=after)
        told: dict[str, Any] = self.context.published[-1]["store"]
        return told


def test_a_store_that_is_away_is_told_and_given_the_newest_once_it_is_back() -> None:
    class Cut(Mount):  # type: ignore[misc]
        is_away = False

        def create(self, path: Path) -> Any:
            if path.parent == AWAY and self.is_away:
                raise OSError(113, "No route to host")
            return super().create(path)

    disk = SimulatedDisk("seed")
    mount = Cut(disk)
    hold = Hold(disk, mount)
    hold.store(item(0, 0), item(1, 0))
    for _ in range(5):
        told = hold.store()
    assert told == {"url": "/away", "number": 1, "error": None}
    mount.is_away = True
    for count in range(1, 6):
        told = hold.store(item(0, count), after=EVERY)
        told = hold.store()
    assert told == {"url": "/away", "number": 1, "error": "No route to host"}
    assert same(read(disk)[1], model(0, 0))
    files = [path.name for path in disk.files() if path.parent == RUN / FOLDER and path.suffix == ".safetensors"]
    assert len(files) <= 4  # Two snapshots, one that is tried, and nothing else.
    mount.is_away = False
    for _ in range(10):
        told = hold.store(after=EVERY)
    assert told["error"] is None
    assert same(read(disk)[1], model(5, 0))
    kinds = [line.split(b'"kind": "')[1].split(b'"')[0] for line in disk.files()[RUN / LINES].splitlines()]
    assert kinds == [b"stored", b"refused", b"stored"]


def test_a_thread_does_the_work_and_tells_what_came_of_it() -> None:
    def work() -> Iterator[int]:
        yield 3
        yield 4
        raise OSError("cut")

    came = []
    for courier in (Courier(in_background=True), Courier(in_background=False)):
        courier.begin(work())
        while (delivery := courier.poll()) is None:
            pass
        came.append((delivery.bytes, str(delivery.error)))
        assert courier.poll() is None
    assert came == [(7, "cut")] * 2


# -- what is fetched ---------------------------------------------------------------------------------------------------


def fetched(disk: SimulatedDisk, folder: Path) -> list[str]:
    far = folder / "far"
    far.mkdir()
    for path, data in disk.files().items():
        if path.parent == AWAY:
            (far / path.name).write_bytes(data)
    near = folder / "near"
    near.mkdir()
    fetch(StorePlace(str(far)), near, DISK, "Resuming")
    return sorted(str(path.relative_to(near)) for path in near.rglob("*") if path.is_file())


def test_what_is_fetched_is_the_newest_whole_one_and_nothing_else(tmp_path: Path) -> None:
    home = Home()
    home.store(1, 1)
    home.store(2, 2)
    damaged(home.far, f"{VALUES}{FIRST}-000000000001-fragment-1-1-2.safetensors", b"")
    names = [f"{FOLDER}/fragment-{p}-1-1.safetensors" for p in (0, 1)]
    assert fetched(home.far, tmp_path) == [*names, f"{FOLDER}/{MANIFEST}", "spec.json"]


@pytest.mark.parametrize("name", ["../../evil.safetensors", "/tmp/evil", "spec.json", "fragment-0.py"])
def test_a_name_that_no_snapshot_has_becomes_no_file(tmp_path: Path, name: str) -> None:
    home = Home()
    home.store(1, 1)
    store = FolderStore(AWAY, Mount(home.far))
    head = read_head(store, head_name(FIRST, 1, 1))
    entries = [msgspec.structs.replace(entry, file=name) for entry in head.manifest.fragments]
    forged = msgspec.structs.replace(head, manifest=msgspec.structs.replace(head.manifest, fragments=entries))
    store.put(head_name(FIRST, 1, 1), encoded(forged))
    with pytest.raises(ConfigError, match="expected the name of a file of values"):
        fetched(home.far, tmp_path)
    assert [path.name for path in (tmp_path / "near").rglob("*")] == []


def test_nothing_to_fetch_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        fetched(SimulatedDisk("empty"), tmp_path)


def test_after_a_success_the_next_pause_is_a_short_one_again() -> None:
    offers = Offers()
    for number, now in ((1, 0), (2, PAUSE_NS), (3, 3 * PAUSE_NS)):
        assert offers.offered(manifest(number), now) is not None
        offers.ended("no", now)
    assert offers.offered(manifest(4), 7 * PAUSE_NS) is not None
    offers.ended(None, 8 * PAUSE_NS)
    assert offers.offered(manifest(5), 8 * PAUSE_NS) is not None, "after a success there is none"
    offers.ended("no", 8 * PAUSE_NS)
    assert offers.offered(manifest(5), 9 * PAUSE_NS - 1) is None
    assert offers.offered(manifest(5), 9 * PAUSE_NS) is not None


def test_the_files_of_a_snapshot_that_is_being_stored_stay_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are taken meanwhile: a store takes its time."""
    disk = SimulatedDisk("seed")
    hold = Hold(disk)
    hold.store(item(0, 0), item(1, 0))
    told = hold.store()
    assert told["number"] == 0, "it is under way"
    with monkeypatch.context() as patch:
        patch.setattr(hold.hold._keeper, "store", lambda _: None)
        for count in range(1, 4):
            hold.fire(item(0, count), item(1, count), after=EVERY)
    for _ in range(10):
        told = hold.store()
    assert (told["number"], told["error"]) == (4, None)
    lines = [json.loads(line) for line in disk.files()[RUN / LINES].splitlines()]
    assert [(line["kind"], line["number"]) for line in lines] == [("stored", 1), ("stored", 4)]

"""The simulated disk: what outlives a power failure, and what is refused."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from isthmus.runtime.sim.machine import Mount, SimulatedDisk, SimulatedFile, Trouble
from isthmus.runtime.system.files import write_bytes

HERE = Path("/run")
SEEDS = range(40)


def test_what_was_not_synced_is_lost_from_any_byte_on_and_the_rest_is_kept() -> None:
    left = set()
    for seed in SEEDS:
        disk = SimulatedDisk(str(seed))
        mount = Mount(disk)
        file = mount.append(HERE / "a")
        file.write(b"kept")
        file.sync()
        mount.sync_folder(HERE)
        file.write(b"12345")
        disk.lose_power()
        left.add(disk.files()[HERE / "a"])
    assert {b"kept", b"kept12345"} < left
    assert all(b"kept12345".startswith(data) and data.startswith(b"kept") for data in left)
    assert len(left) > 3


def test_a_name_that_was_not_synced_may_be_lost_and_a_renaming_is_whole() -> None:
    left = set()
    for seed in SEEDS:
        disk = SimulatedDisk(str(seed))
        mount = Mount(disk)
        for name, data in (("old", b"1"), ("new", b"2")):
            file = mount.create(HERE / name)
            file.write(data)
            file.sync()
            if name == "old":
                mount.sync_folder(HERE)
        mount.rename(HERE / "new", HERE / "old")
        disk.lose_power()
        left.add(tuple((path.name, data) for path, data in disk.files().items()))
    assert left == {(("old", b"1"),), (("new", b"2"), ("old", b"1")), (("old", b"2"),)}


def test_the_order_of_what_was_written_to_different_files_is_not_kept() -> None:
    left = set()
    for seed in SEEDS:
        disk = SimulatedDisk(str(seed))
        mount = Mount(disk)
        for name in ("a", "b"):
            file = mount.append(HERE / name)
            mount.sync_folder(HERE)
            file.write(b"data")
        disk.lose_power()
        left.add(tuple(len(data) for data in disk.files().values()))
    assert {(0, 4), (4, 0)} <= left


def test_one_seed_is_one_disk() -> None:
    def left(seed: str) -> list[dict[Path, bytes]]:
        disk, found = SimulatedDisk(seed), []
        file = Mount(disk).append(HERE / "a")
        Mount(disk).sync_folder(HERE)
        for _ in range(8):
            file.write(b"0123456789" * 10)
            disk.lose_power()
            found.append(disk.files())
        return found

    assert left("a") == left("a") != left("b")


def test_what_is_written_whole_is_whole_after_any_power_failure() -> None:
    for seed in SEEDS:
        disk = SimulatedDisk(str(seed))
        write_bytes(HERE / "a", b"first", Mount(disk))
        disk.lose_power()
        assert disk.files()[HERE / "a"] == b"first"
        write_bytes(HERE / "a", b"second", Mount(disk))
        disk.lose_power()
        assert disk.files() == {HERE / "a": b"second"}


def test_what_could_not_be_written_whole_is_as_it_was() -> None:
    refused = 0
    for seed in SEEDS:
        disk = SimulatedDisk(str(seed))
        mount = Mount(disk)
        write_bytes(HERE / "a", b"first", mount)
        disk.troubles[1] = Trouble(lambda: None, share=0.3) if seed % 2 else Trouble(lambda: None, room=seed % 6)
        try:
            write_bytes(HERE / "a", b"second", mount)
        except OSError:
            refused += 1
            assert disk.files()[HERE / "a"] in (b"first", b"second")  # Renamed, perhaps, and only not for good.
            disk.lose_power()
            assert disk.files()[HERE / "a"] in (b"first", b"second")
        else:
            disk.lose_power()
            assert disk.files()[HERE / "a"] == b"second"
    assert 10 < refused < len(SEEDS)


def test_a_sync_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def left() -> set[bytes]:
        found = set()
        for seed in SEEDS:
            disk = SimulatedDisk(str(seed))
            write_bytes(HERE / "a", b"data", Mount(disk))
            disk.lose_power()
            found.add(disk.files().get(HERE / "a", b"gone"))
        return found

    assert left() == {b"data"}
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFile, "sync", lambda self: None)
        assert {b"", b"data"} < left()
    with monkeypatch.context() as patch:
        patch.setattr(Mount, "sync_folder", lambda self, path: None)
        assert left() == {b"data", b"gone"}


def test_a_full_disk_takes_what_there_is_room_for_and_says_so() -> None:
    struck: list[int] = []
    disk = SimulatedDisk("full")
    mount = Mount(disk)
    file = mount.append(HERE / "a")
    disk.troubles[1] = Trouble(lambda: struck.append(1), room=5)
    assert file.write(b"123") == 3
    assert struck == []
    assert file.write(b"456") == 2
    assert struck == [1]
    for refused in (lambda: file.write(b"7"), lambda: mount.create(HERE / "b")):
        with pytest.raises(OSError, match="No space") as caught:
            refused()
        assert caught.value.errno == errno.ENOSPC
    assert disk.files() == {HERE / "a": b"12345"}
    mount.rename(HERE / "a", HERE / "c")
    mount.remove(HERE / "c")
    assert disk.files() == {}


def test_a_broken_disk_refuses_everything_or_a_share_of_it() -> None:
    disk = SimulatedDisk("broken")
    mount = Mount(disk)
    write_bytes(HERE / "a", b"data", mount)
    disk.troubles[1] = Trouble(lambda: None, share=0.5)
    outcomes: set[int | None] = set()
    for _ in range(40):
        try:
            mount.sync_folder(HERE)
            outcomes.add(0)
        except OSError as error:
            outcomes.add(error.errno)
    assert outcomes == {0, errno.EIO}


def test_a_process_that_is_gone_writes_nothing_more() -> None:
    disk = SimulatedDisk("gone")
    mount = Mount(disk)
    file = mount.append(HERE / "a")
    mount.is_gone = True
    for late in (lambda: file.write(b"late"), lambda: mount.remove(HERE / "a"), lambda: mount.append(HERE / "b")):
        with pytest.raises(OSError, match="the process is gone"):
            late()
    assert disk.files() == {HERE / "a": b""}
    with pytest.raises(FileNotFoundError):
        Mount(disk).rename(HERE / "b", HERE / "c")

"""Snapshots on a disk that fills up, fails and loses power: what is read is a model that was held, whole."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from isthmus.ops.exchange.messages import ShardState, WholeState
from isthmus.programs.engine.snapshots.snapshot_files import BEFORE, FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import FORMAT, READABLE, Found, OtherFormatError, Snapshots
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from tests.programs.engine.snapshots.taken_home import EVERY, RUN, TakenHome

SIZES = (3, 2)


def item(fragment: int, count: int, epoch: int = 1) -> ShardState:
    values = np.full(SIZES[fragment], 100 * epoch + count, np.float32)
    return ShardState(
        fragment=fragment,
        version=[epoch, count],
        kind="merge",
        values=values,
        clock=[[0, 1, 10 * count]],
        positions=[[0, count]],
        totals=[[0, 1, 10 * count], [1, 2, 7]],
        refused=[],
        tensors={"momentum": -values},
        lengths=[0.1 * count],
    )


def model(*counts: int) -> dict[int, ShardState]:
    return {fragment: item(fragment, count) for fragment, count in enumerate(counts)}


def same(found: dict[int, ShardState], held: dict[int, ShardState]) -> bool:
    return found.keys() == held.keys() and all(
        np.array_equal(found[p]["values"], held[p]["values"])
        and np.array_equal(found[p]["tensors"]["momentum"], held[p]["tensors"]["momentum"])
        and {**found[p], "values": None, "tensors": None} == {**held[p], "values": None, "tensors": None}
        for p in held
    )


def trouble(**how: Any) -> Trouble:
    return Trouble(lambda: None, **how)


def snapshots(disk: SimulatedDisk, sizes: tuple[int, ...] = SIZES) -> Snapshots:
    return Snapshots(RUN / FOLDER, sizes, Mount(disk))


def names(disk: SimulatedDisk) -> list[str]:
    return [path.name for path in disk.files()]


def test_a_run_that_was_over_goes_on_from_versions_that_are_not_its_end() -> None:
    disk = SimulatedDisk("seed")
    before = snapshots(disk)
    for counts in ((1, 2), (2, 3)):
        before.write({p: ShardState({**each, "kind": "final"}) for p, each in model(*counts).items()})
    Snapshots(RUN / FOLDER, None, Mount(disk)).go_on()
    assert same(snapshots(disk).read().held, model(2, 3))
    Mount(disk).remove(RUN / FOLDER / MANIFEST)
    assert same(snapshots(disk).read().held, model(1, 2))


def test_what_is_written_is_read_by_the_next_life() -> None:
    disk = SimulatedDisk("seed")
    assert snapshots(disk).read() == Found(None, {}, [], {})
    assert snapshots(disk).write(model(1, 2)).number == 1
    manifest, held, faults, *_ = snapshots(disk).read()
    assert (manifest.number if manifest else None, faults) == (1, [])
    assert same(held, model(1, 2))


def test_only_what_is_new_is_written_and_what_no_snapshot_needs_goes() -> None:
    disk = SimulatedDisk("seed")
    kept = snapshots(disk)
    kept.read()
    for counts in ((1, 1), (2, 1), (3, 1)):
        kept.write(model(*counts))
    assert kept.write(model(3, 1)).number == 3
    values = ["fragment-0-1-2.safetensors", "fragment-0-1-3.safetensors", "fragment-1-1-1.safetensors"]
    assert names(disk) == [*values, BEFORE, MANIFEST]
    assert kept.versions() == [[0, 1, 2], [0, 1, 3], [1, 1, 1], [1, 1, 1]]


def damaged(disk: SimulatedDisk, name: str, data: bytes) -> None:
    content = disk.content(RUN / FOLDER / name)
    assert content is not None
    content.data[:] = data


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        (
            "fragment-0-1-2.safetensors",
            b"short",
            r"fragment-0-1-2\.safetensors is not what was written: 5 of 160 bytes",
        ),
        (MANIFEST, b"{}", "missing required field"),
        (MANIFEST, b'{"format": 2, "number": 9, "fragments": []}', "expected 2 fragments, found 0"),
        (MANIFEST, b"\xff\x00", "invalid|malformed"),
    ],
)
def test_one_that_is_damaged_is_named_and_the_one_before_it_is_read(name: str, data: bytes, told: str) -> None:
    disk = SimulatedDisk("seed")
    kept = snapshots(disk)
    for count in (1, 2):
        kept.write(model(count, 1))
    damaged(disk, name, data)
    manifest, held, faults, *_ = snapshots(disk).read()
    assert manifest is not None
    assert same(held, model(1, 1))
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(faults[0])


@pytest.mark.parametrize("sizes", [SIZES, None])
def test_whether_one_is_whole_is_found_without_keeping_it(sizes: tuple[int, ...] | None) -> None:
    disk = SimulatedDisk("seed")
    looked = Snapshots(RUN / FOLDER, sizes, Mount(disk))
    assert looked.examine() == Found(None, {}, [], {})
    kept = snapshots(disk)
    for count in (1, 2):
        kept.write(model(count, 1))
    assert looked.examine() == Found(kept.newest, {}, [], {}, MANIFEST)
    damaged(disk, MANIFEST, b"{}")
    manifest, _, faults, _, name = looked.examine()
    assert (name, manifest is not None and manifest.number, len(faults)) == (BEFORE, 1, 1)


@pytest.mark.parametrize("number", [READABLE[0] - 1, FORMAT + 1])
@pytest.mark.parametrize("is_newest_damaged", [False, True])
def test_one_of_another_format_is_not_damaged_and_nothing_is_written_beside_it(
    number: int, is_newest_damaged: bool
) -> None:
    disk = SimulatedDisk("seed")
    kept = snapshots(disk)
    for count in (1, 2):
        kept.write(model(count, 1))
    name = BEFORE if is_newest_damaged else MANIFEST
    was, other = (f'"format": {each}'.encode() for each in (FORMAT, f'{number}, "other": 1'))
    told = Mount(disk).read(RUN / FOLDER / name).replace(was, other)
    damaged(disk, name, told)
    if is_newest_damaged:
        damaged(disk, MANIFEST, b"{}")
    there = disk.files()
    for read in (snapshots(disk).read, snapshots(disk).examine, snapshots(disk).held, snapshots(disk).go_on):
        with pytest.raises(OtherFormatError) as caught:
            read()
        assert f"{number}" in caught.value.faults[0].found
    if not is_newest_damaged:
        with pytest.raises(OSError) as refused:  # By its number.
            kept.write(model(3, 1))
        assert refused.value.errno == errno.ESTALE
    assert disk.files() == there


def test_the_one_before_a_damaged_one_stays_until_the_next_is_there() -> None:
    disk = SimulatedDisk("seed")
    kept = snapshots(disk)
    for count in (1, 2):
        kept.write(model(count, 1))
    damaged(disk, MANIFEST, b"{}")
    kept = snapshots(disk)
    kept.read()
    disk.troubles[0] = trouble(room=400)  # For the values, and not for the manifest.
    with pytest.raises(OSError, match="No space"):
        kept.write(model(3, 1))
    disk.troubles.clear()
    assert same(snapshots(disk).read().held, model(1, 1))
    kept.write(model(3, 1))
    assert same(snapshots(disk).read().held, model(3, 1))


def test_a_whole_state_comes_back_with_types_that_safetensors_lacks_and_an_unchanged_one_stays_where_it_is() -> None:
    disk = SimulatedDisk("seed")
    state = WholeState(
        tokens=5,
        steps=2,
        totals=[[0, 1, 5]],
        positions=[[0, 3]],
        streams=[[0, 3, np.arange(4, dtype=np.uint8)]],
        leaves=[np.ones(3, ml_dtypes.bfloat16), np.array(7, np.int32)],
        standings=[[1, 2, None, [[1, 0, 3, 2]]], [1, 2, 5, []]],
    )
    kept = snapshots(disk)
    kept.write({}, {0: state})
    kept.write({}, {0: state, 1: {**state, "tokens": 6}})
    found = snapshots(disk, ()).read().states
    assert [path.name for path in disk.files() if path.suffix == ".safetensors"] == [
        f"state-{index}-1-{tokens}.safetensors" for index, tokens in ((0, 5), (1, 6))
    ]
    for leaf, was in zip(found[0].pop("leaves"), state["leaves"], strict=True):  # type: ignore[misc]
        assert (leaf.dtype, leaf.tobytes()) == (was.dtype, was.tobytes())
    [[*stream, held]] = found[0]["streams"]
    assert (stream, held.tolist()) == ([0, 3], [0, 1, 2, 3])
    assert {**found[0], "streams": None} == {
        k: None if k == "streams" else v for k, v in state.items() if k != "leaves"
    }


def test_those_of_another_model_are_none() -> None:
    disk = SimulatedDisk("seed")
    snapshots(disk).write(model(1, 1))
    manifest, held, faults, *_ = snapshots(disk, (3, 4)).read()
    assert (manifest, held) == (None, {})
    assert "expected 4 values of float32, found float32(2,)" in faults[0]


class Dying(Mount):
    """The disk of a process that dies before it syncs the name of a manifest."""

    def sync_folder(self, path: Path) -> None:
        if path / MANIFEST in self.disk().files():
            raise RuntimeError
        super().sync_folder(path)


def test_one_that_is_read_after_its_writer_died_is_there_to_stay() -> None:
    """Simulated: seed 811130 of the deaths."""
    disk = SimulatedDisk("seed")
    with pytest.raises(RuntimeError):
        Snapshots(RUN / FOLDER, SIZES, Dying(disk)).write(model(1, 2))
    following = snapshots(disk)
    assert same(following.read().held, model(1, 2))
    assert following.write(model(1, 2)).number == 1  # Nothing is new, so nothing is written: it was taken.
    disk.lose_power()
    assert same(snapshots(disk).read().held, model(1, 2))


@pytest.mark.parametrize("seed", range(20))
def test_whenever_the_power_goes_one_that_was_taken_is_read(seed: int) -> None:
    """The disk fails one operation after another, and then the power does."""
    disk = SimulatedDisk(f"{seed}")
    kept, possible = snapshots(disk), [model(0, 0)]
    kept.write(possible[0])
    for count in range(1, 12):
        disk.troubles[0] = trouble(share=0.2)
        possible.append(model(count, count // 2))
        with suppress(OSError):
            kept.write(possible[-1])
            del possible[:-1]  # It was taken: none before it will do.
        disk.troubles.clear()
    disk.lose_power()
    manifest, held, *_ = snapshots(disk).read()
    assert manifest is not None
    assert any(same(held, each) for each in possible)
    snapshots(disk).write(model(20, 20))
    assert same(snapshots(disk).read().held, model(20, 20))


# -- when they are taken -----------------------------------------------------------------------------------------------


def Home(disk: SimulatedDisk, life: int = 1) -> TakenHome:  # noqa: N802
    return TakenHome(disk, life, sizes=SIZES)


def number(disk: SimulatedDisk) -> int:
    found = disk.files().get(RUN / FOLDER / MANIFEST)
    return int(json.loads(found)["number"]) if found else 0


def test_a_life_that_was_replaced_takes_none() -> None:
    disk = SimulatedDisk("seed")
    former = Home(disk)
    former.fire(item(0, 0), item(1, 0))
    Home(disk, life=2).fire(item(0, 4), item(1, 4))
    before = disk.files()
    former.fire(item(0, 1), item(1, 1), after=EVERY)
    former.hold.close()
    assert disk.files() == before
    assert "later life" in former.context.published[-1]["error"]


def test_one_is_taken_once_all_fragments_are_there_and_then_at_intervals() -> None:
    disk = SimulatedDisk("seed")
    home = Home(disk)
    home.fire(item(0, 0))
    assert number(disk) == 0
    home.fire(item(1, 0))
    assert number(disk) == 1
    assert home.fire(item(0, 1))["saved"] == [[0, 1, 0], [1, 1, 0]]
    assert number(disk) == 1
    home.fire(after=EVERY)
    assert number(disk) == 2
    home.hold.close()
    assert number(disk) == 2


def test_the_next_life_holds_what_the_last_one_had_on_disk() -> None:
    disk = SimulatedDisk("seed")
    Home(disk).fire(item(0, 3), item(1, 4))
    told = Home(disk).fire()
    assert told == {
        "holder": "recorder",
        "fragments": [0, 1],
        "merged": [0, 1],
        "saved": [[0, 1, 3], [1, 1, 4]],
        "totals": [[0, 1, 40], [1, 2, 7]],
        "lives": [[0, 1]],
        "given": [],
        "faults": [],
        "error": None,
        "store": None,
    }


def test_what_is_wrong_with_a_snapshot_and_what_the_disk_says_is_told() -> None:
    disk = SimulatedDisk("seed")
    home = Home(disk)
    home.fire(item(0, 3), item(1, 4))
    home.fire(item(0, 4), after=EVERY)
    damaged(disk, MANIFEST, b"{}")
    home = Home(disk)
    told = home.fire()
    assert told["saved"] == [[0, 1, 3], [1, 1, 4]]
    assert [fault[:23] for fault in told["faults"]] == ["snapshots/manifest.json"]
    disk.troubles[0] = trouble(room=0)
    home.fire(item(0, 5), after=EVERY)
    assert home.fire()["error"] == "No space left on device"


def test_a_shard_in_a_new_life_is_given_its_momentum_and_learners_are_not() -> None:
    disk = SimulatedDisk("seed")
    Home(disk).fire(item(0, 3), item(1, 4))
    home = Home(disk)
    home.replace(0)
    home.fire()
    assert [sorted({"values", "tensors"} & each.keys()) for each in home.told["copy"]] == [["values"]] * 2
    kept = [(sent["fragment"], sent["version"], sent["tensors"]) for sent in home.told["kept"]]
    assert [each[:2] for each in kept] == [(0, [1, 3]), (1, [1, 4])]
    assert np.array_equal(kept[0][2]["momentum"], item(0, 3)["tensors"]["momentum"])


def test_nothing_is_written_over_snapshots_that_the_disk_does_not_show_yet() -> None:
    disk = SimulatedDisk("seed")
    Home(disk).fire(item(0, 3), item(1, 4))
    disk.troubles[0] = trouble(share=1.0)
    home = Home(disk)
    assert home.fire()["fragments"] == []
    assert home.context.published[-1]["error"] == "Input/output error"
    disk.troubles.clear()
    home.fire(item(0, 5))
    home.fire(after=EVERY)
    assert same(snapshots(disk).read().held, {0: item(0, 5), 1: item(1, 4)})


def test_a_disk_that_is_full_keeps_the_one_before_and_training_goes_on() -> None:
    disk = SimulatedDisk("seed")
    home = Home(disk)
    home.fire(item(0, 0), item(1, 0))
    disk.troubles[0] = trouble(room=0)
    assert home.fire(item(0, 1), after=EVERY) is not None
    assert home.context.published[-1] | {"taken_at": None} == {
        "number": 1, "taken_at": None, "faults": [], "error": "No space left on device", "store": None
    }  # fmt: skip
    assert same(snapshots(disk).read().held, model(0, 0))
    disk.troubles.clear()
    home.fire(after=EVERY)
    assert same(snapshots(disk).read().held, model(1, 0))

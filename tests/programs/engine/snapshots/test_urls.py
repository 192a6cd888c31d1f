"""Snapshots at a URL: a server that speaks S3, cut in the middle of a write; and places that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from isthmus.ops.exchange.messages import ShardState
from isthmus.programs.engine.snapshots import stored
from isthmus.programs.engine.snapshots.keeping import fetch
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.programs.engine.snapshots.stored import (
    StoredSnapshots,
    StorePlace,
    StoreTerm,
    UrlStore,
    check,
    newest,
    place_of,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK
from tests.effort import soaked
from tests.programs.engine.snapshots.s3_server import BUCKET, Way, environment, serving

SIZE = 50_000
HEAD_BYTES = 100_000


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as port:
        yield port


@pytest.fixture
def way(port: int) -> Iterator[Way]:
    way = Way(port)
    with environment(way.port):
        yield way
    way.close()


def model(count: int, size: int = SIZE) -> dict[int, ShardState]:
    rng = np.random.default_rng(count)
    return {
        fragment: ShardState(
            fragment=fragment,
            version=[1, count],
            kind="merge",
            values=rng.normal(size=size).astype(np.float32),
            clock=[[0, 1, count]],
            positions=[[0, count]],
            totals=[[0, 1, count]],
            refused=[],
            tensors={},
            lengths=[],
        )
        for fragment in range(2)
    }


class Home:
    def __init__(self, folder: Path, url: str, size: int = SIZE) -> None:
        self.folder, self.size = folder, size
        self.snapshots = Snapshots(folder / FOLDER, (size, size), DISK)
        self.stored = StoredSnapshots(UrlStore(url), "run-1", "here:/run", StoreTerm(), 1)

    def store(self, count: int) -> None:
        manifest = self.snapshots.write(model(count, self.size))
        files = self.folder / FOLDER
        list(self.stored.writing(manifest, lambda name: (files / name).read_bytes(), self.small, {}, 0))

    def small(self) -> dict[str, bytes]:
        return {"spec.json": bytes(HEAD_BYTES)}


def found(url: str, folder: Path, size: int = SIZE) -> dict[int, ShardState]:
    folder.mkdir()
    fetch(StorePlace(url), folder, DISK, "Resuming")
    return Snapshots(folder / FOLDER, (size, size), DISK).read().held


def same(held: dict[int, ShardState], other: dict[int, ShardState]) -> bool:
    return all(np.array_equal(held[p]["values"], other[p]["values"]) for p in other) and held.keys() == other.keys()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, soaked(2_700_000)], ids=["whole", "in-parts"])
def test_a_write_that_is_cut_leaves_the_snapshot_before_it(
    way: Way, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_CHUNK_BYTES", 5 << 20)  # The least that S3 takes: a large object goes in three parts.
    url = f"s3://{BUCKET}/cut-{size}"
    home = Home(tmp_path / "home", url, size)
    home.store(1)
    for room in (3 * size, 6 * size, 4 * size + HEAD_BYTES // 2):  # In the first object, in the second, in the head.
        way.room = room
        with pytest.raises(OSError, match=r"(?i)connect|closed"):
            home.store(2)
        assert way.room == 0
        way.room = None
        assert same(found(url, tmp_path / f"after-{room}", size), model(1, size))
    home.store(3)
    assert same(found(url, tmp_path / "back", size), model(3, size))
    store = UrlStore(url)
    assert len(store.names()) == 6  # Of two snapshots, with nothing left of the one that was cut off.


@pytest.mark.slow
def test_objects_are_listed_and_removed(port: int) -> None:
    store = UrlStore(f"s3://{BUCKET}/objects")
    assert store.names() == []
    store.put("b", b"2")
    store.put("a", b"1")
    assert (store.names(), store.get("b", 1)) == (["a", "b"], b"2")
    with pytest.raises(OSError, match="expected at most 0"):
        store.get("b", 0)
    with pytest.raises(FileNotFoundError):
        store.get("c", 1)
    store.remove("a")
    store.remove("a")
    assert store.names() == ["b"]
    check(StorePlace(f"s3://{BUCKET}/objects"), DISK)
    assert store.names() == ["b"]


def test_other_filesystems_of_fsspec_do_as_well(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "memory://snapshots/run", SIZE)
    home.store(1)
    home.store(2)
    assert same(found("memory://snapshots/run", tmp_path / "found"), model(2))


def test_a_folder_is_reached_through_the_disk(tmp_path: Path) -> None:
    assert place_of("there", tmp_path) == StorePlace(str(tmp_path / "there"))
    assert place_of(f"file://{tmp_path}/x/../there") == StorePlace(str(tmp_path / "there"))
    place = place_of(f"file://{tmp_path}/there")
    check(place, DISK)
    assert os.listdir(tmp_path / "there") == []
    assert newest(place.open(DISK), lambda *_: None) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a folder, or a URL"),
        ("file://there", "expected a folder, or a URL"),
        ("s4://bucket/path", "a URL whose scheme fsspec knows, found 's4://bucket/path'"),
        ("s3://", "a path behind the scheme"),
        ("simplecache::s3://bucket/path", "one filesystem, found a chain"),
        ("gs://bucket/path", "the package for gs:// beside fsspec, found none"),
    ],
)
def test_what_is_no_place_is_said(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match="Reading run") as caught:
        place_of(text)
    assert told in str(caught.value)


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_said(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for text, told in ((f"s3://no-{BUCKET}/x", "bucket does not exist"), (f"{tmp_path}/file/x", "Not a directory")):
        with pytest.raises(ConfigError, match=told):
            check(StorePlace(text), DISK)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="Unable to locate credentials"):
        check(StorePlace(f"s3://{BUCKET}/x"), DISK)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said(way: Way) -> None:
    way.close()
    with pytest.raises(ConfigError, match=r"(?i)connect"):
        check(StorePlace(f"s3://{BUCKET}/x"), DISK)


@pytest.mark.slow
def test_the_place_of_another_run_is_not_taken(port: int, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/taken"
    Home(tmp_path, url).store(1)
    check(StorePlace(url), DISK, run="run-1")
    for run in ("", "run-2"):
        with pytest.raises(ConfigError, match="those of run-1"):
            check(StorePlace(url), DISK, run=run)

"""Token files: what is read of them is what was written, they are made once, and nothing half is ever read."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.corpus import Corpus, DataError, TokenIds, split_of
from isthmus.programs.reading import token_files, token_progress
from isthmus.programs.reading.found import described
from isthmus.programs.reading.token_files import FOUND, MADE, NOT_KEPT, TokenFile, TokenWriter, clear, token_file
from isthmus.programs.reading.token_progress import MakingProgress, told_by
from tests.patience import PATIENCE

NAME = "0" * 32
OTHER = "1" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    token_files._held.clear()
    yield tmp_path / "cache" / "isthmus" / "tokens"
    token_files._held.clear()


def writing(files: Sequence[np.ndarray[Any, Any]], calls: list[int] | None = None) -> token_files.Make:
    def make(writer: TokenWriter) -> Mapping[str, Any]:
        if calls is not None:
            calls.append(1)
        for ids in files:
            for begin in range(0, len(ids), 1000):
                writer.add(ids[begin : begin + 1000].astype(np.int32))
            writer.end_file()
        return {"files": len(files)}

    return make


def of(files: Sequence[np.ndarray[Any, Any]], vocabulary: int = 100, name: str = NAME) -> TokenFile:
    return token_file(name, (), vocabulary, writing(files))


def again(make: token_files.Make, name: str = NAME) -> TokenFile:
    """The file as another process has it."""
    token_files._held.clear()
    return token_file(name, (), 100, make)


def all_of(side: TokenIds) -> list[int]:
    return side.window(0, len(side)).tolist() if len(side) else []


def drawn(sizes: Sequence[int], vocabulary: int, least: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(sum(sizes))
    return [rng.integers(least, vocabulary, size).astype(np.int32) for size in sizes]


@pytest.mark.parametrize(
    ("vocabulary", "is_marked", "kind"),
    [(100, False, "u2"), (65_536, False, "u2"), (65_537, False, "i4"), (32_768, True, "i2"), (32_769, True, "i4")],
)
@pytest.mark.parametrize("sizes", [[5000], [0, 12, 3001], [*range(1, 70)], [7, 7, 90_000, *range(200, 240)]])
def test_split_and_digest_are_those_of_the_same_ids_in_memory(
    vocabulary: int, is_marked: bool, kind: str, sizes: list[int]
) -> None:
    files = drawn(sizes, vocabulary, -vocabulary if is_marked else 0)
    files[-1][0] = -vocabulary if is_marked else vocabulary - 1
    files += [files[-1], files[0]]  # Copies fall on one side.
    expected: Corpus = split_of(files, vocabulary)
    file = of(files, vocabulary)
    assert (file.origin, file.ids.dtype.str, file.facts) == (MADE, f"<{kind}", {"files": len(files)})
    assert file.whole().window(0, len(file.ids)).tolist() == np.concatenate(files).tolist()
    assert [each.whole().are_marked for each in (file, again(writing([])))] == [is_marked] * 2
    for read in (file.corpus(vocabulary), again(writing([])).corpus(vocabulary)):
        assert all_of(read.train) == all_of(expected.train)
        assert all_of(read.evaluation) == all_of(expected.evaluation)
        assert read.digest == expected.digest


def test_ids_are_widened_where_the_first_complement_comes_late() -> None:
    files = drawn([3_000_000, 10], 100)
    files[1][3] = ~99
    file = of(files)
    assert (file.ids.dtype, file.is_marked) == (np.int16, True)
    assert np.array_equal(file.ids, np.concatenate(files))


def test_nothing_of_it_is_held_in_memory() -> None:
    """Segments are views of the mapping, however many files there are, and few where files are neighbours."""
    file = of(drawn([*range(100, 160)], 100))
    corpus = file.corpus(100)
    held_out = corpus.evaluation.segments
    assert all(np.shares_memory(segment, file.ids) for segment in (*corpus.train.segments, *held_out))
    assert 1 <= len(held_out) <= 3
    assert len(corpus.train.segments) <= 4


def test_a_file_is_made_once(folder: Path) -> None:
    calls: list[int] = []
    make = writing(drawn([50], 100), calls)
    assert again(make).origin == MADE
    assert again(make).origin == FOUND
    assert len(calls) == 1
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.tokens"]
    assert (folder / f"{NAME}.tokens").stat().st_mode & 0o077 == 0


def test_a_process_that_has_made_tokens_gives_back_what_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are forked from it: in each of them the heap of the tokenizer was as large as a host."""
    given: list[int] = []
    monkeypatch.setattr(token_files, "give_back", lambda: given.append(1))
    make = writing(drawn([50], 100))
    for expected in (1, 1):
        again(make)
        assert len(given) == expected


def test_names_follow_from_all_that_ids_follow_from(tmp_path: Path) -> None:
    data = tmp_path / "a.txt"
    data.write_text("text")
    file, documents, options = described(data), {"tokenizer.json": b"{}"}, {"training": [1, None]}
    names = {token_files.name_of([file], documents, options)}
    assert names == {token_files.name_of([described(data)], dict(documents), dict(options))}
    os.utime(data, ns=(1, file.changed_ns))  # The same time of change, which is how it was: ctime tells.
    others = [
        ([described(data)], documents, options),
        ([file, file], documents, options),
        ([file], {"tokenizer.json": b"{ }"}, options),
        ([file], {**documents, "added_tokens.json": b""}, options),
        ([file], documents, {"training": [1, "p"]}),
        ([file], documents, {"evaluation": [1, None]}),
    ]
    names |= {token_files.name_of(*other) for other in others}
    assert len(names) == 1 + len(others)


def damaged(path: Path, damage: str) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        if damage == "cut":
            file.truncate(size // 2)
        elif damage == "empty":
            file.truncate(0)
        elif damage == "longer":
            file.seek(0, 2)
            file.write(b"more")
        else:
            file.seek({"first": 0, "middle": size // 2, "end": size - 60}[damage])
            was = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([was[0] ^ 1]))


@pytest.mark.parametrize("damage", ["cut", "empty", "longer", "first", "middle", "end"])
def test_a_damaged_file_is_made_again(folder: Path, damage: str) -> None:
    make = writing(drawn([5000], 100))
    ids = again(make).ids.tolist()
    damaged(folder / f"{NAME}.tokens", damage)
    file = again(make)
    assert (file.origin, file.ids.tolist()) == (MADE, ids)
    assert file.reason
    assert again(make).origin == FOUND


def test_data_that_change_while_they_are_read_are_refused(tmp_path: Path, folder: Path) -> None:
    data = tmp_path / "a.txt"
    data.write_text("text")

    def appending(writer: TokenWriter) -> Mapping[str, Any]:
        with data.open("a") as file:
            file.write("more")
        return writing(drawn([10], 100))(writer)

    def removing(writer: TokenWriter) -> Mapping[str, Any]:
        data.unlink()
        return writing(drawn([10], 100))(writer)

    for make in (appending, removing):
        with pytest.raises(DataError) as caught:
            token_file(NAME, (described(data),), 100, make)
        assert str(data) in caught.value.found
        assert list(folder.iterdir()) == []


def test_what_was_written_a_moment_ago_is_read_later(tmp_path: Path) -> None:
    """Within one tick of the kernel's clock a file can change twice and keep its time."""
    data = tmp_path / "a.txt"
    data.write_text("text")
    begun: list[int] = []

    def make(writer: TokenWriter) -> Mapping[str, Any]:
        begun.append(time.time_ns())
        return writing([])(writer)

    file = described(data)
    token_file(NAME, (file,), 100, make)
    assert begun[0] >= file.renewed_ns + 50_000_000


# -- other processes ---------------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from isthmus.programs.reading.token_files import token_file

calls, go_on = map(Path, sys.argv[1:3])

def make(writer):
    with calls.open("a") as file:
        file.write("made\\n")
    writer.add(np.arange(50, dtype=np.int32))
    while not go_on.exists():
        time.sleep(0.01)
    writer.add(np.arange(50, dtype=np.int32))
    writer.end_file()
    return {}

file = token_file("0" * 32, (), 100, make)
print(file.origin, int(file.ids.sum()), flush=True)
sys.stdin.read()
"""


def child(calls: Path, go_on: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(calls), str(go_on)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.process
def test_of_several_processes_one_makes_it_and_a_killed_one_is_replaced(tmp_path: Path, folder: Path) -> None:
    calls, go_on = tmp_path / "calls", tmp_path / "go on"
    with child(calls, go_on) as first, ExitStack() as others:
        wait_until(calls.exists)
        mappers = [others.enter_context(child(calls, go_on)) for _ in range(2)]
        first.kill()
        wait_until(lambda: calls.read_text() == "made\n" * 2)
        assert [path.suffix for path in folder.iterdir()] == [".making"]
        go_on.touch()
        lines = sorted(each.stdout.readline().split() for each in mappers if each.stdout)
        assert lines == [[FOUND, "2450"], [MADE, "2450"]]
        assert calls.read_text() == "made\n" * 2
        # What they have mapped is in use, and what no process has is removed.
        of(drawn([20], 100), name=OTHER)
        token_files._held.clear()
        cleared = clear()
        assert (cleared.files, cleared.in_use) == (1, 1)
        assert cleared.bytes > 0
    assert clear().files == 1
    assert list(folder.iterdir()) == []


MEASURED = """
import sys
from pathlib import Path
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.reading.token_files import token_file

def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def make(writer):
    global most
    for ids in blocks_of(Path(sys.argv[1]), {"task.column": "text"}, ByteTokens(), 255, "Reading it"):
        writer.add(ids)
        most = max(most, own())
    writer.end_file()
    return {}

most = before = own()
corpus = token_file("0" * 32, (), 256, make).corpus(256)
windows = [corpus.train.window(start, 1000).sum() for start in range(0, len(corpus.train) - 1000, 1000)]
print(len(corpus.train), max(most, own()) - before)
"""


@pytest.mark.process
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    row = json.dumps({"text": "x" * 9_999}) + "\n"
    (tmp_path / "rows.jsonl").write_text(row * 6_000)  # 60 MB, of which ids of four bytes in memory are 240.
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "rows.jsonl")]
    tokens, grown = map(int, subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split())
    assert tokens == 57_000_000
    assert grown < 30 << 20


# -- disks that are full, read-only, or without locks ------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, room: Callable[[], bool]) -> None:
    real = os.pwrite

    def pwrite(file: int, data: Any, at: int) -> int:
        if room():
            return real(file, data, at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)


def test_a_full_disk_is_told_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, lambda: False)
    with pytest.raises(DataError) as caught:
        of(drawn([5000], 100))
    assert "No space left" in caught.value.found
    assert str(folder) in caught.value.expected
    assert "isthmus data --clear" in caught.value.remedy
    assert list(folder.iterdir()) == []


def test_where_the_disk_is_full_what_nobody_reads_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(drawn([5000], 100), name=OTHER)
    token_files._held.clear()
    full(monkeypatch, lambda: not (folder / f"{OTHER}.tokens").exists())
    assert of(drawn([5000], 100)).origin == MADE


def refused(*_: Any, **__: Any) -> int:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_cache_that_cannot_be_used_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = drawn([5000], 100)
    folder.parent.mkdir(parents=True)
    folder.write_text("no folder")
    file = of(files)
    assert (file.origin, file.ids.tolist()) == (NOT_KEPT, files[0].tolist())
    assert file.reason
    assert len(caplog.records) == 1
    folder.unlink()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert again(writing(files)).origin == NOT_KEPT
    assert len(caplog.records) == 2


def test_a_read_only_cache_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = writing(drawn([50], 100))
    again(make)
    real = os.open

    def read_only(path: Any, flags: int, *more: int) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR) and folder in Path(path).parents
        return refused() if writes else real(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", refused)
    assert again(make).origin == FOUND
    token_files._held.clear()
    assert token_file(OTHER, (), 100, make).origin == NOT_KEPT


def test_on_a_disk_without_locks_nothing_is_removed_unasked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockless(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", lockless)
    monkeypatch.setattr(token_files, "BYTES_MAX", 1)
    make = writing(drawn([50], 100))
    assert again(make).origin == MADE
    assert again(make).origin == FOUND
    assert again(make, OTHER).origin == MADE
    assert sorted(path.name for path in folder.iterdir()) == [f"{NAME}.tokens", f"{OTHER}.tokens"]
    assert clear().files == 2
    # Of another host nobody here can know whether it lives: this process goes on by itself.
    os.symlink(f"elsewhere 7 7 {'0' * 36}", folder / f"{NAME}.making.held")
    file = again(make)
    assert file.origin == NOT_KEPT
    assert "elsewhere" in file.reason


def test_a_maker_that_stands_still_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "STUCK_SECONDS", 0.1)
    folder.mkdir(parents=True)
    file = os.open(folder / f"{NAME}.making", os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    assert again(writing(drawn([50], 100))).origin == NOT_KEPT
    os.close(file)
    assert again(writing(drawn([50], 100))).origin == MADE


def test_beyond_the_bound_those_go_that_were_opened_longest_ago(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = writing(drawn([5000], 100))
    names = [str(number) * 32 for number in range(4)]
    size = 0
    for number, name in enumerate(names[:3]):
        again(make, name)
        size = 512 * (folder / f"{name}.tokens").stat().st_blocks
        os.utime(folder / f"{name}.tokens", (number, number))
    first = again(make, names[0])  # It is the newest now, and this process has it.
    os.utime(folder / f"{names[0]}.tokens", (0, 0))
    monkeypatch.setattr(token_files, "BYTES_MAX", 2 * size)
    last = again(make, names[3])
    assert sorted(path.stem for path in folder.iterdir()) == [names[0], names[3]]
    assert (first.origin, last.origin) == (FOUND, MADE)
    assert clear() == (0, 0, 2, 2 * size)


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / f"{OTHER}.making").write_bytes(b"half")
    assert clear().files == 1
    assert list(folder.iterdir()) == []


def test_names_are_no_way_out_of_the_cache(tmp_path: Path, folder: Path) -> None:
    """A link that somebody laid there is not written through."""
    folder.mkdir(parents=True)
    target = tmp_path / "mine"
    target.write_text("mine")
    (folder / f"{NAME}.making").symlink_to(target)
    assert of(drawn([50], 100)).origin == NOT_KEPT
    assert target.read_text() == "mine"


def test_an_empty_corpus_has_no_tokens(tmp_path: Path) -> None:
    file = of([np.empty(0, np.int32)])
    assert (len(file.ids), file.sizes) == (0, (0,))
    assert len(file.corpus(100).train) == 0


def test_how_far_a_file_is_is_told_to_who_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(token_progress, "PAUSE_NS", 0)
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text("x")
    heard: list[MakingProgress] = []
    make = writing([np.arange(1500) % 100, np.arange(700) % 100])
    with told_by(heard.append):
        token_file(NAME, [described(file) for file in files], 100, make)
    assert heard == [MakingProgress(1000, 0, 2), MakingProgress(1500, 0, 2), MakingProgress(2200, 1, 2)]
    again(make)
    assert len(heard) == 3

"""Which files are read, what becomes of them, and that the split is a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.data import corpus as corpus_module
from isthmus.ops.data.corpus import DataError, TokenIds, load
from isthmus.programs.reading.found import find


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def all_ids(tokens: TokenIds) -> np.ndarray:
    return tokens.window(0, len(tokens)) if len(tokens) else np.zeros(0, np.uint8)


def test_the_standard_library_is_found_without_its_tests() -> None:
    sources = find().files
    names = [Path(source.path).parts for source in sources]
    assert {"argparse.py", "shutil.py", "json", "asyncio"} <= {part for parts in names for part in parts}
    assert not {"test", "tests", "idle_test", "site-packages"} & {part for parts in names for part in parts[:-1]}
    assert all(source.path.endswith(".py") for source in sources)
    assert sources == find().files


def test_the_corpus_of_the_standard_library_holds_out_a_twentieth() -> None:
    sources = find().files
    corpus = load(sources)
    total = len(corpus.train) + len(corpus.evaluation)
    assert total == sum(source.size_bytes for source in sources) > 4_000_000
    assert 0.02 < len(corpus.evaluation) / total < 0.1  # One in twenty files: the share of the text varies.
    assert corpus.vocabulary == 256
    assert load(sources).digest == corpus.digest


def test_few_files_hold_out_the_end_of_each(tmp_path: Path) -> None:
    contents = [bytes([65 + index]) * (100 * (index + 1)) for index in range(3)]
    for index, content in enumerate(contents):
        write(tmp_path / f"{index}.txt", content)
    corpus = load(find((str(tmp_path),)).files)
    assert all_ids(corpus.train).tobytes() == b"A" * 95 + b"B" * 190 + b"C" * 285
    assert all_ids(corpus.evaluation).tobytes() == b"A" * 5 + b"B" * 10 + b"C" * 15


@pytest.mark.slow
@given(sizes=st.lists(st.integers(1, 400), min_size=20, max_size=60), copies=st.integers(0, 10))
def test_many_files_hold_out_whole_ones_and_copies_stay_together(sizes: list[int], copies: int) -> None:
    # Each file consists of a value of its own; the last `copies` repeat the first ones.
    files = [np.full(size, index, np.uint16) for index, size in enumerate(sizes)]
    files += files[:copies]
    train, held_out = corpus_module._split(files)
    assert len(train) + len(held_out) == len(files)
    assert not {int(ids[0]) for ids in train} & {int(ids[0]) for ids in held_out}
    held = {int(ids[0]) for ids in held_out}
    assert 1 <= len(held) <= len(sizes) // 20
    for value in held:
        assert sum(len(ids) for ids in files if ids[0] == value) <= sum(map(len, files)) / 20


def test_the_split_depends_on_contents_and_not_on_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    contents = [rng.bytes(1000) for _ in range(40)]
    for index, content in enumerate(contents):
        write(tmp_path / "one" / f"{index:02}.txt", content)
        write(tmp_path / "two" / f"{39 - index:02}.text", content)
    one, two = (all_ids(load(find((str(tmp_path / name),)).files).evaluation).tobytes() for name in ("one", "two"))
    assert len(one) == 2000
    assert {one[:1000], one[1000:]} == {two[:1000], two[1000:]}


def test_the_digest_tells_contents_apart(tmp_path: Path) -> None:
    digests = set()
    for content in (b"a" * 100, b"a" * 99 + b"b", b"b" + b"a" * 99, b"a" * 101):
        digests.add(load(find((str(write(tmp_path / "text", content)),)).files).digest)
    assert len(digests) == 4


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, ">u4"])
def test_token_arrays(tmp_path: Path, dtype: str) -> None:
    ids = np.arange(200) % 130
    np.save(tmp_path / "ids.npy", ids.astype(dtype))
    corpus = load(find((str(tmp_path),)).files, vocabulary=130)
    np.testing.assert_array_equal(all_ids(corpus.train), ids[:190])
    np.testing.assert_array_equal(all_ids(corpus.evaluation), ids[190:])
    assert corpus.vocabulary == 130


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_raw_tokens(tmp_path: Path, dtype: str) -> None:
    ids = np.arange(1000) * 60
    write(tmp_path / "ids.bin", ids.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
    corpus = load(find((str(tmp_path),)).files, vocabulary=60_000, token_dtype=dtype)
    np.testing.assert_array_equal(all_ids(corpus.train), ids[:950])


def test_large_files_are_mapped_and_small_neighbours_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAPPED_SIZE_BYTES_MIN", 100)
    sizes = (40, 60, 200, 20, 20, 20)
    contents = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    for index, content in enumerate(contents):
        write(tmp_path / f"{index}.txt", content)
    train = load(find((str(tmp_path),)).files).train
    assert [len(segment) for segment in train.segments] == [95, 190, 57]
    assert not train.segments[1].flags.writeable
    kept = b"".join(content[: len(content) - len(content) // 20] for content in contents)
    assert all_ids(train).tobytes() == kept


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.data())
def test_a_window_is_a_slice_of_the_joined_segments(lengths: list[int], data: st.DataObject) -> None:
    # Alternating dtypes keep the segments apart, as mapped files are.
    values = np.arange(sum(lengths))
    parts = np.split(values, np.cumsum(lengths)[:-1])
    tokens = TokenIds(part.astype((np.uint8, np.uint16)[index % 2]) for index, part in enumerate(parts))
    assert len(tokens) == len(values)
    if len(values):
        length = data.draw(st.integers(1, len(values)))
        start = data.draw(st.integers(0, len(values) - length))
        np.testing.assert_array_equal(tokens.window(start, length), values[start : start + length])


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    def refusal(name: str, content: bytes | np.ndarray, **options: object) -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content)
        with pytest.raises(DataError) as caught:
            load(find((str(path),)).files, **options)  # type: ignore[arg-type]
        assert str(path) in str(caught.value)
        return str(caught.value)

    assert "vocabulary size" in refusal("a.npy", np.arange(9))
    assert "vocabulary size" in refusal("a.bin", bytes(10))
    assert "token ids from 0 to 8 in" in refusal("b.npy", np.arange(10), vocabulary=9)
    assert "ids 0 to 9" in refusal("b.npy", np.arange(10), vocabulary=9)
    assert "ids -1 to 3" in refusal("b.npy", np.array([3, -1]), vocabulary=9)
    assert "ids 0 to 65535" in refusal("b.bin", b"\0\0\xff\xff", vocabulary=65535)
    assert "float64 of shape (3,)" in refusal("c.npy", np.ones(3), vocabulary=9)
    assert "int64 of shape (3, 1)" in refusal("c.npy", np.ones((3, 1), int), vocabulary=9)
    assert "uint16 ids" in refusal("odd.bin", bytes(11), vocabulary=9)
    assert "uint32 ids" in refusal("odd.bin", bytes(10), vocabulary=9, token_dtype="uint32")
    assert "a readable file" in refusal("broken.npy", b"no array", vocabulary=9)
    assert "is read as bytes, found vocabulary=255" in refusal("a.txt", b"text", vocabulary=255)


def test_text_and_tokens_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"text")
    np.save(tmp_path / "b.npy", np.arange(9))
    with pytest.raises(DataError, match="Train on one kind"):
        load(find((str(tmp_path),)).files, vocabulary=256)


@pytest.mark.parametrize(
    ("wide", "narrow", "way_out"), [("<i4", "uint16", "task.token_dtype=uint32"), ("<i8", "uint32", ".npy")]
)
def test_ids_read_with_half_their_width_are_refused(tmp_path: Path, wide: str, narrow: str, way_out: str) -> None:
    ids = np.arange(1000) % 999 + 1
    write(tmp_path / "ids.BIN", ids.astype(wide).tobytes())
    with pytest.raises(DataError) as caught:
        load(find((str(tmp_path),)).files, vocabulary=1000, token_dtype=narrow)
    assert str(tmp_path / "ids.BIN") in caught.value.expected
    assert way_out in caught.value.remedy
    write(tmp_path / "ids.BIN", ids.astype(narrow).tobytes())
    corpus = load(find((str(tmp_path),)).files, vocabulary=1000, token_dtype=narrow)
    np.testing.assert_array_equal(all_ids(corpus.train), ids[:950])

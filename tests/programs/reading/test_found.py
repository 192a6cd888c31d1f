"""Which files are read, in which order, and that what is left out is named with its reason."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from isthmus.ops.data.corpus import DataError, load
from isthmus.programs.reading import found as reasons
from isthmus.programs.reading.found import find


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(*paths: Path, are_texts: bool = False) -> list[str]:
    return [file.path for file in find([str(path) for path in paths], are_texts=are_texts).files]


def left_out(*paths: Path, are_texts: bool = False) -> dict[str, str]:
    return {Path(path).name: reason for path, reason in find(list(map(str, paths)), are_texts=are_texts).left_out}


SUFFIXES = ("py", "md", "txt", "toml", "PY", "", "rs", "jsonl", "html", "lock")


def made_folder(root: Path) -> Path:
    """60 files of text and code, three that are hidden, empty or a link."""
    rng = np.random.default_rng(67)
    for index in range(60):
        suffix = SUFFIXES[index % len(SUFFIXES)]
        name = f"{index * 7 % 60:02}" + (f".{suffix}" if suffix else "")
        folder = ("code", "code/deep", "words", "words/of/many")[index % 4]
        write(root / folder / name, rng.integers(32, 127, 200 + 13 * index, np.uint8).tobytes())
    write(root / "words" / ".hidden.txt", b"hidden")
    write(root / "words" / "empty.txt", b"")
    (root / "words" / "zz-link.py").symlink_to(root / "code" / "00.py")
    return root


def test_text_and_code_have_the_order_split_and_ids_that_they_had(tmp_path: Path) -> None:
    made = made_folder(tmp_path)
    found = find((str(made / "words"), str(made)))
    corpus = load(found.files)
    # Of commit fa7a3750, whose `find` left out nothing but hidden and empty files.
    assert (corpus.digest, len(corpus.evaluation)) == ("7eff7f842070e5a892359f453c9d21d5", 2134)
    assert len(found.files) == 60
    assert left_out(made / "words", made) == {
        ".hidden.txt": reasons.HIDDEN,
        "empty.txt": reasons.EMPTY,
        "words": reasons.TWICE,
        "zz-link.py": reasons.TWICE,
    }


def test_pythons_library_is_read_in_the_order_of_its_names() -> None:
    import sysconfig

    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    expected = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(name for name in folders if name not in skipped and not name.startswith("config-"))
        expected += [
            f"{folder}/{name}"
            for name in sorted(names)
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and os.path.getsize(f"{folder}/{name}")
        ]
    found = find()
    assert [file.path for file in found.files] == expected
    assert not found.left_out


def test_folders_are_read_recursively_sorted_and_without_what_is_hidden_or_empty(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/c.bytes", ".hidden.txt", "a/.git/config", "a/sub/deep.txt"):
        write(tmp_path / name, name.encode())
    write(tmp_path / "empty.txt", b"")
    extra = write(tmp_path.parent / "extra.txt", b"extra")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")

    names = ("b.txt", "a/c.bytes", "a/z.txt", "a/sub/deep.txt")
    assert read(tmp_path, extra, tmp_path / "b.txt") == [*(str(tmp_path / name) for name in names), str(extra)]
    assert left_out(tmp_path, extra, tmp_path / "b.txt") == {
        ".hidden.txt": reasons.HIDDEN,
        ".git": reasons.HIDDEN,
        "empty.txt": reasons.EMPTY,
        "dangling": reasons.NOWHERE,
        "pipe": reasons.NO_FILE,
        "b.txt": reasons.TWICE,
    }


def test_a_hidden_file_that_is_named_is_read(tmp_path: Path) -> None:
    assert read(write(tmp_path / ".notes", b"words")) == [str(tmp_path / ".notes")]


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"before")
    before = find((str(path),))
    path.write_bytes(b"after!")
    os.utime(path, ns=(1, 1))
    assert find((str(path),)) != before


def test_nothing_there_is_said_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        find((str(tmp_path / "nowhere"),))
    assert str(tmp_path / "nowhere") in caught.value.expected


def test_where_nothing_is_left_what_is_left_out_is_named(tmp_path: Path) -> None:
    write(tmp_path / "empty.txt", b"")
    write(tmp_path / ".hidden", b"words")
    with pytest.raises(DataError) as caught:
        find((str(tmp_path),))
    assert all(f"{tmp_path / name} ({reason})" in caught.value.found
               for name, reason in (("empty.txt", reasons.EMPTY), (".hidden", reasons.HIDDEN)))  # fmt: skip


def test_linked_folders_are_read_once_in_the_place_of_the_link(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere" / "rows.jsonl", b"rows").parent
    write(elsewhere / "more" / "deep.txt", b"deep")
    data = write(tmp_path / "data" / "a.txt", b"a").parent
    write(data / "z" / "last.txt", b"last")
    write(data / ".store" / "kept.txt", b"kept")
    (data / "linked").symlink_to(elsewhere)
    (data / "again").symlink_to(elsewhere / "more")
    (data / "z-too").symlink_to(data / "z")
    (data / "kept").symlink_to(".store")

    names = ("a.txt", "again/deep.txt", "kept/kept.txt", "linked/rows.jsonl", "z/last.txt")
    assert read(data) == [str(data / name) for name in names]
    assert left_out(data) == {".store": reasons.HIDDEN, "more": reasons.TWICE, "z-too": reasons.TWICE}


def test_the_blobs_of_a_hub_are_read_by_their_links_names(tmp_path: Path) -> None:
    blob = write(tmp_path / "blobs" / "0a1b", b"rows")
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "train.jsonl").symlink_to(blob)
    assert read(tmp_path) == [str(tmp_path / "snapshots" / "train.jsonl")]
    assert read(tmp_path / "snapshots") == [str(tmp_path / "snapshots" / "train.jsonl")]


def test_what_is_neither_file_nor_folder_is_refused_as_that(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = []
    for name in ("pipe", "nowhere"):
        with pytest.raises(DataError) as refused:
            find([str(tmp_path / name)])
        found.append(refused.value.found)
    assert found[0] != found[1]


@pytest.mark.parametrize("target", [".", "..", "../..", "loop"])
def test_a_circle_of_links_is_refused_by_name(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "data" / "deep" / "a.txt", b"a").parent
    (folder / "loop").symlink_to(target)
    with pytest.raises(DataError) as caught:
        find((str(tmp_path / "data"),))
    assert str(folder / "loop") in caught.value.found


def test_a_circle_through_two_links_is_refused(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        write(tmp_path / name / "a.txt", b"a")
        (tmp_path / name / "other").symlink_to(tmp_path / other)
    with pytest.raises(DataError) as caught:
        find((str(tmp_path / "one"),))
    assert f"{tmp_path}/one/other/other" in caught.value.found
    assert len(read(tmp_path)) == 2  # Both folders are read themselves.


def test_what_datasets_writes_beside_its_rows_is_left_out(tmp_path: Path) -> None:
    saved = ("train/data-00000-of-00001.arrow", "train/cache-1234.arrow", "train/state.json", "train/a.lock",
             "train/dataset_info.json", "dataset_dict.json")  # fmt: skip
    for name in saved:
        write(tmp_path / name, b"{}")
    kept = ("code/Cargo.lock", "code/state.json")  # No rows beside them.
    for name in kept:
        write(tmp_path / name, b"{}")
    assert read(tmp_path) == [str(tmp_path / name) for name in (*kept, saved[0])]
    assert left_out(tmp_path) == {Path(name).name: reasons.CACHE for name in saved[1:]}


def test_what_says_something_of_rows_is_left_out_beside_them(tmp_path: Path) -> None:
    def found() -> tuple[list[str], dict[str, str]]:
        read = find([str(tmp_path)], are_texts=True, are_rows=True)
        names = [str(Path(file.path).relative_to(tmp_path)) for file in read.files]
        return names, {str(Path(path).relative_to(tmp_path)): reason for path, reason in read.left_out}

    for name, content in (("README.md", b"---\na: b\n---\n"), ("info.json", b"{}"), ("a/readme.md", b"# words\n")):
        write(tmp_path / name, content)
    every = ["README.md", "info.json", "a/readme.md"]
    assert found() == (every, {})
    assert read(tmp_path) == [str(tmp_path / name) for name in every]
    rows = write(tmp_path / "z" / "rows.jsonl", b'{"text": "a"}')
    about = {"README.md": reasons.CARD, "info.json": reasons.ONE_OBJECT}
    assert found() == (["a/readme.md", "z/rows.jsonl"], about)
    assert read(tmp_path) == [*(str(tmp_path / name) for name in every), str(rows)]  # Bytes may be anything.


NO_DATA = ("a.png", "b.JPG", "c.zip", "d.tar.gz", "e.so", "f.pkl", "g.safetensors", "h.pdf", "i.pt", "j.tar.zst")


def test_what_is_no_data_is_left_out_of_a_folder_and_refused_by_name(tmp_path: Path) -> None:
    for name in NO_DATA:
        write(tmp_path / name, pickle.dumps(name))
    text = write(tmp_path / "text.txt", b"text")
    assert read(tmp_path) == [str(text)]
    assert sorted(left_out(tmp_path)) == sorted(NO_DATA)
    for name in NO_DATA:
        with pytest.raises(DataError) as caught:
            find((str(text), str(tmp_path / name)))
        assert str(tmp_path / name) in caught.value.expected
    with pytest.raises(DataError):
        find((str(write(tmp_path / "empty", b"")),))


def test_texts_have_no_nul_bytes(tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.txt", "text".encode("utf-16-le"))
    text = write(tmp_path / "text.txt", b"text")
    coded = [write(tmp_path / name, b"\0") for name in ("a.parquet", "b.arrow", "c.txt.gz", "d.BIN", "e.npy")]
    assert set(read(tmp_path, are_texts=True)) == set(map(str, [*coded, text]))
    assert left_out(tmp_path, are_texts=True) == {"wide.txt": reasons.NUL_BYTES}
    assert str(wide) in read(tmp_path)  # Bytes may be anything.
    with pytest.raises(DataError) as caught:
        find((str(wide),), are_texts=True)
    assert str(wide) in caught.value.expected


def test_suffixes_of_tokens_are_in_any_case(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").rename(tmp_path / "a.NPY")
    write(tmp_path / "b.Bin", np.arange(100, dtype="<u2").tobytes())
    files = find((str(tmp_path),)).files
    assert all(file.holds_tokens for file in files)
    corpus = load(files, vocabulary=100)
    np.testing.assert_array_equal(corpus.train.window(0, 190), [*range(95), *range(95)])

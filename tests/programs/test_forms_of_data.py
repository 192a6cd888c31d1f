"""Forms of data as people have them: the ids that are read, beside those of another reading, or the refusal."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.corpus import DataError
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.reading.found import find
from isthmus.runtime.errors import ConfigError

END = 255
TEXTS = [
    "plain",
    'a "quoted" text, with commas',
    "two\nlines\r\nand a third",
    "a\ttab",
    "",
    "snow \N{SNOWMAN} and \N{GRINNING FACE}",
    " spaces around ",
    '{"text": "json in a text"}',
    "[1, 2]",
    "back\\slash \\n",
    "x" * 200_000,
    "\u2028 separators \x85",
    "end",
]
ROWS = [{"n": index, "text": text, "more": {"deep": [text]}} for index, text in enumerate(TEXTS)]
FLAT = [{"n": index, "text": text} for index, text in enumerate(TEXTS)]


def read(path: Path, **fields: str) -> list[int]:
    """The ids of all that is found at a path, as a model folder is trained on it."""
    columns = {f"task.{name}": column for name, column in (fields or {"column": "text"}).items()}
    files = find([str(path)], are_texts=True, are_rows=True).files
    parts = [ids for file in files for ids in blocks_of(Path(file.path), columns, ByteTokens(), END, "Reading it")]
    return np.concatenate(parts).tolist() if parts else []


def ids(texts: Iterable[str]) -> list[int]:
    return [byte for text in texts for byte in (*text.encode(), END)]


def separated(separator: str, rows: list[dict[str, Any]] = FLAT, **options: Any) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), delimiter=separator, **options)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def lines(rows: list[dict[str, Any]] = ROWS, **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + "\n" for row in rows).encode()


BOM = b"\xef\xbb\xbf"
HERE: dict[str, bytes] = {
    "a.jsonl": lines(),
    "a.ndjson": lines(),
    "A.JSONL": lines(),
    "unicode.jsonl": lines(ensure_ascii=False),
    "crlf.jsonl": lines().replace(b"\n", b"\r\n"),
    "blank.jsonl": lines().replace(b"\n", b"\n\n"),
    "without-end.jsonl": lines().removesuffix(b"\n"),
    "bom.jsonl": BOM + lines(),
    "packed.jsonl.gz": gzip.compress(lines()),
    "members.jsonl.gz": gzip.compress(lines(ROWS[:5])) + gzip.compress(lines(ROWS[5:])),
    "packed.ndjson.GZ": gzip.compress(lines()),
    "list.json": json.dumps(ROWS).encode(),
    "pretty.json": json.dumps(ROWS, indent=4, ensure_ascii=False).encode(),
    "bom.json": BOM + json.dumps(ROWS).encode(),
    "spaces.json": b"\n \n" + json.dumps(ROWS, separators=(" ,\n", " : ")).encode() + b"\n\n",
    "lines.json": lines(),
    "LIST.JSON": json.dumps(ROWS).encode(),
    "packed.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "a.csv": separated(","),
    "all-quoted.csv": separated(",", quoting=csv.QUOTE_ALL, lineterminator="\n"),
    "bom.csv": BOM + separated(","),
    "blank.csv": separated(",") + b"\r\n\r\n",
    "packed.csv.gz": gzip.compress(separated(",")),
    "a.tsv": separated("\t"),
    "A.Tsv": separated("\t"),
    "packed.tsv.gz": gzip.compress(separated("\t")),
}


@pytest.mark.parametrize("name", HERE)
def test_rows_of_a_file_are_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HERE[name])
    assert read(tmp_path / name) == ids(TEXTS)
    assert read(tmp_path) == ids(TEXTS)


def table() -> Any:
    import pyarrow

    return pyarrow.table({"n": list(range(len(TEXTS))), "text": TEXTS})


def parquet(path: Path, **options: Any) -> None:
    from pyarrow import parquet

    parquet.write_table(table(), path, **options)


def arrow(path: Path, *, is_stream: bool, batch_rows: int = 3) -> None:
    from pyarrow import ipc

    make = ipc.new_stream if is_stream else ipc.new_file
    with make(str(path), table().schema) as writer:
        writer.write_table(table(), max_chunksize=batch_rows)


def zst(data: bytes) -> bytes:
    from pyarrow import Codec

    return bytes(Codec("zstd").compress(data))


def packed(path: Path, write: Callable[[Path], None], pack: Callable[[bytes], bytes]) -> None:
    whole = path.with_name("whole")
    write(whole)
    path.write_bytes(pack(whole.read_bytes()))
    whole.unlink()


def large_strings(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": pyarrow.array(TEXTS, pyarrow.large_string())}), path)


def dictionary(path: Path) -> None:
    import pyarrow
    from pyarrow import ipc

    column = pyarrow.table({"text": pyarrow.array(TEXTS).dictionary_encode()})
    with ipc.new_stream(str(path), column.schema) as writer:
        writer.write_table(column)


BY_ARROW: dict[str, Callable[[Path], Any]] = {
    "a.parquet": parquet,
    "A.PARQUET": parquet,
    "groups.parquet": lambda path: parquet(path, row_group_size=2),
    "zstd.parquet": lambda path: parquet(path, compression="zstd"),
    "large.parquet": large_strings,
    "stream.arrow": lambda path: arrow(path, is_stream=True),
    "file.arrow": lambda path: arrow(path, is_stream=False),
    "dictionary.arrow": dictionary,
    "a.parquet.gz": lambda path: packed(path, parquet, gzip.compress),
    "stream.arrow.gz": lambda path: packed(path, lambda whole: arrow(whole, is_stream=True), gzip.compress),
    "file.arrow.zst": lambda path: packed(path, lambda whole: arrow(whole, is_stream=False), zst),
    "a.jsonl.zst": lambda path: path.write_bytes(zst(lines())),
    "frames.jsonl.zst": lambda path: path.write_bytes(zst(lines(ROWS[:5])) + zst(lines(ROWS[5:]))),
    "list.json.zst": lambda path: path.write_bytes(zst(json.dumps(ROWS).encode())),
    "a.csv.ZST": lambda path: path.write_bytes(zst(separated(","))),
    "a.tsv.zst": lambda path: path.write_bytes(zst(separated("\t"))),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", BY_ARROW)
def test_rows_that_pyarrow_reads_are_documents(tmp_path: Path, name: str) -> None:
    BY_ARROW[name](tmp_path / name)
    assert read(tmp_path / name) == ids(TEXTS)


@pytest.mark.torch
def test_a_folder_as_datasets_keeps_it_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    arrow(tmp_path / "train" / "data-00000-of-00001.arrow", is_stream=True)
    arrow(tmp_path / "train" / "cache-77.arrow", is_stream=True)
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "train" / name).write_text("{}")
    assert read(tmp_path) == ids(TEXTS)
    assert len(find([str(tmp_path)]).left_out) == 4


TEXT = "plain text, {braces} and \N{SNOWMAN}\n"


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "A.TXT", "none", "two.parts.rs", "a.yaml", "a.html"])
def test_a_file_of_text_is_one_document(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TEXT)
    assert read(tmp_path / name) == ids([TEXT])


def test_packed_text_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read(tmp_path) == ids([TEXT, TEXT])


@pytest.mark.torch
def test_text_packed_by_zstd_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt.zst").write_bytes(zst(TEXT.encode()))
    assert read(tmp_path) == ids([TEXT])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.csv.gz"])
def test_rows_have_prompts(tmp_path: Path, name: str) -> None:
    rows = [{"q": f"question {index}", "text": text} for index, text in enumerate(TEXTS[:7])]
    made = {
        "a.jsonl": lines(rows),
        "a.json": json.dumps(rows).encode(),
        "a.csv": separated(",", rows),
        "a.tsv": separated("\t", rows),
        "a.csv.gz": gzip.compress(separated(",", rows)),
    }
    (tmp_path / name).write_bytes(made[name])
    expected = [id for row in rows for id in (*(~byte for byte in row["q"].encode()), *row["text"].encode(), END)]
    assert read(tmp_path / name, prompt="q", column="text") == expected


CUT = gzip.compress(lines())[:-20]
REFUSED: dict[str, tuple[bytes, str]] = {
    "object.json": (b'{"data": [{"text": "a"}]}', ""),
    "numbers.json": (b"[1, 2]", "row 1 of "),
    "text.json": (b'"text"', ""),
    "mixed.json": (b'[{"text": "a"}, [1]]', "row 2 of "),
    "cut.json": (b'[{"text": "a"}, {"text": "b', "row 2 of "),
    "unclosed.json": (b'[{"text": "a"}', "row 1 of "),
    "behind.json": (b'[{"text": "a"}] [', ""),
    "without-comma.json": (b'[{"text": "a"} {"text": "b"}]', "row 1 of "),
    "comma.json": (b'[{"text": "a"},]', "row 1 of "),
    "half-a-character.json": (b'[{"text": "a\\ud83d"}]', "row 1 of "),
    "half-a-character.jsonl": (b'{"text": "a\\ud83d"}\n', "line 1 of "),
    "lists.jsonl": (b'[{"text": "a"}]\n', "line 1 of "),
    "null.json": (b'[{"text": "a"}, {"text": null}]', "row 2 of "),
    "no-text.json": (b'[{"text": "a"}, {"texts": "b"}]', "row 2 of "),
    "latin-1.json": (b'[{"text": "a\xff"}]', "row 1 of "),
    "messages.jsonl": (b'{"messages": [{"role": "user", "content": "a"}]}', "line 1 of "),
    "no-text.ndjson": (b'{"text": "a"}\n{"txt": "b"}', "line 2 of "),
    "no-text.csv": (b"a,b\n1,2\n", "first row of "),
    "twice.csv": (b"text,text\n1,2\n", ""),
    "long-row.csv": (b"n,text\n1,a\n2,b,c\n", "line 3 of "),
    "short-row.tsv": (b"n\ttext\n1\n", "line 2 of "),
    "unclosed.csv": (b'n,text\n1,"a\n2,b\n', "line 3 of "),
    "latin-1.csv": (b"n,text\n1,\xff\n", "of "),
    "cut.jsonl.gz": (CUT, ""),
    "no.jsonl.gz": (b"no gzip", ""),
    "cut.json.gz": (gzip.compress(json.dumps(ROWS).encode())[:-20], ""),
    "ids.bin.gz": (gzip.compress(bytes(10)), ""),
    "latin-1.txt": (b"caf\xe9", ""),
    "wide.csv": ("text\na\n".encode("utf-16"), ""),
    "empty.jsonl": (b"", ""),
    "a.xlsx": (b"PK\3\4", ""),
    "a.jsonl.xz": (b"\xfd7zXZ", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    data, where = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises((ConfigError, DataError)) as caught:
        read(path)
    error = caught.value if isinstance(caught.value, DataError) else caught.value.faults[0]
    assert f"{where}{path}" in f"{error.expected} {error.found}"
    assert error.remedy


@pytest.mark.torch
@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_cut_tables_are_refused_by_name(tmp_path: Path, pack: str) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "null.parquet")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "null.parquet")
    assert f"'text' of row 2 of {tmp_path / 'null.parquet'}" in caught.value.faults[0].expected
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "null.parquet", column="txt")
    assert "task.column" in caught.value.faults[0].remedy
    for name, data in (("cut.parquet", lines()), (f"cut.jsonl.{pack}", b"no such data")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in caught.value.faults[0].expected
    whole = zst(lines()) if pack == "zst" else gzip.compress(lines())
    (tmp_path / f"cut.jsonl.{pack}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / f"cut.jsonl.{pack}")
    assert str(tmp_path / f"cut.jsonl.{pack}") in caught.value.faults[0].expected


def test_an_object_beside_rows_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines())
    (tmp_path / "package.json").write_text('{"name": "a", "version": 1}')
    assert read(tmp_path) == ids(TEXTS)
    found = find([str(tmp_path)], are_rows=True)
    assert [Path(path).name for path, _ in found.left_out] == ["package.json"]


CARGO = '{"name": "a",\n "version": 1}\n'


def test_an_object_among_texts_is_text(tmp_path: Path) -> None:
    """As in a repository of code; where it is named it would be a list of rows."""
    (tmp_path / "a.py").write_text(TEXT)
    (tmp_path / "package.json").write_text(CARGO)
    assert read(tmp_path) == ids([TEXT, CARGO])
    assert not find([str(tmp_path)], are_rows=True).left_out
    with pytest.raises(DataError) as caught:
        read(tmp_path / "package.json")
    assert str(tmp_path / "package.json") in caught.value.expected
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, prompt="q", column="text")
    assert str(tmp_path / "a.py") in refused.value.faults[0].found


def test_an_object_that_has_the_column_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "one",\n "n": 1}')
    (tmp_path / "b.json").write_text('{"text": "two", "q": "three"}')
    assert read(tmp_path) == ids(["one", "two"])
    (tmp_path / "c.json").write_text('{"text": 3}')
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert str(tmp_path / "c.json") in caught.value.faults[0].expected


def test_a_packed_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(CARGO.encode()))
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert str(tmp_path / "a.json.gz") in caught.value.faults[0].expected


def test_rows_of_a_large_list_are_read_one_after_the_other(tmp_path: Path) -> None:
    """What is held does not grow with the file."""
    import tracemalloc

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.json"
        path.write_text("[" + ",".join(['{"text": "' + "y" * 1000 + '"}'] * rows) + "]")
        from isthmus.programs.reading.rows import documents_of

        tracemalloc.start()
        try:
            assert sum(1 for _ in documents_of(path, {"task.column": "text"}, "Reading it")) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8000) < peak(1000) + 100_000

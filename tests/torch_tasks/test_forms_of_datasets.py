"""Forms of data as people have them: the ids that are read, beside those that `datasets` and transformers give."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
import transformers
from pyarrow import parquet

from isthmus.ops.data.corpus import DataError
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.programs.reading.found import CARD, HIDDEN, ONE_OBJECT, find
from isthmus.runtime.errors import ConfigError
from tests.programs.test_forms_of_data import BY_ARROW, HERE, TEXTS
from tests.torch_tasks.folder_tokenizers import VOCABULARY, begins_by, byte_level, write

EOS = 2
datasets = pytest.importorskip("datasets")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose documents have a beginning."""
    return write(tmp_path_factory.mktemp("model"), begins_by(byte_level()))


@pytest.fixture(scope="module")
def tokens(folder: Path) -> FolderTokens:
    return FolderTokens(folder, VOCABULARY, "Reading it")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def ours(tokens: FolderTokens) -> Ours:
    """The ids of all that is found at a path, as a model folder is trained on it."""

    def read(path: Path, column: str = "text") -> list[int]:
        files = find([str(path)], are_texts=True, are_rows=True).files
        columns = {"task.column": column}
        return np.concatenate(
            [ids for each in files for ids in blocks_of(Path(each.path), columns, tokens, EOS, "Reading it")]
        ).tolist()

    return read


@pytest.fixture
def theirs(tokenizer: Any, tmp_path: Path) -> Theirs:
    return Theirs(tokenizer, tmp_path / "cache")


class Theirs:
    """The ids of what a loader of datasets reads, as transformers' tokenizer gives them, each with its end."""

    def __init__(self, tokenizer: Any, cache: Path) -> None:
        self._tokenizer, self._cache = tokenizer, cache

    def read(self, loader: str, *paths: Path, **options: Any) -> list[int]:
        return self.ids(self.texts(loader, *paths, **options))

    def texts(self, loader: str, *paths: Path, **options: Any) -> list[Any]:
        files = [str(path) for path in paths]
        rows = datasets.load_dataset(loader, data_files=files, split="train", cache_dir=str(self._cache), **options)
        return list(rows["text"])

    def ids(self, texts: Sequence[str]) -> list[int]:
        encoded = self._tokenizer(list(texts), split_special_tokens=True)["input_ids"]
        return [id for each in encoded for id in (*each, EOS)]


Ours: TypeAlias = Callable[..., list[int]]
CSV = {"keep_default_na": False}
"""Else the loader takes the texts "", NA and null for none."""
TSV = {**CSV, "sep": "\t"}


def loader_of(name: str) -> tuple[str, dict[str, Any]]:
    match name.lower().rpartition(".")[2]:
        case "csv":
            return "csv", CSV
        case "tsv":
            return "csv", TSV
        case "parquet" | "arrow" as kind:
            return kind, {}
        case _:
            return "json", {}


def unpacked(path: Path) -> Path:
    """What datasets itself does not unpack: tables; and .zst, for which it needs another library."""
    import pyarrow

    pack = path.suffix.lower()
    if pack not in (".gz", ".zst") or (pack == ".gz" and path.with_suffix("").suffix not in (".parquet", ".arrow")):
        return path
    data = path.read_bytes()
    if pack == ".gz":
        data = gzip.decompress(data)
    else:
        data = pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd").read()
    whole = path.parent / "unpacked" / path.stem
    whole.parent.mkdir()
    whole.write_bytes(data)
    return whole


@pytest.mark.parametrize("name", [*HERE, *BY_ARROW])
def test_a_form_is_read_as_by_datasets(tmp_path: Path, ours: Ours, theirs: Theirs, name: str) -> None:
    path = tmp_path / name
    if name in HERE:
        path.write_bytes(HERE[name])
    else:
        BY_ARROW[name](path)
    loader, options = loader_of(name.removesuffix(".gz").removesuffix(".GZ").removesuffix(".zst").removesuffix(".ZST"))
    assert ours(path) == theirs.read(loader, unpacked(path), **options)


SNOWMAN = "\N{SNOWMAN}"
ROWS_OF: dict[str, tuple[bytes, dict[str, Any]]] = {
    "pair.jsonl": (b'{"text": "\\ud83d\\ude00"}\n', {}),
    "nul.jsonl": (b'{"text": "a\\u0000b"}\n', {}),
    "spaces.jsonl": (b'  {"text": "a"}  \n\t{"text": "b"}\n', {}),
    "types.jsonl": (b'{"text": "a", "m": 1}\n{"text": "b", "m": "x"}\n', {}),
    "large-number.jsonl": (b'{"text": "a", "n": 123456789012345678901234567890}\n', {}),
    "not-a-number.jsonl": (b'{"text": "a", "n": NaN}\n{"text": "b", "n": -Infinity}\n', {}),
    "not-a-number.json": (b'[{"text": "a", "n": NaN}]', {}),
    "empty-texts.csv": (b"n,text\n1,NA\n2,\n3,null\n4,x\n", CSV),
    "numbers.csv": (b"text\n007\n1.50\n1e3\n", CSV),
    "truths.csv": (b"text\ntrue\nFalse\n", CSV),
    "spaces.csv": (b"text, n\n a ,1\n", CSV),
    "inner-quotes.csv": (b'text,n\na "b" c,1\n"a ""b"" c",2\n', CSV),
    "carriage-returns.csv": (b"text,n\ra,1\rb,2\r", CSV),
    "lines-in-quotes.csv": (b'n,text\r\n1,"a\r\nb"\r\n2,"a\rb"\r\n3,"a\nb"\r\n', CSV),
    "index.csv": (b",text\n0,a\n1,b\n", CSV),
    "hashes.csv": (b"text\n# a\nb\n", CSV),
    "blank-rows.csv": (b"text\na\n\nb\n", CSV),
    "quotes.tsv": (b'n\ttext\n1\t"a ""b"""\n2\ta "b\n', TSV),
}


@pytest.mark.parametrize("name", ROWS_OF)
def test_odd_rows_are_read_as_by_datasets(tmp_path: Path, ours: Ours, theirs: Theirs, name: str) -> None:
    data, options = ROWS_OF[name]
    path = tmp_path / name
    path.write_bytes(data)
    if name.startswith(("numbers.", "truths.")):
        # The loader takes texts for something else where nobody says that they are texts.
        assert not all(isinstance(text, str) for text in theirs.texts("csv", path, **options))
        options = {**options, "features": datasets.Features(text=datasets.Value("string"))}
    assert ours(path) == theirs.read(loader_of(name)[0], path, **options)


@pytest.mark.parametrize("name", ["dates.jsonl", "dates.json"])
def test_dates_stay_the_texts_that_they_are(tmp_path: Path, ours: Ours, theirs: Theirs, name: str) -> None:
    """Where the loader makes times of them, which no tokenizer takes."""
    path, texts = tmp_path / name, ["2020-01-01T00:00:00Z", "2021-02-03T04:05:06Z"]
    rows = [{"text": text} for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows))
    assert not any(isinstance(text, str) for text in theirs.texts("json", path))
    assert ours(path) == theirs.ids(texts)


SAVED: dict[str, Callable[[Any], Any]] = {
    "whole": lambda rows: rows,
    "selected": lambda rows: rows.select([3, 1, 2]),
    "shuffled": lambda rows: rows.shuffle(seed=1),
    "filtered": lambda rows: rows.filter(lambda row: row["n"] % 2),
    "splits": lambda rows: datasets.DatasetDict(train=rows, test=rows.select(range(3))),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("shards", [1, 5])
def test_what_datasets_has_saved_is_read_as_it_reads_it(
    tmp_path: Path, ours: Ours, theirs: Theirs, name: str, shards: int
) -> None:
    """Of several splits all, by their names."""
    rows = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(len(TEXTS)))})
    made = SAVED[name](rows)
    is_split = isinstance(made, dict)
    made.save_to_disk(
        str(tmp_path / "it"), num_shards=dict.fromkeys(made, min(shards, 3)) if is_split else min(shards, 3)
    )
    kept = datasets.load_from_disk(str(tmp_path / "it"))
    parts = [kept[split] for split in sorted(kept)] if is_split else [kept]
    if not is_split:
        kept.map(lambda row: {"text": row["text"] + "!"})  # It leaves a cache beside the data.
        kept.sort("text")
        assert list((tmp_path / "it").glob("cache-*.arrow"))
    assert ours(tmp_path / "it") == theirs.ids([text for part in parts for text in part["text"]])


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_what_datasets_has_written_is_read_as_it_reads_it(
    tmp_path: Path, ours: Ours, theirs: Theirs, kind: str
) -> None:
    rows = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(len(TEXTS)))})
    path = tmp_path / f"rows.{'jsonl' if kind == 'json' else kind}"
    getattr(rows, f"to_{kind}")(str(path))
    assert ours(path) == theirs.read(kind, path, **(CSV if kind == "csv" else {}))
    if kind == "json":
        rows.to_json(str(tmp_path / "list.json"), lines=False, orient="records")
        assert ours(tmp_path / "list.json") == theirs.read(kind, tmp_path / "list.json")


def test_what_datasets_has_cached_is_read_once(tmp_path: Path, ours: Ours, theirs: Theirs) -> None:
    """The folder that load_dataset keeps what it has read in."""
    (tmp_path / "a.jsonl").write_bytes(HERE["a.jsonl"])
    texts = theirs.texts("json", tmp_path / "a.jsonl")
    assert texts == TEXTS
    assert ours(tmp_path / "cache") == theirs.ids(texts)


def test_a_folder_as_hubs_have_it_is_its_rows(tmp_path: Path, ours: Ours, theirs: Theirs) -> None:
    """Its card and its index are no texts to train on."""
    it = tmp_path / "hub"
    (it / "data").mkdir(parents=True)
    BY_ARROW["a.parquet"](it / "data" / "train-00000-of-00001.parquet")
    (it / "README.md").write_text("---\nlicense: mit\n---\n# Card\n")
    (it / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (it / "dataset_infos.json").write_text('{"default": {}}')
    rows = datasets.load_dataset(str(it), split="train", cache_dir=str(tmp_path / "cache"))
    assert ours(it) == theirs.ids(rows["text"])
    reasons = {Path(path).name: reason for path, reason in find([str(it)], are_texts=True, are_rows=True).left_out}
    assert reasons == {".gitattributes": HIDDEN, "README.md": CARD, "dataset_infos.json": ONE_OBJECT}


@pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_column_of_texts_of_any_type_is_read(
    tmp_path: Path, ours: Ours, theirs: Theirs, kind: str, suffix: str
) -> None:
    path = tmp_path / f"it.{suffix}"
    column = pa.array(TEXTS).dictionary_encode() if kind == "dictionary" else pa.array(TEXTS, getattr(pa, kind)())
    save_column(path, column)
    assert ours(path) == theirs.read(suffix, path)


NO_TEXTS = {
    "binary": pa.array([text.encode() for text in TEXTS]),
    "null": pa.array([*TEXTS[1:], None]),
    "nothing": pa.nulls(3),
    "numbers": pa.array([1, 2]),
    "lists": pa.array([[text] for text in TEXTS]),
    "structs": pa.array([{"text": text} for text in TEXTS]),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", NO_TEXTS)
def test_a_column_of_anything_else_is_refused(
    tmp_path: Path, ours: Ours, theirs: Theirs, kind: str, suffix: str
) -> None:
    """Which transformers' tokenizer refuses, too, or reads as something else."""
    path = tmp_path / f"it.{suffix}"
    save_column(path, NO_TEXTS[kind])
    assert not all(isinstance(text, str) for text in theirs.texts(suffix, path))
    with pytest.raises(ConfigError) as caught:
        ours(path)
    assert str(path) in caught.value.faults[0].expected


def save_column(path: Path, column: Any) -> None:
    table = pa.table({"text": column})
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
        return
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    "text", ["plain\n", "\ufeffbegins with a mark", f"{SNOWMAN} \u2028 \x85 \x0c \n\n", "  \n", "</s> <s>"]
)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "A.TXT", "a.txt.gz", "none", "a.yaml"])
def test_a_text_is_read_as_by_datasets(tmp_path: Path, ours: Ours, theirs: Theirs, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert ours(path) == theirs.read("text", path, sample_by="document") == theirs.ids([text])


def test_ends_of_lines_stay_as_they_are(tmp_path: Path, ours: Ours, theirs: Theirs) -> None:
    """Where the loader of texts makes one of each."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\r\nb\rc\n")
    assert theirs.texts("text", path, sample_by="document") == ["a\nb\nc\n"]
    assert ours(path) == theirs.ids(["a\r\nb\rc\n"])


REFUSED: dict[str, bytes] = {
    # What the loader reads as something else, or as nothing, in silence.
    "null.jsonl": b'{"text": "a"}\n{"text": null}\n',
    "missing.jsonl": b'{"text": "a"}\n{"n": 1}\n',
    "numbers.jsonl": b'{"text": 1}\n{"text": 2}\n',
    "long-row.csv": b"text,n\na,1,2\nb,2\n",
    "short-row.csv": b"text,n\na\nb,2\n",
    "behind-quotes.csv": b'text,n\n"a" b,1\n',
    "backslashes.csv": b'text,n\n"a \\" b",1\n',
    "space-before-quotes.csv": b'n,text\n1, "a,b"\n',
    "twice.csv": b"text,text\na,b\n",
    "semicolons.csv": b"text;n\na;1\n",
    "nul.csv": b"text\na\0b\n",
    "nul.txt": b"a\0b",
    "surrogate.json": b'[{"text": "a\\ud83d"}]',
    # What it reads, and we say how to write otherwise.
    "object.json": b'{"text": "a"}',
    "columns.json": b'{"text": ["a", "b"]}',
    "package.json": b'{"name": "x", "version": 1}',
    "nested.json": b'{"data": [{"text": "a"}]}',
    "strings.json": b'["a", "b"]',
    "two-lines.jsonl": b'{"text":\n "a"}\n{"text": "b"}\n',
    "no-line-between.jsonl": b'{"text": "a"}{"text": "b"}\n',
    "list.jsonl": b'[{"text": "a"}, {"text": "b"}]\n',
    "carriage-returns.jsonl": b'{"text": "a"}\r{"text": "b"}\r',
    # What neither reads.
    "surrogate.jsonl": b'{"text": "a\\ud83d"}\n',
    "comment.jsonl": b'// x\n{"text": "a"}\n',
    "comma.json": b'[{"text": "a"},]',
    "lists.jsonl": b'[{"text": "a"}]\n[{"text": "b"}]\n',
    "latin-1.jsonl": b'{"text": "\xe9"}\n',
    "utf-16.jsonl": '{"text": "a"}\n'.encode("utf-16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_as_by_datasets_is_refused_by_name(tmp_path: Path, ours: Ours, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(REFUSED[name])
    with pytest.raises((ConfigError, DataError)) as caught:
        ours(path)
    error = caught.value
    fault = error.faults[0] if isinstance(error, ConfigError) else error
    assert str(path) in f"{fault.expected} {fault.found}"
    assert fault.remedy


def test_a_folder_of_objects_is_rows_where_they_have_the_column(tmp_path: Path, ours: Ours, theirs: Theirs) -> None:
    """A document a file, as the loader reads them."""
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps({"text": f"{SNOWMAN} {number}", "n": number}, indent=2))
    assert ours(tmp_path) == theirs.read("json", *sorted(tmp_path.glob("*.json")))

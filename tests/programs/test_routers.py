"""`isthmus route`, and data by a router: what is told, what is read again, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.programs import routers
from isthmus.programs.routers import opened, reroute, route, sharded_corpus, training_documents
from isthmus.runtime.errors import ConfigError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three folders of texts of a kind, 50 files each, of some 600 bytes."""
    rng = np.random.default_rng(0)
    words = {"code": b"def return self import for", "page": b"<p> <div> <a> </p> </div>", "data": b"1,2 3,4 55 6.7 8"}
    for name, text in words.items():
        (tmp_path / "parts" / name).mkdir(parents=True)
        for number in range(50):
            body = b" ".join(rng.choice(text.split(), 200))[:600] + b" %d\n" % number
            (tmp_path / "parts" / name / f"{number}.txt").write_bytes(body)
    return tmp_path / "parts"


def refused(*words: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        route(*words, **options)
    return str(raised.value)


def test_the_command_tells_what_shards_have_and_writes_the_router(data: Path, typed: Callable[..., Any]) -> None:
    words = ("route", "parts", "--shards", "3", "--seed", "7", "--out", "three.router")
    result = typed(data.parent, *words, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["documents"], told["is_cut"], told["unit"], told["by"], told["seed"]) == (
        150,
        False,
        "bytes",
        "content",
        7,
    )
    assert sum(shard["documents"] + shard["held_out_documents"] for shard in told["shards"]) == 150
    sizes = [shard["tokens"] for shard in told["shards"]]
    assert max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) + sum(shard["held_out_tokens"] for shard in told["shards"]) == told["tokens"]
    assert opened(data.parent / "three.router").fingerprint == told["fingerprint"]
    again = typed(data.parent, *words)
    assert again.exit_code == 2
    assert "new file" in again.stderr


def test_the_command_tells_a_reader_what_shards_have(data: Path, typed: Callable[..., Any]) -> None:
    words = ("route", "parts", "--shards", "3", "--seed", "7", "--by", "random", "--out", "three.router")
    lines = typed(data.parent, *words).stdout
    assert opened(data.parent / "three.router").fingerprint in lines
    assert "150 documents" in lines


def test_shards_are_read_by_a_router(data: Path) -> None:
    route([str(data)], shards=3, out=data.parent / "r", by="source")
    corpus = sharded_corpus([str(data)], data.parent / "r", 3)
    assert sharded_corpus([str(data)], data.parent / "r", 3) is corpus
    kinds = [{side.names[label] for label in side.labels} for side in corpus.train]
    assert sorted(kinds, key=min) == [{"code"}, {"data"}, {"page"}]


def test_data_that_moved_is_the_same_data(data: Path) -> None:
    route([str(data)], shards=3, out=data.parent / "r", by="source")
    data.rename(data.with_name("moved"))
    assert sharded_corpus([str(data.with_name("moved"))], data.parent / "r", 3).shards == 3


@pytest.mark.parametrize(
    ("change", "paths", "reason"),
    [
        (lambda folder: (folder / "code" / "0.txt").write_bytes(b"another"), 3, "router of the documents of this data"),
        (lambda _: None, 4, "one of 4 shards, found 3"),
        (lambda folder: (folder.parent / "r").write_bytes(b"text"), 3, "Reading the router"),
        (lambda folder: (folder.parent / "r").unlink(), 3, "Reading the router"),
    ],
)
def test_a_router_that_does_not_fit_is_refused(
    data: Path, change: Callable[[Path], Any], paths: int, reason: str
) -> None:
    route([str(data)], shards=3, out=data.parent / "r", by="random")
    change(data)
    with pytest.raises(ConfigError, match=reason):
        sharded_corpus([str(data)], data.parent / "r", paths)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shards": 0}, "from 1 to 256 shards"),
        ({"shards": 200}, "at least 200 documents"),
        ({"shards": 4, "by": "source"}, "at least 4 sources"),
        ({"shards": 2, "by": "hope"}, "content, source or random"),
        ({"shards": 2, "seed": -1}, "a seed"),
        ({"shards": 2, "token_dtype": "int8"}, "uint16 or uint32"),
        ({"shards": 2, "source_column": "lang"}, "only by source"),
        ({"shards": 2, "source_column": "lang", "by": "source"}, "rows with 'lang'"),
        ({"shards": 2, "out": "/nowhere/r"}, "Writing the router"),
    ],
)
def test_a_wrong_request_is_refused_and_writes_nothing(data: Path, options: dict[str, Any], reason: str) -> None:
    assert reason in refused([str(data)], **({"out": data.parent / "r"} | options))
    assert [path.name for path in data.parent.iterdir()] == ["parts"]


def test_no_data_is_refused(tmp_path: Path) -> None:
    assert "nothing there" in refused([str(tmp_path / "nowhere")], shards=1, out=tmp_path / "r")
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    assert "documents in" in refused([str(tmp_path / "empty.jsonl")], shards=1, out=tmp_path / "r")


def test_rows_are_documents_and_a_column_their_source(tmp_path: Path) -> None:
    rows = [{"body": f"text of row {number} " * 9, "lang": "ab"[number % 2]} for number in range(100)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    told = route([str(path)], shards=2, out=tmp_path / "r", by="source", column="body", source_column="lang")
    assert told.documents == 100
    corpus = sharded_corpus([str(path)], tmp_path / "r", 2)
    texts = {corpus.train[shard][index].tobytes() for shard in range(2) for index in range(len(corpus.train[shard]))}
    assert texts < {row["body"].encode() for row in rows}
    assert [{side.names[label] for label in side.labels} for side in corpus.train] in ([{"a"}, {"b"}], [{"b"}, {"a"}])
    assert "--column" in refused([str(path)], shards=2, out=tmp_path / "s")
    assert "--source-column" in refused(
        [str(path)], shards=2, out=tmp_path / "s", by="source", column="body", source_column="language"
    )


def test_a_file_of_rows_is_a_source_and_so_is_each_of_several_folders(data: Path) -> None:
    names = ["one.jsonl", "two.jsonl"]
    for name in names:
        (data / name).write_text("\n".join(json.dumps({"text": f"{name} {number}" * 20}) for number in range(60)))
    where = [str(data / "code"), *(str(data / name) for name in names)]
    route(where, shards=3, out=data.parent / "r", by="source")
    assert [name for name, _ in opened(data.parent / "r").sources] == ["code", *names]


@pytest.mark.further
def test_token_files_are_routed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        np.save(tmp_path / f"{number}.npy", rng.integers(500 * (number % 2), 500 * (number % 2) + 300, 5000))
    told = route([str(tmp_path)], shards=2, out=tmp_path.parent / f"{tmp_path.name}.router")
    assert (told.unit, told.is_cut, told.tokens) == ("tokens", True, 200_000)
    corpus = sharded_corpus([str(tmp_path)], told.out, 2, vocabulary=1000)
    assert corpus.vocabulary == 1000
    # Shards are equal, the kinds among those for training not quite.
    low, high = sorted(np.mean([side[index][0] // 500 for index in range(len(side))]) for side in corpus.train)
    assert low < 0.15
    assert high > 0.85


def test_few_long_files_are_cut_and_that_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("".join(f"line {each}\n" for each in rng.integers(0, 1 << 40, 2000)))
    told = route([str(tmp_path)], shards=2, out=tmp_path.parent / f"{tmp_path.name}.router")
    assert told.is_cut
    assert told.documents > 12
    assert any("4 kB" in line for line in told.lines())


def test_documents_are_routed_again_by_losses(data: Path, typed: Callable[..., Any]) -> None:
    folder = data.parent
    route([str(data)], shards=3, out=folder / "r", by="random")
    documents = training_documents([str(data)], folder / "r")
    kinds = np.array([["page", "data", "code"].index(documents.names[label]) for label in documents.labels])
    losses = 1.0 + 0.5 * (kinds[:, None] != np.arange(3))
    np.save(folder / "losses.npy", losses)
    words = ("route", "parts", "--shards", "3", "--out", "s", "--from-losses", "losses.npy", "--router", "r", "--json")
    result = typed(folder, *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["agreement"] > 0.9
    corpus = sharded_corpus([str(data)], folder / "s", 3)
    for side, name in zip(corpus.train, ("page", "data", "code"), strict=True):
        assert np.mean([side.names[label] == name for label in side.labels]) > 0.9
    with pytest.raises(ConfigError, match="losses of 3 paths"):
        reroute(np.ones((len(documents), 2)), [str(data)], folder / "r", out=folder / "t")
    with pytest.raises(ConfigError, match="finite losses"):
        reroute(losses[1:], [str(data)], folder / "r", out=folder / "t")
    for wrong in (words[:-3], (*words[:3], "2", *words[4:])):
        assert typed(folder, *wrong[:4], "--out", "t", *wrong[6:]).exit_code == 2
    (folder / "losses.npy").write_bytes(b"text")
    assert typed(folder, *words[:4], "--out", "t", *words[6:]).exit_code == 2
    assert not (folder / "t").exists()


def test_without_data_it_is_the_library(tmp_path: Path) -> None:
    told = routers.route(shards=2, out=tmp_path / "r", by="random")
    assert told.documents > 200
    assert sharded_corpus([], tmp_path / "r", 2).shards == 2


def test_rows_of_any_form_are_the_same_documents(tmp_path: Path) -> None:
    texts = [f"document {number} has {number * number} words" for number in range(300)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "rows.json").write_text(json.dumps([{"text": text} for text in texts]))
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(texts) + "\n")
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
    splits = []
    for name in ("rows.jsonl", "rows.json", "rows.csv", "rows.csv.gz"):
        routed = route([str(tmp_path / name)], shards=2, out=tmp_path / f"{name}.router", by="random", seed=3)
        assert (routed.documents, routed.tokens) == (300, sum(map(len, texts)))
        splits.append([shard.tokens for shard in routed.shards])
    assert all(split == splits[0] for split in splits)


def test_packed_text_is_a_document(tmp_path: Path) -> None:
    for number in range(130):
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(f"page {number}".encode()))
    routed = route([str(tmp_path)], shards=2, out=tmp_path.parent / "of-packed.router", by="random")
    assert (routed.documents, routed.tokens) == (130, sum(len(f"page {number}") for number in range(130)))

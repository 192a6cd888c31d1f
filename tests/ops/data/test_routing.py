"""Routers: what they separate, that they balance, that they are the same everywhere, and what a file may be."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.data import routing
from isthmus.ops.data.corpus import DataError
from isthmus.ops.data.documents import Documents, FileDocuments, gathered
from isthmus.ops.data.routing import (
    FEATURES,
    Router,
    at_random,
    by_content,
    by_losses,
    by_source,
    decoded,
    encoded,
    losses_along,
    paths_by_loss,
)
from tests.effort import long

WORDS = (
    ("def self return import for in range not None class", b"    "),
    ("#include <stdio.h> struct int void const static char", b";\n"),
    ("<p> <div> </p> <a href= <li> </div> <span", b"\n"),
    ("The quick brown fox jumps over a lazy dog while it rains", b". "),
)
DATA = "0" * 32


def parts(count: int, seed: int = 0, kinds: int = len(WORDS)) -> tuple[Documents, np.ndarray]:
    """Documents of kinds, one after the other, of 200 to 2,000 bytes, and the kind of each."""
    rng = np.random.default_rng(seed)
    files, labels = [], np.arange(count) % kinds
    for kind in labels:
        words, end = WORDS[kind]
        body = end.join(b" ".join(rng.choice(words.encode().split(), 6)) for _ in range(40))
        files.append(body[: int(rng.integers(200, 2000))])
    names = [f"kind{kind}" for kind in labels]
    ends = np.cumsum([*map(len, files)]).tolist()
    return gathered([FileDocuments(np.frombuffer(b"".join(files), np.uint8), ends, names)]), labels


def purity(shards: np.ndarray, labels: np.ndarray) -> float:
    counts = np.zeros((shards.max() + 1, labels.max() + 1))
    np.add.at(counts, (shards, labels), 1)
    return float(counts.max(1).sum() / len(shards))


def held(router: Router, documents: Documents) -> np.ndarray:
    return np.bincount(router.shards_of(documents), documents.lengths, router.shards)


@pytest.fixture(scope="module")
def router() -> Router:
    return by_content(parts(400)[0], 4, 0, DATA)


@pytest.mark.further
def test_kinds_of_text_come_apart_also_those_that_were_held_out(router: Router) -> None:
    # Kinds differ by a tenth in tokens, shards do not.
    for seed in (0, 1):
        documents, labels = parts(400, seed)
        assert purity(router.shards_of(documents), labels) > 0.93


@pytest.mark.further
def test_shards_are_nearly_equal_in_tokens_where_kinds_are_not() -> None:
    documents, labels = parts(600)
    skewed = documents.those((labels > 0) | (np.arange(len(labels)) % 5 == 0))
    router = by_content(skewed, 4, 0, DATA)
    assert np.abs(held(router, skewed) / skewed.lengths.sum() * 4 - 1).max() < 0.02
    # Prices are kept: a document goes to one shard, whatever comes with it.
    one_by_one = [router.shards_of(skewed.those(np.array([index])))[0] for index in range(40)]
    assert one_by_one == router.shards_of(skewed)[:40].tolist()


@pytest.mark.further
def test_a_router_follows_from_documents_and_seed(router: Router) -> None:
    documents, _ = parts(400)
    again, other = by_content(documents, 4, 0, DATA), by_content(documents, 4, 1, DATA)
    assert encoded(again) == encoded(router)
    assert other.fingerprint != router.fingerprint


def test_only_the_first_64_tokens_count(router: Router) -> None:
    documents, _ = parts(40)
    heads = gathered(
        FileDocuments(np.resize(documents[index][:64], 64), [64], ["x"]) for index in range(len(documents))
    )
    assert router.shards_of(heads).tolist() == router.shards_of(documents).tolist()


def test_features_count_hashed_grams_of_one_to_three() -> None:
    documents = gathered(FileDocuments(np.frombuffer(each, np.uint8), [len(each)], [""]) for each in (b"aaaa", b"ab"))
    repeated, both = np.concatenate(list(routing._features(documents)))
    # a four times, aa three times, aaa twice; a, b and ab once each.
    assert sorted(repeated[repeated > 0]) == [np.rint(255 * np.sqrt(count / 9)) for count in (2, 3, 4)]
    assert sorted(both[both > 0]) == [np.rint(255 / np.sqrt(3))] * 3
    swapped = gathered([FileDocuments(np.frombuffer(b"ba", np.uint8), [2], [""])])
    assert not np.array_equal(next(routing._features(swapped))[0], both)


@pytest.mark.long
def test_token_ids_are_routed_as_bytes_are() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    files = [rng.integers(0, 40, 100).astype(np.int32) + 50_000 * int(label) for label in labels]
    documents = gathered(FileDocuments(ids, [len(ids)], [""]) for ids in files)
    assert purity(by_content(documents, 2, 0, DATA).shards_of(documents), labels) == 1.0


@pytest.mark.further
@pytest.mark.parametrize("documents", [long(1), 4])
def test_documents_that_are_all_alike_are_routed(documents: int) -> None:
    ids = np.frombuffer(b"same" * documents, np.uint8)
    alike = gathered([FileDocuments(ids, list(range(4, 4 * documents + 1, 4)), ["x"] * documents)])
    router = by_content(alike, documents, 0, DATA)
    assert len(set(router.shards_of(alike))) == 1


@given(st.integers(0, 1 << 32), st.integers(2, 6), st.integers(20, 200))
def test_prices_balance_whatever_the_scores(seed: int, shards: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 1 << 30, (count, shards)) + rng.integers(0, 1 << 31, shards)
    sizes = rng.integers(1, 100, count)
    prices = routing._balancing(scores, sizes)
    loads = np.bincount(np.argmin(prices - scores, axis=1), sizes, shards)
    # A shard is off by no more than a few documents.
    assert np.abs(loads - sizes.sum() / shards).max() <= 4 * sizes.max()


def test_sources_are_packed_the_largest_first() -> None:
    sizes = {"a": 50, "b": 30, "c": 25, "d": 20}
    documents = gathered(FileDocuments(np.zeros(size, np.uint8), [size], [name]) for name, size in sizes.items())
    router = by_source(documents, 2, 0, DATA)
    assert dict(router.sources) == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert router.shards_of(documents.those(np.array([3, 1]))).tolist() == [0, 1]
    other = gathered([FileDocuments(np.zeros(9, np.uint8), [9], ["e"])])
    with pytest.raises(DataError, match="'e'"):
        router.shards_of(other)


def test_random_shards_follow_from_contents_and_seed_and_say_nothing_of_kinds() -> None:
    documents, labels = parts(800)
    one, other = at_random(documents, 4, 0, DATA), at_random(documents, 4, 1, DATA)
    assert purity(one.shards_of(documents), labels) < 0.35
    assert one.shards_of(documents).tolist() != other.shards_of(documents).tolist()
    assert np.abs(held(one, documents) / documents.lengths.sum() * 4 - 1).max() < 0.3


def test_too_few_documents_or_sources_are_refused() -> None:
    documents, _ = parts(3, kinds=1)
    for refuse in (by_content, at_random, by_source):
        with pytest.raises(DataError) as raised:
            refuse(documents, 4, 0, DATA)
        assert raised.value.expected.startswith("at least 4")
    with pytest.raises(DataError, match="found 3"):
        by_content(documents, 4, 0, DATA)


def test_losses_send_documents_to_the_path_that_predicts_them_best() -> None:
    documents, labels = parts(400)
    # Path 1 predicts all best; prices see to it that each has a share.
    losses = 2.0 + 0.3 * (labels[:, None] // 2 != np.arange(2)) - 0.4 * (np.arange(2) == 1)
    router, agreement = by_losses(losses, documents, 0, DATA)
    assert agreement > 0.93
    assert purity(router.shards_of(documents), labels // 2) > 0.93
    assert np.abs(held(router, documents) / documents.lengths.sum() * 2 - 1).max() < 0.05
    held_out, kinds = parts(100, seed=5)
    assert purity(router.shards_of(held_out), kinds // 2) > 0.93


@pytest.mark.parametrize("losses", [np.zeros((5, 2)), np.zeros(400), np.zeros((400, 0)), np.full((400, 2), np.nan)])
def test_losses_of_other_documents_are_refused(losses: np.ndarray) -> None:
    with pytest.raises(DataError, match="finite losses"):
        by_losses(losses, parts(400)[0], 0, DATA)


def test_a_file_has_the_router(router: Router) -> None:
    documents, _ = parts(100)
    sources = by_source(documents, 2, 3, DATA)
    for each in (router, sources, at_random(documents, 3, 1, DATA), replace(sources, column="b", source_column="l")):
        back = decoded(encoded(each))
        assert back.fingerprint == each.fingerprint
        assert back.shards_of(documents).tolist() == each.shards_of(documents).tolist()
        assert (back.column, back.source_column, back.data) == (each.column, each.source_column, each.data)


def forged(router: Router, **fields: object) -> bytes:
    begin = len(b"isthmus-router\n")
    kept = msgspec.msgpack.decode(encoded(router)[begin + 16 :]) | fields
    body = msgspec.msgpack.encode(kept)
    return b"isthmus-router\n" + xxhash.xxh3_128_digest(body) + body


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"shards": 5},
        {"shards": 0},
        {"shards": 1 << 40},
        {"weights": b""},
        {"weights": b"123"},
        {"weights": b"\0" * (4 * FEATURES)},
        {"prices": [0, 0, 0]},
        {"prices": [0, 0, 0, 1 << 60]},
        {"prices": [0, 0, 0, 1 << 90]},
        {"by": "magic"},
        {"by": "source"},
        {"by": "random"},
        {"sources": [["a", 4]]},
        {"sources": [["a", 0]]},
        {"data": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_a_forged_file_is_refused(router: Router, fields: dict[str, object]) -> None:
    assert decoded(forged(router)).fingerprint == router.fingerprint
    if any(isinstance(value, list) and value[-1:] == [1 << 90] for value in fields.values()):
        with pytest.raises(OverflowError):
            forged(router, **fields)
        return
    with pytest.raises(ValueError, match=r".+"):
        decoded(forged(router, **fields))


def test_a_damaged_file_is_refused(router: Router) -> None:
    data = encoded(router)
    for wrong in (b"", b"text", data[:-1], data + b"x", data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        with pytest.raises(ValueError, match=r".+"):
            decoded(wrong)
    with pytest.raises(ValueError, match="more than"):
        decoded(data + b"\0" * routing.FILE_BYTES_MAX)


def test_a_chunk_goes_to_the_path_that_predicted_the_last_one_best() -> None:
    # Three paths, ten bytes, chunks of four: the third path is best in the first chunk, the first in the second.
    losses = np.full((3, 10), 2.0)
    losses[2, :4] = 1.0
    losses[0, 4:8] = 1.5
    paths = paths_by_loss(losses, 1, chunk=4)
    assert paths.tolist() == [1, 2, 0]
    assert losses_along(losses, paths, chunk=4).tolist() == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert paths_by_loss(losses, 1, chunk=4, again=False).tolist() == [1, 2, 2]
    along = losses_along(losses, np.array([2, 0, 1]), chunk=4)
    assert along.tolist() == [1, 1, 1, 1, 1.5, 1.5, 1.5, 1.5, 2, 2]


def test_equal_losses_keep_the_path_and_documents_are_rows() -> None:
    losses = np.zeros((2, 3, 8))
    losses[1, 2, :4] = -1
    paths = paths_by_loss(losses, [1, 0], chunk=4)
    assert paths.tolist() == [[1, 1], [0, 2]]
    assert losses_along(losses, paths, chunk=4).shape == (2, 8)
    assert paths_by_loss(losses, [1, 0], chunk=64).tolist() == [[1], [0]]

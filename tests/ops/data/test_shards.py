"""The windows of shards: of their documents alone, and evaluated in proportion."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.ops.data.batches import At, Windows
from isthmus.ops.data.corpus import Corpus, DataError
from isthmus.ops.data.documents import Documents, FileDocuments, SplitDocuments, gathered, split_documents
from isthmus.ops.data.routing import Router, at_random, by_source
from isthmus.ops.data.shards import PathWindows, ShardedCorpus, ShardedWindows


def numbered(sizes: dict[int, int], files: int = 40) -> Documents:
    """Files of each value, of as many tokens; the value is the source."""
    return gathered(
        FileDocuments(np.full(size + file, value, np.uint8), [size + file], [str(value)])
        for value, size in sizes.items()
        for file in range(files)
    )


def made(documents: Documents, shards: int) -> tuple[SplitDocuments, Router, ShardedCorpus]:
    split = split_documents(documents, shards)
    router = by_source(split.train, shards, 0, split.digest)
    return split, router, ShardedCorpus.of(split, router, 256)


def test_a_batch_is_of_its_shard_alone() -> None:
    split, router, corpus = made(numbered({1: 100, 2: 90, 3: 80}), 3)
    windows = ShardedWindows(corpus, (4, 2), 10)
    assert corpus.shards == 3
    assert corpus.fingerprint == router.fingerprint
    for shard in range(3):
        tokens = windows.batch(At(0, 0, 7), shard)["tokens"]
        assert tokens.shape == (4, 10)
        assert set(tokens.ravel()) == {shard + 1}
        assert windows.batch(At(0, 1, 7), shard)["tokens"].shape == (2, 10)
    assert sum(map(len, corpus.train)) == len(split.train)
    assert sum(map(len, corpus.held_out)) == len(split.held_out)


def test_slots_of_one_path_draw_different_windows_and_each_the_same_ones_again() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 256, 40_000).astype(np.uint8)
    documents = gathered([FileDocuments(ids, list(range(500, 40_001, 500)), ["a"] * 80)])
    windows = ShardedWindows(made(documents, 1)[2], 4, 32)
    batches = [windows.batch(At(0, slot, position, slots=8))["tokens"] for slot in (0, 1) for position in (0, 1)]
    assert len({each.tobytes() for each in batches}) == 4
    assert np.array_equal(windows.batch(At(0, 1, 1, slots=4))["tokens"], batches[3])


def test_with_one_shard_a_batch_is_that_of_the_whole_corpus() -> None:
    rng = np.random.default_rng(1)
    files = [rng.integers(0, 256, 300).astype(np.uint8) for _ in range(60)]
    split = split_documents(gathered(FileDocuments(ids, [300], ["a"]) for ids in files), 1)
    router = at_random(split.train, 1, 0, split.digest)
    ours = ShardedWindows(ShardedCorpus.of(split, router, 256), 8, 33)
    theirs = Windows(Corpus(split.train.tokens(), split.held_out.tokens(), 256), 8, 33)
    assert ours.evaluation_batches == theirs.evaluation_batches
    for at in (At(5, 3, 9), At(0, 0, 3, "evaluation"), At(1, 2, 40, "evaluation")):
        assert np.array_equal(ours.batch(at)["tokens"], theirs.batch(at)["tokens"])


def test_evaluation_batches_are_of_one_shard_each_in_proportion_to_held_out_tokens() -> None:
    _, _, corpus = made(numbered({1: 400, 2: 110, 3: 90}, files=100), 3)
    windows = ShardedWindows(corpus, 8, 10)
    assert windows.evaluation_batches == 32
    shards = [windows.evaluation_shard(position) for position in range(32)]
    sizes = np.array([side.lengths.sum() for side in corpus.held_out])
    assert np.abs(np.bincount(shards, minlength=3) - 32 * sizes / sizes.sum()).max() <= 1
    for position in (*range(32), 33):
        tokens = windows.batch(At(0, 0, position, "evaluation"))["tokens"]
        assert set(tokens.ravel()) == {windows.evaluation_shard(position) + 1}
    assert np.array_equal(
        windows.batch(At(0, 0, 1, "evaluation"))["tokens"], windows.batch(At(9, 4, 33, "evaluation"), 2)["tokens"]
    )


def test_evaluation_windows_cover_a_shard_from_its_begin_to_its_end() -> None:
    ids = np.arange(60_000, dtype=np.uint32)
    documents = gathered([FileDocuments(ids, list(range(600, 60_001, 600)), ["a"] * 50 + ["b"] * 50)])
    split = split_documents(documents, 2)
    corpus = ShardedCorpus.of(split, by_source(split.train, 2, 0, split.digest), 60_000)
    windows = ShardedWindows(corpus, 16, 20)
    for shard, side in enumerate(corpus.held_out):
        of_shard = [each for each in range(windows.evaluation_batches) if windows.evaluation_shard(each) == shard]
        tokens = np.concatenate([windows.batch(At(0, 0, each, "evaluation"))["tokens"] for each in of_shard])
        assert tokens.dtype == np.uint16
        assert tokens[0, 0] == side[0][0]
        assert tokens[-1, -1] == side[len(side) - 1][-1]


def test_a_shard_without_a_held_out_window_has_no_evaluation() -> None:
    split = split_documents(numbered({1: 100, 2: 90}), 2)
    first = split.train.those(split.train.labels == 0)
    split = SplitDocuments(split.train, first, split.is_cut, split.digest)
    router = by_source(split.train, 2, 0, split.digest)
    windows = ShardedWindows(ShardedCorpus.of(split, router, 256), 4, 20)
    assert {windows.evaluation_shard(position) for position in range(windows.evaluation_batches)} == {0}
    assert windows.evaluation_batches == 64


def test_given_windows_are_of_each_shard_by_its_size_and_do_not_overlap() -> None:
    _, _, corpus = made(numbered({1: 100, 2: 50}), 2)
    windows = ShardedWindows(corpus, 4, 20, held_out=6)
    there = [(len(documents.tokens()) - 1) // 19 for documents in corpus.held_out]
    assert windows.extract == (windows.evaluation_batches, sum(there), 19)
    of_shard = [windows.evaluation_shard(each) for each in range(windows.evaluation_batches)]
    assert 6 >= len(of_shard) == sum(min(there[shard], of_shard.count(shard)) for shard in (0, 1))
    assert windows.batch(At(0, 0, 0, "evaluation"))["tokens"].shape == (1, 20)
    every = ShardedWindows(corpus, 4, 20, held_out=10_000)
    assert every.evaluation_batches == sum(there)


def test_too_little_data_is_refused_by_shard() -> None:
    _, _, corpus = made(numbered({1: 100, 2: 5}), 2)
    with pytest.raises(DataError, match="shard 1"):
        ShardedWindows(corpus, 200, 10)
    with pytest.raises(DataError, match="held-out"):
        ShardedWindows(corpus, 1, 900)


def test_a_router_of_other_data_is_refused() -> None:
    _, router, _ = made(numbered({1: 100, 2: 90}), 2)
    other = split_documents(numbered({1: 100, 2: 91}), 2)
    with pytest.raises(DataError, match="router of the documents of this data"):
        ShardedCorpus.of(other, router, 256)


def test_a_slot_has_the_batches_of_its_path_and_a_path_the_evaluation_of_its_shard() -> None:
    _, _, corpus = made(numbered({1: 100, 2: 90, 3: 80}, 160), 3)
    windows = PathWindows(ShardedWindows(corpus, 4, 10))
    for slot in range(7):
        assert set(windows.batch(At(0, slot, 5))["tokens"].ravel()) == {slot % 3 + 1}
    assert sum(windows.evaluation_batches) == ShardedWindows(corpus, 4, 10).evaluation_batches
    for path, count in enumerate(windows.evaluation_batches):
        batches = [windows.batch(At(0, path, position, "evaluation"))["tokens"] for position in range(count)]
        assert {int(each) for batch in batches for each in batch.ravel()} == {path + 1}


def test_a_shard_without_a_held_out_window_is_refused() -> None:
    _, _, corpus = made(numbered({1: 100, 2: 90}, 160), 2)
    short = ShardedCorpus(corpus.train, (corpus.held_out[0], corpus.held_out[1].those(np.arange(0))), 256, "")
    with pytest.raises(DataError, match="at least 10 held-out tokens in each shard, found fewer in shard 1"):
        PathWindows(ShardedWindows(short, 4, 10))

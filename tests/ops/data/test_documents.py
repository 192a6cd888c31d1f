"""What a document is, that nothing of it is lost or trained on twice, and when files are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.data.corpus import split_of
from isthmus.ops.data.documents import Documents, FileDocuments, gathered, pieces, split_documents


def text(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def of_files(*contents: bytes) -> Documents:
    return gathered(FileDocuments(text(content), [len(content)], ["here"]) for content in contents)


def contents(documents: Documents) -> list[bytes]:
    return [documents[index].tobytes() for index in range(len(documents))]


def test_documents_are_the_rows_of_files_without_empty_ones() -> None:
    documents = gathered(
        [
            FileDocuments(text(b"onetwo"), [3, 3, 6], ["a", "b", "c"]),
            FileDocuments(text(b""), [], []),
            FileDocuments(text(b"three"), [5], ["a"]),
        ]
    )
    assert contents(documents) == [b"one", b"two", b"three"]
    assert [documents.names[label] for label in documents.labels] == ["a", "c", "a"]
    assert documents.lengths.tolist() == [3, 3, 5]
    assert contents(documents.those(np.array([2, 0]))) == [b"three", b"one"]
    tokens = documents.tokens()
    assert tokens.window(0, len(tokens)).tobytes() == b"onetwothree"
    assert documents.heads(4).tolist() == [[*b"one", -1], [*b"two", -1], [*b"thre"]]


def test_pieces_end_at_the_last_line_end_of_their_second_half_or_are_4096_tokens() -> None:
    lines = (b"x" * 999 + b"\n") * 9
    early = b"y" * 2047 + b"\n" + b"y" * 6000
    documents = pieces(of_files(lines, early, b"short"))
    assert documents.lengths.tolist() == [4000, 4000, 1000, 4096, 3952, 5]
    assert b"".join(contents(documents)) == lines + early + b"short"


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=40), st.integers(1, 4), st.booleans())
def test_each_token_is_on_one_side_and_in_one_document(sizes: list[int], shards: int, is_alike: bool) -> None:
    rng = np.random.default_rng(sum(sizes))
    files = [np.full(size, 97, np.uint8) if is_alike else rng.integers(0, 256, size).astype(np.uint8) for size in sizes]
    documents = of_files(*(file.tobytes() for file in files))
    split = split_documents(documents, shards)
    assert split.train.lengths.sum() + split.held_out.lengths.sum() == sum(sizes)
    assert (split.train.lengths > 0).all()
    assert (split.held_out.lengths > 0).all()
    if split.is_cut:
        assert split.train.lengths.max() <= 4096
    # The same text is held out as without shards.
    corpus = split_of([file for file in files if len(file)], 256)
    for side, tokens in ((split.train, corpus.train), (split.held_out, corpus.evaluation)):
        ours = side.tokens()
        assert len(ours) == len(tokens)
        if len(ours):
            assert np.array_equal(ours.window(0, len(ours)), tokens.window(0, len(tokens)))


@pytest.mark.parametrize(("count", "is_cut"), [(127, True), (128, False)])
def test_files_are_cut_below_64_a_shard(count: int, is_cut: bool) -> None:
    split = split_documents(of_files(*(bytes([65 + index % 50]) * (4097 + index) for index in range(count))), 2)
    assert split.is_cut is is_cut
    assert len(split.train) + len(split.held_out) == (2 if is_cut else 1) * count


def test_few_short_documents_are_not_called_cut() -> None:
    assert not split_documents(of_files(*(b"some %d" % index for index in range(30))), 4).is_cut


def test_the_digest_tells_documents_apart_and_not_their_order() -> None:
    files = [b"file %d" % index for index in range(25)]
    digest = split_documents(of_files(*files), 2).digest
    assert split_documents(of_files(*files[::-1]), 3).digest == digest
    assert split_documents(of_files(*files[:-1]), 2).digest != digest
    assert split_documents(of_files(*files[:-1], b"another"), 2).digest != digest

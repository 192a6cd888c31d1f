"""Held-out sets of text: which windows an evaluation has of them, and when they are read."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.ops.data.batches import Windows
from isthmus.ops.data.corpus import DataError, TokenIds, split_of
from isthmus.ops.data.held_out import WINDOWS
from isthmus.ops.data.held_out_sets import SHARE_MIN, text_sets

LENGTH = 9


def ids(count: int, first: int = 0) -> TokenIds:
    return TokenIds([(np.arange(count) % 50 + first).astype(np.int32)])


def windows(held_out: int | None = 4, *, is_marked: bool = False) -> Windows:
    corpus = split_of([np.arange(4000, dtype=np.int32) % 100], 100)
    return Windows(corpus, 2, length=LENGTH, held_out=held_out, is_marked=is_marked)


def test_a_set_has_as_many_windows_as_the_held_out_part_and_none_overlaps() -> None:
    read: list[str] = []

    def reader(path: str) -> object:
        return lambda: read.append(path) or ids(1000, 50)

    sets = text_sets({"code": "a", "law": "b"}, reader, windows())  # type: ignore[arg-type]
    assert read == [], "a learner never reads it"
    batches = list(sets["code"]())
    assert set(read) == {"a"}
    starts = [int(row[0]) for batch in batches for row in batch["tokens"]]
    assert len(starts) == 4 == len(set(starts))
    assert all(batch["tokens"].shape[1] == LENGTH for batch in batches)
    assert min(int(batch["tokens"].min()) for batch in batches) >= 50, "of the set, and not of the data"
    assert sets["code"].tokens == 4 * (LENGTH - 1)


@pytest.mark.parametrize(("count", "most"), [(1, WINDOWS), (4, WINDOWS // 4), (100, SHARE_MIN)])
def test_all_sets_of_a_small_model_together_have_as_many_windows_as_its_held_out_part(count: int, most: int) -> None:
    sets = text_sets({str(number): "" for number in range(count)}, lambda _: lambda: ids(50_000), windows(None))
    assert sum(len(batch["tokens"]) for batch in sets["0"]()) == most


@pytest.mark.parametrize("count", [0, LENGTH - 1])
def test_a_set_shorter_than_a_window_is_refused_by_its_name(count: int) -> None:
    sets = text_sets({"law": ""}, lambda _: lambda: ids(count), windows())
    with pytest.raises(DataError, match="law") as refused:
        sets["law"]()
    assert (str(LENGTH) in refused.value.expected, refused.value.found) == (True, str(count))


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    sets = text_sets({"law": ""}, lambda _: lambda: ids(1000, 80), windows())
    with pytest.raises(DataError, match="0 to 99"):
        list(sets["law"]())


def test_a_negative_id_of_a_set_without_marks_is_refused() -> None:
    negative = np.arange(1000, dtype=np.int32) % 50
    negative[::2] = -1
    sets = text_sets({"law": ""}, lambda _: lambda: TokenIds([negative]), windows())
    with pytest.raises(DataError, match="0 to 99") as refused:
        list(sets["law"]())
    assert refused.value.found.startswith("ids -1 to")


def test_what_is_not_to_be_predicted_of_a_set_does_not_count() -> None:
    marked = np.arange(1000, dtype=np.int32) % 50
    marked[::2] = ~marked[::2]
    sets = text_sets({"law": ""}, lambda _: lambda: TokenIds([marked], are_marked=True), windows())
    batches = list(sets["law"]())
    assert sum(float(batch["weights"].sum()) for batch in batches) == pytest.approx(len(batches))
    assert all((batch["weights"] == 0).mean() == 0.5 for batch in batches)

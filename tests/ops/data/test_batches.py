"""A batch is a pure function of where it is, drawn from one side of the split."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.data.batches import At, Split, Windows
from isthmus.ops.data.corpus import Corpus, DataError, TokenIds
from isthmus.ops.data.held_out import apart


def corpus(train: int = 10_000, evaluation: int = 1_000, vocabulary: int = 20_000) -> Corpus:
    """Ids that count up, so that a window says where it was cut; the held-out ones begin at 15,000."""
    ids = np.arange(train, dtype=np.uint16)
    return Corpus(TokenIds([ids]), TokenIds([np.arange(15_000, 15_000 + evaluation, dtype=np.uint16)]), vocabulary)


positions = st.builds(
    At,
    seed=st.integers(0, 2**64 - 1),
    slot=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**64 - 1),
    split=st.sampled_from(["train", "evaluation"]),
)


@given(positions, positions)
def test_generators_agree_exactly_where_all_four_fields_do(one: At, other: At) -> None:
    drawn = [at.rng().integers(0, 2**63, 4).tolist() for at in (one, one, other)]
    assert drawn[0] == drawn[1]
    assert (drawn[0] == drawn[2]) == (one == other)


def test_neighbouring_generators_share_nothing() -> None:
    near = [At(0, 0, 0), At(1, 0, 0), At(0, 1, 0), At(0, 0, 1), At(0, 0, 0, "evaluation"), At(2**32, 0, 0)]
    drawn = [set(at.rng().integers(0, 2**63, 1000).tolist()) for at in near]
    assert len(set.union(*drawn)) == 1000 * len(near)


def test_a_generator_is_the_same_for_ever() -> None:
    # Raw words of the bit generator, which numpy keeps between its versions; a resumed run needs the same batches.
    assert At(7, 3, 5).rng().bit_generator.random_raw(2).tolist() == [0xB1D4B78E03E51780, 0xED88D747C80C16DF]


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": -1, "slot": 0, "position": 0},
        {"seed": 0, "slot": 2**64, "position": 0},
        {"seed": 0, "slot": 0, "position": 0, "split": "test"},
    ],
)
def test_positions_outside_the_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="seed"):
        At(**fields)


@given(positions)
def test_a_batch_is_pure_and_made_of_windows_of_its_own_side(at: At) -> None:
    windows = Windows(corpus(), sequences=4, length=17)
    batch = windows.batch(at)["tokens"]
    assert batch.shape == (4, 17)
    assert batch.dtype == np.uint16
    np.testing.assert_array_equal(batch, windows.batch(at)["tokens"])
    np.testing.assert_array_equal(np.diff(batch.astype(int), axis=1), 1)
    low, high = (0, 10_000) if at.split == "train" else (15_000, 16_000)
    assert low <= batch.min() <= batch.max() < high


def test_a_batch_is_an_array_of_its_own() -> None:
    windows = Windows(corpus(), sequences=1, length=17)
    windows.batch(At(0, 0, 0))["tokens"][:] = 0
    assert windows.batch(At(0, 0, 0))["tokens"].any()


def test_slots_and_positions_draw_different_windows_from_the_whole_split() -> None:
    windows = Windows(corpus(), sequences=8, length=10)
    starts = [windows.batch(At(0, slot, position))["tokens"][:, 0] for slot in range(4) for position in range(500)]
    assert len({start.tobytes() for start in starts}) == 2000
    for slot in range(4):
        drawn = np.concatenate(starts[slot * 500 : (slot + 1) * 500])
        # 4,000 draws of 9,991 starts: each tenth of the split is hit 400 times, with a deviation of 19.
        counts, _ = np.histogram(drawn, bins=10, range=(0, 9_991))
        assert np.abs(counts - 400).max() < 100


def test_the_first_and_the_last_window_are_drawn() -> None:
    windows = Windows(corpus(train=16), sequences=4, length=4)
    starts = {int(start) for position in range(100) for start in windows.batch(At(0, 0, position))["tokens"][:, 0]}
    assert starts == set(range(13))


@pytest.mark.parametrize("sequences", [1, 8, 100, 300])
def test_the_evaluation_is_at_least_256_windows_evenly_spaced_and_the_same_everywhere(sequences: int) -> None:
    windows = Windows(corpus(train=20_000, vocabulary=30_000), sequences, length=20)
    count = windows.evaluation_batches
    assert (count - 1) * sequences < 256 <= count * sequences

    def starts(seed: int, slot: int, first: int) -> list[int]:
        places = (At(seed, slot, first + index, "evaluation") for index in range(count))
        return [int(start) - 15_000 for at in places for start in windows.batch(at)["tokens"][:, 0]]

    found = starts(0, 0, 0)
    assert found == starts(5, 3, 0) == starts(0, 0, count)
    assert found[0] == 0
    assert found[-1] == 980
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(("most", "used", "rows"), [(3, 3, 1), (8, 8, 1), (16, 16, 2), (33, 32, 4), (100, 40, 5)])
def test_given_windows_do_not_overlap_and_leave_batches_to_tell_an_error_by(most: int, used: int, rows: int) -> None:
    windows = Windows(corpus(train=20_000, vocabulary=30_000), 16, length=25, held_out=most)
    held = windows.evaluated
    assert (windows.extract, held.rows) == ((used, 41, 24), rows)
    batches = [windows.batch(At(3, 0, each, "evaluation"))["tokens"] for each in range(held.batches)]
    starts = [int(start) - 15_000 for batch in batches for start in batch[:, 0]]
    assert len(starts) == used
    assert {each.shape for each in batches} == {(rows, 25)}
    assert starts[0] == 0
    assert all(after - before >= 24 and not (after - before) % 24 for before, after in pairwise(starts))
    assert starts[-1] + 25 <= 1000


def test_a_short_text_has_as_many_windows_as_fit() -> None:
    held = apart(1226, 257, 256, 50_000)
    assert (held.batches, held.rows, held.there) == (4, 1, 4)
    assert list(np.concatenate([held.starts(each) for each in range(4)])) == [0, 256, 512, 768]


def test_logits_bound_the_windows_of_a_batch() -> None:
    assert apart(1 << 20, 257, 256, 256).rows == 32
    assert apart(1 << 20, 257, 256, 49_152).rows == 2


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.int32)]
)
def test_batches_have_the_smallest_dtype(vocabulary: int, dtype: type) -> None:
    ids = (np.arange(1000) % 2).astype(np.uint32)
    windows = Windows(Corpus(TokenIds([ids]), TokenIds([ids]), vocabulary), 2, 5)
    assert windows.batch(At(0, 0, 0))["tokens"].dtype == dtype


@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_an_id_outside_the_vocabulary_is_found_in_the_batch(split: Split) -> None:
    windows = Windows(corpus(vocabulary=5), 2, 5)
    with pytest.raises(DataError, match=r"token ids from 0 to 4 in the batch at At\(seed=0"):
        windows.batch(At(0, 0, 0, split))


def test_too_little_text_is_refused() -> None:
    Windows(corpus(train=40, evaluation=10), sequences=4, length=10)
    with pytest.raises(DataError, match="at least 40 tokens in the training split, found 39"):
        Windows(corpus(train=39, evaluation=10), sequences=4, length=10)
    with pytest.raises(DataError, match="at least 10 tokens in the held-out split, found 9"):
        Windows(corpus(train=40, evaluation=9), sequences=4, length=10)

"""What a resume says it goes on from follows from the manifest and the books, and leaves out what they do not say."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.run.in_processes import Resumption
from isthmus.programs.engine.run.resume import DoneError, _check_total, resumption_of, undone_by
from isthmus.programs.engine.snapshots.snapshots import FORMAT, FragmentEntry, Manifest, StateEntry

Rows = list[tuple[int, int, int]]


def fragment(index: int, count: int, clock: Rows, totals: Rows | None = None) -> FragmentEntry:
    return FragmentEntry(index, (1, count), "merge", clock, [], totals or [], f"fragment-{index}", 0, "")


def state(index: int, totals: Rows) -> StateEntry:
    return StateEntry(index, 0, 0, totals, [], [], [], f"state-{index}", 0, "")


TRAINED = [(0, 1, 1000), (1, 1, 800), (1, 2, 50)]
CUT = Manifest(FORMAT, 7, [fragment(0, 5, [(0, 1, 900), (1, 1, 800)]), fragment(1, 4, [(0, 1, 500), (1, 1, 900)])])


def test_tokens_count_by_fragments_in_proportion_to_their_sizes_and_a_life_at_most_as_a_whole() -> None:
    # Fragment 0 lacks 100 and the life 1#2, fragment 1 lacks 500 and that life, and has more of 1#1 than is known.
    found = resumption_of(CUT, [3, 1], TRAINED)
    assert found == Resumption(7, outer_steps=9, tokens=(3 * 1700 + 1400) // 4, tokens_undone=(3 * 150 + 550) // 4)


def test_lives_before_the_one_in_the_clock_are_in_the_model_and_later_ones_undone() -> None:
    """Of a run that was resumed before: what was undone then is not undone again."""
    cut = Manifest(FORMAT, 9, [fragment(0, 5, [(0, 3, 20), (1, 2, 30)])])
    trained = [(0, 1, 1000), (0, 2, 500), (0, 3, 25), (1, 1, 800), (1, 2, 50), (1, 3, 4)]
    assert resumption_of(cut, [4], trained) == Resumption(9, outer_steps=5, tokens=2350, tokens_undone=5 + 20 + 4)


def test_what_a_life_has_trained_beyond_its_newest_answer_in_the_snapshot_is_to_be_trained_again() -> None:
    assert undone_by(CUT, TRAINED) == [[0, 1, 100], [1, 2, 50]]
    cut = Manifest(FORMAT, 9, [fragment(0, 5, [(0, 3, 20), (1, 2, 30)])])
    assert undone_by(cut, [(0, 1, 9), (0, 2, 500), (0, 3, 25), (1, 2, 30), (1, 3, 4)]) == [[0, 3, 5], [1, 3, 4]]
    assert undone_by(CUT, []) == []
    assert undone_by(Manifest(FORMAT, 2, [fragment(0, 3, [])]), TRAINED) == []


def test_what_a_fragment_was_told_of_a_life_is_not_trained_again_because_all_hosts_hear_of_it() -> None:
    entries = [fragment(0, 5, [(0, 1, 900)], [(0, 1, 890), (1, 2, 40)]), fragment(1, 4, [], [(1, 2, 20)])]
    assert undone_by(Manifest(FORMAT, 7, entries[:1]), TRAINED) == [[0, 1, 100], [1, 1, 800], [1, 2, 10]]
    assert undone_by(Manifest(FORMAT, 7, entries), TRAINED) == []  # Nothing says what is in the second one.


def test_what_whole_states_lack_is_to_be_trained_again() -> None:
    states = [state(0, [(0, 1, 900)]), state(1, [(0, 1, 850), (1, 1, 700)])]
    assert undone_by(Manifest(FORMAT, 3, [fragment(0, 2, [])], 1, states), TRAINED) == [
        [0, 1, 100],
        [1, 1, 100],
        [1, 2, 50],
    ]
    assert undone_by(Manifest(FORMAT, 1, [], 1, [state(0, [])]), TRAINED) == [list(each) for each in TRAINED]


def test_without_books_it_is_unknown_what_is_undone() -> None:
    assert resumption_of(CUT, [1, 1], []) == Resumption(7, outer_steps=9, tokens=1550)


def test_whole_states_have_all_of_their_learners_work() -> None:
    states = [state(0, [(0, 1, 900)]), state(1, [(0, 1, 850), (1, 1, 700)])]
    manifest = Manifest(FORMAT, 3, [fragment(0, 2, [])], 1, states)
    assert resumption_of(manifest, [4], TRAINED) == Resumption(3, outer_steps=2, tokens=1600, tokens_undone=250)


def test_a_fragment_that_was_merged_and_has_no_clock_says_nothing_of_tokens() -> None:
    assert resumption_of(Manifest(FORMAT, 2, [fragment(0, 3, [])]), [4], TRAINED) == Resumption(2, outer_steps=3)
    fresh = resumption_of(Manifest(FORMAT, 1, [fragment(0, 0, [])]), [4], TRAINED)
    assert fresh == Resumption(1, outer_steps=0, tokens=0, tokens_undone=1850)


def test_a_run_that_is_done_says_how_many_tokens_were_to_be_trained() -> None:
    with pytest.raises(DoneError) as raised:
        _check_total(4000, 4000, 4040, "done", "Resuming run")
    assert raised.value.total == 4000

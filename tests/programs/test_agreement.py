"""How far learners agree: in the lines of merges, and in the summary of a run."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.recorder.summary import agreement
from isthmus.programs.engine.results.agreement import by_learner
from isthmus.programs.engine.results.lines import MergeRecord, read
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.programs.family import SGD


def merge(fragment: int, *agreement: tuple[int, float]) -> MergeRecord:
    return MergeRecord(fragment=fragment, round=1, kind="merge", agreement=list(agreement))


def test_the_summary_has_means_by_learner_and_fragment() -> None:
    lines = [merge(0, (0, 0.5), (2, -0.5)), merge(0, (0, 0.7)), merge(2, (0, 0.3)), merge(1)]
    first, second = by_learner(lines, 3)
    assert (first["learner"], first["fragments"], first["merges"]) == (0, [0.6, None, 0.3], 3)
    assert (first["mean"], second["mean"]) == (0.5, -0.5)
    assert second["fragments"] == [-0.5, None, None]
    assert by_learner([], 3) == []


@pytest.mark.parametrize("learners", [1, 2])
def test_merges_of_a_run_have_it_where_there_are_others(world: Worlds, learners: int) -> None:
    result = world.run(task=SGD, learners=learners, steps=48, jitter=0.0)
    lines = [line for line in read(result.folder / "merges.jsonl", MergeRecord) if line.kind == "merge"]
    told = [dict(line.agreement) for line in lines if line.agreement]
    rows = agreement(result.folder, 12)
    if learners == 1:
        assert (told, rows) == ([], [])
        return
    assert told
    assert all(found.keys() == {0, 1} and found[0] == pytest.approx(found[1]) for found in told)
    assert all(-1.0 <= value <= 1.0 for found in told for value in found.values())
    assert [row["learner"] for row in rows] == [0, 1]
    assert rows[0]["merges"] == len(told)

"""What the books of a run have of its sites, and for how long their last evaluations are awaited."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.programs.engine.recorder.books import Books, BooksMemory
from isthmus.programs.engine.recorder.sites import METRICS_MAX, POINTS_MAX, WAIT_NS, SiteMemory, patience, summaries
from isthmus.programs.engine.results import words
from isthmus.runtime.ids import Replica
from tests.programs.engine.recorder.recorder_story import SECOND, TickedRecorder

LEARNER, SYNCER = Replica("learner", 0), Replica("syncer", 0)
WORDS = [0x00112233, 0x44556677, 0x8899AABB, 0xCCDDEEFF]


def scores(loss: float | None, **metrics: float) -> dict[str, Any]:
    return {"loss": loss, "metrics": [[name, value] for name, value in metrics.items()]}


def made(number: int, tokens: int, of_global: float, of_own: float | None, kind: str = "during") -> dict[str, Any]:
    return {
        "kind": kind,
        "number": number,
        "tokens": tokens,
        "own_tokens": tokens // 2,
        "versions": [[1, number]],
        "predicted": 64,
        "took": 5,
        "of_global": scores(of_global),
        "of_own": None if of_own is None else scores(of_own),
    }


def site(*evaluations: dict[str, Any], awaits: bool = True, **more: Any) -> dict[str, Any]:
    known = {"digest": WORDS, "bytes": 4000, "tokens": 1000, "is_told": True}
    return {**known, "awaits": awaits, "evaluations": list(evaluations), **more}


def known(**machines: list[tuple[tuple[int, int], dict[str, Any]]]) -> dict[str, SiteMemory]:
    """The sites of these reports, each of a life."""
    sites = {name: SiteMemory() for name in machines}
    for name, reports in machines.items():
        for life, each in reports:
            sites[name].add(life, each)  # type: ignore[arg-type]
    return sites


def test_a_site_has_the_tokens_of_all_its_lives_and_passes_over_its_own() -> None:
    sites = known(a=[((0, 1), site()), ((0, 2), site()), ((2, 1), site())], b=[((1, 1), site(tokens=0))])
    a, b = summaries(sites, [[0, 1, 300], [0, 2, 200], [1, 1, 70], [2, 1, 2000], [3, 1, 9]])
    assert (a["tokens"], a["epochs"], a["learners"]) == (2500, 2.5, [0, 2])
    assert (b["tokens"], b["epochs"]) == (70, None)
    assert a["digest"] == "00112233445566778899aabbccddeeff"
    assert (a["same_data"], b["same_data"]) == (["b"], ["a"])
    assert a["global_first"] is a["global_last"] is a["own_last"] is None


def test_what_comes_again_counts_once_and_the_last_is_the_mean_over_learners() -> None:
    first, during = made(0, 0, 5.5, None, "initial"), made(1, 100, 4.0, 3.5)
    finals = made(2, 400, 2.0, 1.5, "final"), made(1, 400, 2.0, 1.0, "final")
    sites = known(
        a=[
            ((0, 1), site(first)),
            ((0, 1), site(first, during)),
            ((2, 1), site(made(0, 50, 5.0, 4.5))),
            ((0, 1), site(during, finals[0], awaits=False)),
            ((2, 1), site(finals[1], awaits=False)),
        ]
    )
    (row,) = summaries(sites, [])
    assert len(row["history"]) == 5
    assert (row["global_first"], row["global_now"], row["own_now"]) == (5.5, 4.0, 3.5)
    assert (row["is_final"], row["global_last"], row["own_last"]) == (True, 2.0, 1.25)
    assert row["evaluated_tokens"] == 64


def test_one_on_the_way_is_the_last_as_long_as_there_is_no_newer_one() -> None:
    ended = [((0, 1), site(made(0, 0, 5.5, None, "initial"), made(1, 400, 2.0, 1.5, "final")))]
    (row,) = summaries(known(a=[*ended, ((0, 2), site(made(0, 600, 1.75, 1.625)))]), [])  # The run went on.
    assert (row["is_final"], row["global_last"], row["own_last"]) == (False, 1.75, 1.625)


def test_a_loss_that_is_not_finite_is_none_and_so_is_a_mean_with_it() -> None:
    finals = made(0, 4, 2.0, math.nan, "final"), made(0, 4, 2.0, 1.0, "final")
    (row,) = summaries(known(a=[((0, 1), site(finals[0])), ((1, 1), site(finals[1]))]), [])
    assert (row["global_last"], row["own_last"]) == (2.0, None)


def test_other_data_begin_a_history_of_their_own() -> None:
    """Of which the losses are those on another held-out part: none is compared with them."""
    first, other = made(0, 0, 5.5, None, "initial"), site(made(0, 300, 10.5, None), digest=[1, 2, 3, 4], tokens=500)
    reports = [((0, 1), site(first, made(1, 200, 3.0, 2.5))), ((0, 2), other), ((0, 1), site(first))]
    (row,) = summaries(known(a=reports), [[0, 1, 4000], [0, 2, 250]])
    assert (row["digest"], row["data_tokens"], row["tokens"], row["epochs"]) == (
        f"{1:08x}{2:08x}{3:08x}{4:08x}",
        500,
        4250,
        0.5,
    )
    assert (row["global_first"], row["global_last"], len(row["history"])) == (10.5, 10.5, 1)


def test_a_site_that_keeps_its_losses_from_now_on_has_none_here() -> None:
    reports = [((0, 1), site(made(0, 0, 5.5, None, "initial"))), ((0, 2), site(is_told=False))]
    (row,) = summaries(known(a=reports), [])
    assert (row["told"], row["global_first"], row["history"]) == (False, None, [])


def test_a_mean_beyond_all_numbers_is_none() -> None:
    finals = [((slot, 1), site(made(0, 4, 1.7e308, 2.0, "final"))) for slot in (0, 1)]
    (row,) = summaries(known(a=finals), [])
    assert (row["global_last"], row["own_last"]) == (None, 2.0)


def test_there_is_a_bound_and_the_first_is_kept() -> None:
    sites = known(a=[((0, life), site(made(0, life, 1.0, 1.0))) for life in range(1, POINTS_MAX + 50)])
    assert len(sites["a"].points) == POINTS_MAX
    assert sites["a"].points[0].tokens == 1


def test_a_site_that_tells_of_many_scalars_has_some_of_them() -> None:
    many = made(0, 4, 2.0, None, "initial")
    many["of_global"] = scores(2.0, **{f"{number:x>9999}": 1.0 for number in range(2 * METRICS_MAX)})
    (row,) = summaries(known(a=[((0, 1), site(many))]), [])
    assert len(row["global_metrics"]) <= METRICS_MAX
    assert max(map(len, row["global_metrics"])) == METRICS_MAX


def test_the_next_recorder_has_them() -> None:
    books = Books(sizes=())
    report: Any = {"slot": 0, "incarnation": 1, "site": site(made(0, 0, 5.5, None, "initial"))}
    books.note_site(report, "")
    books.note_site({**report, "slot": 1, "site": site(is_told=False)}, "beta")
    memory = msgspec.msgpack.decode(msgspec.msgpack.encode(books.memory(1, [])), type=BooksMemory)
    again = Books(sizes=())
    again.recall(memory)
    again.note_site(report, "")
    rows = again.figures(2)["sites"]
    assert rows == books.figures(2)["sites"]
    assert [(row["site"], row["told"], len(row["history"])) for row in rows] == [("beta", False, 0), ("local", True, 1)]


def test_a_recorder_of_before_knew_of_no_sites() -> None:
    memory = msgspec.to_builtins(BooksMemory())
    del memory["sites"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=BooksMemory).sites == {}


# -- the end -----------------------------------------------------------------------------------------------------------


def report(phase: str, **more: Any) -> dict[str, Any]:
    totals = {"totals": [[0, 1, 64]], "versions": [], "accounts": []}
    return {"slot": 0, "incarnation": 1, "tokens": 64, "step": 1, "phase": phase, "loss": 1.0, **totals, **more}


class Story(TickedRecorder):
    """A recorder of one learner on a site; its final model is there from the beginning."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (LEARNER,), has_evaluator=False)
        self.tick(progress={(LEARNER, None): report("stepping", site=site(made(0, 0, 5.5, None, "initial")))})
        self.tick(final={(SYNCER, "0"): {"fragment": 0, "version": [1, 0], "tensors": {}}})


def test_the_evaluation_of_the_final_model_by_a_site_is_awaited(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert story.until_finished(20) == 20
    ending = story.context.status["ending"]
    assert ending["awaits"] == "sites"
    assert words.awaited_at_end(ending)
    came = site(made(1, 64, 2.0, 1.5, "final"), awaits=False)
    story.tick(progress={(LEARNER, None): report("final", site=came)})
    assert story.until_finished(5) < 1
    (row,) = story.context.status["sites"]
    assert (row["global_last"], row["own_last"], row["is_final"]) == (2.0, 1.5, True)


def test_no_longer_than_it_can_last_nor_that_of_a_learner_that_is_gone(tmp_path: Path) -> None:
    assert Story(tmp_path / "late").until_finished(90) == pytest.approx(WAIT_NS / SECOND, abs=1)
    gone = Story(tmp_path / "gone")
    gone.context.live = set()
    assert gone.until_finished(20) < 5


def test_of_a_run_that_was_stopped_only_for_some_seconds(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.context.is_stopping = True
    assert story.until_finished(20) < 6


def test_a_long_run_awaits_its_sites_for_longer() -> None:
    hour = 3600 * SECOND
    assert patience(hour, is_stopped=False) == WAIT_NS + 72 * SECOND
    assert patience(hour, is_stopped=True) == patience(0, is_stopped=True) < 10 * SECOND

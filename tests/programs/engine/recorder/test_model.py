"""A recorder that fails the run because nobody holds the model any more, and one that waits for the last evaluation."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from isthmus.programs.engine.recorder.node import EVALUATOR_NS, LOST_TIMES, SETTLE_NS, Recorder
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from tests.programs.engine.recorder.recorder_story import (
    FOLDER,
    SECOND,
    TICK,
    Context,
    evaluated,
    made,
    merging,
    report,
)

LEARNER, SHARD = Member(Replica("learner", 0), 1), Member(Replica("syncer", 0), 1)
EVALUATOR, RECORDER = Member(Replica("evaluator", 0), 1), Member(Replica("recorder", 0), 1)
VERDICT = (
    "the model is lost: every host that held fragment {} ({} of 2 fragments) has ended, after fragments were merged. "
    "It is not begun anew; run again."
)


class Life:
    """A recorder in a run of two fragments, one tick of time a firing."""

    def __init__(self, disk: SimulatedDisk | None = None, **settings: Any) -> None:
        self.disk = SimulatedDisk("model") if disk is None else disk
        self.mount = Mount(self.disk)
        self.context = Context(self.mount)
        self.context.live = {LEARNER, SHARD, EVALUATOR, RECORDER}
        self.recorder: Recorder = made(**{"tokens": 80, **settings})
        self.recorder.open(self.context)

    def fire(
        self,
        *,
        reports: Any = (),
        merges: Any = (),
        final: Any = (),
        evaluation: Any = None,
        held: Any = None,
        merged: Any = (),
    ) -> str | None:
        """Why the run has failed, if it has; `held` are fragments by role, of which these were `merged`."""
        self.context.at += TICK
        told = {
            (Replica(role, 0), role): {
                "holder": role,
                "fragments": list(fragments),
                "merged": list(merged),
                "saved": [],
                "totals": [],
                "faults": [],
                "error": None,
                "store": None,
            }
            for role, fragments in (held or {}).items()
        }
        control = self.recorder(
            progress={(Replica("learner", item["slot"]), None): item for item in reports},
            merged={(Replica("syncer", item["shard"]), item["fragment"]): item for item in merges},
            final={(Replica("syncer", 0), p): {"fragment": p, "version": [1, 9], "tensors": {}} for p in final},
            evaluation=None if evaluation is None else {(Replica("evaluator", 0), 0): evaluation},
            held=told,
        )
        assert control is None or control["control"]["tokens"]
        error = self.context.status.get("error")
        assert error is None or isinstance(error, str)
        return error

    def train(self, *, held: Any = None) -> None:
        """The shard has merged both fragments, and the learner holds them."""
        merges = [merging(p, count, SECOND + count, kind="merge") for count in (1, 2) for p in range(2)]
        for each in merges:
            assert self.fire(reports=[report(0, 2 * SECOND)], merges=[each], held=held) is None

    def lasts(self, firings: int = LOST_TIMES + 10) -> str | None:
        """The verdict after so many firings in which nobody says anything."""
        error = None
        for _ in range(firings):
            if not self.recorder.is_finished:
                error = self.fire()
        return error

    def die(self, *members: Member) -> None:
        """These are live no more; a shard has begun its next life."""
        self.context.live -= set(members)
        if SHARD in members:
            self.context.live.add(Member(SHARD.replica, 2))


NOTHING = {"recorder": [], "evaluator": []}


# -- the model is lost -------------------------------------------------------------------------------------------------


def test_a_model_that_nobody_holds_is_lost_after_ten_seconds() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.die(LEARNER, SHARD)
    assert life.lasts(LOST_TIMES - 1) is None
    assert not life.recorder.is_finished
    assert life.fire() == VERDICT.format(0, 2)
    assert life.recorder.is_finished


def test_of_what_was_merged_a_recorder_whose_disk_was_full_hears_from_those_who_hold_it() -> None:
    life = Life()
    life.context.live = {EVALUATOR, Member(SHARD.replica, 2), Member(RECORDER.replica, 2)}
    life.fire(held={"evaluator": [1]}, merged=[1])
    assert life.lasts() == VERDICT.format(0, 1)


def test_of_what_was_merged_a_recorder_hears_from_a_shard_when_those_who_held_it_have_ended() -> None:
    """Seed 403945: recorder, evaluator and all learners ended before anything was on disk, one after the other."""
    life = Life()
    life.context.live = {LEARNER, EVALUATOR, Member(SHARD.replica, 2), Member(RECORDER.replica, 2)}
    life.fire(held=NOTHING)
    assert life.lasts() is None
    life.fire(held={"syncer": []}, merged=[1])
    assert life.lasts() == VERDICT.format(0, 2)


def test_a_recorder_that_knows_of_no_other_host_does_not_say_that_the_model_is_lost() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.context.live = {Member(RECORDER.replica, 2)}
    assert life.lasts() is None


@pytest.mark.parametrize(
    ("dead", "held"),
    [
        ([SHARD], NOTHING),
        ([LEARNER], NOTHING),
        ([LEARNER, SHARD], {"recorder": [0, 1], "evaluator": []}),
        ([LEARNER, SHARD], {"recorder": [], "evaluator": [0, 1]}),
        ([LEARNER, SHARD], {"recorder": [0], "evaluator": [1]}),
        ([LEARNER, SHARD, EVALUATOR], {"recorder": [0, 1], "evaluator": [0, 1]}),
    ],
)
def test_a_model_that_anybody_holds_is_not_lost(dead: list[Member], held: Any) -> None:
    life = Life()
    life.train(held=held)
    life.die(*dead)
    assert life.lasts() is None


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"recorder": [0], "evaluator": []}, (1, 1)),
        ({"recorder": [1], "evaluator": [1]}, (0, 1)),
        ({"recorder": [], "evaluator": [0, 1]}, (0, 2)),
    ],
)
def test_one_fragment_is_enough_and_of_those_that_have_ended_nobody_counts(held: Any, told: Any) -> None:
    life = Life()
    life.train(held=held)
    life.die(LEARNER, SHARD, EVALUATOR)
    assert life.lasts() == VERDICT.format(*told)


@pytest.mark.parametrize("next_life", [Member(LEARNER.replica, 2), Member(SHARD.replica, 2)])
def test_a_next_life_holds_nothing_until_it_says_so(next_life: Member) -> None:
    life = Life()
    life.train(held=NOTHING)
    life.die(LEARNER, SHARD)
    life.context.live.add(next_life)
    assert life.lasts() == VERDICT.format(0, 2)


def test_a_next_life_that_has_the_model_again_holds_it() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.die(LEARNER, SHARD)
    life.context.live.add(Member(LEARNER.replica, 2))
    assert life.lasts(LOST_TIMES - 1) is None
    ready = report(0, 0, incarnation=2, version=(0, 0))
    assert life.fire(reports=[{**ready, "versions": [[1, 2], [1, 2]]}]) is None
    assert life.lasts() is None
    life.die(Member(LEARNER.replica, 2))
    assert life.lasts(LOST_TIMES - 1) is None, "the time begins anew"
    assert life.fire() == VERDICT.format(0, 2)


def test_a_learner_that_has_no_fragment_yet_holds_none() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.die(LEARNER, SHARD)
    life.context.live.add(Member(LEARNER.replica, 2))
    life.fire(reports=[report(0, 0, incarnation=2, version=(0, 0))])
    assert life.lasts() == VERDICT.format(0, 2)


@pytest.mark.parametrize(("version", "is_lost"), [([1, 2], False), (None, True)])
def test_a_shard_that_comes_back_holds_what_it_has_recovered(version: Any, *, is_lost: bool) -> None:
    """A round of it of which nothing came shows only that it is there."""
    life = Life()
    life.train(held=NOTHING)
    life.die(LEARNER, SHARD)
    life.context.live.add(Member(SHARD.replica, 2))
    recovered = [merging(p, 0, 3 * SECOND, epoch=2, kind="recover", version=version) for p in range(2)]
    life.fire(merges=recovered)
    assert life.lasts() == (VERDICT.format(0, 2) if is_lost else None)


def test_a_round_of_which_nothing_came_does_not_take_the_model_from_its_shard() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.fire(merges=[merging(p, 9, 3 * SECOND, version=None) for p in range(2)])
    life.die(LEARNER)
    assert life.lasts() is None


def test_a_recorder_that_comes_back_knows_which_life_of_a_shard_published() -> None:
    former = Life()
    former.train(held=NOTHING)
    former.fire(merges=[merging(p, 9, 3 * SECOND, version=None) for p in range(2)])
    former.lasts(20)
    former.mount.is_gone = True
    life = Life(former.disk)
    life.context.at = former.context.at
    life.die(LEARNER)
    life.fire(held=NOTHING)
    assert life.lasts() is None
    life.die(SHARD)
    assert life.lasts() == VERDICT.format(0, 2)


def test_a_model_that_was_never_merged_is_begun_anew_and_not_lost() -> None:
    life = Life()
    life.fire(merges=[merging(p, 0, SECOND, kind="initial") for p in range(2)], held=NOTHING)
    life.die(LEARNER, SHARD)
    assert life.lasts() is None


def test_what_is_final_cannot_be_lost() -> None:
    life = Life(has_evaluator=False)
    life.train(held=NOTHING)
    life.fire(final=[1])
    life.die(LEARNER, SHARD)
    assert life.lasts() == VERDICT.format(0, 1)
    life = Life(has_evaluator=False)
    life.train(held=NOTHING)
    life.fire(final=[0, 1])
    life.die(LEARNER, SHARD)
    assert life.lasts() is None
    assert life.recorder.is_finished


def test_in_a_program_in_which_nobody_holds_a_model_beside_the_others_nothing_is_lost() -> None:
    life = Life()
    life.train()
    life.die(LEARNER, SHARD)
    assert life.lasts() is None


@pytest.mark.parametrize("holder", ["evaluator", "recorder", None])
def test_a_recorder_that_comes_back_waits_for_what_hosts_say(holder: str | None) -> None:
    former = Life()
    former.train(held={"recorder": [0, 1], "evaluator": [0, 1]})
    for _ in range(10):
        former.fire()
    former.mount.is_gone = True
    life = Life(former.disk)
    life.context.at = former.context.at
    life.die(LEARNER, SHARD)
    assert life.lasts(LOST_TIMES // 2) is None
    assert life.fire(held=NOTHING if holder is None else {**NOTHING, holder: [0, 1]}) is None
    assert life.lasts() == (VERDICT.format(0, 2) if holder is None else None)


def test_the_verdict_outlives_the_recorder_that_gave_it() -> None:
    """Its next life knows as little of a host that holds the model."""
    former = Life()
    former.train(held=NOTHING)
    former.die(LEARNER, SHARD)
    assert former.lasts() == VERDICT.format(0, 2)
    life = Life(former.disk)
    life.context.at = former.context.at
    life.die(LEARNER, SHARD)
    life.fire(held=NOTHING)
    assert life.lasts() == VERDICT.format(0, 2)


# -- the last evaluation -----------------------------------------------------------------------------------------------


def ending(**settings: Any) -> Life:
    """A run of which everything final is there but the last evaluation."""
    life = Life(**settings)
    life.train(held=NOTHING)
    done = report(0, 2 * SECOND, phase="final")
    done["accounts"] = [[done["tokens"], 0, 0, 0, 0]] * 2
    life.fire(reports=[done], final=[0, 1])
    return life


def fires(life: Life, nanoseconds: int) -> bool:
    """Whether the run is over within so long."""
    until = life.context.at + nanoseconds
    while life.context.at < until and not life.recorder.is_finished:
        life.fire()
    return life.recorder.is_finished


def test_the_last_evaluation_is_waited_for_while_the_evaluator_is_live() -> None:
    life = ending()
    assert not fires(life, 10 * EVALUATOR_NS)
    life.fire(evaluation=evaluated("final", 128, 1.5))
    assert life.recorder.is_finished
    assert (life.context.status["error"], life.context.status["eval_loss"]) == (None, 1.5)


def test_an_evaluator_that_is_not_there_is_waited_for_until_it_is_given_up() -> None:
    life = ending()
    fires(life, SECOND)
    life.die(EVALUATOR)
    assert not fires(life, EVALUATOR_NS - SECOND)
    assert fires(life, 2 * SECOND)
    assert (life.context.status["error"], life.context.status["phase"]) == (None, "done")


def test_an_evaluator_that_comes_back_has_all_its_time_again() -> None:
    life = ending()
    life.die(EVALUATOR)
    assert not fires(life, EVALUATOR_NS - SECOND)
    life.context.live.add(Member(EVALUATOR.replica, 2))
    assert not fires(life, 2 * EVALUATOR_NS)
    life.die(Member(EVALUATOR.replica, 2))
    assert not fires(life, EVALUATOR_NS - SECOND)
    assert fires(life, 2 * SECOND)


def test_the_evaluation_of_a_final_model_that_no_host_holds_any_more_is_not_waited_for() -> None:
    """Seed 12200152 with --deaths: everything died between the final model and the first snapshot."""
    life = ending()
    life.die(LEARNER, SHARD)
    assert not fires(life, (LOST_TIMES - 2) * TICK)
    assert fires(life, SECOND)
    assert (life.context.status["error"], life.context.status["phase"]) == (None, "done")
    assert life.context.status["eval_loss"] is None


def test_what_a_shard_merges_again_changes_nothing_of_a_final_model_that_is_evaluated() -> None:
    """Seed 13000532 with --deaths: it had gone back to the version of a snapshot."""
    life = ending()
    again = Member(SHARD.replica, 2)
    life.context.live.add(again)
    back = merging(0, 1, 3 * SECOND, epoch=2, kind="recover", origin=[1, 1], version=[1, 1], merged_tokens=[])
    told = life.recorder._books.figures(1)["merged_tokens"][0]
    assert told
    life.fire(reports=[report(0, 2 * SECOND, phase="stepping")], evaluation=evaluated("final", 128, 1.5))
    life.fire(merges=[back], final=[0])
    assert life.recorder._books.figures(1)["merged_tokens"][0] == told


def test_an_evaluator_that_ended_long_ago_is_waited_for_from_the_end_on() -> None:
    life = Life(tokens=100)  # 80 by a report, 16 of another learner by the shard: not all yet, and enough in the end.
    life.train(held=NOTHING)
    life.die(EVALUATOR)
    assert not fires(life, 3 * EVALUATOR_NS)
    life.fire(reports=[report(0, 2 * SECOND, phase="final")], final=[0, 1])
    assert not fires(life, EVALUATOR_NS - SECOND)
    assert fires(life, 2 * SECOND)


def test_the_last_evaluation_is_known_whatever_is_evaluated_after_it() -> None:
    life = Life()
    life.train(held=NOTHING)
    life.fire(evaluation=evaluated("final", 128, 1.5))
    life.fire(evaluation=evaluated("during", 130, 1.6))
    life.fire(reports=[report(0, 2 * SECOND, phase="final")], final=[0, 1])
    assert fires(life, SETTLE_NS + TICK)


def test_a_recorder_that_comes_back_at_the_end_ends_the_run() -> None:
    former = ending()
    former.fire(evaluation=evaluated("final", 128, 1.5))
    former.mount.is_gone = True
    life = Life(former.disk)
    life.context.at = former.context.at
    assert fires(life, SETTLE_NS + TICK)
    assert life.context.status["phase"] == "done"


# -- a run that is over and not done -----------------------------------------------------------------------------------


def test_an_evaluation_that_is_not_finite_is_written_and_fails_the_run() -> None:
    life = ending()
    life.fire(evaluation=evaluated("final", 128, math.nan))
    assert life.recorder.is_finished
    assert "not finite" in life.context.status["error"]
    assert life.context.status["eval_loss"] is None


def test_a_budget_that_was_not_trained_fails_the_run_unless_it_was_stopped() -> None:
    life = ending(tokens=120)
    life.fire(evaluation=evaluated("final", 80, 1.5))
    assert "96 of 120 tokens" in life.context.status["error"]
    life = ending(tokens=120)
    life.context.is_stopping = True
    life.fire(evaluation=evaluated("final", 80, 1.5))
    assert (life.recorder.is_finished, life.context.status["error"]) == (True, None)


# -- the last evaluation, of a learner ---------------------------------------------------------------------------------


def ending_by_learner() -> Life:
    """A run that is over, of which a learner is to evaluate the model, and the evaluator has said that it does not."""
    life = Life()
    life.train(held=NOTHING)
    first = evaluated("initial", 0, 4.0)
    life.fire(reports=[report(0, 2 * SECOND, phase="final", evaluates=True, evaluation=first)], final=[0, 1])
    life.fire(evaluation={**evaluated("final", 128, 0.0), "loss": None})
    return life


def test_a_learner_that_evaluates_is_waited_for_as_an_evaluator_is_and_what_it_says_counts() -> None:
    life = ending_by_learner()
    assert not fires(life, 10 * EVALUATOR_NS)
    last = evaluated("final", 130, 1.5)
    for _ in range(2):  # Its reports repeat it.
        life.fire(reports=[report(0, 3 * SECOND, phase="final", evaluates=True, evaluation=last)])
    assert fires(life, 3 * SETTLE_NS)
    status = life.context.status
    assert (status["error"], status["eval_loss"], status["eval_loss_initial"]) == (None, 1.5, 4.0)
    lines = [json.loads(line) for line in life.disk.files()[FOLDER / "evaluations.jsonl"].splitlines()]
    assert [(line["kind"], line["eval_loss"]) for line in lines] == [("initial", 4.0), ("final", 1.5)]


def test_without_the_learner_that_evaluated_the_run_ends_with_no_last_loss_and_has_not_failed() -> None:
    life = ending_by_learner()
    life.die(LEARNER)
    assert fires(life, 3 * SETTLE_NS)
    status = life.context.status
    assert (status["error"], status["eval_loss"], status["eval_loss_initial"]) == (None, None, 4.0)

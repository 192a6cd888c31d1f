"""Universes in which one learner sends what is wrong: it costs itself, and the others train and merge to the end."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus import Program
from isthmus.ops.kernels.bounds import MERGES_MIN
from isthmus.ops.syncer.answer_rules import NormHistory
from isthmus.programs.wings.simulation.toy_task import TOKENS_PER_BATCH
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Forge, Kill
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.incidents import Condemned, GivenUp, Happened, ItemRefused, Misbehaved
from tests.effort import long, soaked
from tests.programs.wings.simulation.scenarios import Witness, survive

LIAR = "learner/2"
STEPS = 40


class Books(Checker):
    """What was told of the liar."""

    def __init__(self) -> None:
        self.refused: list[Misbehaved] = []
        self.condemned: list[Any] = []
        self.given_up = 0

    def happened(self, universe: Universe, happened: Happened) -> None:
        incident = happened.incident
        assert str(happened.member.replica) == LIAR or not isinstance(incident, Condemned | GivenUp)
        if isinstance(incident, ItemRefused):
            self.refused.append(incident.refusal)
        elif isinstance(incident, Condemned):
            self.condemned.append(incident.verdict)
        self.given_up += isinstance(incident, GivenUp)


def trained(outcome: Outcome) -> int:
    """The steps of the honest ones."""
    return sum(report["step"] for slot, report in outcome.status["learners"].items() if slot != 2)


def with_a_liar(*faults: Any, steps: int = STEPS) -> tuple[Outcome, Books]:
    books = Books()
    outcome = survive(*faults, steps=steps, witness=books)  # type: ignore[arg-type]
    assert outcome.violation is None, outcome.violation
    assert outcome.outcome == "done"
    return outcome, books


@pytest.mark.long
@pytest.mark.parametrize(
    ("port", "field", "value", "how", "where"),
    [
        ("progress", "epochs", None, "drop", "epochs"),
        soaked("progress", "step_time", "soon", "set", "step_time"),
        soaked("progress", "delay_steps", float("nan"), "set", "delay_steps"),
        ("progress", "totals", (("0", 1, 8),), "set", "totals[0][0]"),
        soaked("progress", "tokens", 10**9, "set", "tokens"),
        soaked("progress", "slot", 0, "set", "slot"),
        ("progress", "incarnation", 7, "set", "incarnation"),
        soaked("report", "staleness", float("inf"), "set", "staleness"),
        ("report", "accounts", ((0, 0, 0),), "set", "accounts[0]"),
        ("answer", "norms", (1.0, 2.0), "set", "norms"),
        soaked("answer", "incarnation", 9, "set", "incarnation"),
    ],
)
def test_what_does_not_follow_its_schema_reaches_nobody(
    port: str, field: str, value: Any, how: Any, where: str
) -> None:
    outcome, books = with_a_liar(Forge(LIAR, port, field, value, how, at_step=8))
    assert outcome.faults["forge"] == 1
    assert {told.field for told in books.refused} == {where}
    assert {told.by for told in books.refused} <= {"syncer/0", "recorder/0"}
    assert books.condemned, "it went on, and was killed"
    least = 1 if port == "answer" else 3  # Rounds wait for an answer.
    assert all(isinstance(verdict, Misbehaved) and verdict.count >= least for verdict in books.condemned)
    assert f"{LIAR}#2" in outcome.lives, "the next life had its chance"
    # The others have their part of the budget at least; what the liar does not train they do.
    assert trained(outcome) >= 3 * STEPS
    assert {life.partition("#")[2] for life in outcome.lives if not life.startswith(LIAR)} == {"1"}


@pytest.mark.long
@pytest.mark.slow
def test_one_that_goes_on_through_its_lives_is_given_up() -> None:
    outcome, books = with_a_liar(Forge(LIAR, "progress", "epochs", None, "drop", at=0.1), steps=400)
    assert books.given_up == 1
    assert len([life for life in outcome.lives if life.startswith(LIAR)]) == 6
    assert trained(outcome) >= 0.95 * 4 * 400, "the others make up for it"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Forge(LIAR, "progress", "phase", "final", at_step=4),
        Forge(LIAR, "progress", "totals", tuple((slot, 1, 10**9) for slot in (0, 1, 3)), at_step=4),
        long(Forge(LIAR, "progress", "totals", ((7, 1, 10**9),), at_step=4)),
        Forge(LIAR, "report", "totals", ((7, 1, 10**9),), at_step=4),
    ],
    ids=["final", "others", "nobody", "report"],
)
def test_what_one_learner_says_of_the_run_does_not_end_it(fault: Any) -> None:
    outcome, books = with_a_liar(fault)
    assert books.refused == []
    assert outcome.status["tokens"] >= 4 * STEPS * TOKENS_PER_BATCH
    assert trained(outcome) >= 3 * STEPS * 0.9


@pytest.mark.long
@pytest.mark.slow
def test_nor_does_it_end_one_whose_shard_comes_back() -> None:
    faults = Forge(LIAR, "progress", "totals", ((7, 1, 10**9),), at_step=4), Kill("syncer/0", at_step=12)
    outcome, _ = with_a_liar(*faults)
    assert outcome.status["tokens"] >= 4 * STEPS * TOKENS_PER_BATCH


@pytest.mark.long
@pytest.mark.slow
def test_flipped_signs_are_told_of_and_of_no_honest_learner() -> None:
    witness = Witness()
    flipped = Forge(LIAR, "answer", "gradient", -1.0, "scale", at_step=2)  # Of codes it would be other values.
    outcome = survive(flipped, steps=200, witness=witness, push="float32", keeps="answers")
    assert outcome.violation is None
    told = [row for _, merge in witness.merges.values() for row in merge["opposed"]]
    assert {slot for slot, _ in told} == {2}
    assert min(merges for _, merges in told) == MERGES_MIN


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize(("keeps", "port"), [("answers", "answer"), ("sums", "values")])
def test_flipped_signs_are_refused_where_the_run_asks_for_it(keeps: str, port: str) -> None:
    witness = Witness()
    flipped = Forge(LIAR, port, "gradient", -1.0, "scale", at_step=2)
    outcome = survive(flipped, steps=200, witness=witness, push="float32", opposed="refuse", keeps=keeps)
    assert outcome.violation is None
    refused = [row for _, merge in witness.merges.values() for row in merge["refused"]]
    assert [2, "against all others"] in refused
    assert {slot for slot, _ in refused} == {2}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("program", [soaked("diloco"), "streaming-diloco"])
def test_a_program_that_waits_for_everybody_does_not_wait_for_an_answer_that_was_refused(program: str) -> None:
    forged = Forge(LIAR, "answer", "norms", (1.0,), at_step=8)
    shape = Shape(
        seed=1,
        learners=4,
        steps=STEPS,
        step_ms=100.0,
        program=Program(program, interval=8),
        climate=Climate(),
        speeds=(1.0,) * 4,
        faults=(forged,),
    )
    books = Books()
    outcome = outcome_of(shape, books)
    assert (outcome.violation, outcome.outcome, outcome.missed) == (None, "done", [])
    assert {told.field for told in books.refused} == {"norms"}
    assert trained(outcome) >= 3 * STEPS


@pytest.mark.slow
def test_forged_items_and_judged_answers_are_counted() -> None:
    outcome, _ = with_a_liar(Forge(LIAR, "answer", "norms", float("nan"), "scale", at_step=8))
    assert outcome.guards["forged: answer.norms"] >= outcome.guards["answer: not finite"] > 0
    assert outcome.guards["answers judged"] > 4 * outcome.guards["answer: not finite"]


def test_a_refusal_of_a_sound_learner_as_if_it_were_none_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NormHistory, "shares", lambda self, lengths: [0.0] + [1.0] * (len(lengths) - 1))
    outcome = survive(steps=STEPS)
    assert outcome.violation is not None
    assert outcome.violation.endswith("refused an answer of the sound learner 0: out of proportion")

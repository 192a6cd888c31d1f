"""A learner that sends what is wrong, in a real run: it costs itself, and the run ends well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.runtime.supervision.incidents import Condemned, Ended, ItemRefused, Misbehaved
from tests.programs.engine.run.forging_program import LIAR
from tests.programs.engine.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.soak]

PROGRAM = Path(__file__).with_name("forging_program.py")
TOKENS = 400_000


def verdicts(run: Run, life: int) -> list[Misbehaved]:
    """Why a life of the liar was killed."""
    if not (run.folder / "events.jsonl").exists():
        return []
    told = [each.verdict for each in run.incidents(f"learner/{LIAR}#{life}") if isinstance(each, Condemned)]
    return [verdict for verdict in told if isinstance(verdict, Misbehaved)]


def test_a_learner_that_forges_is_named_and_killed_and_costs_the_others_nothing(start: Callable[..., Run]) -> None:
    run = start(f"{PROGRAM}:build", learners=4, tokens=TOKENS)
    (first,) = run.wait_for(lambda: verdicts(run, 1))
    assert (first.by, first.field, first.found) == ("syncer/0", "epochs", "none")
    (second,) = run.wait_for(lambda: verdicts(run, 2))
    assert (second.field, second.found) == ("step_time", "'soon'")
    summary = run.finish("done")
    assert summary["tokens_total"] >= TOKENS
    assert summary["merged_share"] > 0.7
    others = [learner for learner in summary["per_learner"] if learner["learner"] != LIAR]
    assert all((learner["restarts"], learner["tokens_lost"]) == (0, 0) for learner in others)
    assert sum(learner["tokens"] for learner in others) >= 0.9 * TOKENS
    told = [each for slot in range(4) if slot != LIAR for each in run.incidents(f"learner/{slot}#1")]
    assert not [each for each in told if isinstance(each, ItemRefused | Condemned | Ended)]

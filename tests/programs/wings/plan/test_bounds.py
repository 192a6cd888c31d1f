"""Where the first bound of a plan lies."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from isthmus.programs.wings.plan import bounds
from isthmus.programs.wings.plan.bounds import bounds_of
from isthmus.programs.wings.plan.plan import LEARNERS_PLANNED_MAX, PlanRequest, Rates, plan_of
from isthmus.runtime.ids import LEARNERS_MAX
from tests.command_line import app

WANTED = PlanRequest(parameters=1e9, learners=100, step_seconds=1.0, push="int4", shards=8)
MEMORY = "memory of a shard"
RATES = Rates(merged=1e9, stepped=1e9, threads=2)


def of(wanted: PlanRequest, memory: int = 1 << 40) -> dict[str, bounds.PlannedBound]:
    return {each.name: each for each in bounds_of(plan_of(wanted, RATES, memory))}


def test_a_bound_is_the_largest_number_of_learners_whose_load_is_within_the_limit() -> None:
    bounded = {name: each for name, each in of(replace(WANTED, shard_bits=1e11)).items() if name != MEMORY}
    for name, bound in bounded.items():
        assert bound.limit is not None
        assert bound.learners is not None
        within, beyond = (of(replace(WANTED, learners=bound.learners + more))[name].load for more in (0, 1))
        assert within <= bound.limit < beyond, name


def test_memory_of_a_shard_has_a_bound_only_where_it_keeps_answers() -> None:
    """Or where its part of the model alone is too much: of many learners it keeps the sum (`kept_by_default`)."""
    assert of(WANTED)[MEMORY].learners is None
    assert of(WANTED, memory=1 << 30)[MEMORY].learners == 0
    one, many = (of(replace(WANTED, learners=learners))[MEMORY].load for learners in (1_000, LEARNERS_MAX))
    assert one == many


def test_bounds_by_hand() -> None:
    found = of(WANTED)
    # 24 fragments in 24 steps of a second, an eighth of them each shard: 1e9 values a learner in 192 s of a core.
    assert found["merges of a shard"].learners == math.floor((8 * 24 - 1) / 1)
    rounds = 1 / 8
    assert found["answers at a shard"].learners == math.floor(1 / (rounds * bounds.ANSWER_SECONDS))
    assert found["daemon of the home"].learners == math.floor(1 / bounds.HOST_SECONDS) - 8 - 2
    assert found["slots of a run"].learners == LEARNERS_MAX
    assert found["link of a shard"].learners is None


def test_the_first_bound_comes_first_and_what_is_not_known_last() -> None:
    first, *_, last = of(WANTED, memory=2 << 30).values()
    assert first.name == "memory of a shard"
    assert last.name == "link of a shard"


@pytest.mark.further
@pytest.mark.slow
def test_a_hundred_thousand_learners_on_the_published_chips_are_planned_and_no_list_has_them_all() -> None:
    options = ["--learners", str(LEARNERS_PLANNED_MAX), "--shards", "24", "--island", "v6e:2x2", "--chips", "1200000"]
    told = json.loads(command(*options, "--json").stdout)
    assert min(each["learners"] for each in told["bounds"] if each["learners"] is not None) < LEARNERS_MAX
    assert [each["learner"] for each in told["islands"]] == [0]
    assert len(json.dumps(told)) < 20_000


def test_more_than_can_be_planned_are_refused() -> None:
    done = command("--learners", str(LEARNERS_PLANNED_MAX + 1))
    assert done.exit_code == 2
    assert "--learners from 1" in done.stderr


def command(*options: str) -> Result:
    needed = ["--parameters", "12e9", "--step-seconds", "4"]
    return CliRunner().invoke(app, ["plan", *needed, *options], catch_exceptions=False, prog_name="isthmus")

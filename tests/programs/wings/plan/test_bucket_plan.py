"""What a store is asked for, told before it is."""

from __future__ import annotations

import pytest

from isthmus.programs.wings.plan.bucket_plan import bucket_load
from isthmus.programs.wings.plan.plan import PlanRequest, Rates, check, plan_of, sheet
from isthmus.runtime.errors import ConfigError

RATES = Rates(1e9, 1e9, 1)


def test_requests_follow_from_the_interval_and_their_price_from_them() -> None:
    load = bucket_load(0.5, 0.0)
    assert (load.writes, load.reads, load.lists, load.removals) == (14_400, 28_800, 1_800, 1_440)
    assert load.price_per_hour == pytest.approx(16.2 * 0.005 + 28.8 * 0.0004)
    assert bucket_load(1.0, 0.0).price_per_hour == pytest.approx(load.price_per_hour / 2)
    assert bucket_load(0.5, float(4 << 20)).writes == 14_400 + 3_600


def test_a_fragment_is_away_for_a_round_trip_and_a_fifth_of_the_interval_at_most() -> None:
    load = bucket_load(0.5, 0.0)
    assert load.round_trip_seconds == pytest.approx(1.8)
    assert (load.overlap(0.04), load.interval(0.04)) == (45, 225)
    assert (load.overlap(30.0), load.interval(30.0)) == (1, 5)


def test_a_plan_says_so_where_it_was_asked_for() -> None:
    plan = plan_of(PlanRequest(1e6, 2, 1.0, via_every=0.5), RATES, 1 << 30)
    assert plan.bucket is not None
    found = sheet(plan).data["bucket"]
    assert found["writes"] == plan.bucket.writes > 14_400
    assert sheet(plan_of(PlanRequest(1e6, 2, 1.0), RATES, 1 << 30)).data["bucket"] is None
    with pytest.raises(ConfigError, match="--via-every"):
        check(PlanRequest(1e6, 2, 1.0, via_every=60.0))

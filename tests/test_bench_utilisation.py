"""What the bench of utilisation computes from moments and cells: shares over whole intervals, and a plan's regret."""

from __future__ import annotations

import pytest

from isthmus.programs.wings.plan.plan import Rates
from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_utilisation import utilisation
from tests.bench.utilisation import Row, picture, predicted, proposed_at, regrets, rows, table
from tests.bench.utilisation_points import DECOUPLED, DILOCO, PARALLEL, POINTS, STREAMING, Point, is_reached, link_name

RATES = Rates(1e12, 1e12, 2)
POINT = Point("1M", 50, 50, 0, 2, DECOUPLED, "bf16", 24)
BITS = 16 * 256**2 * 32


def test_a_share_is_of_whole_intervals() -> None:
    # Four steps of a second, then a wait of four: twice, and three steps of a third time.
    moments = [0.0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18]
    assert utilisation([moments], 4, bare=1.0) == (0.5, 2)
    assert utilisation([moments, moments[:5]], 4, bare=1.0) == (0.5, 1)
    assert utilisation([moments[:3]], 4, bare=1.0) == (1.0, 0)  # Not even one: over all there are.
    assert utilisation([moments[:1]], 4, bare=1.0) == (0.0, 0)


def test_predictions_are_of_the_points_link_and_settings() -> None:
    parallel = POINT._replace(program=PARALLEL, form="float32", interval=1)
    assert predicted(parallel, RATES) == pytest.approx(0.05 / (0.05 + BITS / 50e6))
    far = parallel._replace(delay_ms=50)
    assert predicted(far, RATES) == pytest.approx(0.05 / (0.05 + BITS / 50e6 + 2 * 0.05))
    assert predicted(POINT, RATES) == 1.0
    diloco = POINT._replace(program=DILOCO, form="float32", interval=32)
    assert predicted(diloco, RATES) == pytest.approx(0.05 / (0.05 + 2 * BITS / 50e6 / 32), rel=1e-3)


def row(point: Point, share: float) -> Row:
    return Row(point, share, share, share, 1, share, None, 1.0, 0.0)


def test_regret_is_of_places_with_several_programs_at_which_the_proposed_point_was_measured() -> None:
    assert proposed_at(POINT, RATES) == POINT
    parallel = POINT._replace(program=PARALLEL, form="float32", interval=1)
    wide = parallel._replace(step_ms=1000, mbit=1000)
    assert proposed_at(wide, RATES) == wide
    streaming = POINT._replace(program=STREAMING)
    elsewhere = [row(each._replace(mbit=200), 1.0) for each in (parallel, streaming)]  # Not proposed there.
    alone = [row(wide, 1.0)]
    found = list(regrets([row(parallel, 0.1), row(POINT, 0.9), row(streaming, 1.0), *elsewhere, *alone], RATES))
    assert [(each.proposed.point, each.best.point, each.measured) for each in found] == [(POINT, streaming, 3)]
    assert found[0].regret == pytest.approx(0.1)


def test_points_are_at_most_sixty_and_each_is_there_once() -> None:
    assert len(set(POINTS)) == len(POINTS) <= 60
    assert len({point.name for point in POINTS}) == len(POINTS)


def test_the_table_and_the_picture_are_of_what_is_there() -> None:
    cells = KeptCells(None)
    cells["plan: rates"] = {"merged": 1e9, "stepped": 1e9, "threads": 2}
    first, second = POINTS[:2]
    for run, share in enumerate((0.25, 0.125, 0.5)):
        cells[f"{first.name}, run {run}"] = {"utilisation": share, "merged": None, "load": 1.0}
    cells[f"{second.name}, run 0"] = {"utilisation": 1.0, "merged": 0.9, "load": 2.0}
    cells[link_name(first)] = {"shares": [1.0, 0.5]}
    found = list(rows(cells))
    assert [(each.point, each.share, each.least, each.most, each.runs) for each in found] == [
        (first, 0.25, 0.125, 0.5, 3),
        (second, 1.0, 1.0, 1.0, 1),
    ]
    assert not is_reached(cells, first)
    assert "0.250 (0.125 to 0.500)" in table(cells)
    assert link_name(first) in table(cells)
    assert picture(cells).count("<circle") == 2 * 2 + 5  # Measured and planned, and a legend.

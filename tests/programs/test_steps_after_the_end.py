"""A loop that goes on though its run is over is told once, and one that ends as loops do is not."""

from __future__ import annotations

import pytest

from isthmus.programs.island import LED_OUT_STEPS, LedOut, StepsAfterEnd


@pytest.fixture
def told() -> list[str]:
    return []


def after_end(told: list[str]) -> StepsAfterEnd:
    return StepsAfterEnd(lambda ask: ask(), lambda: told.append("told"), lambda: 0.0)


def test_a_step_is_told_once_and_leads_out_in_the_end(told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    over = after_end(told)
    for _ in range(LED_OUT_STEPS - 1):
        over.step()
    assert told == ["told"]
    assert capsys.readouterr().err.count("the run is over") == 1
    with pytest.raises(LedOut):
        over.step()


def test_a_pass_without_a_batch_is_how_a_loop_ends_and_a_second_one_is_told(
    told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    over = after_end(told)
    over.empty_pass()
    assert (told, capsys.readouterr().err) == ([], "")
    over.empty_pass()
    assert told == ["told"]
    with pytest.raises(LedOut):
        over.empty_pass()

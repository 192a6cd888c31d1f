"""What a TPU's compiler says of memory, read: its messages are those of libtpu 0.0.42, and of an earlier one."""

from __future__ import annotations

import pytest

from isthmus.programs.wings.compile.worker import Overflow, read_overflow

GIB = 1 << 30
NOW = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (2.00T) exceeds "
    "available HBM (31.25G)."
)
BEFORE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G."


@pytest.mark.parametrize(
    ("message", "used", "limit"), [(NOW, 2048 * GIB, 31.25 * GIB), (BEFORE, 20.5 * GIB, 15.75 * GIB)]
)
def test_the_message_says_how_much_is_needed_and_how_much_there_is(message: str, used: float, limit: float) -> None:
    assert read_overflow(message) == Overflow(round(used), round(limit))


def test_a_message_about_something_else_says_nothing() -> None:
    assert read_overflow("INVALID_ARGUMENT: No such compile option: 'xla_tpu_no'") is None

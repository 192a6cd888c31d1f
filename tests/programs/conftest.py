"""What tests of real processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs.engine.run.process_run import Run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a run in a folder of its own; whatever goes on after the test is killed."""
    runs: list[Run] = []

    def begin(*more: str, **options: Any) -> Run:
        runs.append(Run(tmp_path, *more, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()

"""What tests of real processes share, and those of the command in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
import typer.testing
from typer.testing import CliRunner, Result

from tests.command_line import app
from tests.programs.engine.run.process_run import Run

# A runner makes the commands of an app anew at each call, which takes longer than most refusals.
typer.testing._get_command = cache(typer.testing._get_command)


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


@pytest.fixture(autouse=True, scope="session")
def backend() -> None:
    """With a backend a request is prepared in this process, and not in a child, whichever test comes first."""
    jax.devices()


@pytest.fixture
def typed() -> Iterator[Callable[..., Result]]:
    """Types `isthmus` with words in a folder, in this process: a refusal needs no second interpreter, and no jax of its
    own. What the command does to the environment is undone."""
    before = dict(os.environ)

    def command(folder: Path, *words: str) -> Result:
        with chdir(folder):  # For no longer: what works in the folder of a run is taken for a process of it.
            return CliRunner().invoke(app, words, catch_exceptions=False, prog_name="isthmus")

    yield command
    os.environ.clear()
    os.environ.update(before)

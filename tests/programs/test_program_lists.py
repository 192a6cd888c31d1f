"""Every program that is shipped is named wherever somebody looks for what can be trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.programs import SHIPPED
from tests.command_line import app

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/changelog.md",
    "docs/explanation/the-family.md",
    "docs/reference/command-line.md",
    "docs/reference/configuration.md",
)


def named(text: str) -> set[str]:
    """The shipped programs that are named in a text, as words of their own."""
    return {program for program in SHIPPED if re.search(rf"(?<![\w-]){program}(?![\w-])", text)}


@pytest.mark.parametrize("page", PAGES)
def test_the_documentation_names_every_program(page: str) -> None:
    assert named((ROOT / page).read_text()) == set(SHIPPED)


@pytest.mark.parametrize("command", ["train", "graph"])
def test_the_help_names_every_program(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert named(result.output) == set(SHIPPED)


def test_a_name_within_another_does_not_count() -> None:
    assert named("streaming-diloco, elastic-data-parallel") == {"streaming-diloco", "elastic-data-parallel"}

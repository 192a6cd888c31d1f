"""The words that the glossary has, and which names of a table it lacks: for the tests of all that shows tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GLOSSARY: Final = ROOT / "docs" / "reference" / "glossary.md"
PLAIN: Final = frozenset(
    re.findall(
        r"\w+",
        """and at bytes device disk edge edges firings for from happened it items last life loss number policy process
        replica setting share state step steps the then time to tokens trained transfer waits what why""",
    )
)
"""Words of table heads that mean what they mean everywhere."""
OTHER_WORDS: Final = {
    "epochs": "epoch",
    "outer steps": "outer step",
    "snapshots": "snapshot",
    "evaluation loss": "eval loss",
}
"""As a page inflects a word -> as the glossary has it."""


def words() -> set[str]:
    """The first column of the glossary, one by one."""
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(), re.MULTILINE)
    return {word.strip() for row in rows for word in row.split(",")} - {"word", "---"}


def unknown(names: set[str]) -> set[str]:
    """The names that are neither in the glossary nor plain words."""
    known = words()
    named = {OTHER_WORDS.get(name, name) for name in names}
    return {name for name in named if name not in known and not set(name.split()) <= PLAIN}

"""A room is small enough to be known: at most fifteen files, and a word on what is decided there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = sorted({file.parent for top in ("runtime", "ops", "programs") for file in (ROOT / top).rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_is_small_and_says_what_it_decides(room: Path) -> None:
    assert len(list(room.glob("*.py"))) <= 15
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))

"""A room has a word on what is decided there, and one name."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.conftest import BARE

ROOT = Path(__file__).parent.parent
ROOMS = sorted({file.parent for top in ("runtime", "ops", "programs") for file in (ROOT / top).rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_says_what_it_decides(room: Path) -> None:
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


def imported(file: Path) -> set[str]:
    """The packages that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found


def test_packages_are_imported_by_their_full_name_alone() -> None:
    """From the root of a clone `import runtime` finds a second copy of everything, with other classes."""
    files = [file for top in ("runtime", "ops", "programs", "tests", "docs") for file in (ROOT / top).rglob("*.py")]
    assert len(files) > 600
    assert [file for file in files if imported(file) & BARE] == []
    for name in sorted(BARE):
        with pytest.raises(ImportError, match=f"isthmus.{name}"):
            importlib.import_module(name)

"""A room has a word on what is decided there, one name, and tests that are quick."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import BARE

ROOT = Path(__file__).parent.parent
ROOMS = sorted({file.parent for top in ("runtime", "ops", "programs") for file in (ROOT / top).rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_says_what_it_decides(room: Path) -> None:
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


def imports(tree: ast.AST) -> set[str]:
    """The modules, or names in them, that are imported: `a.b.c` for `from a.b import c`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{each.name}" for each in node.names}
    return names


LATER = {"process", "slow", "soak", "long", "engine"}
"""The marks of tests that are not quick."""


def marks(nodes: Iterable[ast.AST]) -> set[str]:
    """The marks, as in `pytest.mark.soak`, that are written anywhere in these."""
    inner = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return {each.attr for each in inner if isinstance(each.value, ast.Attribute) and each.value.attr == "mark"}


def is_quick(tree: ast.Module) -> bool:
    """Whether a test of a file is quick. A test counts as later if one of its parameters does."""
    of_all = [each for each in tree.body if isinstance(each, ast.Assign) and marks([each])]
    if marks(each for each in of_all if "pytestmark" in ast.dump(each.targets[0])) & LATER:
        return False
    tests = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    named = (each for each in tests if each.name.lower().startswith("test"))
    return any(not marks(each.decorator_list) & LATER for each in named)


@pytest.mark.long
def test_every_room_has_a_quick_test() -> None:
    """A room is touched by a test that imports something of it, and starts no process."""
    trees = [ast.parse(file.read_text()) for file in (ROOT / "tests").rglob("test_*.py")]
    modules = {name.rpartition(".")[0] for tree in trees if is_quick(tree) for name in imports(tree)}
    touched = modules | {module.rpartition(".")[0] for module in modules}
    rooms = {room for room in ROOMS if len(list(room.glob("*.py"))) > 1 and room.name != "face"}
    assert len(rooms) > 30
    assert {
        name for room in rooms if (name := ".".join(("isthmus", *room.relative_to(ROOT).parts))) not in touched
    } == set()


@pytest.mark.slow
def test_a_class_has_a_name_of_its_own() -> None:
    """One word, one meaning: whoever reads a name knows which class it is."""
    files = [file for top in ("runtime", "ops", "programs") for file in (ROOT / top).rglob("*.py")]
    names = Counter(
        each.name for file in files for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)
    )
    assert len(names) > 1000
    assert {name for name, count in names.items() if count > 1} == set()


def test_packages_are_imported_by_their_full_name_alone() -> None:
    """From the root of a clone `import runtime` finds a second copy of everything, with other classes."""
    files = [file for top in ("runtime", "ops", "programs", "tests", "docs") for file in (ROOT / top).rglob("*.py")]
    assert len(files) > 600
    line = re.compile(rf"^ *(?:from|import) +(?:{'|'.join(sorted(BARE))})\b", re.MULTILINE)
    assert line.search("def f():\n    from runtime.ids import Member")
    assert [file for file in files if line.search(file.read_text())] == []
    for name in sorted(BARE):
        with pytest.raises(ImportError, match=f"isthmus.{name}"):
            importlib.import_module(name)

"""What users import: every name is there, and examples use nothing deeper."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import isthmus
from isthmus import testing
from isthmus.testing import Fault

ROOT = Path(__file__).resolve().parents[2]
FACE = ROOT / "programs" / "face"
PUBLIC = ("isthmus", "isthmus.learners", "isthmus.testing", "isthmus.torch")


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a source; the name is empty where a module is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_every_name_is_declared_where_editors_and_interpreters_look() -> None:
    tree = ast.parse((FACE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen_by_editors = {
        alias.asname or alias.name: node.module + (f":{alias.name}" if alias.asname else "")
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    assert seen_by_editors == {name: f"isthmus.{module}" for name, module in isthmus._MODULES.items()}
    assert sorted(isthmus.__all__) == sorted([*isthmus._MODULES, "__version__"])
    assert set(isthmus.__all__) <= set(dir(isthmus))
    for name in isthmus.__all__:
        assert getattr(isthmus, name) is not None
    assert isthmus.__version__ == importlib.metadata.version("isthmus")
    with pytest.raises(AttributeError, match="has no attribute 'Tusk'"):
        _ = isthmus.Tusk  # type: ignore[attr-defined]


def test_nothing_inside_imports_the_face() -> None:
    for part in ("runtime", "ops", "programs"):
        for file in (ROOT / part).rglob("*.py"):
            if not re.search(r"isthmus(?:\.testing)? import|import isthmus\b", file.read_text()):
                continue
            inside = set(imported(ast.parse(file.read_text())))
            assert not {each for each in inside if each[0] in PUBLIC and each[1] in ("", *isthmus.__all__)}, file


def blocks() -> Iterator[tuple[str, str]]:
    """Every example of the documentation, by name: files, and blocks of Python in pages."""
    for file in sorted((ROOT / "docs" / "examples").glob("*.py")):
        yield file.name, file.read_text()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in sorted(page for page in pages if page.parent.name != "decisions" and page.name != "changelog.md"):
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            yield f"{page.name}, block {number}", block


@pytest.mark.parametrize(("name", "source"), [pytest.param(*each, id=each[0]) for each in blocks()])
def test_examples_use_the_face_and_nothing_deeper(name: str, source: str) -> None:
    pattern = r"^\s*(?:from|import)\s+(isthmus[\w.]*)"  # By text: some blocks are pieces of a file.
    assert set(re.findall(pattern, source, re.MULTILINE)) <= set(PUBLIC)


def test_every_fault_and_the_suites_are_there_for_tests() -> None:
    kinds = {kind.__name__ for kind in get_args(Fault)}
    assert {*testing.__all__} == {*kinds, "Fault", "channel_conformance", "learner_conformance"}
    assert testing.channel_conformance.ChannelConformance.__name__ == "ChannelConformance"
    assert testing.learner_conformance.LearnerConformance.__name__ == "LearnerConformance"
    with pytest.raises(AttributeError, match="has no attribute 'Krill'"):
        _ = testing.Krill

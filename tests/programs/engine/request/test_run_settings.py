"""A key of section `run.` is declared once, and named at few other places."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.programs.engine.request.run_settings import SCHEMA, RunSettings
from isthmus.runtime.errors import ConfigError

ROOT = Path(__file__).parents[4]
PLACES_MAX = 3
COMMON_WORDS = {"tokens", "seed", "learners", "snapshots", "processes", "evaluate"}
"""Keys that are words for other things as well: those are counted only where the section is named beside them."""
OWNERS = {"RunSettings", "Job", "Options", "train"}
"""What has keys of the section as fields or parameters."""
SECTION = {"run", "settings"}
"""Names of mappings of the section's keys."""


def named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each key, and the line, where it stands as a string, a field or a parameter."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text.removeprefix("run.") not in COMMON_WORDS or "." in text:
                yield text.removeprefix("run."), node.lineno
            case ast.Subscript(slice=ast.Constant(value=str(key))) if last_name(node.value) in SECTION:
                yield key, node.lineno
            case ast.Compare(left=ast.Constant(value=str(key)), comparators=[ast.Name(id=name)]) if name in SECTION:
                yield key, node.lineno
            case ast.Tuple(elts=[ast.Constant(value="run"), ast.Constant(value=str(key))]):
                yield key, node.lineno
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) if name in OWNERS:
                yield from ((each.arg, each.lineno) for each in ast.walk(node) if isinstance(each, ast.arg))
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        yield each.target.id, each.lineno
            case ast.arg(arg=key) if key not in COMMON_WORDS:
                yield key, node.lineno
            case _:
                pass


def last_name(node: ast.expr) -> str:
    """`run` of `run`, `sections.run` and `config["run"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case _:
            return ""


@pytest.mark.slow
def test_each_key_is_named_at_three_lines_at_most() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    sources = [*(ROOT / "programs").rglob("*.py"), ROOT / "runtime" / "graph" / "template.py"]
    for file in sources:
        for key, line in named(ast.parse(file.read_text())):
            if key in SCHEMA.keys:
                places[key].add(f"{file.relative_to(ROOT)}:{line}")
    assert set(places) == set(SCHEMA.keys)
    crowded = {key: sorted(lines) for key, lines in places.items() if len(lines) > PLACES_MAX}
    assert not crowded


def test_what_a_spec_from_elsewhere_says_is_checked_as_what_a_user_says() -> None:
    with pytest.raises(ConfigError) as caught:
        RunSettings.read({"tokens": 0, "tape_bytes": 1, "learners": 17})
    assert [fault.action for fault in caught.value.faults] == [
        "Reading run.tokens",
        "Reading run.tape_bytes",
        "Reading run.learners",
    ]
    assert RunSettings.read(RunSettings().section()) == RunSettings()

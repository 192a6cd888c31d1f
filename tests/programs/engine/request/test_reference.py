"""Programs and references: what is named is found, what is not is told, and a user's file is imported as it is now."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.program import Program, decoupled_diloco
from isthmus.programs.job import Job
from isthmus.runtime.errors import ConfigError, GraphError
from isthmus.runtime.graph.template import Graph, Reference

RING = """
from isthmus.runtime.graph.template import Graph, Latest, Queue

def step(own, neighbour=None):
    return own

def build(job, *, interval: int = 24):
    graph = Graph("ring")
    learner = graph.role("learner", replicas=(1, 64))
    node = learner.node("step", step)
    graph.edge(node["result"], node["own"], Queue(capacity=interval, initial=(1,)))
    return graph

def raises(job):
    values = [1]
    return values[2]

def misnames(job):
    node = Graph("g").role("learner", replicas=(1, 1)).node("step", step)
    return node["owm"]

def nothing(job):
    pass

def without_job():
    return Graph("g")

number = 3
"""

JOB = Job("ring.py:build", Reference("mine.py:task"), (), 64, 1000, settings=MappingProxyType({}))


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with ring.py, which is the current one; imports are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(reference, "_loaded", {})
    before = set(sys.modules)
    (tmp_path / "ring.py").write_text(RING)
    yield tmp_path / "ring.py"
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Program(text).build(JOB)
    return str(caught.value)


# -- programs ----------------------------------------------------------------------------------------------------------


def test_every_shipped_program_can_be_built() -> None:
    for name in SHIPPED:
        assert callable(Program(name).builder())
        assert Program(name).name == name


def test_a_function_names_the_shipped_program_with_settings() -> None:
    program = decoupled_diloco(interval=12)
    assert (program.reference, dict(program.settings)) == ("decoupled-diloco", {"interval": 12})
    assert program.schema().read(program.settings)["interval"] == 12


def test_a_file_or_a_module_is_a_program(ring: Path) -> None:
    for text, name in ((f"{ring}:build", "ring"), ("ring.py:build", "ring"), ("ring:build", "ring")):
        program = Program(text)
        assert program.name == name
        assert program.build(JOB).name == "ring"
        assert list(program.schema().keys) == ["interval"]


def test_a_path_starts_in_the_folder_where_the_program_was_made(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("ring.py:build")
    monkeypatch.chdir("/")
    assert program.reference == f"{ring}:build"
    assert program.build(JOB).name == "ring"


def test_an_unknown_program_is_told_with_the_nearest_name() -> None:
    message = refusal("decopled-diloco")
    assert "Loading the program 'decopled-diloco': expected a shipped program, or package.module:function" in message
    assert "Did you mean 'decoupled-diloco'?" in message


@pytest.mark.parametrize(
    ("text", "expected", "found", "do"),
    [
        ("rin.py:build", "a Python file", "nothing there", "Did you mean 'ring.py'?"),
        ("folder.py:build", "a Python file", "a folder", "Name an existing file"),
        ("notes/ring.txt:build", "a Python file", "another file", "Name an existing file"),
        ("no_such.module:build", "a module 'no_such.module'", "no module 'no_such'", "no_such/module.py:build"),
        ("..:build", "a module '..'", "a name with an empty part", "package.module:NAME"),
        ("ring.py:bild", "'bild' in", "no such name", "Did you mean 'build'?"),
        ("ring.py:number", "a function build(job, ...)", "int 3", "Name the function"),
        ("ring:", "FILE.py:NAME", "'ring:'", "mine.py:task"),
        ("ring.py:nothing", "a Graph", "None", "Return the graph"),
        ("ring.py:raises", "a graph", "IndexError: list index out of range", "Correct the code there"),
        ("ring.py:without_job", "a graph", "TypeError: without_job() takes 0", "Correct the code there"),
    ],
)
def test_a_reference_that_names_no_builder(ring: Path, text: str, expected: str, found: str, do: str) -> None:
    (ring.parent / "folder.py").mkdir()
    (ring.parent / "notes").mkdir()
    (ring.parent / "notes" / "ring.txt").write_text(RING)
    message = refusal(text)
    assert f"expected {expected}" in message
    assert f"found {found}" in message
    assert do in message.splitlines()[-1]


def test_an_exception_in_a_builder_is_told_with_its_line(ring: Path) -> None:
    line = RING.splitlines().index("    return values[2]") + 1
    assert f"({ring}:{line})" in refusal("ring.py:raises")


def test_a_graph_error_in_a_builder_is_told_with_its_line(ring: Path) -> None:
    with pytest.raises(GraphError) as caught:
        Program("ring.py:misnames").build(JOB)
    line = RING.splitlines().index('    return node["owm"]') + 1
    assert f"({ring}:{line}): expected one of its ports" in str(caught.value)
    assert "Did you mean 'own'?" in str(caught.value)


def test_settings_reach_the_builder(ring: Path) -> None:
    job = Job("ring.py:build", JOB.task, (), 64, 1000, settings={"interval": 7})
    graph: Graph = Program("ring.py:build").build(job)
    assert getattr(graph.edges[0].policy, "capacity", None) == 7


# -- references --------------------------------------------------------------------------------------------------------


def test_a_file_is_imported_once_and_again_when_it_has_changed(ring: Path) -> None:
    first = reference.load("ring.py:number", "Testing")
    builder = reference.load("ring.py:build", "Testing")
    assert reference.load(f"{ring}:build", "Testing") is builder
    assert sys.modules["ring"].__dict__["build"] is builder
    assert sys.path[0] == str(ring.parent)
    ring.write_text(RING.replace("number = 3", "number = 44"))
    assert (first, reference.load("ring.py:number", "Testing")) == (3, 44)
    assert not (ring.parent / "__pycache__").exists()


def test_a_file_imports_its_neighbours(ring: Path) -> None:
    (ring.parent / "neighbour_of_ring.py").write_text("value = 5\n")
    (ring.parent / "importing.py").write_text("from neighbour_of_ring import value\n")
    assert reference.load("importing.py:value", "Testing") == 5


def test_of_two_files_with_one_stem_the_last_one_counts(ring: Path) -> None:
    other = ring.parent / "other"
    other.mkdir()
    (other / "ring.py").write_text("number = 5\n")
    numbers = [reference.load(f"{folder}/ring.py:number", "Testing") for folder in (ring.parent, other, ring.parent)]
    assert numbers == [3, 5, 3]


@pytest.mark.parametrize("name", ["json", "pytest", "colorsys"])
def test_a_file_must_not_hide_another_module(ring: Path, name: str) -> None:
    (ring.parent / f"{name}.py").write_text("value = 1\n")
    with pytest.raises(ConfigError, match="expected a file whose stem names no other module") as caught:
        reference.load(f"{name}.py:value", "Testing")
    assert "Rename the file." in str(caught.value)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1\ny = ][\n", "SyntaxError: "),
        ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("x = 1\n\nraise ValueError('two\\nlines')\n", "ValueError: two lines"),
        ("import sys\nsys.exit('early')\n", "SystemExit: early"),
    ],
)
def test_a_module_that_fails_is_told_with_its_line(ring: Path, source: str, found: str) -> None:
    path = ring.parent / "failing.py"
    path.write_text(source)
    line = len(source.rstrip().splitlines())
    for text in ("failing.py:x", "failing:x"):
        with pytest.raises(ConfigError) as caught:
            reference.load(text, "Testing")
        assert f"found {found}" in str(caught.value)
        assert f"({path}:{line})" in str(caught.value)
        assert "failing" not in sys.modules


def test_a_request_error_at_import_keeps_its_faults_and_gets_the_line(ring: Path) -> None:
    path = ring.parent / "failing.py"
    path.write_text("from isthmus import Task\n\ntask = Task(1, 2, 3, tokens_per_batch=0, optimizer=None)\n")
    with pytest.raises(ConfigError) as caught:
        reference.load("failing.py:task", "Testing")
    assert len(caught.value.faults) == 5
    assert all(f"({path}:3)" in fault.action for fault in caught.value.faults)


def test_a_call_is_what_the_function_returns(ring: Path) -> None:
    (ring.parent / "making.py").write_text(
        "def make(**keywords):\n    return keywords\n\ndef fail():\n    return 1 / 0\n"
    )
    text = reference.called("making.py:make", {"a": (1, 2), "b": 'x"]', "c": None, "d": 0.5})
    assert reference.load(text, "Testing") == {"a": [1, 2], "b": 'x"]', "d": 0.5}
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        reference.load("making.py:fail()", "Testing")
    with pytest.raises(ConfigError, match="keywords as in a TOML inline table"):
        reference.load("making.py:make(1)", "Testing")


def test_a_reference_means_one_object_or_what_was_bound_to_it(ring: Path) -> None:
    (ring.parent / "making.py").write_text("def make():\n    return object()\n")
    called = Reference(f"{ring.parent}/making.py:make()")
    assert reference.resolve(called) is reference.resolve(called)
    mine = object()
    reference.bind(Reference("nobody's"), mine)
    assert reference.resolve(Reference("nobody's")) is mine


def test_the_name_of_an_object_is_where_it_is_bound() -> None:
    assert reference.name_of(JOB, near=[refusal]) == f"{Path(__file__).resolve()}:JOB"
    assert reference.name_of(object(), near=[refusal]) is None


def test_only_files_are_made_absolute(ring: Path) -> None:
    folder = ring.parent
    assert reference.absolute("ring.py:build") == f"{folder}/ring.py:build"
    assert reference.absolute("../a/b.py:c", Path("/x/y")) == "/x/a/b.py:c"
    assert reference.absolute("package.module:build") == "package.module:build"
    assert reference.absolute("decoupled-diloco") == "decoupled-diloco"

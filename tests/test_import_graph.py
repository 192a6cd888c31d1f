"""What a module of tests reaches, in small trees."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.import_graph import Reach, import_graph, module_name

WINGS = """
WINGS = (
    Wing("why", needs=("report",), commands={"replay": "replay_commands"}),
    Wing("report", commands={"report": "report_commands"}, last_writer="page:write"),
)
def commands_of(name):
    WINGS
def write_last():
    for wing in WINGS: wing.last_writer
"""
FOLDERS = {"programs/face": "isthmus", "runtime": "isthmus.runtime", "programs": "isthmus.programs", "tests": "tests"}


def reach(test: str, **modules: str) -> Reach:
    """What a test reaches of modules of `isthmus.runtime`; the packages are there."""
    sources = {"programs/face/__init__.py": "", "runtime/__init__.py": "", "tests/__init__.py": ""}
    sources |= {f"runtime/{name}.py": dedent(source) for name, source in modules.items()}
    graph = import_graph(sources | {"tests/test_a.py": dedent(test)}, FOLDERS)
    found = Reach(graph)
    found.add(*graph.used("tests.test_a"))
    return found


def names(found: Reach) -> set[str]:
    """The modules of the runtime that are reached."""
    return {module.rpartition(".")[2] for module in found.modules if module.startswith("isthmus.runtime.")}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("programs/face/__init__.py", "isthmus"),
        ("programs/face/torch.py", "isthmus.torch"),
        ("programs/engine/run/launch.py", "isthmus.programs.engine.run.launch"),
        ("tests/ops/bodies.py", "tests.ops.bodies"),
        ("docs/examples/loop.py", None),
        ("runtime/py.typed", None),
    ],
)
def test_a_file_has_the_name_that_it_is_imported_by(path: str, module: str | None) -> None:
    assert module_name(path, FOLDERS) == module


@pytest.mark.parametrize(
    ("of_one", "reached"),
    [
        ("from isthmus.runtime import two\nvalue = 1\n", {"one", "two"}),
        ("def value():\n    from isthmus.runtime.two import f\n", {"one", "two"}),
        ("def value():\n    import isthmus.runtime.two\n", {"one", "two"}),
        ("def other():\n    from isthmus.runtime.two import f\nvalue = 1\n", {"one"}),
        ("class value:\n    def f(self):\n        from isthmus.runtime.two import f\n", {"one", "two"}),
        ("def inner():\n    from isthmus.runtime.two import f\ndef value(): inner()\n", {"one", "two"}),
        ("def inner():\n    from isthmus.runtime.two import f\nothers = inner()\nvalue = 1\n", {"one", "two"}),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from isthmus.runtime import two\nvalue = 1\n",
            {"one"},
        ),
        ("value = 'isthmus.runtime.two:f'\n", {"one", "two"}),
        ("value = ['-m', 'isthmus.runtime.two']\n", {"one", "two"}),
        ("other = 'isthmus.runtime.two:f'\nvalue = 1\n", {"one"}),
        ('def value():\n    "As isthmus.runtime.two has it."\n', {"one"}),
        ("value = 'import isthmus.runtime.two'\n", {"one"}),
    ],
)
def test_an_import_counts_where_it_is_reached(of_one: str, reached: set[str]) -> None:
    assert names(reach("from isthmus.runtime.one import value", one=of_one, two="def f(): ...")) == reached


def test_a_name_is_followed_through_the_modules_that_import_it_on() -> None:
    found = reach(
        "from isthmus.runtime import one\ndef test(): one.f()",
        one="from isthmus.runtime.two import f, g",
        two="def f():\n    import isthmus.runtime.three\ndef g():\n    import isthmus.runtime.four\n",
        three="",
        four="",
    )
    assert names(found) == {"one", "two", "three"}
    assert found.chain("isthmus.runtime.three")[-2:] == ["isthmus.runtime.two", "isthmus.runtime.three"]


TABLE = "TABLE = {'ray': 'isthmus.runtime.two', 'slurm': 'isthmus.runtime.three:f'}\ndef start(name): TABLE[name]\n"


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ("start('ray')", {"one", "two"}),
        ("start('a ray of light')", {"one", "two"}),
        ("start('array')", {"one"}),
        ("for name in one.TABLE: start(name)", {"one", "two", "three"}),
    ],
)
def test_a_row_of_a_table_counts_where_a_test_names_its_key_or_the_table(test: str, reached: set[str]) -> None:
    test = f"from isthmus.runtime import one\nfrom isthmus.runtime.one import start\ndef test():\n    {test}\n"
    assert names(reach(test, one=TABLE, two="", three="def f(): ...")) == reached


def test_the_first_row_counts_where_it_is_the_default() -> None:
    one = f"{TABLE}DEFAULT = next(iter(TABLE))\ndef begin(name=DEFAULT): ...\n"
    test = "from isthmus.runtime.one import begin\n"
    assert names(reach(test, one=one, two="", three="def f(): ...")) == {"one", "two"}


def test_a_row_counts_where_code_that_is_reached_names_its_key_too() -> None:
    asks = "from isthmus.runtime.one import start\ndef ask(): start('slurm')\n"
    test = "from isthmus.runtime.asking import ask\n"
    assert names(reach(test, asking=asks, one=TABLE, two="", three="def f(): ...")) == {"asking", "one", "three"}


def test_a_service_counts_by_the_messages_of_its_row() -> None:
    table = "ROWS = (Row('isthmus.runtime.two:Two', {'measure-link': ''}),)\n"
    for word, reached in (("measure-link", {"one", "two"}), ("measure", {"one"})):
        test = f"from isthmus.runtime import one\ndef test():\n    one.ask('{word}')\n"
        code = f"{table}def ask(kind): ROWS\n"
        assert names(reach(test, one=code, two="class Two: ...")) == reached


COMMANDS = """
commands = typer.Typer()
NAMES = {"ray": "help"}
@commands.command()
def take_part():
    from isthmus.runtime import two
@commands.command("other")
def another():
    from isthmus.runtime import three
def add(name):
    @commands.command(name)
    def on_engine():
        from isthmus.runtime import four
for name in NAMES:
    add(name)
"""


@pytest.mark.parametrize(
    ("typed", "reached"),
    [
        ("'take-part'", {"two"}),
        ("'isthmus take-part --json'", {"two"}),
        ("'they take part'", set()),
        ("'isthmus launch other'", {"three"}),
        ("'another'", set()),
        ("'ray'", {"four"}),
    ],
)
def test_a_command_counts_where_a_test_types_it(typed: str, reached: set[str]) -> None:
    test = f"from isthmus.runtime.one import commands\ndef test(typed): typed({typed})\n"
    assert names(reach(test, one=COMMANDS, two="", three="", four="")) == {"one", *reached}


def test_a_lazy_face_loads_what_it_is_asked_for() -> None:
    face = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from isthmus.runtime.two import Task
            from isthmus.runtime.three import train
        def __getattr__(name): ...
    """
    modules = {"face": face, "two": "class Task: ...", "three": "def train(): ..."}
    assert names(reach("from isthmus.runtime import face", **modules)) == {"face"}
    assert names(reach("from isthmus.runtime import face\ntask = face.Task()", **modules)) == {"face", "two"}
    assert names(reach("from isthmus.runtime.face import Task", **modules)) == {"face", "two"}
    assert names(reach("CODE = 'print(isthmus.runtime.face.__all__)'", **modules)) == {"face", "two", "three"}
    text = "TASK = 'from isthmus.runtime.face import Task, train'"
    assert names(reach(text, **modules)) == {"face", "two", "three"}


def test_a_name_that_is_replaced_is_one_of_its_module_only() -> None:
    two = "def f():\n    import isthmus.runtime.three\ndef g():\n    import isthmus.runtime.four\n"
    test = "from isthmus.runtime import two\ndef test(monkeypatch): monkeypatch.setattr(two, 'f', None)\n"
    assert names(reach(test, two=two, three="", four="")) == {"two", "three"}
    whole = "from isthmus.runtime import two\ndef test(): look(two)\n"
    assert names(reach(whole, two=two, three="", four="")) == {"two", "three", "four"}


def test_a_module_loads_the_packages_above_it() -> None:
    assert {"isthmus", "isthmus.runtime"} <= reach("import isthmus.runtime.one", one="").modules


def test_an_example_that_a_text_names_counts_with_what_it_imports() -> None:
    sources = {"programs/face/__init__.py": "", "runtime/__init__.py": "", "runtime/one.py": "", "runtime/two.py": ""}
    sources |= {f"docs/examples/{name}.py": f"from isthmus.runtime import {name}" for name in ("one", "two")}
    for text, reached in (("one.py:task", {"one"}), ("examples", {"one", "two"}), ("none.py", set())):
        graph = import_graph(sources | {"tests/test_a.py": f"TASK = {text!r}"}, FOLDERS | {"docs/examples": "examples"})
        found = Reach(graph)
        found.add(*graph.used("tests.test_a"))
        assert names(found) == reached


def test_a_package_that_is_run_is_its_main_module() -> None:
    sources = {"programs/face/__init__.py": "", "runtime/__init__.py": "", "runtime/__main__.py": ""}
    graph = import_graph(sources | {"tests/test_a.py": "CODE = ['-m', 'isthmus.runtime']"}, FOLDERS)
    found = Reach(graph)
    found.add(*graph.used("tests.test_a"))
    assert names(found) == {"__main__"}


def test_a_table_that_code_in_a_text_names_counts_with_all_rows() -> None:
    test = "CODE = 'from isthmus.runtime.one import TABLE'"
    assert names(reach(test, one=TABLE, two="", three="def f(): ...")) == {"one", "two", "three"}


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ("commands_of('replay')", {"replay_commands"}),
        ("commands_of('they replay it')", set()),
        ("commands_of('--help')", {"replay_commands", "report_commands"}),
        ("write_last()", {"page"}),
    ],
)
def test_a_row_of_a_wing_counts_by_what_is_typed_or_taken(test: str, reached: set[str]) -> None:
    offers = "def offer(app): ..."
    sources = {"programs/face/__init__.py": "", "programs/__init__.py": "", "programs/table.py": WINGS}
    sources |= {f"programs/wings/{name}/__init__.py": "" for name in ("why", "report")} | {
        "programs/wings/__init__.py": ""
    }
    sources |= {"programs/wings/why/replay_commands.py": offers, "programs/wings/report/report_commands.py": offers}
    sources |= {"programs/wings/report/page.py": "def write(folder): ..."}
    code = f"from isthmus.programs.table import commands_of, write_last\ndef test_a(): {test}\n"
    name = test.partition("(")[0]
    graph = import_graph(sources | {"tests/test_a.py": code.replace("commands_of, write_last", name)}, FOLDERS)
    found = Reach(graph)
    found.add(*graph.used("tests.test_a"))
    wings = {module for module in found.modules if module.startswith("isthmus.programs.wings.")}
    assert {module.rpartition(".")[2] for module in wings} - {"why", "report"} == reached

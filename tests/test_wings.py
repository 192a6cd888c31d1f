"""The wings, and what tells whether one can be deleted."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from isthmus.programs.wing_table import WINGS, Wing
from tests.wings import ROOT, STRUCK, TABLE, UNCUT, gone_with, leaks, nouns_of, texts_of, users_of, without_rows


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: wing.name)
def test_what_a_row_names_is_there(wing: Wing) -> None:
    named = [*wing.commands.values(), *wing.programs.values(), *wing.island_kinds.values(), wing.last_writer]
    named += [service.made_by for service in wing.services]
    for name in filter(None, named):
        assert find_spec(wing.reference(name).partition(":")[0]) is not None
    assert (ROOT / "programs/wings" / wing.name / "__init__.py").is_file()
    assert list((ROOT / "tests/programs/wings" / wing.name).glob("test_*.py"))


def test_each_folder_has_a_row_and_needs_only_rows() -> None:
    names = {wing.name for wing in WINGS}
    folders = {each.parent.name for each in (ROOT / "programs/wings").glob("*/__init__.py")}
    assert folders == names
    assert {need for wing in WINGS for need in wing.needs} <= names
    assert not names & UNCUT.keys()
    assert STRUCK.keys() <= names
    assert len(names) + len(UNCUT) >= 18


def test_a_noun_is_found_where_the_rest_uses_it_and_not_where_it_has_its_own() -> None:
    wing = Wing("w", commands={"fly": "m"})
    nouns = nouns_of(["class Feather: ...\ndef flap(x): ...\ndef _hidden(): ...\nTHING = 1\n"], wing)
    assert nouns == ({"Feather", "flap"}, {"fly"})
    rest = {"a.py": "import x\nx.Feather()\n", "b.py": "def flap(): ...\nflap()\n", "c.py": "kind = 'fly', 'Feather'\n"}
    assert list(leaks(nouns, rest, {})) == ["a.py:2 Feather", "c.py:1 fly"]
    assert list(leaks(nouns, rest, {"fly": "an English word"})) == ["a.py:2 Feather"]


def test_a_test_uses_a_wing_by_its_name_its_command_or_what_imports_it() -> None:
    texts = {
        "tests/helper.py": "from isthmus.programs.wings.chaos import striking\n",
        "tests/test_by_import.py": "from tests import (\n    bench,\n    helper,\n)\n",
        "tests/test_by_command.py": 'typed("chaos")\n',
        "tests/test_of_others.py": "import tests.bench\n",
    }
    assert users_of(["chaos"], texts) == ["tests/test_by_command.py", "tests/test_by_import.py"]


def test_rows_are_cut_out_of_the_table_with_those_that_need_them() -> None:
    text = (ROOT / TABLE).read_text()
    gone = gone_with("report")
    assert {"report", "simulation", "compare"} <= set(gone)
    cut = without_rows(text, gone)
    made: dict[str, tuple[Wing, ...]] = {}
    exec(compile(cut, TABLE, "exec"), made)
    assert [wing.name for wing in made["WINGS"]] == [wing.name for wing in WINGS if wing.name not in gone]


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: wing.name)
def test_no_noun_of_a_wing_is_used_outside_of_it(wing: Wing) -> None:
    gone = gone_with(wing.name)
    texts = texts_of(ROOT, ["runtime", "ops", "programs"])
    own = [text for file, text in texts.items() if file.startswith(f"programs/wings/{wing.name}/")]
    folders = tuple(f"programs/wings/{name}/" for name in gone)
    rest = {file: text for file, text in texts.items() if not file.startswith(folders) and file != TABLE}
    assert list(leaks(nouns_of(own, wing), rest, STRUCK.get(wing.name, {}))) == []

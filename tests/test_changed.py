"""`make changed`: which tests a change concerns, in a small tree; and what is recorded of this one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests import changed
from tests.changed import Tree, changed_since, choose

SOURCES = {
    "programs/face/__init__.py": "",
    "runtime/__init__.py": "",
    "runtime/clock.py": "def now(): ...",
    "runtime/daemon.py": "from isthmus.runtime.clock import now",
    "runtime/porter.py": "",
    "programs/__init__.py": "",
    "programs/command/__init__.py": "",
    "programs/command/main.py": """
        from isthmus.programs import start
        @app.command()
        def train():
            from isthmus.runtime import daemon
            def ported():
                from isthmus.runtime import porter
        @app.command()
        def doctor():
            from isthmus.programs.wings.doctor import checks
    """,
    "programs/start.py": "",
    "programs/report/__init__.py": "",
    "programs/report/page.py": "STYLE = 'page.css'",
    "programs/report/other.py": "",
    "programs/wings/__init__.py": "",
    "programs/wings/doctor/__init__.py": "",
    "programs/wings/doctor/checks.py": "",
    "tests/__init__.py": "",
    "tests/patience.py": "PATIENCE = 60",
    "tests/conftest.py": "from isthmus.programs import start\ndef pytest_sessionstart(): start.begin()",
    "tests/runtime/test_clock.py": "from isthmus.runtime import clock",
    "tests/programs/conftest.py": """
        from isthmus.programs.command.main import app
        @pytest.fixture
        def typed():
            return app
        @pytest.fixture(autouse=True)
        def backend(): ...
    """,
    "tests/programs/test_words.py": "def test_a(): assert not 'it is typed'.isupper()",
    "tests/programs/test_typed.py": "def test_a(typed): typed('doctor')",
    "tests/programs/test_run.py": """
        from tests.patience import PATIENCE
        @pytest.mark.process
        def test_a(): run('train', '--seed', '1')
    """,
    "tests/programs/test_ported.py": "@pytest.mark.process\ndef test_a(): run('train', '--porter-place', 'x')",
    "tests/programs/test_report.py": "from isthmus.programs.report import page",
    "tests/programs/test_pages.py": "def test_a(): assert Path('docs').rglob('*.md')",
    "tests/programs/test_documents.py": """
        @pytest.mark.process
        def test_a(): assert [carry_out(each) for each in Path('docs').rglob('*.md')]
    """,
    "tests/programs/test_bad.py": "CASES = Path(__file__).with_name('bad.json')",
    "tests/programs/wings/doctor/test_checks.py": "",
    "tests/test_rooms.py": "def test_a(): assert [*(ROOT / 'runtime').rglob('*.py')]",
}
FOLDERS = {"programs/face": "isthmus", "runtime": "isthmus.runtime", "programs": "isthmus.programs", "tests": "tests"}
PAGES = ("Before the run:\n\n    isthmus doctor --json\n",)
LOADED = frozenset({"isthmus.runtime.daemon", "isthmus.runtime.clock", "isthmus.programs.command.main"})


def tree(**more: str) -> Tree:
    return Tree({path: dedent(source) for path, source in (SOURCES | more).items()}, FOLDERS, LOADED, pages=PAGES)


def concerned(*paths: str, **more: str) -> set[str]:
    """The names of the test files that a change of these paths concerns."""
    return {Path(path).stem.removeprefix("test_") for path in choose(tree(**more), paths).why}


EVERY = {"clock", "words", "typed", "run", "ported", "report", "pages", "documents", "bad", "checks", "rooms"}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("runtime/clock.py", {"clock", "run", "ported", "documents", "rooms"}),
        ("runtime/daemon.py", {"run", "ported", "documents", "rooms"}),
        ("runtime/porter.py", {"ported", "rooms"}),
        ("programs/command/main.py", {"typed", "run", "ported", "documents"}),
        ("programs/wings/doctor/checks.py", {"typed", "documents", "checks"}),
        ("programs/wings/doctor/page.html", {"typed", "documents", "checks"}),
        ("programs/start.py", EVERY),
        ("tests/conftest.py", EVERY),
        (
            "tests/programs/conftest.py",
            {"words", "typed", "run", "ported", "report", "pages", "documents", "bad", "checks"},
        ),
        ("tests/runtime/test_clock.py", {"clock"}),
        ("tests/patience.py", {"run"}),
        ("programs/report/page.css", {"report"}),
        ("programs/report/logo.png", {"report"}),
        ("docs/how-to/gpu.md", {"pages", "documents"}),
        ("tests/programs/bad.json", {"bad"}),
        ("tests/programs/unread.json", EVERY),
        ("setup.cfg", EVERY),
        ("Makefile", EVERY),
    ],
)
def test_a_change_concerns_the_tests_that_reach_it(path: str, tests: set[str]) -> None:
    assert concerned(path) == tests


def test_several_changes_concern_what_each_does() -> None:
    assert concerned("docs/a.md", "runtime/porter.py") == concerned("docs/a.md") | concerned("runtime/porter.py")
    assert concerned() == set()


def test_who_imports_a_file_that_is_gone_is_concerned() -> None:
    source = "def test_a():\n    from isthmus.runtime.gone import f\n"
    assert concerned("runtime/gone.py", **{"tests/test_gone.py": source, "runtime/gone.py": ""}) == {"gone", "rooms"}


def test_the_way_to_a_change_is_said() -> None:
    chosen = choose(tree(), ["runtime/porter.py", "runtime/clock.py"])
    assert chosen.why["tests/runtime/test_clock.py"] == [
        "tests.runtime.test_clock",
        "isthmus.runtime.clock",
        "runtime/clock.py",
    ]
    assert chosen.why["tests/programs/test_ported.py"][:2] == ["tests.programs.test_ported", "a process"]
    assert choose(tree(), ["setup.cfg"]).by_all == ["setup.cfg"]


def test_a_process_is_of_the_kind_that_its_title_names() -> None:
    notes = [
        "isthmus learner 0\truntime/clock.py",
        "python -m isthmus.programs.engine.run.fork_server /tmp\truntime/daemon.py",
        "isthmus fork-server preparing\truntime/daemon.py",
        "isthmus plain-server\truntime/clock.py",
        "/bin/isthmus daemon --name alpha\truntime/daemon.py",
        "/bin/isthmus train\truntime/clock.py",
        "/bin/isthmus train\truntime/__init__.py",
        "/bin/isthmus train\tsetup.py",
    ]
    assert changed.by_kind(tree(), notes) == {
        "command": ["isthmus.runtime", "isthmus.runtime.clock"],
        "fork_server": ["isthmus.runtime.daemon"],
        "learner": ["isthmus.runtime.clock"],
        "machine": ["isthmus.runtime.daemon"],
        "plain_server": ["isthmus.runtime.clock"],
    }


def test_what_is_recorded_of_processes_is_there() -> None:
    """After a move `python -m tests.changed --record` records anew."""
    recorded = json.loads(changed.LOADED.read_text())
    assert {"command", "daemon_process", "fork_server", "learner", "syncer", "recorder", "machine"} <= set(recorded)
    project = changed.read_tree()
    there = {project.module(path) for path in project.sources}
    assert {name for names in recorded.values() for name in names} - there == set()


def test_pieces_are_kept_until_a_file_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache" / "pieces"
    kept = changed.KeptPieces(file)
    made = kept("import os", "a")
    kept.keep()
    monkeypatch.setattr(changed, "pieces_of", None)
    again = changed.KeptPieces(file)
    assert again("import os", "a") == made
    with pytest.raises(TypeError):
        again("import sys", "a")


@pytest.mark.process
def test_what_differs_is_what_git_says_and_new_files(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str = "") -> None:
        (tmp_path / name).write_text(text)

    git("init", "-b", "main")
    write(".gitignore", "*.pyc\n")
    for name in ("kept", "committed", "edited", "gone", "gone then moved"):
        write(name, name)
    git("add", "-A")
    git("commit", "-m", "one")
    write("edited", "more")
    assert changed_since(None, tmp_path) == ["edited"]
    git("checkout", "-b", "branch")
    write("committed", "more")
    git("commit", "-am", "two")
    (tmp_path / "gone").unlink()
    git("mv", "gone then moved", "moved")
    write("new")
    write("new.pyc")
    assert changed_since(None, tmp_path) == ["committed", "edited", "gone", "gone then moved", "moved", "new"]
    assert changed_since("HEAD", tmp_path) == ["gone", "gone then moved", "moved", "new"]
    with pytest.raises(ValueError, match="nowhere"):
        changed_since("nowhere", tmp_path)

"""`make readme`: what it types, in which clone, and what ends it; with a small README in place of this one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from isthmus.runtime.system.processes import started_at
from tests.patience import PATIENCE
from tests.programs.page_reader import Clone
from tests.readme import UnlikeReadmeError, read

pytestmark = pytest.mark.process

PAGE = """
<!-- run by make readme: it installs -->

    mkdir .venv        # what make train does
    echo 1 > .venv/one

<!-- shown.py -->
```python
x = 1
```

    cd folder
    cat ../.venv/one \\
        here
    false              # exit status 1

<!-- not run: it needs a second machine -->

    echo no > ../there

"""


def repository(folder: Path, page: str) -> Path:
    """A repository with this README, and a file that is not committed."""
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "here").write_text("2\n")
    (folder / "shown.py").write_text("x = 1\n")
    (folder / "README.md").write_text(page)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "README.md").write_text("another page\n")
    return folder


def test_what_is_committed_is_typed_in_its_order_and_what_is_left_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(repository(tmp_path / "root", PAGE), tmp_path)
    told = capsys.readouterr().out
    assert [line[2:] for line in told.splitlines() if line.startswith("$ ")] == [
        "mkdir .venv        # what make train does",
        "echo 1 > .venv/one",
        "cd folder",
        "cat ../.venv/one \\",
        "false              # exit status 1",
    ]
    assert (tmp_path / "isthmus" / ".venv" / "one").read_text() == "1\n"
    assert not (tmp_path / "isthmus" / "there").exists()
    assert told.count("it needs a second machine") == 1
    assert ".venv has" in told
    assert not (tmp_path / "root" / ".venv").exists(), "the reader's folder is the clone"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("false              # exit status 1", "false"),
        ("echo 1 >", "nothing-of-this-name >"),
        ("x = 1", "x = 2"),
        ("```python\nx = 1", "```toml\nx = 1"),
    ],
)
def test_the_first_command_that_is_unlike_the_page_ends_it(tmp_path: Path, before: str, after: str) -> None:
    with pytest.raises(UnlikeReadmeError):
        read(repository(tmp_path / "root", PAGE.replace(before, after)), tmp_path)
    assert (tmp_path / "isthmus").exists()


def test_a_command_that_takes_too_long_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    typed = Clone(tmp_path / "clone").type("sleep 1000 & echo $! > pid; wait", tmp_path / "clone", seconds_max=2.0)
    assert typed.status is None
    pid = int((tmp_path / "clone" / "pid").read_text())
    until = time.monotonic() + PATIENCE
    while started_at(pid) is not None:
        assert time.monotonic() < until

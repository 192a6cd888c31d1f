"""A reader of the documentation, who types what stands there, in a clone of the repository.

A page is read from its top: shell keeps its folder from block to block, Python its names; a block of Python with tests
is run by pytest beside the examples; one whose mark names a file shows that file. Nothing here needs a package: `make
readme` reads with the Python that makes the environment.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.programs.page_blocks import Block

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = Path("docs", "examples")
SECONDS_MAX: Final = 300.0
"""For one block, on a machine that is busy."""
_END_SECONDS: Final = 30.0
"""For a command to end by itself after a Ctrl-C."""
_NOT_HIS: Final = ("PYTEST_ADDOPTS", "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""What those who run a reader have in their environment, and a reader has not."""


class Typed(NamedTuple):
    """What came of commands: the last exit status, None where they were ended for the time they took; what they
    printed, the folder in which they leave the reader, and how long they took."""

    status: int | None
    output: str
    here: Path
    seconds: float


class Clone:
    """A clone of the repository in `folder`, or what looks like one to commands, and what was typed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outputs: dict[tuple[Path, str], Typed] = {}

    def shell(self, commands: str, here: Path, status: int = 0) -> tuple[str, Path]:
        """What commands that are typed in `here` print, and in which folder they leave the reader; the same ones in the
        same folder are run once. AssertionError for another exit status."""
        if (here, commands) not in self._outputs:
            typed = self._outputs[here, commands] = self.type(commands, here)
            said = f"exit status {typed.status}, not {status}:\n{commands}\n{typed.output}"
            assert typed.status == status, said
        return self._outputs[here, commands].output, self._outputs[here, commands].here

    def type(self, commands: str, here: Path, seconds_max: float = SECONDS_MAX) -> Typed:
        """Run commands in `here`, until one fails."""
        left, log = self.folder.with_name(f"{self.folder.name}.left"), self.folder.with_name(f"{self.folder.name}.log")
        script = f"set -euo pipefail\ntrap 'pwd >{left}' EXIT\n{commands}\n"
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder.with_name(f"{self.folder.name}.state"))}
        for name in _NOT_HIS:
            environment.pop(name, None)
        began = time.monotonic()
        with log.open("w+") as output:
            begun = subprocess.Popen(
                ["bash", "-c", script],
                cwd=here,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            try:
                status = begun.wait(seconds_max)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end(begun)
            seconds = time.monotonic() - began
            output.seek(0)
            there = Path(left.read_text().strip()) if left.exists() else here
            return Typed(status, output.read(), there, seconds)


def _end(begun: subprocess.Popen[bytes]) -> None:
    """End a command that goes on, by Ctrl-C, and then what it has started: bash hides Ctrl-C from what & begins."""
    if begun.poll() is not None:
        return
    os.killpg(begun.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        begun.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()


def clone_with_this_environment(folder: Path) -> Clone:
    """What looks like a clone to commands, with the sources of this one, and the environment of this process."""
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    for part in ("runtime", "ops", "programs", "setup.cfg"):
        (folder / part).symlink_to(ROOT / part)
    (folder / EXAMPLES).mkdir(parents=True)
    (folder / "docs" / "how-to").symlink_to(ROOT / "docs" / "how-to")
    for path in (ROOT / EXAMPLES).glob("*.py"):
        (folder / EXAMPLES / path.name).write_bytes(path.read_bytes())
    return Clone(folder)


class Reader:
    """Goes through one page."""

    def __init__(self, clone: Clone) -> None:
        self.clone, self.here = clone, clone.folder
        self.names: dict[str, object] = {"__name__": "reader"}
        self.tests = ""

    def read(self, block: Block) -> str:
        """Do what a block says; its output."""
        if block.language in ("shell", "bash"):
            output, self.here = self.clone.shell(block.text, self.here, block.exit_status)
            return output
        assert block.language == "python", f"a reader can do nothing with {block.language}"
        if block.mark:
            check_shown(block, self.clone.folder)
            return ""
        if "\ndef test_" in f"\n{block.text}":
            self.tests += f"{block.text}\n"
            (self.clone.folder / EXAMPLES / "test_page.py").write_text(self.tests)
            command = "../../.venv/bin/python -m pytest test_page.py"
            return self.clone.shell(f"{command}  # {block.line}", self.clone.folder / EXAMPLES)[0]
        printed = io.StringIO()
        with contextlib.chdir(self.here), contextlib.redirect_stdout(printed):
            exec(block.text, self.names)
        return printed.getvalue()


def check_shown(block: Block, root: Path) -> None:
    """AssertionError unless a block shows the file that its mark names."""
    assert block.text == (root / block.mark).read_text().rstrip(), f"line {block.line} does not show {block.mark}"

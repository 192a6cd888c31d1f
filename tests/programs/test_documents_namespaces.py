"""The second machine of the README, as it stands there: two network namespaces stand for the two machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs.engine.machine.namespaces import Namespaces, why_not
from tests.programs.page_blocks import Block, blocks_of

WHY_NOT = why_not()
pytestmark = [pytest.mark.soak, pytest.mark.process, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
README = Path(__file__).parents[2] / "README.md"
MARK = "test_documents_namespaces.py"
STAYS = ("daemon", "train", "join")
"""Commands that stay in the foreground of a terminal of their own."""


class Machines:
    """Alpha and beta: a folder that looks like a clone on each, and the commands that go on there."""

    def __init__(self, folder: Path) -> None:
        self.net = Namespaces("alpha", "beta", subnet="10.0.0")
        self.folders = {name: folder / name for name in ("alpha", "beta")}
        self._going_on: list[subprocess.Popen[str]] = []
        for each in self.folders.values():
            each.mkdir()
            (each / ".venv").symlink_to(sys.prefix)

    def type(self, line: str) -> None:
        """Carry out a line of the page on its machine; wait for it unless it stays."""
        machine = "beta" if " join " in line else "alpha"
        folder = self.folders[machine]
        words = [*self.net.prefix(machine), "bash", "-c", f"exec {line}" if "isthmus" in line else line]
        environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        with (folder / "output").open("a") as log:
            begun = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, text=True)
        self._going_on.append(begun)
        if not any(f"isthmus {command} " in line for command in STAYS):
            assert begun.wait(60) == 0, (line, self.said(machine))

    def said(self, machine: str) -> str:
        """All output of a machine."""
        path = self.folders[machine] / "output"
        return path.read_text() if path.exists() else ""

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Until something has happened on one of the machines."""
        end = time.monotonic() + 120
        while not is_so():
            assert time.monotonic() < end, (self.said("alpha"), self.said("beta"))
            time.sleep(0.1)

    def close(self) -> None:
        """End what goes on, runs included: a second signal ends at once."""
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            for process in reversed(self._going_on):
                if process.poll() is None:
                    process.send_signal(number)
            end = time.monotonic() + 10
            while any(process.poll() is None for process in self._going_on) and time.monotonic() < end:
                time.sleep(0.1)
        self.net.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def blocks() -> list[Block]:
    return [block for block in blocks_of(README.read_text()) if MARK in block.mark]


def test_another_machine_joins_as_the_readme_says(machines: Machines) -> None:
    alpha, beta = machines.folders["alpha"], machines.folders["beta"]
    found = blocks()
    assert [block.language for block in found] == ["shell", "toml", "shell", "shell"]
    for block in found:
        if block.language == "toml":
            (alpha / "cluster.toml").write_text(block.text)
            continue
        for line in block.text.splitlines():
            if line.startswith("make "):
                continue
            if " invite " in line:
                machines.wait_for(lambda: bool([*alpha.glob("runs/*/merges.jsonl")]))
            if " join " in line:
                (alpha / "beta.invite").rename(beta / "beta.invite")
            if " train " in line:
                machines.wait_for(lambda: "listens at" in machines.said("alpha"))
            machines.type(line)

    def is_merged() -> bool:
        """Whether something of the learner of the machine that came has been merged: slot 1 is its."""
        lines = [line for path in alpha.glob("runs/*/merges.jsonl") for line in path.read_text().splitlines()[:-1]]
        return any(1 in json.loads(line)["voters"] for line in lines)

    machines.wait_for(is_merged)
    machines.type(".venv/bin/isthmus expel beta")

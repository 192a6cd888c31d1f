"""`make readme`: what the README says is typed, command by command, in a fresh clone of what is committed here.

    python3 -m tests.readme

The environment is the one that the README's own first command makes, and has what its commands have installed so far.
The first command that does anything but what the README says ends it, with exit status 1, and the clone stays. What the
README marks as not run is named, with its reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.programs.page_blocks import Block, blocks_of, status_of
from tests.programs.page_reader import ROOT, Clone, check_shown

README: Final = "README.md"
SECONDS_MAX: Final = 1800.0
"""For one command: some install gigabytes, on a machine that is busy."""
INSTALLS: Final = "it installs"
"""In the mark of a block: what the environment takes then is told, because the README says it."""
SHOWN: Final = 4000
"""Characters of what a command printed that failed."""


class UnlikeReadmeError(Exception):
    """A command did something else than the README says."""


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="isthmus-readme-"))
    try:
        read(ROOT, folder)
    except UnlikeReadmeError as error:
        print(f"{error}\nThe clone stays: {folder}", file=sys.stderr)
        return 1
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)
    return 0


def read(root: Path, folder: Path) -> None:
    """Clone into a folder, and do what the README says there; UnlikeReadmeError at the first thing that is unlike."""
    clone = Clone(folder / "isthmus")
    _git("clone", "--quiet", str(root), str(clone.folder))
    commit = _git("-C", str(clone.folder), "rev-parse", "--short", "HEAD")
    print(f"{README} of {commit}, in {clone.folder}", flush=True)
    if changed := _git("-C", str(root), "status", "--porcelain").splitlines():
        print(f"what is not committed is not there: {len(changed)} files", flush=True)
    began, count, here, left_out = time.monotonic(), 0, clone.folder, []
    for block in blocks_of((clone.folder / README).read_text()):
        if block.why_not:
            left_out += list(_left_out(block))
        elif block.language == "python":
            _check_shown(block, clone.folder)
        else:
            for command in _commands(block):
                here = _type(clone, command, here)
                count += 1
            if INSTALLS in block.mark:
                print(f"    .venv has {_gigabytes(clone.folder / '.venv'):.2f} GB", flush=True)
    print(f"{count} commands, all as the README says, in {time.monotonic() - began:.0f} s")
    print("left out, and why:")
    for line in left_out:
        print(f"  {line}")


def _type(clone: Clone, command: str, here: Path) -> Path:
    """Type a command; the folder in which it leaves the reader."""
    print(f"$ {command}", flush=True)
    typed = clone.type(command, here, SECONDS_MAX)
    ended = f"ended after {SECONDS_MAX:.0f} s" if typed.status is None else f"exit status {typed.status}"
    print(f"    {ended}, {typed.seconds:.1f} s", flush=True)
    if typed.status != status_of(command):
        raise UnlikeReadmeError(typed.output[-SHOWN:])
    return typed.here


def _commands(block: Block) -> list[str]:
    if block.language not in ("shell", "bash"):
        raise UnlikeReadmeError(
            f"line {block.line}: nothing can be typed of {block.language}, and no mark says why not"
        )
    return block.commands


def _check_shown(block: Block, root: Path) -> None:
    try:
        check_shown(block, root)
    except (AssertionError, OSError) as error:
        raise UnlikeReadmeError(str(error)) from None


def _left_out(block: Block) -> Iterator[str]:
    first, *more = block.text.splitlines()
    yield f"line {block.line}, {first}{' ...' if more else ''}: {block.why_not}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _gigabytes(folder: Path) -> float:
    """What a folder takes on the disk."""
    return 512e-9 * sum(path.lstat().st_blocks for path in folder.rglob("*"))


if __name__ == "__main__":
    sys.exit(main())

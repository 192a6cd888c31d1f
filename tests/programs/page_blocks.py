"""The blocks of code on a page of the documentation, and whether what came is what the page says that comes.

A fenced block has the language that it names; without one it is the output of the block before it. An indented block is
shell. What stands in an HTML comment right before the block is its mark: `not run: REASON`, of an output `not compared:
REASON`, or the path of a file whose contents the block shows. `run by make readme: REASON` is what only a reader with
an environment of his own can type: it installs, or needs what was installed.

An output on a page is compared word by word. `...` stands for anything. Where a program measures something, a number
with its unit stands for any other; what a program says of its progress appears when the clock says so, and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_NOT_RUN: Final = re.compile(r"not (?:run|compared): (\S.*)")
_BY_READER: Final = re.compile(r"run by make readme: \S.*")
_MARK: Final = re.compile(r"<!-- (.*) -->")
_PROGRESS: Final = re.compile(r"(starting|training|merging|evaluating|ended,|coming|done,|at [\d.]+ m?s )")
_UNIT: Final = r"(?: ?[kMGT]?(?:B|ms|us|s|min|h)?(?![\w]))?"
_NUMBER: Final = rf"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?{_UNIT}"
_STATUS: Final = re.compile(r"#.*exit status (\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: `line` is its first on the page; `language` is 'output' if it shows one."""

    line: int
    language: str
    text: str
    mark: str

    @property
    def is_run(self) -> bool:
        """Whether it is run here, or an output compared: unless the page says why not."""
        return not self.why_not and _BY_READER.fullmatch(self.mark) is None

    @property
    def why_not(self) -> str:
        """Why no reader runs it; empty if one does."""
        found = _NOT_RUN.fullmatch(self.mark)
        return "" if found is None else found[1]

    @property
    def exit_status(self) -> int:
        """What a comment in a block of shell says of its last command; 0 if there is none."""
        return status_of(self.text)

    @property
    def commands(self) -> list[str]:
        """The commands of a block of shell, each of which may have several lines; none that keeps anything but its
        folder, and files, for the next one."""
        assert "<<" not in self.text, f"line {self.line}: write the file by printf"
        joined = re.findall(r"(?:.*\\\n)*.+", self.text)
        return [each for each in joined if each.strip() and not each.startswith("#")]


def status_of(commands: str) -> int:
    """The exit status that a comment behind a command says; 0 if there is none."""
    found = _STATUS.findall(commands)
    return int(found[-1]) if found else 0


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of a page in Markdown, in order."""
    lines = page.splitlines()
    mark, number = "", 0
    while number < len(lines):
        line, first = lines[number], number + 1
        number += 1
        if line.startswith("```"):
            end = lines.index("```", number)
            yield Block(first + 1, line[3:] or "output", "\n".join(lines[number:end]), mark)
            number = end + 1
        elif line.startswith("    ") and (number == 1 or not lines[number - 2].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield Block(first, "shell", "\n".join(each[4:] for each in lines[first - 1 : number]).rstrip(), mark)
        marked = _MARK.fullmatch(line)
        mark = marked[1] if marked else mark if not line.strip() else ""


def comes(expected: str, found: str, *, is_measured: bool) -> bool:
    """Whether `found` is the output that a page shows as `expected`."""
    wanted, came = (_words(text, is_measured=is_measured) for text in (expected, found))
    parts = [_pattern(part, is_measured=is_measured) for part in wanted.split("...")]
    return re.fullmatch(".*?".join(parts), came) is not None


def _words(text: str, *, is_measured: bool) -> str:
    """One line, with single spaces, without progress."""
    lines = [line for line in text.splitlines() if not (is_measured and _PROGRESS.match(line))]
    return " ".join(" ".join(lines).split())


def _pattern(text: str, *, is_measured: bool) -> str:
    if not is_measured:
        return re.escape(text)
    pieces = re.split(f"({_NUMBER})", text)
    return "".join(_NUMBER if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))

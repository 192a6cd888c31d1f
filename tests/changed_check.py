"""Does `make changed` run what a change can break? Small changes of the code, drawn with a seed, say so.

    python -m tests.changed_check --seed 0 --mutants 3 [--json] [--changed-only]

Each mutant is one operator, constant or result of a function of `runtime`, `ops` or `programs` that is another one. It
is made in a copy of the tree, with an environment of its own that finds the copy. What `make changed` says of it is
enough where a test fails; where all pass, `make test` must pass, too: what only that notices is a fault of `changed`,
and the exit status is 1. `--changed-only` leaves `make test` out, and tells how many mutants were noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ("runtime", "ops", "programs")
SECONDS_MAX: Final = 1500
"""Of the tests of one mutant: `make test` takes a quarter of it on a machine that has nothing else to do."""
TEST_SECONDS_MAX: Final = 200
"""Of one test, which otherwise may take ten minutes."""
_SWAPPED: Final = (
    ("==", "!="),
    ("<", "<="),
    (">", ">="),
    ("is", "is not"),
    ("in", "not in"),
    ("and", "or"),
    ("+", "-"),
)
OTHER: Final = dict(_SWAPPED) | {two: one for one, two in _SWAPPED} | {"*": "+", "//": "*", "%": "*"}
"""Operator -> the one that stands in its place."""


@dataclass(frozen=True)
class Mutant:
    """A file, and what stands in place of which of its bytes."""

    path: str
    begin: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.begin] + self.text.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of its syntax tree."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def begin(node: ast.expr) -> int:
        return lines[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        """The other operator of two operands."""
        text = source[end(left) : begin(right)].decode()
        if (found := re.fullmatch(r"([\s)]*)(\S+(?: not| in)?)([\s(]*)", text)) and found[2] in OTHER:
            at = end(left) + len(found[1].encode())
            yield Mutant(path, at, at + len(found[2]), OTHER[found[2]])

    def found(node: ast.AST) -> Iterator[Mutant]:
        for inner in _inner(node):
            yield from found(inner)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1])
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            other = repr(not node.value) if isinstance(node.value, bool) else f"({node.value!r} + 1)"
            yield Mutant(path, begin(node), end(node), other)
        elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            yield Mutant(path, begin(node.value), end(node.value), "None")

    return [*found(ast.parse(source))]


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node but annotations, words of errors, and what is there for type checking."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_comment"):
            inner = value if isinstance(value, list) else [value]
            yield from (each for each in inner if isinstance(each, ast.AST) and not isinstance(each, ast.JoinedStr))


def drawn(seed: int, root: Path = ROOT) -> Mutant:
    """The mutant of a seed: of a file that is drawn first, so that a long one has no more than a short one."""
    rng = random.Random(seed)
    files = sorted(path.relative_to(root).as_posix() for top in CODE for path in root.joinpath(top).rglob("*.py"))
    while True:
        path = rng.choice(files)
        if mutants := mutants_of(path, root.joinpath(path).read_bytes()):
            return rng.choice(mutants)


# -- a copy ------------------------------------------------------------------------------------------------------------


def lay_out(place: Path, root: Path = ROOT) -> None:
    """Copy the tree to `place`, as a repository whose last commit it is, with an environment that finds it there."""
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"),
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)
    for words in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("add", "--all"),
        ("commit", "--quiet", "-m", "whole"),
    ):
        subprocess.run(("git", "-c", "user.name=a", "-c", "user.email=a@localhost", *words), cwd=place, check=True)
    venv.create(place / ".venv", symlinks=True)
    theirs = Path(sysconfig.get_paths()["purelib"])
    ours = place / ".venv" / theirs.relative_to(Path(sys.prefix))
    (finder,) = theirs.glob("__editable___isthmus_*_finder.py")
    (ours / "_copy.py").write_text(finder.read_text().replace(f"{root}/", f"{place}/"))
    # The first to be asked is the first that is installed; files with the ending .pth are read by their names.
    (ours / "_copy.pth").write_text("import _copy; _copy.install()\n")
    (ours / "others.pth").write_text(f"import site; site.addsitedir({str(theirs)!r})\n")
    for script in (root / ".venv" / "bin").iterdir():
        if (
            script.is_file()
            and not script.is_symlink()
            and not (there := place / ".venv" / "bin" / script.name).exists()
        ):
            there.write_bytes(script.read_bytes().replace(str(root / ".venv").encode(), str(place / ".venv").encode()))
            there.chmod(0o755)
    for name in ("installed", "installed-test"):
        (place / ".venv" / name).touch()


# -- trying ------------------------------------------------------------------------------------------------------------


def passes(place: Path, target: str) -> bool:
    """Whether a target's tests pass in the copy; what takes too long has failed."""
    environment = os.environ | {"PYTEST_ADDOPTS": f"--exitfirst --timeout={TEST_SECONDS_MAX}"}
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SINCE", "PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    try:
        made = subprocess.run(
            ("make", target),
            cwd=place,
            env=environment,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return False
    lines = made.stdout.splitlines()
    if target == "changed" and not any("files of tests" in line for line in lines):
        raise RuntimeError(f"Choosing tests in {place}: expected a choice, found {made.stderr[-1000:]}")
    told = [line for line in lines if line.startswith(("FAILED", "ERROR")) or "files of tests" in line] + lines[-1:]
    print(f"    make {target}: status {made.returncode}; {'; '.join(told)[:300]}", file=sys.stderr, flush=True)
    return made.returncode == 0


def tried(place: Path, seed: int, *, is_short: bool) -> dict[str, object]:
    """What became of the mutant of a seed: whether `changed` has noticed it, and what is `wrong` with that."""
    mutant = drawn(seed, place)
    file = place / mutant.path
    source = file.read_bytes()
    line = 1 + source[: mutant.begin].count(b"\n")
    change = f"{mutant.path}:{line}: {source[mutant.begin : mutant.end].decode()} -> {mutant.text}"
    print(f"{seed}: {change}", file=sys.stderr, flush=True)
    file.write_bytes(mutant.applied(source))
    try:
        is_noticed = not passes(place, "changed")
        is_missed = not is_noticed and not is_short and not passes(place, "test")
    finally:
        file.write_bytes(source)
    wrong = [f"{change}: make test fails, make changed passes"] if is_missed else []
    return {"seed": seed, "change": change, "is_noticed": is_noticed, "wrong": wrong}


def main(words: Sequence[str]) -> int:
    """Try the mutants of some seeds; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--mutants", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print what became of each")
    parser.add_argument("--changed-only", action="store_true", help="without `make test`")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="isthmus-changed-") as name:
        place = Path(name).resolve()
        lay_out(place)
        seeds = range(asked.seed, asked.seed + asked.mutants)
        results = [tried(place, seed, is_short=asked.changed_only) for seed in seeds]
    noticed = sum(bool(each["is_noticed"]) for each in results)
    missed = [each for each in results if each["wrong"]]
    print(json.dumps(results) if asked.json else f"{noticed} of {len(results)} noticed, {len(missed)} missed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

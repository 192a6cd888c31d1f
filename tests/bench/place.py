"""Where figures were made: processor, versions, commit, threads, flags, and the code that was loaded.

The code is what decides whether a kept figure still holds. A commit does not say it: most commits reach no bench, a
tree is measured before it is committed, and branches are rewritten. So a place has a digest of every module of ours
that the process had loaded, and, where a bench starts hosts, of those that hosts load (`tests/loaded.json`). A digest
is of a module's tokens without comments and docstrings: a comment changes no figure. The commit stands beside them, to
be looked at."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CPU_INFO: Final = Path("/proc/cpuinfo")
LOADED: Final = ROOT / "tests" / "loaded.json"
PACKAGES: Final = ("jax", "jaxlib", "numpy")
_OF_KEEPING: Final = ("tests/bench/kept_cells.py", "tests/bench/place.py")
"""What keeps cells makes none."""
_FACTS: Final = ("cpu family", "model", "stepping", "cache size")
_MARKS: Final = {tokenize.INDENT: "{", tokenize.DEDENT: "}", tokenize.NEWLINE: ";"}
_SKIPPED: Final = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)


def kind_of(cpuinfo: str, cores: int | None) -> str:
    """The kind of a machine's processor, as the kernel tells it: names alone do not tell generations apart."""
    facts = dict[str, str]()
    for name, _, value in (line.partition(":") for line in cpuinfo.splitlines()):
        facts.setdefault(name.strip(), value.strip())
    told = [facts.get("model name", platform.machine())]
    told += [f"{name} {facts[name]}" for name in _FACTS if name in facts]
    return f"{', '.join(told)}, {cores} cores"


def place(*, starts_hosts: bool = False) -> dict[str, Any]:
    """What figures of this process depend on; the commit is None where git does not tell it."""
    return {
        "cpu": kind_of(CPU_INFO.read_text() if CPU_INFO.exists() else "", os.cpu_count()),
        "threads": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "flags": os.environ.get("XLA_FLAGS", ""),
        "commit": commit(),
        "code": dict(_digests(starts_hosts)),
    }


def commit() -> str | None:
    """The commit of this tree, with '-dirty' where code is another: kept cells change a file as they are kept."""
    git = ("git", "-C", str(ROOT))
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], capture_output=True, check=False)
    except OSError:
        return None
    return None if head.returncode else head.stdout.strip() + ("-dirty" if same.returncode else "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _digests(starts_hosts: bool) -> Iterator[tuple[str, str]]:
    """(file, digest) of each module that is loaded, in the order of their names."""
    of_modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {Path(file).resolve() for file in of_modules if file is not None}
    ours = {file.relative_to(ROOT).as_posix() for file in files if file.suffix == ".py" and ROOT in file.parents}
    if starts_hosts:
        ours |= set(_of_hosts())
    for file in sorted(ours.difference(_OF_KEEPING)):
        if not file.startswith(".venv") and (found := digest_of(file)) is not None:
            yield file, found


def _of_hosts() -> Iterator[str]:
    """The files that processes of a run load, as far as they are still there."""
    for modules in json.loads(LOADED.read_text()).values():
        for module in modules:
            parts = module.split(".")[1:]
            for path in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")) if parts else ():
                if (ROOT / path).exists():
                    yield path.as_posix()


@cache
def digest_of(file: str) -> str | None:
    """The digest of a module's file, named from the root; None where it is gone."""
    path = ROOT / file
    return digest(path.read_text()) if path.exists() else None


def digest(source: str) -> str:
    """Of the tokens of a source, without comments, docstrings and line breaks that mean nothing."""
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type not in _SKIPPED]
    found, is_first, is_docstring = hashlib.sha256(), True, False
    for token, after in zip(tokens, [*tokens[1:], None], strict=False):
        if is_docstring:  # Its line ends.
            is_docstring = False
            continue
        is_alone = is_first and after is not None and after.type == tokenize.NEWLINE
        is_docstring = is_alone and token.type == tokenize.STRING
        if not is_docstring:
            found.update(_MARKS.get(token.type, token.string).encode() + b"\0")
            is_first = token.type in _MARKS
    return found.hexdigest()[:8]


def changed_since(code: Mapping[str, str], now: Callable[[str], str | None] = digest_of) -> list[str]:
    """The files of a place whose tokens are others now, or that are gone."""
    return [file for file, was in code.items() if now(file) != was]


def id_of(of: Mapping[str, Any]) -> str:
    """A short name of a place, by what it says: equal places have one, in files of different branches, too."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:8]


def machine(of: Mapping[str, Any]) -> str:
    """What a place says beside its code: two with the same are one machine with one set of packages."""
    versions = ", ".join(f"{name} {of[name]}" for name in ("python", *PACKAGES))
    flags = f", flags {of['flags']}" if of["flags"] else ""
    return f"{of['cpu']}, {of['threads']} threads, {versions}{flags}"


def words(of: Mapping[str, Any]) -> str:
    """A place in a line, without its modules."""
    commit, _, changed = str(of["commit"]).partition("-")
    return f"{machine(of)}, commit {commit[:12]}{', changed' if changed else ''}"

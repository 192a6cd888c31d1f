"""How much of this project a run on one machine reaches: `python tests/reach.py`.

A module is loaded where an import at the top of a loaded one names it, starting from the processes of `isthmus train`:
the command, the run's daemon, its fork server, a host and the end. Reachable are those that imports within functions
name, too. Imports for type checking do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RUN: Final = "isthmus.programs.engine.run"
STARTS: Final = {
    "command": ("isthmus.programs.command.main", "isthmus.programs.command.start"),
    "daemon": (f"{RUN}.daemon_process",),
    "fork server": (f"{RUN}.fork_server", "isthmus.programs.decoupled", "isthmus.programs.language_model"),
    "host": (f"{RUN}.host_process", "isthmus.programs.decoupled", "isthmus.programs.language_model"),
    "end": (f"{RUN}.finish", "isthmus.programs.decoupled", "isthmus.programs.language_model"),
}


def path_of(module: str) -> Path | None:
    """The file of a module of ours; None for any other."""
    if module.split(".")[0] != "isthmus":
        return None
    stem = ROOT.joinpath(*module.split(".")[1:])
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()), None)


def reached(starts: tuple[str, ...], *, is_deep: bool) -> set[Path]:
    """The files of the modules that importing `starts` loads; `is_deep`: and those that their functions import."""
    pending, seen = list(starts), set[str]()
    while pending:
        module = pending.pop()
        path = path_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        parent = module.rpartition(".")[0]
        pending += [parent] if parent else []
        pending += _imports(ast.parse(path.read_text()).body, is_deep=is_deep)
    return {path for module in seen if (path := path_of(module)) is not None}


def _imports(body: list[ast.stmt], *, is_deep: bool) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _imports(statement.orelse, is_deep=is_deep)
        elif is_deep or not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)]
            yield from _imports(inner, is_deep=is_deep)


def lines(paths: set[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def main() -> int:
    for is_deep, word in ((False, "loaded"), (True, "reachable")):
        every = set[Path]()
        for name, starts in STARTS.items():
            paths = reached(starts, is_deep=is_deep)
            every |= paths
            sys.stdout.write(f"{word:10} {name:12} {len(paths):4} modules {lines(paths):6} lines\n")
        sys.stdout.write(f"{word:10} {'together':12} {len(every):4} modules {lines(every):6} lines\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

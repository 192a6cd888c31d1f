"""The files that one request enters on its way through `isthmus train`: `python tests/request_path.py [--list]`.

Follows the request from the parsed command line to the run folder with its spec, in one process, as a reader would: a
function is followed when it is first called, with everything that it calls for the first time, and passed over later.
Counted are the files entered, and how often a file is entered again that had been left; what runs while a module is
imported is not part of the request.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from unittest import mock

ROOT: Final = Path(__file__).parents[1]
ARGUMENTS: Final = ["train", "--learners", "4", "--tokens", "100000", "--quiet"]


class RequestPath:
    """The files of first calls, in their order; one that calls another again follows it after the return."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._known: set[CodeType] = set()
        self._stack: list[str | None] = []
        self._imports = 0

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called by the interpreter at each call and return of the main thread."""
        is_import = frame.f_code.co_name == "<module>"
        if event == "call":
            self._imports += is_import
            name = None if self._imports else self._new(frame.f_code)
            self._stack.append(name)
            self._enter(name)
        elif event == "return" and self._stack:
            self._imports -= is_import
            self._stack.pop()
            self._enter(next((name for name in reversed(self._stack) if name is not None), None))

    def _new(self, code: CodeType) -> str | None:
        path = Path(code.co_filename)
        is_body = code.co_name in ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
        if code in self._known or is_body or not path.is_relative_to(ROOT) or "site-packages" in path.parts:
            return None
        self._known.add(code)
        return str(path.relative_to(ROOT))

    def _enter(self, name: str | None) -> None:
        if name is not None and self.files[-1:] != [name]:
            self.files.append(name)


def followed() -> list[str]:
    """The files that the request enters, each as often as it is entered."""
    from isthmus.programs.command import main, start
    from isthmus.programs.engine.run import in_processes

    path = RequestPath()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "argv", ["isthmus", *ARGUMENTS]):
        sys.argv += ["--run-dir", f"{folder}/run"]
        # In this process, and not in a child that it forks; and no further than to the written folder.
        with mock.patch.object(in_processes, "has_backend", return_value=True), mock.patch.object(start, "_run"):
            sys.setprofile(path.profile)
            try:
                main.main()
            except SystemExit as ended:
                if ended.code:
                    raise
            finally:
                sys.setprofile(None)
    return [name for name in path.files if not name.startswith("tests/")]


def main() -> int:
    files = followed()
    again = sum(name in files[:at] for at, name in enumerate(files))
    if "--list" in sys.argv:
        sys.stdout.write("".join(f"{name}\n" for name in files))
    sys.stdout.write(f"{len(set(files))} files entered, {again} times one that had been left\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

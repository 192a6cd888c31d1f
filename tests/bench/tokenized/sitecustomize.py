"""Tells whenever files become tokens: on PYTHONPATH, every process of a run imports this by itself.

Each reading of a file by `blocks_of` adds a line to the file that TOKENIZED names: the process, and the path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

MODULE: Final = "isthmus.programs.model_folders.texts"


class Finder(MetaPathFinder):
    """Finds that module at its first import, and has it tell."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        found = find_spec(fullname)
        loader: Any = None if found is None else found.loader
        if loader is not None:
            run = loader.exec_module

            def execute(module: Any) -> None:
                run(module)
                blocks_of = module.blocks_of

                def telling(file: Path, *arguments: Any) -> Iterator[Any]:
                    with open(os.environ["TOKENIZED"], "a") as lines:
                        lines.write(f"{os.getpid()} {file}\n")
                    return blocks_of(file, *arguments)  # type: ignore[no-any-return]

                module.blocks_of = telling

            loader.exec_module = execute
        return found


if "TOKENIZED" in os.environ:
    sys.meta_path.insert(0, Finder())

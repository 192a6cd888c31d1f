"""The programs: one short file per graph that can be trained, and what makes one into a run.

A program (`decoupled`, `dipaco`, `streaming_diloco`, `diloco`) is a function that builds a graph; `language_model` is
the shipped task. Below, `engine` makes a run go, `study` shows runs on a terminal, and `command` is the command line.
Features that nothing else needs, further programs among them, are `wings`. What users import is `face`, installed as
`isthmus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from isthmus.programs import wing_table

SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "decoupled-diloco": "isthmus.programs.decoupled:build",
        "dipaco": "isthmus.programs.dipaco:build",
        "streaming-diloco": "isthmus.programs.streaming_diloco:build",
        "diloco": "isthmus.programs.diloco:build",
        **wing_table.programs(),
    }
)
"""The programs of the package: name -> reference of the builder. A new one is a file and a line here, or a wing."""
DEFAULT: Final = next(iter(SHIPPED))
"""The program of a request that names none."""
SHIPPED_TASK: Final = "isthmus.programs.language_model:task"
FOLDER_TASK: Final = "isthmus.programs.folder_task:task"
SHIPPED_TASKS: Final = (SHIPPED_TASK, FOLDER_TASK)
"""The tasks of the package that have the settings of section `task.`, by reference without keywords; the second one is
that of a request which has `FOLDER` among these."""
FOLDER: Final = "folder"

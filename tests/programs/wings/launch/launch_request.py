"""A request of a launch, and the folder of one, for tests that need them."""

from __future__ import annotations

from pathlib import Path

from isthmus.programs.wings.launch.folder import RUN, Launch
from isthmus.programs.wings.launch.launch_file import LaunchRequest, LaunchTable


def request(**changes: object) -> LaunchRequest:
    fields = {"name": "demo", "table": LaunchTable(), "sections": {"run": {"tokens": 100, "learners": 0}}}
    return LaunchRequest(**{**fields, "islands": 2, "slots_max": 16, "grace": 20.0, **changes})  # type: ignore[arg-type]


def launched(folder: Path, **asked: object) -> Launch:
    """The launch that is noted in a folder, with a run; `asked` are keys of [task]."""
    (folder / RUN).mkdir(parents=True)
    note = Launch.of("slurm", request(sections={"task": asked}), folder)
    note.write()
    return note

"""A request of a launch, for tests that need one."""

from __future__ import annotations

from isthmus.programs.launch.launch_file import LaunchRequest, LaunchTable


def request(**changes: object) -> LaunchRequest:
    fields = {"name": "demo", "table": LaunchTable(), "sections": {"run": {"tokens": 100, "learners": 0}}}
    return LaunchRequest(**{**fields, "islands": 2, "slots_max": 16, "grace": 20.0, **changes})  # type: ignore[arg-type]

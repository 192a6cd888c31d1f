"""The reference page of all settings, from their declarations.

python -m tests.settings_page   # writes docs/reference/settings.md, which test_settings_page.py compares
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from isthmus.programs import SHIPPED, folder_task, language_model
from isthmus.programs.command.loop_choice import LoopTable
from isthmus.programs.engine.cluster.cluster_file import ClusterKeys, DeviceTable, MachineTable
from isthmus.programs.engine.cluster.machine_file import KeysTable, ProgramsTable, RunsTable
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.settings import REQUIRED, Key, Schema, describe, value
from isthmus.programs.wings.chaos.chaos_plan import DrawnFaults, Planned, SlowLinks
from isthmus.programs.wings.launch.launch_file import LaunchTable

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
HEAD: Final = """# Settings

Made from the declarations in the code by `python -m tests.settings_page`. How files, `--set` and options are combined
is in [Configuration](configuration.md). A setting marked with * may have another value in a resumed run, one marked
with + in one that is resumed with `--accept-changes`.

<!-- all figures: settings -->
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD, *_section("`run.`", "`[run]`, `--set run.KEY=VALUE`", Schema.of("run", RunSettings))]
    for name in SHIPPED:
        parts += _section(f"`program.` of {name}", "`[program]`, `--set program.KEY=VALUE`", Program(name).schema())
    where = "`[task]`, `--set task.KEY=VALUE`"
    parts += _section("`task.` of the shipped task", where, Schema.of("task", language_model.task))
    parts += _section("`task.` of a model folder", f"{where}, with `folder`", Schema.of("task", folder_task.task))
    for title, where, table in (
        ("`[loop]` of a file", "`--loop` in a file, in place of `run.task`", LoopTable),
        ("`[programs]` of machine.toml", "", ProgramsTable),
        ("`[keys]` of machine.toml", "", KeysTable),
        ("`[runs]` of machine.toml", "", RunsTable),
        ("`[launch]` of the file of a launch", "", LaunchTable),
        ("`[[machine]]` of cluster.toml", "", MachineTable),
        ("`[[device]]` of cluster.toml", "", DeviceTable),
        ("`[keys]` of cluster.toml", "", ClusterKeys),
        ("`[[fault]]` of a plan of `isthmus chaos`", "", Planned),
        ("`[random]` of a plan of `isthmus chaos`", "", DrawnFaults),
        ("`[links]` of a plan of `isthmus chaos`", "", SlowLinks),
    ):
        parts += _section(title, where, Schema.of("", table))
    return "\n".join(parts)


def _section(title: str, where: str, schema: Schema) -> Iterator[str]:
    yield f"## {title}\n"
    if where:
        yield f"{where}\n"
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    yield from (_row(key) for key in schema.keys.values())
    yield ""


def _row(key: Key) -> str:
    declared = key.declared
    kind = describe(key.type)
    if declared.range and declared.range not in kind:
        kind = declared.range if declared.expected else f"{kind}, {declared.range}"
    mark = "*" if declared.resumes else "+" if declared.alters else ""
    option = f" Option: `{declared.option}`." if declared.option else ""
    return f"| `{key.name}`{mark} | {kind} | {_default(key.default)} | {declared.help}{option} |"


def _default(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    return "" if default in (None, (), "") else f"`{value(default)}`"


if __name__ == "__main__":
    PAGE.write_text(page())

"""What a run takes over from the run whose model it begins from, and how one learner goes on alone from a model.

The sizes of the model are those of the run, unless they are given: no others would fit. Nothing else is taken over,
data, rates and budget least of all.

One learner that begins from a model, and whose program is not chosen, trains alone: no merge changes its parameters.
They are published all the same, for evaluations and snapshots, as of `streaming-diloco` with one fragment: an outer
step of 1 without momentum gives back what was captured, and `alpha` = 1 lets the learner keep what it has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.programs import FOLDER, FOLDER_TASK, SHIPPED_TASK
from isthmus.programs.command.config import Sections
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.settings import parse
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import read_text

_LORA: Final = ("lora_rank", "lora_alpha", "lora_modules")
_OF_MODEL: Final[Mapping[str, tuple[str, ...]]] = {
    SHIPPED_TASK: (
        *("layers", "width", "heads", "context", "tied", "dtype", "vocabulary", "token_dtype"),
        *("experts", "experts_chosen", "experts_slack", "stacked"),
    ),
    FOLDER_TASK: (FOLDER, "framework", "context", "dtype", "token_dtype", *_LORA),
}
"""The settings of the shipped tasks that say what the model is."""
ALONE: Final[Mapping[str, Any]] = {
    "fragments": 1,
    "overlap": 0,
    "alpha": 1.0,
    "outer_lr": 1.0,
    "outer_momentum": 0.0,
}
ALONE_BY: Final = "streaming-diloco"


def of_model(begins_from: Path) -> dict[tuple[str, str], Any]:
    """The settings of a shipped task that say what the model of a run is; none for a run of another task, and for a
    folder that is not of a run."""
    path = begins_from / CONFIG
    if not path.is_file():
        return {}
    doing = f"Beginning from {begins_from}"
    try:
        document = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        do = "Name its snapshots/final, and the sizes of the model."
        raise ConfigError(doing, f"a {CONFIG} that can be read", str(error), do) from None
    settings, task = document.get("task", {}), document.get("run", {}).get("task")
    kind = FOLDER_TASK if FOLDER in settings else SHIPPED_TASK
    if task is not None:
        home = references_of(task)[0] if isinstance(task, str) else ""
        kind, settings = reference.without_keywords(home), reference.parse(home, doing).keywords or {}
    return {("task", name): settings[name] for name in _OF_MODEL.get(kind, ()) if settings.get(name) is not None}


def is_alone(sections: Sections) -> bool:
    """Whether one learner is asked for, and nothing that says by what program."""
    learners = sections.run.get("learners")
    count = parse(learners) if isinstance(learners, str) else learners
    return count == 1 and sections.program_reference is None and not sections.program


def go_alone(sections: Sections) -> None:
    """Have its learner train alone."""
    sections.program_reference = ALONE_BY
    sections.program.update(ALONE)

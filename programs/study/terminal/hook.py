"""What a run records, handed to a function of the user's as it is recorded, and one that writes it for TensorBoard.

Decides what is a record: a line of metrics.jsonl, evaluations.jsonl, merges.jsonl or changes.jsonl, as the run folder
has it. They are read where the run folder is, by the process that watches the run, and no host waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from isthmus.programs.engine.results.lines import KINDS, GrowingFile, fields_of, name_of
from isthmus.runtime.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.programs.engine.run.watch_loop import Watch

OnMetrics: TypeAlias = Callable[[dict[str, Any]], None]
"""Called with each record: the fields of a line, and its `file`: metrics, evaluations, merges or changes."""


@final
class HookedView:
    """A view of a run, beside which `on_metrics` gets what is recorded from now on."""

    def __init__(self, view: Watch, folder: Path, on_metrics: OnMetrics) -> None:
        self._view, self._on_metrics = view, on_metrics
        self._files: list[GrowingFile[Any]] = [GrowingFile(folder, kind, is_new_alone=True) for kind in KINDS]

    def update(self, status: dict[str, Any]) -> None:
        """Take the newest status."""
        self._hand_over()
        self._view.update(status)

    def close(self, summary: dict[str, Any]) -> None:
        """The run is over, and what it recorded is complete."""
        self._hand_over()
        self._view.close(summary)

    def _hand_over(self) -> None:
        lines = [line for file in self._files for line in file.read()]
        for line in sorted(lines, key=lambda line: line.time):
            self._on_metrics({"file": name_of(type(line)), **fields_of(line)})


def tensorboard(folder: str | Path) -> OnMetrics:
    """An `on_metrics` that writes TensorBoard's files into `folder`: scalars over tokens, by learner.

    A learner's scalars are over its own tokens, those of the global model over the tokens of all; the learners in a
    merge are over its number. ConfigError without tensorboardX, which the extra `tensorboard` installs.
    """
    if find_spec("tensorboardX") is None:
        do = "pip install 'isthmus[tensorboard]'."
        raise ConfigError(f"Writing for TensorBoard into {folder}", "the library tensorboardX", "none", do)
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))

    def write(record: dict[str, Any]) -> None:
        for name, value, at in _scalars(record):
            if value is not None:
                writer.add_scalar(name, value, at)
        if record["file"] == "evaluations":
            writer.flush()

    return write


def _scalars(record: dict[str, Any]) -> list[tuple[str, float | None, int]]:
    """Name, value and place of each scalar of a record."""
    if record["file"] == "metrics":
        values = {"loss": record["loss"], **record.get("metrics", {}), "staleness": record["staleness"]}
        return [(f"{name}/learner-{record['learner']}", value, record["tokens"]) for name, value in values.items()]
    if record["file"] == "evaluations":
        values = {"loss": record["eval_loss"], **record.get("metrics", {})}
        return [(f"{name}/global", value, record["tokens"]) for name, value in values.items()]
    if record["file"] == "merges" and record["version"] is not None:
        return [("merge/learners", len(record["voters"]), record["merges"])]
    return []

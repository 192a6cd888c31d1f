"""A language model that text goes into: of a run, also while it goes on, or of a model folder.

It is computed in float32, whatever it was trained in, so that a run and the folder exported from it are one model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy.typing as npt

from isthmus.ops.transformer import ModelConfig, Parameters
from isthmus.programs import language_model
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.request import FOLDER, shipped_task
from isthmus.programs.model_folders import folders, llama
from isthmus.programs.model_folders.tokens import ByteTokens, FolderTokens, TextTokens
from isthmus.programs.settings import Schema
from isthmus.programs.task import Task
from isthmus.programs.trained.run_model import job_of, opened, task_of
from isthmus.runtime.errors import ConfigError

Array = npt.NDArray[Any]
COMPUTED_IN: Final = "float32"


@final
@dataclass(frozen=True, slots=True)
class TextModel:
    """Parameters of `ops.transformer`, nested, in float32.

    `tokens`: how text becomes tokens, None if that is not known; `ends`: tokens that end a text; `run`: the folder of
    the run that it is of, None for a model folder.
    """

    where: Path
    config: ModelConfig
    params: Parameters
    tokens: TextTokens | None
    ends: tuple[int, ...] = ()
    run: Path | None = None

    def held_out(self, doing: str) -> Iterator[Array]:
        """The batches of token ids on which the run evaluates; ConfigError for a model folder, which has none."""
        if self.run is None:
            do = "Name one with --data."
            raise ConfigError(doing, "a text to evaluate on", "a model folder, which has none", do)
        task = task_of(self.run, doing)
        assert isinstance(task, Task)
        return (batch["tokens"] for batch in task.evaluation_batches(0))


def is_run(where: Path) -> bool:
    """Whether a folder is that of a run."""
    return (where / CONFIG).is_file()


def text_model(where: Path, doing: str, snapshot: int | None = None) -> TextModel:
    """The language model of a run or a model folder; ConfigError if it is neither, or a run of another task."""
    if is_run(where):
        return _of_run(where, doing, snapshot)
    if snapshot is not None:
        raise ConfigError(doing, "a run, which has snapshots", f"{where}, no run", "Leave --snapshot out.")
    if not (where / folders.CONFIG).is_file():
        what_is_there = "nothing there" if not where.exists() else f"neither {CONFIG} nor {folders.CONFIG} in it"
        raise ConfigError(doing, f"a run or a model folder at {where}", what_is_there, "Name one, such as runs/latest.")
    folder = folders.read(where, doing)
    params = llama.ours(folder.config, folder.tensors(COMPUTED_IN))
    tokens = FolderTokens(where, folder.config.vocabulary, doing)
    return TextModel(where, folder.config, params, tokens, _ends(folder.document))


def _ends(document: Mapping[str, Any]) -> tuple[int, ...]:
    ends = document.get("eos_token_id")
    return tuple(each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int))


def _of_run(where: Path, doing: str, snapshot: int | None) -> TextModel:
    settings = settings_of(where, doing)
    if settings is None:
        do = "Read it with isthmus.load, or export its tensors with --format safetensors."
        raise ConfigError(doing, "a run of the shipped language model", "one of another task", do)
    tensors = opened(where, doing, snapshot).tensors
    # As it is trained: merged values have more digits than bfloat16 parameters.
    dtypes = {leaf.name: leaf.dtype for leaf in job_of(where, doing).layout}
    arrays = {name: tensors[name].astype(dtype).astype(COMPUTED_IN) for name, dtype in dtypes.items()}
    if FOLDER in settings:
        folder = folders.read(Path(settings[FOLDER]), doing)
        params = llama.ours(folder.config, {name.replace("/", "."): array for name, array in arrays.items()})
        folder_tokens = FolderTokens(folder.path, folder.config.vocabulary, doing)
        return TextModel(where, folder.config, params, folder_tokens, _ends(folder.document), run=where)
    config = replace(language_model.model_config(settings), dtype=COMPUTED_IN)
    tokens = ByteTokens() if language_model.is_of_bytes(settings) else None
    return TextModel(where, config, llama.nested(arrays), tokens, run=where)


def settings_of(run: Path, doing: str) -> Mapping[str, Any] | None:
    """The settings of the shipped task in a run's configuration, with `folder` among them if it is that of a model
    folder; None if it trains another task."""
    try:
        document = tomllib.loads((run / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(doing, f"a {CONFIG} that can be read", str(error), "Name another run.") from None
    if document.get("run", {}).get("task") is not None:
        return None
    settings = document.get("task", {})
    return Schema.of("task", shipped_task(settings)[1].task).read(settings)

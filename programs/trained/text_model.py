"""A language model that text goes into: of a run, also while it goes on, or of a model folder.

It is computed in float32, whatever it was trained in, so that a run and the folder exported from it are one model: in
jax where our own transformer computes it, whatever has trained it, and else in PyTorch. Of a run of a model folder
nothing is read of that folder but what its run folder has of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from isthmus.ops.data.batches import Batch
from isthmus.programs import FOLDER, SHIPPED_TASKS, folder_task, language_model
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.kept_model import folder_kept
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.request import shipped_task
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.model_folders import folders, llama, modules
from isthmus.programs.model_folders.adapters import Adapters
from isthmus.programs.model_folders.folder_data import marks_of
from isthmus.programs.model_folders.tokens import ByteTokens, FolderTokens, Ids, TextTokens
from isthmus.programs.settings import Schema
from isthmus.programs.task import Task
from isthmus.programs.trained.adapted_model import adapted
from isthmus.programs.trained.run_model import job_of, opened, task_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import read_text

COMPUTED_IN: Final = "float32"


class Predictor(Protocol):
    """The model itself, in the framework that computes it."""

    def token_losses(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The cross-entropy, in nats, of each of `tokens` int[sequences, length + 1] but the first of each sequence."""

    def continued(self, ids: Ids, count: int, temperature: float, seed: int) -> Iterator[Ids]:
        """Up to `count` tokens after `ids`, piece by piece; fewer where the model ends the text.

        A model sees no more than its context: where that is full, it reads the last half of it again.
        """


@final
@dataclass(frozen=True, slots=True)
class TextModel:
    """A model, and what belongs to it.

    `vocabulary`: how many token ids there are; `context`: the most tokens that it sees, None where nothing bounds them;
    `tokens`: how text becomes tokens, None if that is not known; `run`: the folder of the run that it is of, None for a
    model folder.
    """

    where: Path
    predictor: Predictor
    vocabulary: int
    context: int | None
    tokens: TextTokens | None
    run: Path | None = None
    path: int = 0

    def held_out(self, doing: str) -> Iterator[Batch]:
        """The batches on which the run evaluates; ConfigError for a model folder, which has none."""
        if self.run is None:
            do = "Name one with --data."
            raise ConfigError(doing, "a text to evaluate on", "a model folder, which has none", do)
        settings = settings_of(self.run, doing)
        if settings is not None and FOLDER in settings:
            return folder_task.held_out(settings, folder_kept(self.run, settings[FOLDER]))
        task = task_of(self.run, doing)
        assert isinstance(task, Task)
        return task.evaluation_batches(0, self.path)


def is_run(where: Path) -> bool:
    """Whether a folder is that of a run."""
    return (where / CONFIG).is_file()


def text_model(where: Path, doing: str, snapshot: int | None = None, path: int | None = None) -> TextModel:
    """The language model of a run or a model folder, or that of a `path` of a run; ConfigError if it is neither, or a
    run of another task."""
    if is_run(where):
        return _of_run(where, doing, snapshot, path)
    if path is not None:
        raise ConfigError(doing, "a run, whose model may have paths", f"{where}, no run", "Leave --path out.")
    if snapshot is not None:
        raise ConfigError(doing, "a run, which has snapshots", f"{where}, no run", "Leave --snapshot out.")
    if not any((where / name).is_file() for name in (folders.CONFIG, folders.ADAPTER)):
        what_is_there = "nothing there" if not where.exists() else f"neither {CONFIG} nor {folders.CONFIG} in it"
        raise ConfigError(doing, f"a run or a model folder at {where}", what_is_there, "Name one, such as runs/latest.")
    document = folders.document_in(where, doing)
    if not llama.is_computed_here(document):
        return _in_torch(where, where, modules.read(where, doing), None, doing)
    folder = folders.read(where, doing)
    return _in_jax(where, where, document, folder.tensors(COMPUTED_IN), doing)


def _in_jax(
    where: Path,
    folder: Path,
    document: Mapping[str, Any],
    tensors: Mapping[str, Any],
    doing: str,
    run: Path | None = None,
) -> TextModel:
    """A model of our own transformer, from the tensors of its folder by name."""
    from isthmus.programs.trained.jax_predictor import JaxPredictor

    config = llama.config_of(document, doing)
    predictor = JaxPredictor(config, llama.ours(config, tensors), folders.stops_in(folder, document, doing))
    tokens = _tokens(folder, config.vocabulary, run, doing)
    return TextModel(where, predictor, config.vocabulary, config.context, tokens, run)


def _in_torch(
    where: Path,
    folder: Path,
    model: modules.ModuleFolder,
    tensors: Mapping[str, Any] | None,
    doing: str,
    run: Path | None = None,
) -> TextModel:
    """A model of transformers, from its tensors by path, or those of its folder."""
    module = model.load(COMPUTED_IN, doing) if tensors is None else model.with_tensors(tensors, COMPUTED_IN, doing)
    return _by_module(where, folder, model, module, doing, run)


def _by_module(
    where: Path, folder: Path, model: modules.ModuleFolder, module: Any, doing: str, run: Path | None
) -> TextModel:
    """A model of transformers, from its module in float32."""
    from isthmus.programs.trained.torch_predictor import TorchPredictor

    stops = folders.stops_in(folder, model.document, doing)
    predictor = TorchPredictor(module.eval(), model.context, stops)
    tokens = _tokens(folder, model.vocabulary, run, doing)
    return TextModel(where, predictor, model.vocabulary, model.context, tokens, run)


def _tokens(folder: Path, vocabulary: int, run: Path | None, doing: str) -> FolderTokens:
    """The tokenizer of a folder, which reads as the run of its model does; of a run that was begun before there were
    such settings as the folder exported from it."""
    settings = None if run is None else settings_of(run, doing)
    if settings is None or (marks := marks_of(settings)).special_in_text is None:
        return FolderTokens(folder, vocabulary, doing)
    return marks.tokens(folder, vocabulary, doing)


def _of_run(where: Path, doing: str, snapshot: int | None, path: int | None) -> TextModel:
    settings = settings_of(where, doing)
    if settings is None:
        do = "Read it with isthmus.load, or export its tensors with --format safetensors."
        raise ConfigError(doing, "a run of the shipped language model", "one of another task", do)
    tensors = opened(where, doing, snapshot, path).tensors
    # As it is trained: merged values have more digits than bfloat16 parameters.
    dtypes = {leaf.name: leaf.dtype for leaf in job_of(where, doing).layout}
    arrays = {name: tensors[name].astype(dtype).astype(COMPUTED_IN) for name, dtype in dtypes.items()}
    if FOLDER in settings:
        kept = folder_kept(where, settings[FOLDER])
        document = folders.document_in(kept, doing)
        if Adapters.of(settings) is not None:
            # Its linear layers are peft's by now; what peft has around it computes the same.
            model = modules.read(kept, doing)
            module = model.widened(adapted(where, settings, arrays, doing).get_base_model())
            return _by_module(where, kept, model, module, doing, where)
        if not llama.is_computed_here(document):
            return _in_torch(where, kept, modules.read(kept, doing), arrays, doing, where)
        named = {name.replace("/", "."): array for name, array in arrays.items()}
        return _in_jax(where, kept, document, named, doing, where)
    from isthmus.programs.trained.jax_predictor import JaxPredictor

    config = replace(language_model.model_config(settings), dtype=COMPUTED_IN)
    tokens = ByteTokens() if language_model.is_of_bytes(settings) else None
    predictor = JaxPredictor(config, llama.nested(arrays), ())
    return TextModel(where, predictor, config.vocabulary, config.context, tokens, where, path or 0)


def settings_of(run: Path, doing: str) -> Mapping[str, Any] | None:
    """The settings of the shipped task in a run's configuration, with `folder` among them if it is that of a model
    folder, of the home where slots differ; None if it trains another task."""
    try:
        document = tomllib.loads(read_text(run / CONFIG))
    except (OSError, ValueError) as error:
        raise ConfigError(doing, f"a {CONFIG} that can be read", str(error), "Name another run.") from None
    settings, task = document.get("task", {}), document.get("run", {}).get("task")
    if task is not None:
        home = references_of(task)[0] if isinstance(task, str) else ""
        if reference.without_keywords(home) not in SHIPPED_TASKS:
            return None
        settings = reference.parse(home, doing).keywords or {}
    return Schema.of("task", shipped_task(settings)[1].task).read(settings)

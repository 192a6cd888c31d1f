"""The model of a run as a folder for others: a model folder of transformers, plain safetensors, or an orbax checkpoint.

Decides what goes into each. A model folder is written of what has its form: the shipped language model without experts,
a model that came from a folder, and modules of transformers and of peft. The other two take the merged leaves of any
task, by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy.typing as npt

from isthmus.ops.model_config import ModelConfig
from isthmus.programs import FOLDER, language_model
from isthmus.programs.engine.request.kept_model import folder_kept
from isthmus.programs.model_folders import folders, llama, modules
from isthmus.programs.model_folders.adapters import Adapters
from isthmus.programs.model_folders.tokens import byte_tokenizer
from isthmus.programs.task import OwnTask
from isthmus.programs.trained import adapted_model, module_export
from isthmus.programs.trained.run_model import job_of, model_of, opened, task_of
from isthmus.programs.trained.text_model import is_run, settings_of
from isthmus.runtime.errors import ConfigError, nearest

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Dtypes: TypeAlias = Mapping[str, str]
DTYPES: Final = tuple(folders.DTYPES.values())
"""What --dtype may be."""
HUGGINGFACE: Final = "huggingface"


@final
class ExportForm(NamedTuple):
    """How a model is written into an empty folder, which returns the names of the files that were left out of what is
    beside it; and what its reader may miss there."""

    write: Callable[[Path, Arrays, Dtypes], list[str] | None]
    notes: tuple[str, ...] = ()


@final
class ExportWish(NamedTuple):
    """`dtype`: of all tensors, None for that in which each is trained; `is_merged`: not an adapter, but the model that
    it adapts, with it."""

    dtype: str | None = None
    is_merged: bool = False


def export(
    run: Path,
    to: Path,
    form: str,
    *,
    snapshot: int | None = None,
    dtype: str | None = None,
    is_merged: bool = False,
    path: int | None = None,
) -> tuple[str, ...]:
    """Write the model of a run, or a `path` of it, to a new folder, whole or not at all; returns what is to be said.

    `dtype`: of all tensors; None for that in which each is trained. `is_merged`: of an adapter of peft, the model that
    it adapts, with it. ConfigError for a form that the model does not
    have, and where something is at `to`.
    """
    doing = f"Exporting {run}"
    if form not in FORMS:
        raise ConfigError("Reading --format", f"one of {', '.join(FORMS)}", repr(form), nearest(form, FORMS))
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError("Reading --dtype", f"one of {', '.join(DTYPES)}", repr(dtype), nearest(dtype, DTYPES))
    to = to.absolute()
    folders.check_absent(to, doing)
    if not is_run(run):
        what_is_there = "no such folder" if not run.is_dir() else "no config.toml in it"
        do = "Name the folder of a run: runs/latest, or see isthmus status --all."
        raise ConfigError(doing, "a run folder", what_is_there, do)
    if is_merged and form != HUGGINGFACE:
        do = f"Leave it out, or take --format {HUGGINGFACE}."
        raise ConfigError("Reading --merged", f"an adapter, and --format {HUGGINGFACE}", f"--format {form}", do)
    chosen = FORMS[form](run, doing, ExportWish(dtype, is_merged))
    model = opened(run, doing, snapshot, path)
    layout = job_of(run, doing).layout
    arrays = {leaf.name: model.tensors[leaf.name].reshape(leaf.shape) for leaf in layout}
    dtypes = {leaf.name: dtype or leaf.dtype for leaf in layout}
    left_out: list[str] = []
    folders.write(to, doing, lambda folder: left_out.extend(chosen.write(folder, arrays, dtypes) or ()))
    notes = [*chosen.notes, *([_left_out(left_out)] if left_out else [])]
    return (f"{model.words} of {run.resolve().name} is in {to}", *notes)


def _left_out(names: Sequence[str]) -> str:
    count = f"{len(names)} file{'' if len(names) == 1 else 's'}"
    return f"left out, as links that lead out of the model's folder: {count}, {', '.join(names)}"


def _huggingface(run: Path, doing: str, wish: ExportWish) -> ExportForm:
    """The form of transformers, of a run that has one; that of peft, of an adapter."""
    settings = settings_of(run, doing)
    task = task_of(run, doing) if settings is None else None
    if isinstance(task, OwnTask):
        return ExportForm(partial(_write_module, run, task, wish, doing))
    if settings is not None and FOLDER in settings and Adapters.of(settings) is not None:
        return ExportForm(partial(_write_adapters, run, settings, wish, doing))
    if wish.is_merged:
        do = "Leave --merged out."
        raise ConfigError(doing, "an adapter of peft, which can be merged", "no adapter", do)
    if settings is not None and FOLDER in settings:
        kept = folder_kept(run, settings[FOLDER])
        document = folders.document_in(kept, doing)
        if llama.is_computed_here(document):
            return ExportForm(partial(write_folder, document, kept))
        return ExportForm(partial(_write_module_folder, modules.read(kept, doing), doing))
    if settings is None or settings["experts"]:
        found = "one of a task of its own" if settings is None else f"{settings['experts']} experts in each layer"
        do = "Use --format safetensors, or orbax: names and arrays, of any task."
        raise ConfigError(doing, "a model that transformers knows, the shipped one without experts", found, do)
    config = language_model.model_config(settings)
    if language_model.is_of_bytes(settings):
        return ExportForm(partial(_write_llama, config, byte_tokenizer(doing)))
    note = "without a tokenizer: the run was trained on token ids"
    return ExportForm(partial(_write_llama, config, {}), (note,))


def _write_llama(config: ModelConfig, files: Mapping[str, bytes], folder: Path, arrays: Arrays, dtypes: Dtypes) -> None:
    (dtype,) = set(dtypes.values())
    tensors = llama.theirs(config, arrays)
    folders.write_documents(folder, {folders.CONFIG: llama.document_of(config, dtype)}, files)
    folders.write_tensors(folder, tensors, dict.fromkeys(tensors, dtype))


def write_folder(document: Mapping[str, Any], beside: Path, folder: Path, arrays: Arrays, dtypes: Dtypes) -> list[str]:
    """A model that came from a folder with this config.json, with what was `beside` it there; the names of what was
    left out of that."""
    left_out = _write_beside(document, beside, folder, dtypes)
    names = {name: name.replace("/", ".") for name in arrays}
    folders.write_tensors(
        folder,
        {names[name]: array for name, array in arrays.items()},
        {names[name]: dtype for name, dtype in dtypes.items()},
    )
    return left_out


def _write_module_folder(
    model: modules.ModuleFolder, doing: str, folder: Path, arrays: Arrays, dtypes: Dtypes
) -> list[str]:
    """A model that came from a folder, as transformers writes it, with what was beside it there."""
    (dtype,) = set(dtypes.values())
    modules.write(model.with_tensors(arrays, dtype, doing), folder)
    return _write_beside(model.document, model.path, folder, dtypes)


def _write_module(
    run: Path, task: OwnTask, wish: ExportWish, doing: str, folder: Path, arrays: Arrays, dtypes: Dtypes
) -> list[str]:
    """The module of a task in PyTorch, as the library of its class writes it."""
    module = model_of(run, task, arrays, doing)
    return module_export.write(module, folder, dtypes, dtype=wish.dtype, is_merged=wish.is_merged, doing=doing)


def _write_adapters(
    run: Path,
    settings: Mapping[str, Any],
    wish: ExportWish,
    doing: str,
    folder: Path,
    arrays: Arrays,
    dtypes: Dtypes,
) -> list[str]:
    """Adapters of a model folder, as peft writes them; or the folder again, with them in its tensors."""
    if not wish.is_merged:
        return adapted_model.write_adapters(run, settings, arrays, dtypes, folder, doing)
    module = adapted_model.merged(run, settings, arrays, wish.dtype, doing)
    modules.write(module, folder)
    kept = folder_kept(run, settings[FOLDER])
    kind = str(module.dtype).removeprefix("torch.")
    return _write_beside(folders.document_in(kept, doing), kept, folder, {folders.WEIGHTS: kind})


def _write_beside(document: Mapping[str, Any], beside: Path, folder: Path, dtypes: Dtypes) -> list[str]:
    """What a model folder has beside its tensors: its config.json, of which the dtype alone may be another; code
    of a folder's own does not go along."""
    kinds = set(dtypes.values())
    document = llama.without_code(document)
    document = llama.with_dtype(document, kinds.pop()) if len(kinds) == 1 else document
    found = folders.beside(beside)
    folders.write_documents(folder, {folders.CONFIG: document}, found.files)
    return found.left_out


def _safetensors(run: Path, doing: str, wish: ExportWish) -> ExportForm:
    """Every merged leaf by its path."""
    return ExportForm(folders.write_tensors)


def _orbax(run: Path, doing: str, wish: ExportWish) -> ExportForm:
    """A tree of the merged leaves, by the steps of their paths."""
    try:
        import orbax.checkpoint  # noqa: F401
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[orbax]'."
        raise ConfigError(doing, "the library orbax-checkpoint", "none", do) from None
    return ExportForm(_write_orbax)


def _write_orbax(folder: Path, arrays: Arrays, dtypes: Dtypes) -> None:
    from orbax.checkpoint import StandardCheckpointer

    tree = llama.nested({name: array.astype(dtypes[name]) for name, array in arrays.items()})
    with StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.absolute(), tree, force=True)  # The folder is there, and empty.


FORMS: Final[Mapping[str, Callable[[Path, str, ExportWish], ExportForm]]] = {
    HUGGINGFACE: _huggingface,
    "safetensors": _safetensors,
    "orbax": _orbax,
}

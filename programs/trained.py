"""The trained model of a run, read back from its run folder: a pytree like the one of its task's `init`, or what
another kind of task makes of it.

Merged leaves are as trained, in the dtype of the task; local ones, which no folder has, are as `init` makes them.

A tensor that was split over fragments has its rows in the names of its pieces, `embedding[0:128]`; they are joined.
Nothing of the run but its folder is needed, and its task, which defines the structure of the tree.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.ops.exchange.merge_rules import LOCAL
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.request.weights import FINAL, listed, tensors_in
from isthmus.programs.task import AnyTask, OwnTask
from isthmus.runtime.errors import ConfigError, Fault

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def load(run_dir: str | Path, task: AnyTask | str | None = None) -> Any:
    """The trained model of a run: a pytree like the one of the task's `init`, whose local leaves are as `init` makes
    them for the run's seed; of a task in PyTorch the module.

    `run_dir` is a run folder, `task` the task that was trained: a Task, 'file.py:name', or None for the one that its
    config.toml names, which is the shipped one with the run's settings if it names none. ConfigError if the folder has
    no final model, if a file of it cannot be read, and if its tensors are not those of the task.
    """
    folder = Path(os.path.expanduser(run_dir)).resolve()
    doing = f"Loading the model of {folder}"
    if not (folder / FINAL).is_dir():
        what_is_there = "no such folder" if not folder.is_dir() else "none: the run goes on, failed early, or is no run"
        do = "Name the folder of a run that is over: runs/latest, or see isthmus status --all."
        raise ConfigError(doing, f"a final model in {FINAL}", what_is_there, do)
    run_task = _task(folder, doing) if task is None else _found(task, {})
    return read(folder, run_task, doing)


def read(folder: Path, task: Any, doing: str) -> Any:
    """The model in a folder that has one; ConfigError if its tensors are not those of the task."""
    if isinstance(task, OwnTask):
        return _own_model(folder, task, doing)
    import jax
    import jax.numpy as jnp

    try:
        recipe = task.recipe()
        leaves, treedef = recipe.leaves(), jax.tree.structure(recipe.shapes())
    except Exception as error:
        raise ConfigError(
            doing, "a task whose init(key) runs", f"{type(error).__name__}: {error}", "Mend task.init."
        ) from error
    merged = {leaf.name: leaf.shape for leaf in leaves if leaf.kind != LOCAL}
    tensors = tensors_in(folder / FINAL, doing)
    faults = _faults(doing, tensors, {name: tuple(shape.shape) for name, shape in merged.items()})
    if faults:
        raise ConfigError.of(faults)
    trained = {name: jnp.asarray(tensors[name].reshape(shape.shape), shape.dtype) for name, shape in merged.items()}
    local = _local(folder, recipe, [i for i, leaf in enumerate(leaves) if leaf.kind == LOCAL])
    return jax.tree.unflatten(
        treedef, [trained[leaf.name] if leaf.kind != LOCAL else local[i] for i, leaf in enumerate(leaves)]
    )


def _own_model(folder: Path, task: OwnTask, doing: str) -> Any:
    """The model of a task that makes it itself."""
    seed = _seed(folder)
    shapes = {leaf.name: leaf.shape for leaf in task.leaves(seed) if leaf.kind != LOCAL}
    tensors = tensors_in(folder / FINAL, doing)
    if faults := _faults(doing, tensors, shapes):
        raise ConfigError.of(faults)
    return task.model({name: tensors[name].reshape(shape) for name, shape in shapes.items()}, seed)


def _local(folder: Path, recipe: Any, places: list[int]) -> dict[int, Any]:
    """The local leaves of a first model, by place, for the seed of the run."""
    import jax

    if not places:
        return {}

    def chosen(key: Any) -> list[Any]:
        leaves = jax.tree.leaves(recipe.init(key))
        return [leaves[i] for i in places]

    return dict(zip(places, jax.jit(chosen)(jax.random.key(_seed(folder))), strict=True))


def _seed(folder: Path) -> int:
    """The seed of a run; 0 if its configuration does not have one."""
    try:
        document = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return RunSettings.of_section(document["run"]).seed
    except (OSError, ValueError, KeyError, ConfigError):
        return 0


def _task(folder: Path, doing: str) -> AnyTask:
    """The task of a run, from its config.toml."""
    try:
        config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            doing, f"a {CONFIG} that names the task", str(error), "Pass the task: load(run, task)."
        ) from None
    return _found(config.get("run", {}).get("task"), config.get("task", {}))


def _found(task: AnyTask | str | None, settings: Mapping[str, Any]) -> AnyTask:
    from isthmus.programs.engine.request.request import find_task

    return find_task(task, settings if task is None else {}).task


def _faults(
    doing: str, tensors: Mapping[str, npt.NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]]
) -> list[Fault]:
    """Faults of tensors that do not match the task's."""
    do = "Pass the task that was trained: load(run, task), or none for the one in the run's config.toml."
    faults = []
    missing, more = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing:
        faults.append(Fault(doing, f"the task's tensors {listed(missing)}", "a model that has no such tensors", do))
    if more:
        faults.append(Fault(doing, "no tensors but the task's", f"{listed(more)} in the model", do))
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is not None and tensor.size != math.prod(shape):
            faults.append(Fault(doing, f"tensor {name!r} of shape {shape}", f"shape {tensor.shape}", do))
    return faults

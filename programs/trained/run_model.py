"""The model of a run, read back from its run folder, also while the run goes on: a pytree like the one of its task's
`init`, or what another kind of task makes of it.

Merged leaves are as trained, in the dtype of the task; local ones, which no folder has, are as `init` makes them.

A tensor that was split over fragments has its rows in the names of its pieces, `embedding[0:128]`; they are joined.
Nothing of the run but its folder is needed, and its task, which defines the structure of the tree.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests, difference, digests_of
from isthmus.ops.exchange.merge_rules import FROZEN, is_merged
from isthmus.ops.exchange.messages import ShardState
from isthmus.ops.exchange.paths import modules_among, of_path
from isthmus.programs.engine.recorder.graph_parts import fragments_in
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.request.spec import SPEC
from isthmus.programs.engine.request.spec import load as load_spec
from isthmus.programs.engine.request.weights import listed, tensors_in
from isthmus.programs.engine.results.run_files import SUMMARY, check_files, summary_of
from isthmus.programs.engine.snapshots.snapshot_files import FINAL
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER as SNAPSHOTS
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.programs.job import Job
from isthmus.programs.task import AnyTask, OwnTask
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_text
from isthmus.runtime.system.refusals import is_own, remedy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def load(
    run_dir: str | Path,
    task: AnyTask | str | None = None,
    *,
    snapshot: int | None = None,
    path: int | None = None,
) -> Any:
    """The model of a run: a pytree like the one of the task's `init`, whose local leaves are as `init` makes them for
    the run's seed; of a task in PyTorch the module.

    `run_dir` is a run folder, `task` the task that was trained: a Task, 'file.py:name', or None for the one that its
    config.toml names, which is the shipped one with the run's settings if it names none. The model is the final one;
    while there is none, that of the newest snapshot, or, if given, of the `snapshot` with this number. Of a model made
    of modules it is that of a `path`. ConfigError if
    the folder has no model, if a file of it cannot be read, and if its tensors are not those of the task.
    """
    folder = Path(os.path.expanduser(run_dir)).resolve()
    doing = f"Loading the model of {folder}"
    model = opened(folder, doing, snapshot, path)
    return model_of(folder, task_of(folder, doing) if task is None else _found(task, {}), model.tensors, doing)


@final
class RunModel(NamedTuple):
    """The merged leaves of a run's model, float32, by name; `snapshot` is its number, None of the final model."""

    snapshot: int | None
    tensors: dict[str, npt.NDArray[np.float32]]

    @property
    def words(self) -> str:
        """Which model of the run it is, for people."""
        return "the final model" if self.snapshot is None else f"snapshot {self.snapshot}"


READS: Final = 3
"""A run that goes on may remove a snapshot while it is read, having taken two others."""


def opened(folder: Path, doing: str, snapshot: int | None = None, path: int | None = None) -> RunModel:
    """The model of a run: the final one, if it is whole and no snapshot is asked for; else the newest snapshot, or that
    with this number. Of a model made of modules it is that of a `path`.

    ConfigError if there is none, or no such path, and if what is there cannot be read.
    """
    check_files(folder, doing)
    summary_of(folder, doing)
    model = _whole(folder, doing, snapshot)
    paths = math.prod(modules_among(model.tensors).values())
    if paths == 1 and path is None:
        return model
    if path is None or paths == 1 or not 0 <= path < paths:
        expected = f"a path from 0 to {paths - 1}" if paths > 1 else "no path: this model is not made of modules"
        do = "Choose one with --path." if paths > 1 else "Leave out --path."
        raise ConfigError(doing, expected, "none" if path is None else str(path), do)
    return model._replace(tensors=of_path(model.tensors, path))


def _whole(folder: Path, doing: str, snapshot: int | None) -> RunModel:
    has_spec = (folder / SPEC).is_file()
    if snapshot is None and (folder / FINAL).is_dir():
        tensors = tensors_in(folder / FINAL, doing)
        is_over = (folder / SUMMARY).exists() or not has_spec
        if is_over or {leaf.name for leaf in job_of(folder, doing).layout} <= tensors.keys():
            return RunModel(None, tensors)
    if not has_spec:
        what_is_there = "no such folder" if not folder.is_dir() else "none: the run failed early, or is no run"
        do = "Name the folder of a run: runs/latest, or see isthmus status --all."
        raise ConfigError(doing, f"a final model in {FINAL}, or snapshots", what_is_there, do)
    return _of_snapshot(folder, doing, snapshot)


def job_of(folder: Path, doing: str) -> Job:
    """The job of a run; ConfigError if its folder does not tell."""
    try:
        return load_spec(folder).job
    except (OSError, ValueError, KeyError, TypeError) as error:
        do = "Name a run that this version of isthmus has made."
        raise ConfigError(
            doing, f"a {SPEC} that can be read", f"{type(error).__name__}: {error}", remedy(error, do)
        ) from None


def _of_snapshot(folder: Path, doing: str, number: int | None) -> RunModel:
    job = job_of(folder, doing)
    fragments = fragments_in(Program(job.program, **job.settings).build(job).freeze())
    if not fragments:
        do = "Wait for its end: of such a program the final model alone can be read."
        raise ConfigError(doing, "a program that exchanges fragments", repr(job.program), do)
    snapshots = Snapshots(folder / SNAPSHOTS, [fragment.size for fragment in fragments], DISK)
    for _ in range(READS):
        try:
            found = snapshots.held(number)
        except OSError as error:
            raise ConfigError(doing, "snapshots that can be read", str(error), "Look at the disk.") from None
        if found.manifest is not None:
            return RunModel(found.manifest.number, _tensors_of(found.held, fragments))
    numbers = snapshots.numbers()
    if number is not None and number not in numbers:
        there = f"{', '.join(map(str, numbers))} only" if numbers else "none at all"
        raise ConfigError(doing, f"snapshot {number}", there, "A run keeps the two newest; name one of these.")
    actual = "; ".join(found.faults) or "none: the run has just begun, or failed early"
    raise ConfigError(doing, "a final model, or a snapshot that is whole", actual, "Wait, or name another run.")


def _tensors_of(held: Mapping[int, ShardState], fragments: Sequence[Fragment]) -> dict[str, npt.NDArray[np.float32]]:
    """Whole tensors from the published values of fragments."""
    import numpy as np

    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for fragment in fragments:
        values = held[fragment.index]["values"]
        for unit, (begin, end) in zip(fragment.units, pairwise(fragment.offsets), strict=True):
            whole = tensors.setdefault(unit.tensor, np.empty(unit.shape, np.float32))
            if unit.shape:
                whole[unit.start : unit.stop] = values[begin:end].reshape(unit.values_shape)
            else:
                whole[...] = values[begin]
    return tensors


def read(folder: Path, task: Any, doing: str) -> Any:
    """The final model in a folder that has one; ConfigError if its tensors are not those of the task."""
    return model_of(folder, task, tensors_in(folder / FINAL, doing), doing)


def model_of(folder: Path, task: Any, tensors: Mapping[str, npt.NDArray[np.float32]], doing: str) -> Any:
    """The model of a task with these merged leaves; ConfigError if they are not those of the task."""
    if isinstance(task, OwnTask):
        return _own_model(folder, task, tensors, doing)
    import jax
    import jax.numpy as jnp

    try:
        recipe = task.recipe()
        leaves, treedef = recipe.leaves(), jax.tree.structure(recipe.shapes())
    except Exception as error:
        raise ConfigError(
            doing, "a task whose init(key) runs", f"{type(error).__name__}: {error}", "Mend task.init."
        ) from error
    merged = {leaf.name: leaf.shape for leaf in leaves if is_merged(leaf.kind)}
    faults = _faults(doing, tensors, {name: tuple(shape.shape) for name, shape in merged.items()})
    if faults:
        raise ConfigError.of(faults)
    trained = {name: jnp.asarray(tensors[name].reshape(shape.shape), shape.dtype) for name, shape in merged.items()}
    own = _frozen(folder, task, doing) if any(leaf.kind == FROZEN for leaf in leaves) else {}
    trained |= {name: jnp.asarray(leaf) for name, leaf in own.items()}
    local = _local(folder, recipe, [i for i, leaf in enumerate(leaves) if leaf.name not in trained])
    return jax.tree.unflatten(treedef, [trained.get(leaf.name, local.get(i)) for i, leaf in enumerate(leaves)])


def _frozen(folder: Path, task: Any, doing: str) -> dict[str, Any]:
    """The frozen leaves as the task makes them; ConfigError if they are not those of the run."""
    from isthmus.ops.island.functions import functions_of

    leaves = functions_of(task, (), 0.0).frozen_leaves(_seed(folder))
    check_frozen(folder, digests_of(leaves), doing)
    return leaves


def check_frozen(folder: Path, found: Digests, doing: str) -> None:
    """ConfigError unless frozen leaves are those with which the run began, where its folder says which these were."""
    expected = job_of(folder, doing).frozen if (folder / SPEC).is_file() else found
    if (pair := difference(expected, found)) is not None:
        raise ConfigError(doing, *pair, "Let the task load them from the files that it had.")


def _own_model(folder: Path, task: OwnTask, tensors: Mapping[str, npt.NDArray[np.float32]], doing: str) -> Any:
    """The model of a task that makes it itself."""
    seed = _seed(folder)
    shapes = {leaf.name: leaf.shape for leaf in task.leaves(seed) if is_merged(leaf.kind)}
    if faults := _faults(doing, tensors, shapes):
        raise ConfigError.of(faults)
    if frozen := task.frozen(seed):
        check_frozen(folder, frozen, doing)
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
        document = tomllib.loads(read_text(folder / CONFIG))
        return RunSettings.of_section(document["run"]).seed
    except (OSError, ValueError, KeyError, ConfigError) as error:
        if is_own(error):
            raise
        return 0


def task_of(folder: Path, doing: str) -> AnyTask:
    """The task of a run, from its config.toml; ConfigError where its data are routed otherwise than they were."""
    try:
        config = tomllib.loads(read_text(folder / CONFIG))
    except (OSError, ValueError) as error:
        raise ConfigError(
            doing, f"a {CONFIG} that names the task", str(error), "Pass the task: load(run, task)."
        ) from None
    task = _found(config.get("run", {}).get("task"), config.get("task", {}))
    routed_by = getattr(task, "routed_by", "")
    if routed_by and (folder / SPEC).is_file() and (began := job_of(folder, doing).routed_by) != routed_by:
        do = "Give the router file its former contents: its path decides what is held out of each shard."
        raise ConfigError(doing, f"the router of the run, {began}", routed_by, do)
    return task


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

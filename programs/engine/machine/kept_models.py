"""The models that a run of another home leaves on this machine: the last ones of its learners' own, and that of all.

Decides where they are, and makes run folders of them, which commands read as those of any run: a `config.toml` in which
the owner's data stand in the place of the run's, the spec, and the tensors as a final model. They lie in the folder of
the run among this daemon's state, one for each learner and one for the model of all, and nobody removes them but their
owner. None of it goes to the home.

What learners leave (`ops.learner.site_models`) is linked into a new folder, which is renamed when it is whole: whatever
ends this daemon meanwhile, the next one does the same again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import msgspec

from isthmus.ops.data.site_folders import FOLDER, GLOBAL, NOTE, OWN
from isthmus.programs.engine.request import new_folder, spec
from isthmus.programs.engine.request.kept_model import KEPT, keep
from isthmus.programs.engine.request.spec import SPEC, Spec
from isthmus.programs.engine.snapshots.snapshot_files import FINAL
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system.files import read_text, write_bytes, write_json

MODELS: Final = "models"
"""The folder of the kept models in the folder of a run."""
_PART: Final = ".part-"


@final
class KeptModels(NamedTuple):
    """The folders of the kept models of a run: of each learner's own, and of all (None: no learner had one)."""

    own: list[Path]
    of_all: Path | None

    @property
    def lines(self) -> Iterator[str]:
        """What is told of them to the owner."""
        for each in self.own:
            yield f"keeps the last model of its own, of {each.name}: {each}"
        if self.of_all is not None:
            yield f"keeps the model of all, as its learners have it: {self.of_all}"
            yield f"it goes on with its own data: isthmus train --from {self.of_all} --data DATA --learners 1"


def begin(folder: Path, run_spec: Spec) -> None:
    """Write what is beside the tensors, as long as the files of the task are there. OSError of the disk."""
    beside = folder / FOLDER
    beside.mkdir(parents=True, exist_ok=True)
    task = run_spec.task_of(Replica(LEARNER, 0))
    # The command line and the store are the home's.
    settings = msgspec.structs.replace(run_spec.settings, argv=(), snapshots="").section()
    config: Mapping[str, Mapping[str, Any]] = {
        "run": {"program": run_spec.job.program, **settings, "task": task},
        "program": run_spec.job.settings,
        "task": {},
    }
    write_bytes(beside / new_folder.CONFIG, new_folder.document(config).encode())
    keep(beside, task)


def keep_left(folder: Path) -> KeptModels:
    """Keep what learners have left in the folder of a run; none where they have left nothing. OSError of the disk."""
    beside = folder / FOLDER
    notes = {path.parent: json.loads(read_text(path)) for path in sorted(beside.glob(f"learner-*/{NOTE}"))}
    own = [_kept(folder, left / OWN, left.name, note) for left, note in notes.items() if note["has_own"]]
    of_all = max(notes, key=lambda left: (notes[left]["is_final"], notes[left]["versions"]), default=None)
    return KeptModels(own, None if of_all is None else _kept(folder, of_all / GLOBAL, GLOBAL, notes[of_all]))


def _kept(folder: Path, tensors: Path, name: str, note: Mapping[str, Any]) -> Path:
    """The folder of one kept model, which is as a run folder."""
    target = folder / MODELS / name
    part, old = (target.with_name(f"{_PART}{what}{name}") for what in ("", "old-"))
    for each in (part, old):
        shutil.rmtree(each, ignore_errors=True)
    (part / FINAL).mkdir(parents=True)
    beside = folder / FOLDER
    for path in sorted(tensors.glob("*.safetensors")):
        _linked(path, part / FINAL / path.name)
    for path in sorted(each for each in (beside / KEPT).rglob("*") if each.is_file()):
        _linked(path, part / path.relative_to(beside))
    fields = json.loads(read_text(folder / SPEC))
    # The spec of a run of one machine without keys: of a run folder only what the model is is read.
    here = {**fields["here"], "secret": "", "daemon": "", "reaches": []}
    write_json(part / SPEC, {**fields, "here": here})
    write_json(part / NOTE, {"run": spec.load(part).run, "is_own": name != GLOBAL, **note})
    _linked(beside / new_folder.CONFIG, part / new_folder.CONFIG)
    if target.exists():  # Of a part of the run before this one.
        target.rename(old)
    part.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return target


def _linked(path: Path, target: Path) -> None:
    """Put a file at another place of the same disk, too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def bytes_kept(folders: Path) -> tuple[int, int]:
    """How many kept models there are in the folders of all runs here, and their bytes."""
    models = [path for path in folders.glob(f"*/{MODELS}/*") if not path.name.startswith(_PART)]
    return len(models), sum(file.stat().st_size for each in models for file in each.rglob("*") if file.is_file())

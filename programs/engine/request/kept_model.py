"""What a run folder has of the model folder that is trained: its configuration, and its tokenizer.

They are copied when the run begins, so that the model is exported, measured and sampled from when the folder has
changed, or is gone; tensors are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from isthmus.programs import FOLDER, FOLDER_TASK
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.runtime.system.files import read_bytes

KEPT: Final = "model"
"""The folder in a run folder."""


def keep(run: Path, task: str) -> None:
    """Copy the small files of the model folder, if the task of this reference trains one, into a run folder. OSError
    of the disk."""
    home = references_of(task)[0]
    if reference.without_keywords(home) != FOLDER_TASK:
        return
    from isthmus.programs.model_folders import folders

    source = Path((reference.parse(home, f"Reading the task {home}").keywords or {})[FOLDER])
    beside = folders.beside(source)
    files = {folders.CONFIG: read_bytes(source / folders.CONFIG)} | beside.files
    if beside.left_out:
        files[folders.LEFT_OUT] = json.dumps(beside.left_out).encode()
    (run / KEPT).mkdir(exist_ok=True)
    folders.write_documents(run / KEPT, {}, files)


def folder_kept(run: Path, folder: str) -> Path:
    """Where the small files of the model folder of a run are: in its run folder; else where the folder was."""
    from isthmus.programs.model_folders import folders

    kept = run / KEPT
    return kept if (kept / folders.CONFIG).is_file() else Path(folder)

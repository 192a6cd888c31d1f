"""Where what a learner leaves on its machine lies: in the run's folder there, or in that of the run in its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "local"


def copy_path(folder: Path, slot: int) -> Path:
    """The file of the local leaves of a slot; the others of a slot begin with its name and a dot."""
    return folder / FOLDER / f"learner-{slot}"

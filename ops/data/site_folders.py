"""Where a learner leaves models for its site, in the folder of the run on its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "site-models"
OWN: Final = "own"
GLOBAL: Final = "global"
NOTE: Final = "models.json"
"""It is written last: models without it are not whole."""


def folder_of(run: Path, slot: int) -> Path:
    """Where the learner in a slot leaves them."""
    return run / FOLDER / f"learner-{slot}"

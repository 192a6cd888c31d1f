"""Whether a run folder has a snapshot: the names of the files that say so.

Daemons and commands ask no more; what a snapshot has, and whether it is whole, is `snapshots`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "snapshots"
MANIFEST: Final = "manifest.json"
BEFORE: Final = "manifest-before.json"
FINAL: Final = Path(FOLDER, "final")
"""The folder with the final model of a run that is over."""


def has_snapshot(run: Path) -> bool:
    """Whether a run folder has a snapshot to go on from, whole or not."""
    return any((run / FOLDER / name).exists() for name in (MANIFEST, BEFORE))

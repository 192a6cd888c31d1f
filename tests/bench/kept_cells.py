"""What a bench has measured already, by the name of the cell, in a file: the same call goes on with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class KeptCells(dict[str, dict[str, Any]]):
    """The cells in a file, which need not be there yet; without a path they are kept nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        super().__init__(json.loads(path.read_text()) if path is not None and path.exists() else {})

    def keep(self, name: str, cell: dict[str, Any]) -> None:
        """Add a cell, and bring the file up to date."""
        self[name] = cell
        if self._path is not None:
            self._path.write_text(json.dumps(self, indent=1))

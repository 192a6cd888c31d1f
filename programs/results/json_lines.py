"""The lines of a `.jsonl` file of a run folder as plain objects, for any state of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def objects(path: Path) -> list[Mapping[str, Any]]:
    """The objects in a file, a line each; skips other lines; empty for a missing file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [told for line in lines if (told := _parsed(line)) is not None]


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None

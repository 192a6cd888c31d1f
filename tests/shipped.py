"""Settings that a shipped program needs of the shipped task."""

from __future__ import annotations

from typing import Any

TASK_SETTINGS: dict[str, dict[str, Any]] = {"dipaco": {"paths": (1, 2)}}
SETS = {"dipaco": ["task.paths=[1, 2]"]}
"""The same, as `--set` takes them."""

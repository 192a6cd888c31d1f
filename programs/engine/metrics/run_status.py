"""What metrics are made of: the statuses of a process's runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run as `isthmus status` has it; one without `training` has the hosts of this machine alone."""

    run: str
    hosts: Iterable[Mapping[str, Any]]
    training: Mapping[str, Any] = field(default_factory=dict)

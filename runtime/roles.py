"""Names of roles that the runtime itself knows."""

from __future__ import annotations

from typing import Final

LEARNER: Final = "learner"
"""The role whose replicas take an island each; all others run on the machine beside them."""
RECORDER: Final = "recorder"
"""The role of the one replica that keeps the run folder; its machine is the run's home."""
ROLES: Final = (LEARNER, "syncer", "evaluator")
"""What a machine may say that it takes, whether a graph has such a role or not."""

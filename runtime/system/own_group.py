"""The weight of this process beside others, where the kernel weighs sessions against each other.

Every host leads a session. Where the kernel groups processes by session (sched(7), "The autogroup feature"; on most
desktops and virtual machines), the nice level of a thread says nothing to other sessions: that of the group does.
Elsewhere there is no such group, or it has no effect.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

NICENESS: Final = 5
"""As that of threads that compute (`ops.island.core_turns`): a third of the weight."""
_GROUP: Final = Path("/proc/self/autogroup")


def give_way() -> None:
    """Let other sessions go before this one from now on: those that have little to do, and hosts that begin."""
    with suppress(OSError, ValueError):  # No such group, or it is not to be changed here.
        niceness = int(_GROUP.read_text().rpartition(" ")[2])
        if niceness < NICENESS:
            _GROUP.write_text(str(NICENESS))

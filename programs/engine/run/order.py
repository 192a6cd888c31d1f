"""What the command tells the daemon that waits for its run: both ends read it here, and neither loads the other."""

from __future__ import annotations

from typing import NamedTuple


class Order(NamedTuple):
    """What a waiting daemon is told: the run folder, the seconds in which it sets the run aside, and the task whose
    hosts the preparer forks, '' if it has ended. The lock on the folder comes with it."""

    folder: str
    grace: float
    task: str

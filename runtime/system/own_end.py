"""The end of a child process, or of this one: with its parent, and at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent is gone, even while it is stopped or busy (prctl(2)).

    Processes that it forks do not inherit that. If its parent should be `parent`, and is gone by now, end at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def end_after(work: Callable[[], int]) -> NoReturn:
    """Do the work, and end this process with the status that it returns, 1 where it raises.

    At once: an interpreter that is shut down while threads of libraries still run may abort, and its host would count
    as killed. A forked child never returns to its parent's code.
    """
    status = 1
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

"""Counts what the threads of a learner's nodes call: on PYTHONPATH, every process of a run imports this by itself.

After CALLS_SKIPPED firings, the calls of CALLS_FIRINGS more are counted, in files CALLS_FOLDER/THREAD.json.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any


def _name(code: Any) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname}"


class Count:
    """The calls of one thread: of Python functions by their name, of C functions by theirs and their caller's."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._firings = 0
        self._skipped, self._counted = int(os.environ["CALLS_SKIPPED"]), int(os.environ["CALLS_FIRINGS"])

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """What Python tells of every call and return."""
        if event == "call":
            if frame.f_code.co_qualname == "Bodies.fire":
                self._firings += 1
                if self._firings == self._skipped:
                    self._calls.clear()
                elif self._firings == self._skipped + self._counted:
                    self._end()
                    return
            self._calls[_name(frame.f_code)] += 1
        elif event == "c_call":
            self._calls[f"{getattr(argument, '__qualname__', argument)} in {_name(frame.f_code)}"] += 1

    def _end(self) -> None:
        sys.setprofile(None)
        told = {name: count / self._counted for name, count in self._calls.most_common()}
        path = Path(os.environ["CALLS_FOLDER"], threading.current_thread().name.replace("/", "-") + ".json")
        path.with_suffix(".part").write_text(json.dumps(told))
        path.with_suffix(".part").rename(path)


def _begin(frame: FrameType, event: str, argument: Any) -> None:
    """The first event of a new thread: count in those of a learner's nodes, which are named learner/SLOT:NODE."""
    sys.setprofile(Count() if threading.current_thread().name.startswith("learner/") else None)


if "CALLS_FOLDER" in os.environ:
    threading.setprofile(_begin)

"""The places of a script's threads, as faulthandler has printed them."""

from __future__ import annotations

import os
from pathlib import Path

from isthmus.runtime.daemon.stacks import StacksRead, places_in
from isthmus.runtime.supervision.incidents import PLACES_MAX, CodePlace

LIBRARY = os.path.dirname(os.__file__)
ROOT = Path(__file__).parent.parent.parent.parent
PRINTED = f"""epoch 3
Thread 0x00007f01 (most recent call first):
  File "{LIBRARY}/threading.py", line 324 in wait
  File "/home/ann/train.py", line 12 in evaluate
  File "/home/ann/train.py", line 40 in <module>

Thread 0x00007f02 (most recent call first):
  File "{ROOT}/runtime/host/threads.py", line 3 in run

Current thread 0x00007f03 (most recent call first):
  File "/home/ann/data.py", line 7 in load
"""


def test_the_place_of_each_thread_is_its_innermost_line_that_is_the_users() -> None:
    assert places_in(PRINTED) == (
        CodePlace("/home/ann/train.py", 12, "evaluate"),
        CodePlace("/home/ann/data.py", 7, "load"),
    )


def test_threads_at_one_place_are_one_and_no_more_than_the_most_are_told() -> None:
    one = 'Thread 0x00007f01 (most recent call first):\n  File "/a.py", line {} in f\n'
    assert places_in(one.format(1) * 3) == (CodePlace("/a.py", 1, "f"),)
    assert len(places_in("".join(one.format(line) for line in range(1, 500)))) == PLACES_MAX


def test_what_the_script_printed_before_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "learner-0.log"
    log.write_text(PRINTED)
    assert StacksRead(log, len(PRINTED)).places() == ()
    assert len(StacksRead(log, 0).places()) == 2
    assert StacksRead(tmp_path / "none", 0).places() == ()

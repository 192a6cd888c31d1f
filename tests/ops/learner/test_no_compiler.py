"""A learner's process needs no compiler of kernels, in any format: numba is only where answers are merged."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

LEARNER = """
import sys
sys.modules["numba"] = None  # As if it were not installed.
import numpy as np
from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.receive import Receive

fragment = Fragment(0, (Unit("a", 0, 600, (600,)),))
values = np.linspace(-1, 1, 600, dtype=np.float32)
for form in CODED:
    sender = FragmentSend([fragment], push=form)
    sender.open(None)
    capture = {"fragment": 0, "round": 1, "anchor": values, "values": values * 0.5, "begin": 0, "end": 64, "steps": 1}
    ((name, answer),) = next(sender({0: capture}))
    assert answer["format"] == form, answer
receiver = Receive([fragment])
receiver.open(None)
coded, moved = coding.advance(values * 2, values, fragment, "int4")
assert coding.add(values, coded, fragment).tobytes() == moved.tobytes()
try:
    averaging.warm()
except ModuleNotFoundError as error:
    assert "pip install numba" in str(error)
    print("refused")
"""


def test_a_learner_answers_and_adopts_without_a_compiler_and_only_merging_needs_one() -> None:
    done = subprocess.run([sys.executable, "-c", LEARNER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr

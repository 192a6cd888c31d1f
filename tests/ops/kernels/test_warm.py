"""What is compiled before the first round is all that rounds need: none of them waits for the compiler."""

import os
import subprocess
import sys

import pytest

from isthmus.runtime.system.processes import ONE_THREAD

pytestmark = pytest.mark.process

COMPILED = """
import numpy as np
from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import averaging, bounds, coding, nesterov, sweeps
from isthmus.ops.kernels.buffers import copied, taken

def compiled():
    rooms = averaging, bounds, coding, nesterov, sweeps
    kernels = {kernel for room in rooms for kernel in vars(room).values() if hasattr(kernel, "signatures")}
    return {(kernel.__name__, signature) for kernel in kernels for signature in kernel.signatures}

"""
ROUND = """
fragment = Fragment(0, (Unit("a", 0, 300, (300,)), Unit("b", 300, 600, (300,))))
values = np.linspace(-1, 1, 600, dtype=np.float32)
answers = [values, *(coding.encode(values, fragment, each) for each in CODED)]
averaging.warm()
coding.warm_answers()
nesterov.warm()
coding.warm_updates()
before = compiled()
assert before
for answer in answers:
    fields = coding.item_fields("values", answer)
    read = {name: np.frombuffer(each.tobytes(), each.dtype) for name, each in fields.items() if name != "format"}
    arrived = coding.as_sent({**fields, **read}, "values")
    assert coding.is_finite(arrived)
    coding.sampled(arrived, fragment, 7)
    norms = averaging.unit_norms(arrived, fragment).astype(np.float32)
    merged = averaging.merge([arrived] * 4, [1.0] * 4, [norms] * 4, fragment)
    theta = taken(merged.direction)
    nesterov.step_over(values, copied(values), theta, merged.scale, fragment, 0.7, 0.9)
    for form in CODED:
        coding.advance(theta, values, fragment, form)
print(*(compiled() - before), sep="\\n")
"""

FORKED = """
import os
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.receive import Receive

fragment = Fragment(0, (Unit("a", 0, 300, (300,)),))
for make in (lambda: FragmentSend((fragment,), push="int4"), lambda: Receive((fragment,))):
    make().prepare()
before = compiled()
assert before
assert len(os.listdir("/proc/self/task")) == 1, "with more threads nothing can be forked"
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
send, receive = FragmentSend((fragment,), push="int4"), Receive((fragment,))
send.open(None)
receive.open(None)
coded = coding.encode(np.linspace(-1, 1, 300, dtype=np.float32), fragment, "int4")
coding.add(np.zeros(300, np.float32), coded, fragment)
print(*(compiled() - before), sep="\\n")
"""


@pytest.mark.further
@pytest.mark.parametrize("steps", [ROUND, FORKED], ids=["shard", "forked learner"])
def test_no_kernel_is_compiled_in_a_round(steps: str) -> None:
    command = [sys.executable, "-c", COMPILED + steps]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""

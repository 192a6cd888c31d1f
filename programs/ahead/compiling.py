"""Runs worker processes that compile, one island after the other, and receives their progress.

This process starts no backend of jax and imports none; a worker's output beside its answers is kept in case it dies.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from isthmus.programs.ahead.figures import Answer
from isthmus.programs.ahead.island import Island, summed
from isthmus.programs.ahead.targets import Target
from isthmus.programs.request.environment import cache_folder
from isthmus.runtime.errors import ConfigError, Fault, RunError

WORKER: Final = "isthmus.programs.ahead.worker"
_ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    # A compiler without a device writes programs to jax's own cache that it cannot read back.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    # A machine that has no TPU, and is not to look for one in the network.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    # Other processes may load libtpu here: it locks a file that guards a chip, and there is no chip.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TOLD_SECONDS: Final = 1.0
"""Interval of progress reports."""
_LAST_BYTES: Final = 4000
"""Bytes of a dead worker's output that an error shows."""

Hear = Callable[[str, str, float], None]
"""Called with the island's name, the function being compiled, and the seconds spent on the island."""


def check_compiler(doing: str) -> None:
    """ConfigError unless the compiler of TPUs is installed."""
    if find_spec("libtpu") is None:
        do = (
            "Install it beside isthmus: python -m pip install 'isthmus[tpu]', in a clone '.[tpu]'. It is Google's, "
            "under the terms of its Cloud Platform, and 700 MB."
        )
        raise ConfigError(doing, "libtpu, the compiler of TPUs, which needs no TPU", "none in this environment", do)


def compiled_for(target: Target, slot: int, told: Mapping[str, Any], hear: Hear, *, fit: bool) -> Island:
    """The figures of a run with spec `told` on an island, for this slot's learner; with `fit`, also the largest batch.

    ConfigError if the request is wrong; RunError if the worker dies, or fails.
    """
    kept = cache_folder("ahead")
    where = {"target": target.name, "slot": slot, "kept": None if kept is None else str(kept)}
    request = json.dumps({"spec": told, **where, "fit": fit})
    with tempfile.TemporaryFile() as noise:
        worker = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env={**os.environ, **_ENVIRONMENT},
        )
        try:
            answer = _heard(worker, request, lambda name, since: hear(target.name, name, since))
        finally:
            worker.kill()
            worker.communicate()
        noise.seek(max(noise.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
        last = noise.read().decode(errors="replace")
    if "faults" in answer:
        there = f" (an island {target.name})"
        faults = (Fault(*fault) for fault in answer["faults"])
        raise ConfigError.of(fault._replace(doing=fault.doing + there) for fault in faults)
    if "answer" not in answer:
        how = answer.get("error") or f"its process ended with status {answer['status']}\n{last}"
        raise RunError(f"compiling for {target.name} failed: {how.rstrip()}")
    return summed(target, slot, msgspec.convert(answer["answer"], Answer))


def _heard(worker: subprocess.Popen[bytes], request: str, hear: Callable[[str, float], None]) -> dict[str, Any]:
    """The last message of a worker; the {status} of its process if it sent none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(request.encode() + b"\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return {"status": worker.wait()}
    begun, doing, buffered = time.monotonic(), "", b""
    while True:
        hear(doing, time.monotonic() - begun)
        if not select.select([worker.stdout], [], [], _TOLD_SECONDS)[0]:
            continue
        read = os.read(worker.stdout.fileno(), 1 << 16)
        buffered += read
        *lines, buffered = buffered.split(b"\n")
        for told in map(json.loads, lines):
            if "doing" not in told:
                return dict(told)
            doing = told["doing"]
        if not read:
            return {"status": worker.wait()}

"""The process of one run in virtual time: reads its request from standard input, and leaves a run folder behind.

It ends with the process at the other end of its standard input, which has set its environment for the device on which
it computes.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from isthmus.programs.engine.request import new_folder, new_spec, spec
from isthmus.programs.engine.request.graph_view import as_json
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.run.finish import leave_behind
from isthmus.programs.wings.compare.compare import request_of
from isthmus.programs.wings.compare.compare_runs import VirtualOrder
from isthmus.programs.wings.simulation.virtual_run import VirtualPace, VirtualRun
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import RequestError, RunError
from isthmus.runtime.system.files import append_bytes, write_json
from isthmus.runtime.system.processes import follow_daemon, unblock
from isthmus.runtime.tape.reading import FOLDER

SECONDS_MAX = 1e7
"""Virtual seconds: a hundred days, more than any practical run computes."""


def run(order: VirtualOrder) -> None:
    """Carry a run out, and leave its folder behind as a real run does; RequestError or RunError if it fails."""
    request = request_of(order.variant, order.seed, order.folder)
    folder = new_folder.create(request.run_dir, request.config_text)
    placement = {node.name: "virtual" for node in request.graph.nodes}
    with RunLock(folder):
        write_json(folder / "graph.json", as_json(request.graph, request.proof, request.fingerprint, placement))
        spec.write(folder, new_spec.of(request, zero_ns=0, cpu_seconds=0.0, transport=spec.INPROC))
        pacing = order.pacing
        ran = VirtualRun(request, VirtualPace(pacing.speeds, pacing.step_ms, pacing.delay_ms))
        try:
            ran.run(SECONDS_MAX)
            (folder / FOLDER).mkdir(exist_ok=True)
            for replica, tape in ran.world.tape().items():
                append_bytes(folder / FOLDER / f"{replica.replace('/', '-')}-1.1.tape", tape)
        finally:
            ran.world.close()
        summary = {**ran.summary, "error": ran.status["error"]}
        leave_behind(folder, summary, list(ran.trace.spans), Instant(ran.status.get("zero") or 0))


def _end_with_sender() -> None:
    while os.read(0, 1):
        """Nothing more is sent."""
    os._exit(1)


def main() -> None:
    """The process."""
    unblock()
    follow_daemon()  # A terminal sends them here, too; the process that gave the order acts on them.
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=VirtualOrder)
    threading.Thread(target=_end_with_sender, daemon=True).start()
    try:
        run(order)
    except (RequestError, RunError, TimeoutError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""The files that come at the end of every run: summary, trace and report.

A run without a summary has failed, whatever was trained; its writing is retried for a while. The others are for people,
and made of the data that are there anyway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus.programs.report.report import write_report
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import RunError
from isthmus.runtime.host.contract import Span, as_perfetto
from isthmus.runtime.system.files import insist, write_bytes, write_json

SUMMARY_SECONDS_MAX: Final = 60.0
"""Time for which a disk may refuse the summary of a run."""


def leave_behind(folder: Path, summary: Mapping[str, Any], spans: Sequence[Span], zero: Instant) -> None:
    """Write summary, trace and report.

    RunError if the disk does not take the summary in time; trace or report are left out with a line on standard error
    if they cannot be written.
    """
    path, seconds_max = folder / "summary.json", SUMMARY_SECONDS_MAX
    try:
        insist(lambda: write_json(path, summary), seconds_max)
    except OSError as error:
        model = folder / "snapshots" / "final"
        where = f"The model is in {model}." if model.is_dir() else "No model was written."
        raise RunError(
            f"training is over ({summary['outcome']}), but {path} could not be written for {seconds_max:.0f} s: "
            f"{error.strerror or error}. {where}"
        ) from None
    try:
        events = {"traceEvents": list(as_perfetto(list(spans), zero)), "displayTimeUnit": "ms"}
        write_bytes(folder / "trace.json", json.dumps(events, separators=(",", ":")).encode())
        write_report(folder)
    except OSError as error:
        sys.stderr.write(f"isthmus: trace.json or report.html could not be written: {error}\n")

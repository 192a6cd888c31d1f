"""A process that opens the devices of this machine by jax, as learners will, and says which there are: `python -m
isthmus.programs.wings.doctor.opening LINE`. Started by `isthmus doctor`, which ends it if it takes too long."""

from __future__ import annotations

import sys
import time
from typing import Any

from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import die_with_parent, unblock


def opened() -> dict[str, Any]:
    """The platform, the kinds of the devices, and the seconds that opening them has taken."""
    began = time.monotonic()
    import jax

    devices = jax.devices()
    kinds = [device.device_kind for device in devices]
    return {"platform": devices[0].platform, "kinds": kinds, "seconds": time.monotonic() - began}


def main(arguments: list[str]) -> None:
    """Open them, and say so."""
    unblock()
    die_with_parent()
    ProcessLine.inherited(arguments[0]).send(opened())


if __name__ == "__main__":
    main(sys.argv[1:])

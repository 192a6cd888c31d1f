"""Facts of this machine, each measured within a stated time: user, signals, limits, memory, disk, devices.

It decides nothing; `checks` does. Devices are opened by a process of its own, as a learner would open them, because
whoever starts a backend of jax has the devices.
"""

from __future__ import annotations

import os
import pwd
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, final

from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.machine.names import machines_folder
from isthmus.programs.engine.run.private_daemon import refusal_of
from isthmus.programs.engine.run.room_for_hosts import COMPILER
from isthmus.programs.wings.doctor.checks import DiskFacts, JaxFacts, UserFacts
from isthmus.runtime.errors import ConfigError, shortened
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.control_groups import cores_most, processes_free
from isthmus.runtime.system.files import cache_folder
from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import status_name

JAX_SECONDS_MAX: Final = 90.0
"""The runtime of a TPU takes half a minute to open its chips; a jax that waits for other processes waits for ever."""
DISK_SECONDS_MAX: Final = 2.0
_DISK_BYTES_MAX: Final = 64 << 20
_PIECE_BYTES: Final = 4 << 20
_OPENING: Final = "isthmus.programs.wings.doctor.opening"
_PACKAGES: Final = ("isthmus", "jax", "jaxlib", COMPILER)


def versions() -> dict[str, str | None]:
    """The versions of Python and of what computes; None for what is not installed."""
    found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _PACKAGES:
        found[name] = None
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@final
class OpeningDevices:
    """A process that opens the devices of this machine by jax, as learners will."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.accelerators = environment.find()
        changes: dict[str, str | None] = {**environment.without_accelerators()}
        if self.accelerators is not None:
            changes = {"JAX_PLATFORMS": self.accelerators.platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if self.accelerators is not None and self.accelerators.platform == "tpu":
            changes |= environment.of_this_life(os.environ, 1)
        variables = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = Child(_OPENING, output=self._errors, variables=variables, leads=True)

    def facts(self) -> JaxFacts:
        """Its result, after JAX_SECONDS_MAX at most."""
        until = self._began + JAX_SECONDS_MAX
        is_over = self._child.wait(max(0.0, until - time.monotonic()))
        said = [*self._child.line.hear(), *self._child.end()]
        self._errors.seek(0)
        reasons = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        if not is_over:
            return JaxFacts(refusal=f"no device within {JAX_SECONDS_MAX:.0f} s")
        if self._child.status or not said:
            return JaxFacts(
                refusal=shortened([status_name(self._child.status or 0), *reasons][-1], _REASON_LENGTH_MAX, _WHOLE)
            )
        opened = said[-1]
        return JaxFacts(str(opened["platform"]), tuple(map(str, opened["kinds"])), float(opened["seconds"]))

    def end(self) -> None:
        """End it, and whatever it started."""
        self._child.end()
        self._errors.close()


_REASON_LENGTH_MAX: Final = 300
_WHOLE: Final = "all of it: python -c 'import jax; jax.devices()'"


def user() -> UserFacts:
    """The user of this process, and its folders that cannot be written to."""
    uid, name = os.getuid(), None
    with suppress(KeyError):
        name = pwd.getpwuid(uid).pw_name
    home = os.path.expanduser("~")
    refused: dict[str, str] = {}
    try:
        folder = _existing(machines_folder())
        if not os.access(folder, os.W_OK | os.X_OK):
            refused["state"] = f"state: {folder} cannot be written to"
    except ConfigError as error:
        refused["state"] = f"state: {error.faults[0].found}"
    if home != "~" and cache_folder("xla") is None:
        refused["cache"] = "cache: compiled programs cannot be kept"
    return UserFacts(uid, name, None if home == "~" else home, refused)


def _existing(folder: Path) -> Path:
    """The folder, or the one to make it in."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def pidfd_refusal() -> str:
    """Why the kernel does not let processes be watched by descriptors; empty if it does."""
    try:
        watch = pidfd_open(os.getpid())
        try:
            pidfd_send_signal(watch, 0)
        finally:
            os.close(watch)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def descriptors() -> tuple[int, int]:
    """The limit of open files that processes start with, and the one to which it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, soft if hard == resource.RLIM_INFINITY and soft == resource.RLIM_INFINITY else max(hard, soft)


def processes_max() -> int | None:
    """How many processes and threads may still start: by the limit of this user, and of its control groups."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    free = [each for each in [processes_free()] if each is not None]
    if soft != resource.RLIM_INFINITY:
        free.append(max(0, soft - _threads_of_user()))
    return min(free, default=None)


def _threads_of_user() -> int:
    """The threads of this user, which RLIMIT_NPROC counts."""
    count = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += len(os.listdir(path / "task")) if path.stat().st_uid == os.getuid() else 0
    return count


def cores() -> float:
    """The cores that this process may use."""
    return round(cores_most(), 2)


def shared_memory_bytes() -> int | None:
    """Free bytes of /dev/shm; None where there is none."""
    with suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return None


def disk(folder: Path) -> DiskFacts:
    """The disk of the runs, which are made below `folder`: a file of some MiB is written there, and removed again."""
    place = _existing(folder.absolute())
    if refusal := refusal_of(place):
        return DiskFacts(str(place), refusal=refusal)
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    return DiskFacts(str(place), free, _written(place, min(_DISK_BYTES_MAX, free // 2)))


def _written(folder: Path, most: int) -> float | None:
    """Bytes a second that end on the disk, of at most `most` bytes and DISK_SECONDS_MAX; None if it refuses them."""
    path, piece = folder / f".speed.{os.getpid()}", os.urandom(_PIECE_BYTES)
    written, began = 0, time.monotonic()
    try:
        with path.open("xb", buffering=0) as file:
            while written < most and time.monotonic() - began < DISK_SECONDS_MAX:
                written += file.write(piece) or 0
                os.fdatasync(file.fileno())
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)
    return written / max(time.monotonic() - began, 1e-9) if written else None


def stale_variables(variables: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of variables of a former life, which would make jax wait for processes that are gone."""
    return tuple(sorted(environment.of_former_life(variables)))

"""The environment of a process that trains: threads of the numeric libraries, and where compiled programs are kept.

It has to be set before jax uses a device. What the user has set stays as it is.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, Final, final

from isthmus.runtime.system.files import cache_folder
from isthmus.runtime.system.processes import ONE_THREAD


def prepare_environment(learners: int) -> None:
    """Make this process ready for `learners` learners that share its cores.

    Compiled programs of any size are kept under the user's cache folder, so that a second run starts at once.
    """
    if learners > 1:
        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)
    folder = cache_folder("xla")
    if folder is not None:
        _set_jax(
            jax_compilation_cache_dir=str(folder),
            jax_persistent_cache_min_compile_time_secs=0.0,
            jax_persistent_cache_min_entry_size_bytes=-1,
        )


_MADE: Final = re.compile(r"--xla_force_host_platform_device_count=(\d+)\s*")
_FLAGS: Final = "XLA_FLAGS"
_PROCESS_DEVICES: Final = "JAX_NUM_CPU_DEVICES"


def made_devices(variables: Mapping[str, str]) -> int:
    """How many devices XLA is told to make of the CPU of this machine (`--xla_force_host_platform_device_count`), for
    islands to have, as they have accelerators; 0 where it is told nothing, or jax is to compute elsewhere. What
    JAX_NUM_CPU_DEVICES says is of each process."""
    if _PROCESS_DEVICES in variables or variables.get("JAX_PLATFORMS", "").split(",")[0] not in ("", "cpu"):
        return 0
    counts = _MADE.findall(variables.get(_FLAGS, ""))
    return int(counts[-1]) if counts else 0


def with_devices(count: int, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a process has so many devices of the CPU, whatever the machine has: one thread each, as
    any process that shares cores, unless the user's flags say something else."""
    flags = _MADE.sub("", variables.get(_FLAGS, "")).strip() or ONE_THREAD[_FLAGS]
    return {"JAX_PLATFORMS": "cpu", _PROCESS_DEVICES: str(count), _FLAGS: flags}


def compute_on_cpu() -> None:
    """Have jax start no accelerator in this process, now or when it is imported.

    The environment stays the user's: it bounds the accelerators that hosts will find.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        sys.meta_path.insert(0, _JaxFinder())
    else:
        jax.config.update("jax_platforms", "cpu")


def compute_anywhere() -> None:
    """Undo `compute_on_cpu`: what is forked from this process may start what the environment lets it."""
    jax: Any = sys.modules.get("jax")
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _JaxFinder)]
    if jax is not None:
        jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or None)


@final
class _JaxFinder(MetaPathFinder):
    """Finds jax at its first import, and configures it: a task of another framework imports none."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """The spec of jax, whose loader then configures what it has loaded; None for other modules."""
        if fullname != "jax":
            return None
        sys.meta_path.remove(self)
        found = find_spec(fullname)
        loader: Any = None if found is None else found.loader
        if loader is not None:
            run = loader.exec_module

            def configured(module: Any) -> None:
                run(module)
                compute_on_cpu()

            loader.exec_module = configured
        return found


_is_forkable = False


def stay_forkable() -> None:
    """Have `computed_apart` compute in other processes from now on: hosts are to be forked from this one."""
    global _is_forkable
    _is_forkable = True


def computed_apart(compute: Callable[[], Any]) -> Any:
    """The result of `compute`, as JSON. In a child, where this process is to stay one that can be forked: a backend of
    jax has threads. Where the child fails it is computed here, for its error."""
    if not _is_forkable or has_backend() or len(os.listdir("/proc/self/task")) > 1:
        return compute()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(compute()).encode())
        finally:
            os._exit(0)  # Without an answer it has failed.
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else compute()


def has_backend() -> bool:
    """Whether jax has started a backend in this process: it has the devices then, and threads."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _set_jax(**options: Any) -> None:
    """Set jax options unless the user has; jax reads the environment only once, at import."""
    if any(name.upper() in os.environ for name in options):
        return
    jax = sys.modules.get("jax")
    if jax is None:
        os.environ.update({name.upper(): str(value) for name, value in options.items()})
    elif jax.config.jax_compilation_cache_dir is None:
        for name, value in options.items():
            jax.config.update(name, value)

"""Training from Python: `train` prepares a request, runs it, and returns what came of it.

The command line does the same by the same functions: `prepare`, and `start` or `start_processes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from isthmus.programs import reference
from isthmus.programs.program import Program
from isthmus.programs.request import NAMELESS_TASK, Request, prepare
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, RunError, nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from isthmus.programs.handover import Handover
    from isthmus.programs.machine_client import Daemon
    from isthmus.programs.processes import Submitted
    from isthmus.programs.run import Outcome, Watch

TRANSPORTS: Final = ("zmq", "inproc")
"""How the hosts of a run talk: as processes over ZeroMQ, or in this process. The first is the default."""
FINAL: Final = Path("snapshots", "final")
_ROWS: Final = re.compile(r"(?P<name>.*)\[(?P<start>\d+):\d+\]")


@final
@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave: the final evaluation loss in the task's own unit, the figures of summary.json, and the model.

    `parameters` is a pytree like the one of the task's `init`, of float32 arrays.
    """

    eval_loss: float
    summary: Mapping[str, Any]
    parameters: Any
    run_dir: Path


def train(
    program: Program | str,
    task: Task | str | None = None,
    *,
    learners: int = 4,
    tokens: int = 4_100_000,
    seed: int = 0,
    run_dir: str | Path | None = None,
    transport: str | None = None,
    quiet: bool = False,
) -> Result:
    """Train `task` (a Task, 'file.py:name', or None for the shipped one) by `program` on `tokens` tokens in all.

    The hosts are processes (`transport="zmq"`, the default), which import the task from its file, or are in this one
    ("inproc"). Progress is shown unless `quiet`. Ctrl-C ends the run early, with what has been trained. ConfigError or
    GraphError if the request is wrong, before anything is started; RunError if the run fails.
    """
    check_transport(transport)
    if (module := reference.loading()) is not None:
        do = 'Put the call under: if __name__ == "__main__":'
        raise ConfigError(f"Importing {module}", "a module that can be imported", "a call of train()", do)
    run = {"learners": learners, "tokens": tokens, "seed": seed}
    request = prepare(program, task, run=run, run_dir=run_dir).to_train()
    if transport != "inproc":
        _check_named(request)

    from isthmus.programs.command.live import watching
    from isthmus.programs.processes import submit

    with watching(request, quiet=quiet) as watch:
        outcome = start(request, watch) if transport == "inproc" else start_processes(submit(request), watch)
    summary = outcome.summary
    return Result(summary["eval_loss_final"], summary, read_final(request), request.run_dir)


def check_transport(transport: str | None) -> None:
    """ConfigError unless there is the transport; None is the default."""
    if transport not in (None, *TRANSPORTS):
        do = f"{nearest(str(transport), TRANSPORTS)} Without it, it is {TRANSPORTS[0]!r}."
        raise ConfigError("Choosing the transport", " or ".join(map(repr, TRANSPORTS)), repr(transport), do)


def _check_named(request: Request) -> None:
    """ConfigError for a task that processes could not import."""
    if request.job.task.text == NAMELESS_TASK:
        do = 'Write task = Task(...) at the top level of a .py file, or pass transport="inproc".'
        expected = "a task that other processes can import: one with a name in the file that makes it"
        raise ConfigError("Starting processes", expected, "a task without a file or a name", do)


def start(request: Request, watch: Watch | None) -> Outcome:
    """Run the request in this process; RunError, which names the run folder, if the run fails."""
    from isthmus.programs.run import run_inproc

    with _naming(request.run_dir):
        return run_inproc(request, watch=watch)


def start_processes(submitted: Submitted, watch: Watch | None) -> Outcome:
    """Run what was submitted in processes; RunError, which names the run folder, if the run fails."""
    from isthmus.programs.processes import run_processes

    with _naming(submitted.run_dir):
        return run_processes(submitted, watch=watch)


def start_on_machine(daemon: Daemon, handed: Handover, submitted: Submitted, watch: Watch | None) -> Outcome:
    """Let a machine's daemon run what it is handed; RunError, which names the run folder, if the run fails."""
    from isthmus.programs.machine_client import run_on_machine

    with _naming(submitted.run_dir):
        return run_on_machine(daemon, handed, submitted, watch)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Let every RunError say where the run's files are."""
    try:
        yield
    except RunError as error:
        if str(folder) in str(error):
            raise
        raise RunError(f"{error}\n  What was written until then is in {folder}") from error


def read_final(request: Request) -> Any:
    """The final model from the run folder, a pytree like the one of the task's `init`; RunError if it is not whole."""
    import jax
    import jax.numpy as jnp

    tensors = _read_tensors(request.run_dir / FINAL)
    missing = [tensor.name for tensor in request.job.layout if tensor.name not in tensors]
    if missing:
        raise RunError(f"the final model in {request.run_dir / FINAL} has no {', '.join(missing)}")
    tree = jax.tree.structure(jax.eval_shape(request.task.init, jax.random.key(request.job.seed)))
    leaves = [jnp.asarray(tensors[tensor.name].reshape(tensor.shape)) for tensor in request.job.layout]
    return jax.tree.unflatten(tree, leaves)


def _read_tensors(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Every tensor in the folder's files; the row ranges of one that is split are put together."""
    import numpy as np
    from safetensors.numpy import load_file

    pieces: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, array in load_file(path).items():
            rows = _ROWS.fullmatch(name)
            whole, begin = (rows["name"], int(rows["start"])) if rows else (name, 0)
            pieces.setdefault(whole, {})[begin] = array
    return {
        name: parts[0] if len(parts) == 1 and 0 in parts else np.concatenate([parts[begin] for begin in sorted(parts)])
        for name, parts in pieces.items()
    }

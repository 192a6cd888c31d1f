"""Training from Python: `train` prepares a request, runs it, and returns its result.

The command line does the same by the same functions: `prepare`, and `start` or `start_processes`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

from isthmus.programs import DEFAULT
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import NAMELESS_TASK, Request, as_begun, prepare
from isthmus.programs.settings import read_file
from isthmus.programs.task import AnyTask
from isthmus.runtime.errors import ConfigError, RequestError, RunError, nearest

if TYPE_CHECKING:
    from isthmus.programs.engine.cluster.handover import Handover
    from isthmus.programs.engine.machine.client import DaemonClient
    from isthmus.programs.engine.machine.handing_over import BeginRun
    from isthmus.programs.engine.recorder.summary import Summary
    from isthmus.programs.engine.run.in_processes import Submitted
    from isthmus.programs.engine.run.watch_loop import RunOutcome, Watch
    from isthmus.programs.study.terminal.hook import OnMetrics

TRANSPORTS: Final = ("zmq", "inproc")
"""Transports between the hosts of a run: processes over ZeroMQ, or this process. The first is the default."""


@final
@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: the final evaluation loss in the task's own unit (None where nothing evaluates), the figures
    of summary.json, the model.

    `parameters` is a pytree like the one of the task's `init`; its local leaves are as `init` makes them.
    """

    eval_loss: float | None
    summary: Summary
    parameters: Any
    run_dir: Path


def train(
    program: Program | str | None = None,
    task: AnyTask | str | Sequence[str] | None = None,
    *,
    resume: str | Path | None = None,
    accept_changes: bool = False,
    run_dir: str | Path | None = None,
    transport: str | None = None,
    quiet: bool = False,
    on_metrics: OnMetrics | None = None,
    **run: Any,
) -> Result:
    """Train a task by a program, as `isthmus train` does.

    Arguments:
        program: by default `decoupled_diloco()`.
        task: a Task, 'file.py:name', or None for the shipped one. A list of references has the task of slot 0, which
            also evaluates, of slot 1, and so on, the last of all beyond.
        resume: a run folder or a store of snapshots, of a run that was cut off: it goes on with its own program and
            task. `run` may change what a resume may change.
        accept_changes: such a run goes on although sources of isthmus, its program or its task differ, or the tokens of
            a step; its books say in what.
        run_dir: the run's folder; of a run that goes on from a store, its new one.
        transport: the hosts are processes ("zmq", the default), which import the task from its file, or are in this one
            ("inproc").
        quiet: no progress is shown.
        on_metrics: called here with each line that the run records in its folder, as a dictionary with its `file`; an
            error that it raises ends the run.
        run: keys of section `run.`: tokens, learners, seed, snapshots, and the others of reference/configuration.md,
            with the defaults that they have there.

    Ctrl-C ends the run early, with what has been trained. ConfigError or GraphError if the request is wrong, before
    anything is started; RunError if the run fails.
    """
    try:
        check_transport(transport)
        if (module := reference.loading()) is not None:
            do = 'Put the call under: if __name__ == "__main__":'
            raise ConfigError(f"Importing {module}", "a module that can be imported", "a call of train()", do)
        if resume is not None:
            _check_resume(resume, program=program, task=task, transport=transport)
            return _resume(str(resume), run, run_dir, on_metrics, quiet=quiet, accepts=accept_changes)
        if accept_changes:
            do = "Leave it out, or name the run with resume=."
            raise ConfigError("Reading accept_changes=", "resume= beside it", "none", do)
        return _train(DEFAULT if program is None else program, task, run, run_dir, transport, on_metrics, quiet=quiet)
    except (RequestError, RunError) as error:
        raise error.with_traceback(None) from None  # The message is complete; the frames in between are ours.


def _train(
    program: Program | str,
    task: AnyTask | str | Sequence[str] | None,
    run: Mapping[str, Any],
    run_dir: str | Path | None,
    transport: str | None,
    on_metrics: OnMetrics | None,
    *,
    quiet: bool,
) -> Result:
    if task is not None and len(sys.argv) > 1:
        run = {"argv": tuple(sys.argv), **run}
    from isthmus.programs.engine.islands import claims
    from isthmus.programs.engine.islands.memory_room import with_memory
    from isthmus.programs.engine.islands.sizes import check_in_process
    from isthmus.programs.engine.request.snapshot_room import with_room
    from isthmus.programs.engine.run.room_for_hosts import check_compiler

    if transport == "inproc":
        check_compiler("Training in this process")
        claims.take_all()
    # Where the learners are to have accelerators, a bad first loss is left to their first step.
    computes = transport == "inproc" or not claims.would_take()
    request = prepare(program, task, run=run, run_dir=run_dir, computes=computes)
    if transport != "inproc":
        from isthmus.programs.engine.machine.default_islands import with_islands

        def again(run: dict[str, Any], more: dict[str, Any]) -> Request:
            return prepare(program, task, run=run, task_settings=more, run_dir=run_dir, computes=computes)

        request = with_islands(request, run, again)
    request = with_room(with_memory(request.to_train()))
    if transport != "inproc" and isinstance(task, AnyTask):
        _check_importable(request)

    from isthmus.programs.engine.run.in_processes import submit
    from isthmus.programs.study.terminal.live import announce, watching

    announce(request.chosen, request.warnings, request.data_lines, quiet=quiet)
    if transport == "inproc":
        opened = check_in_process(request.in_one_process()).with_store().with_folder()
        with watching(opened, quiet=quiet) as watch:
            outcome = start(opened, _hooked(watch, opened.run_dir, on_metrics))
    else:
        submitted = submit(request.with_store())
        with watching(submitted, quiet=quiet) as watch:
            outcome = start_processes(submitted, _hooked(watch, submitted.run_dir, on_metrics))
    return _result(outcome, read_final(replace(request, run_dir=outcome.folder)))


def _result(outcome: RunOutcome, parameters: Any) -> Result:
    summary = cast("Summary", outcome.summary)
    return Result(summary["eval_loss_final"], summary, parameters, outcome.folder)


def _check_resume(resume: str | Path, **options: Any) -> None:
    """ConfigError for arguments that mean nothing to a run that goes on."""
    present = [name for name, value in options.items() if value not in (None, "zmq")]
    if present:
        do = "A run goes on as it was configured. Leave the others out."
        raise ConfigError(
            f"Resuming {resume}", "beside resume= keys of section run., run_dir and quiet", present[0], do
        )


def _hooked(view: Watch, folder: Path, on_metrics: OnMetrics | None) -> Watch:
    """The view, beside which the user's function gets what is recorded."""
    from isthmus.programs.study.terminal.hook import HookedView

    return view if on_metrics is None else HookedView(view, folder, on_metrics)


def _resume(
    where: str,
    run: Mapping[str, Any],
    run_dir: str | Path | None,
    on_metrics: OnMetrics | None,
    *,
    quiet: bool,
    accepts: bool,
) -> Result:
    from isthmus.programs.engine.run.resume import resumed
    from isthmus.programs.study.terminal.live import announce_resumption, watching
    from isthmus.programs.trained.run_model import load

    def request_of(folder: Path, more: Mapping[str, Any], doing: str) -> Request:
        return again(folder, {**more, **run}, doing)

    submitted = resumed(where, None if run_dir is None else Path(run_dir), request_of, accepts=accepts)
    if submitted.resumption is not None:
        announce_resumption(submitted, quiet=quiet)
    with watching(submitted, quiet=quiet, is_resumed=True) as watch:
        outcome = start_processes(submitted, _hooked(watch, submitted.run_dir, on_metrics))
    return _result(outcome, load(outcome.folder))


def again(folder: Path, run: Mapping[str, Any], doing: str) -> Request:
    """The request of the run in a folder, of its program and its task, with keys of section `run.` that change.

    ConfigError as for `prepare`.
    """
    from isthmus.programs.engine.request import spec
    from isthmus.programs.engine.run.resume import check_program

    config = read_file(folder / CONFIG, "the configuration", "Name the folder of a run with resume=.")
    former = dict(config["run"])
    program, task = former.pop("program"), former.pop("task", None)
    check_program(spec.load(folder), program, doing)
    return prepare(
        Program(program, **config.get("program", {})),
        task,
        run={**former, **run},
        task_settings={} if task else as_begun(config.get("task", {})),
    )


def check_transport(transport: str | None) -> None:
    """ConfigError for an unknown transport; None is the default."""
    if transport not in (None, *TRANSPORTS):
        do = f"{nearest(str(transport), TRANSPORTS)} Without it, it is {TRANSPORTS[0]!r}."
        raise ConfigError("Choosing the transport", " or ".join(map(repr, TRANSPORTS)), repr(transport), do)


def _check_importable(request: Request) -> None:
    """ConfigError for a task that processes could not import, or would import in another form."""
    from isthmus.programs.engine.request.task_in_hand import check_importable, what_to_do

    text = request.job.task.text
    if text == NAMELESS_TASK:
        expected = "a task that other processes can import: one with a name in the file that makes it"
        raise ConfigError("Starting processes", expected, "a task without a file or a name", what_to_do())
    check_importable(request.task, text, request.job.seed)


def start(request: Request, watch: Watch | None) -> RunOutcome:
    """Run a request, whose folder is made, in this process; RunError, which names the folder, if the run fails."""
    from isthmus.programs.engine.run.in_process import run_inproc

    with _naming(request.run_dir):
        return run_inproc(request, watch=watch)


def start_processes(
    submitted: Submitted, watch: Watch | None, *, detaches: bool = False, grace: float = GRACE_SECONDS
) -> RunOutcome:
    """Run a submitted request in processes; RunError, which names the run folder, if the run fails.

    DetachedError if it `detaches` where nobody reads the output any more.
    """
    from isthmus.programs.engine.run.in_processes import run_processes

    with _naming(submitted.run_dir):
        return run_processes(submitted, watch=watch, detaches=detaches, grace=grace)


def start_on_machine(
    daemon: DaemonClient, handed: Handover, viewed: Callable[[Submitted], AbstractContextManager[Watch]]
) -> RunOutcome:
    """Hand a run over to a machine's daemon, and view it; RunError, which names the run folder, if the run fails."""
    from isthmus.programs.engine.machine.handing_over import hand_over

    return watch_there(daemon, partial(hand_over, daemon, handed), viewed)


def watch_there(
    daemon: DaemonClient, begin: BeginRun, viewed: Callable[[Submitted], AbstractContextManager[Watch]]
) -> RunOutcome:
    """Begin a run under a machine's daemon, or go on with it, and view it; RunError as `start_on_machine`."""
    from isthmus.programs.engine.machine.handing_over import watch_on_machine
    from isthmus.programs.engine.run.interrupts import interrupts

    with interrupts() as interrupted:
        submitted = begin(is_watched=True)
        with _naming(submitted.run_dir), viewed(submitted) as watch:
            return watch_on_machine(daemon, submitted, watch, interrupted)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Add the run folder to every RunError."""
    try:
        yield
    except RunError as error:
        if str(folder) in str(error):
            raise
        raise RunError(f"{error}\n  What was written until then is in {folder}") from error


def read_final(request: Request) -> Any:
    """The final model from the run folder, a pytree like the one of the task's `init`; RunError if it is not whole."""
    from isthmus.programs.trained.run_model import read

    try:
        return read(request.run_dir, request.task, f"reading the final model in {request.run_dir}")
    except ConfigError as error:
        raise RunError(str(error)) from error

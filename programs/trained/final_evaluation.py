"""The evaluation of a run's final model, made after the run: of one that was stopped, which has left it out.

Decides whether a run lacks it: it is over, has its final model, and none of its files has the last evaluation. It is
made as the run's evaluator would have made it, by the task, on the batches of the run's seed, and written where that
would have been: a line of evaluations.jsonl, then the summary, then the report. A call that ended between the two goes
on with the line that is there. Figures that the task computes of the final model are made last, where they lack.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec

from isthmus.ops.exchange.paths import modules_among, of_path
from isthmus.ops.island.final_figures import NOT_FINITE, better_of, figures_of, has_figures
from isthmus.ops.island.scores import evaluated, extract_of
from isthmus.programs import wing_table
from isthmus.programs.engine.recorder.books import Books, read_into
from isthmus.programs.engine.request.new_folder import InUseError, RunLock
from isthmus.programs.engine.request.weights import tensors_in
from isthmus.programs.engine.results.lines import EvaluationLine, fields_of, name_of
from isthmus.programs.engine.results.run_files import SUMMARY, summary_of
from isthmus.programs.engine.snapshots.snapshot_files import FINAL
from isthmus.programs.trained.run_model import job_of, task_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import Lines, read_bytes, write_json

if TYPE_CHECKING:
    from isthmus.programs.job import Job
    from isthmus.programs.task import AnyTask

LATER: Final = "later"
"""`final_evaluation` of a summary with an evaluation that was made here."""


LACKING: Final = ("left_out", "missing", "not_asked")
"""`final_evaluation` of a summary whose final model can be evaluated later."""


@final
class LaterEvaluation(NamedTuple):
    """The scalars that were written: the loss, None where it is not finite, and others; `tokens` that were predicted
    and their `windows`, None but of a language model. `figures` are those of the task, and `fault` says why some lack.
    """

    loss: float | None
    metrics: dict[str, float | None]
    tokens: int | None
    windows: int | None
    figures: dict[str, float | None]
    fault: dict[str, str] | None


def is_lacking(folder: Path, doing: str) -> bool:
    """Whether a run is over, and has no evaluation of its final model, which is there."""
    summary = summary_of(folder, doing)
    is_over = summary is not None and summary["outcome"] in ("done", "stopped")
    if not is_over or summary is None or not (folder / FINAL).is_dir():
        return False
    if _lacks_figures(summary):
        return True
    if summary.get("eval_loss_final") is not None:
        return False
    return summary.get("final_evaluation") in LACKING or _last_line(_books(folder, doing)) is None


def _lacks_figures(summary: Mapping[str, Any]) -> bool:
    """Whether a task was to say more of the final model than it has."""
    fault = summary.get("final_figures_fault")
    return fault is not None and fault["kind"] != NOT_FINITE


def make_later(folder: Path, doing: str) -> LaterEvaluation | None:
    """Evaluate the final model of a run that lacks this, and write it; None where its task evaluates nothing.

    ConfigError where the run's folder cannot be written, another process has it, its task cannot be made here, or its
    evaluation is a script's.
    """
    if not os.access(folder, os.W_OK):
        do = "Copy the folder to where you may write, and evaluate the copy."
        raise ConfigError(doing, "a run folder that takes its evaluation", "one that may not be written", do)
    try:
        with RunLock(folder):
            return _make(folder, doing)
    except InUseError as error:
        raise ConfigError(doing, "a run that is over", str(error), "Wait for its end.") from None


def _make(folder: Path, doing: str) -> LaterEvaluation | None:
    if not is_lacking(folder, doing):
        do = "Ask again: another process has evaluated it meanwhile."
        raise ConfigError(doing, "a run without an evaluation of its final model", "one that has it", do)
    job, task, books = job_of(folder, doing), task_of(folder, doing), _books(folder, doing)
    line, summary = _last_line(books), summary_of(folder, doing) or {}
    if line is None:  # Else the summary alone lacks it, or its figures do.
        scalars = _scalars(folder, job, task, doing, is_lacking=summary.get("final_evaluation") in LACKING)
        if not scalars:
            return None
        line = EvaluationLine.made_of(evaluated("final", scalars, books.counted, extract_of(task)))
        line = msgspec.structs.replace(line, time=float(summary["wall_seconds"]))
        _append(folder, line, doing)
    if has_figures(task) and (not line.figures or _lacks_figures(summary)):
        line = msgspec.structs.replace(line, time=float(summary["wall_seconds"]))
        line = _with_figures(folder, line, job, task, doing)
    _complete(folder, line, doing)
    counts = _counts(job, task, _paths(tensors_in(folder / FINAL, doing)))
    return LaterEvaluation(line.eval_loss, line.metrics, *counts, line.figures, line.figures_fault)


def _with_figures(folder: Path, line: EvaluationLine, job: Job, task: AnyTask, doing: str) -> EvaluationLine:
    """The line of the last evaluation with the figures of the final model, written as another line where there are."""
    from isthmus.ops.island.contract import evaluation_of

    sys.stderr.write("isthmus: running evaluate_final of the task.\n")
    leaves = _leaves_of(job, tensors_in(folder / FINAL, doing), doing)
    found = figures_of(task, evaluation_of(task, job.seed), leaves, job.seed)
    fault = None if found.fault is None else {"kind": found.fault["kind"], "detail": found.fault["detail"]}
    line = msgspec.structs.replace(line, figures=found.figures, better=dict(better_of(task)), figures_fault=fault)
    if found.figures:
        _append(folder, line, doing)
    return line


def _paths(tensors: Mapping[str, Any]) -> int:
    """How many paths a model has; 1 of one that is not made of modules."""
    return math.prod(modules_among(tensors).values())


def _scalars(folder: Path, job: Job, task: AnyTask, doing: str, *, is_lacking: bool) -> Mapping[str, float]:
    """The mean scalars of the final model, of its paths where it is made of modules; none where nothing evaluates."""
    from isthmus.ops.island.contract import Unevaluated, evaluation_of, path_evaluations
    from isthmus.ops.island.evaluate import mean_over_paths
    from isthmus.programs.loop_task import LoopTask

    if isinstance(task, LoopTask) and not is_lacking:
        return {}
    if isinstance(task, LoopTask):
        do = f"Evaluate it in a script: isthmus.load({str(folder)!r}) is the model; or go on: --resume {folder}."
        raise ConfigError(doing, "a task that evaluates", "a loop, whose evaluation is its script's own", do)
    tensors = tensors_in(folder / FINAL, doing)
    paths = _paths(tensors)
    if paths == 1:
        evaluation = evaluation_of(task, job.seed)
        return {} if isinstance(evaluation, Unevaluated) else evaluation.metrics(_leaves_of(job, tensors, doing))
    evaluations = path_evaluations(task, job.seed, paths)
    found = [each.metrics(_leaves_of(job, of_path(tensors, path), doing)) for path, each in enumerate(evaluations)]
    return mean_over_paths(found, [each.count for each in evaluations])


def _leaves_of(job: Job, own: Mapping[str, Any], doing: str) -> dict[str, Any]:
    """The merged leaves as the task has them; ConfigError where some lack."""
    missing = [leaf.name for leaf in job.layout if leaf.name not in own]
    if missing:
        do = "Take the model from another copy of the run."
        raise ConfigError(doing, f"the final model whole, with {missing[0]}", f"{len(own)} tensors in {FINAL}", do)
    return {leaf.name: own[leaf.name].reshape(leaf.shape).astype(leaf.dtype, copy=False) for leaf in job.layout}


def _counts(job: Job, task: AnyTask, paths: int) -> tuple[int | None, int | None]:
    """The tokens that the evaluation of a language model predicts, and its windows; None of another task."""
    tokens, windows = 0, 0
    for batch in chain.from_iterable(task.evaluation_batches(job.seed, path) for path in range(paths)):
        if not isinstance(batch, Mapping) or "tokens" not in batch or getattr(batch["tokens"], "ndim", 0) != 2:
            return None, None
        sequences, length = batch["tokens"].shape
        weights = batch.get("weights")
        tokens += sequences * (length - 1) if weights is None else int((weights > 0).sum())
        windows += sequences
    return tokens, windows


def _last_line(books: Books) -> EvaluationLine | None:
    """The last evaluation, as it was written; None where there is none, and of a run that evaluated nothing at all."""
    has_any = any(each.eval_loss is not None or each.metrics for each in books.evaluations)
    if not has_any or not books.is_evaluated():
        return None
    return next(each for each in reversed(books.evaluations) if each.kind == "final")


def _books(folder: Path, doing: str) -> Books:
    books = Books(sizes=())
    try:
        read_into(books, folder, DISK, 0, is_whole=True)
    except OSError as error:
        do = "Look at the disk, or take another copy of the run."
        raise ConfigError(doing, "records of the run that can be read", error.strerror or str(error), do) from None
    return books


def _append(folder: Path, line: EvaluationLine, doing: str) -> None:
    lines = Lines(folder / f"{name_of(EvaluationLine)}.jsonl")
    lines.append(fields_of(line))
    is_written = lines.flush()
    found = lines.counts()["error"]
    lines.close()
    if not is_written:
        raise ConfigError(doing, "a disk that takes the evaluation", str(found), "Make room, and ask again.")


def _complete(folder: Path, line: EvaluationLine, doing: str) -> None:
    """Write the evaluation into the summary, and make the report of it."""
    summary = json.loads(read_bytes(folder / SUMMARY))
    summary |= {
        "eval_loss_final": line.eval_loss,
        "eval_loss_last": line.eval_loss,
        "eval_tokens_last": line.tokens,
        "eval_loss_error": line.eval_loss_error,
        "eval_windows": line.windows,
        "eval_windows_there": line.windows_there,
        "eval_metrics": line.metrics,
        "final_figures": line.figures,
        "final_figures_better": line.better,
        "final_figures_fault": line.figures_fault,
        "final_evaluation": LATER,
    }
    try:
        write_json(folder / SUMMARY, summary)
    except OSError as error:
        do = "Make room, and ask again: what was computed is in evaluations.jsonl."
        raise ConfigError(doing, "a disk that takes the summary", error.strerror or str(error), do) from None
    try:
        wing_table.write_last(folder)
    except OSError as error:
        sys.stderr.write(f"isthmus: report.html could not be written: {error}\n")

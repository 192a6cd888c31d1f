"""The differences that a resume may make to a run, and those that it may not.

Decides from the job with which a run was begun and the request that its configuration makes today. A snapshot stays
valid as long as fragments, slots and the tokens of a step are what they were: then every version describes the same
tokens. The basis of a default (the outer settings follow from the number of sweeps) does not change by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from isthmus.programs.request import reference
from isthmus.programs.request.program import SHIPPED
from isthmus.programs.request.request import SHIPPED_TASK
from isthmus.programs.request.spec import Spec
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import Job

MAY_RUN: Final = ("tokens", "learners")
MAY_PROGRAM: Final = (
    *("interval", "overlap", "quorum", "grace", "gamma", "merge", "alpha", "bounded", "push", "update"),
    *("outer_lr", "outer_momentum"),
)
"""Settings of the shipped programs that decide how and when fragments are merged, but not their division."""
MAY_TASK: Final = ("lr", "warmup", "weight_decay", "clip")
"""Settings of the shipped task that decide how it is trained."""
_DO: Final = "Leave it as it was, or start a new run."


def check_program(told: Spec, wanted: str, doing: str) -> None:
    """ConfigError unless the `wanted` program is that of the run: the settings of another one mean nothing to it."""
    if told.job.program != wanted:
        raise ConfigError.of([_fault("run.program", (told.job.program, wanted), doing)])


def changes(told: Spec, wanted: Job, doing: str) -> dict[str, tuple[Any, Any]]:
    """A run's settings that a job changes: key -> (before, after); ConfigError with every key that may not change."""
    found = dict(_differences(told.job, wanted))
    faults = [_fault(key, pair, doing) for key, pair in found.items() if not _may_change(key, wanted)]
    if faults:
        raise ConfigError.of(faults)
    return found


def _fault(key: str, found: tuple[Any, Any], doing: str) -> Fault:
    was, now = found
    return Fault(f"{doing}, which would change {key}", f"{was!r}, with which it was begun", f"{now!r}", _DO)


def _may_change(key: str, wanted: Job) -> bool:
    section, _, name = key.partition(".")
    allowed = {"run": MAY_RUN, "program": MAY_PROGRAM if wanted.program in SHIPPED else (), "task": MAY_TASK}
    return name in allowed.get(section, ())


def _differences(told: Job, wanted: Job) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each key that differs, once, with both values; and a difference in sizes that no key explains."""
    pairs: list[tuple[str, Any, Any]] = [
        (f"run.{name}", getattr(told, name), getattr(wanted, name))
        for name in ("program", "tokens", "learners", "slots_max", "seed")
    ]
    names = sorted({*told.settings, *wanted.settings})
    pairs += [(f"program.{name}", told.settings.get(name), wanted.settings.get(name)) for name in names]
    pairs += _of_tasks(told.task.text, wanted.task.text)
    found = [(key, (was, now)) for key, was, now in pairs if _plain(was) != _plain(now)]
    yield from found
    if _sizes(told) != _sizes(wanted) and all(_may_change(key, wanted) for key, _ in found):
        yield "the model, or the tokens of a step", (_sizes(told), _sizes(wanted))


def _of_tasks(told: str, wanted: str) -> list[tuple[str, Any, Any]]:
    """The keywords of the shipped task, by key; of others only that they are others."""
    shipped = [text for text in (told, wanted) if text.startswith(f"{SHIPPED_TASK}(")]
    if len(shipped) < 2:
        return [("run.task", told, wanted)]
    was, now = (reference.parse(text, "Reading a task").keywords or {} for text in (told, wanted))
    return [(f"task.{name}", was.get(name), now.get(name)) for name in sorted({*was, *now})]


def _sizes(job: Job) -> tuple[Any, ...]:
    by_slot = job.tokens_by_slot or (job.tokens_per_batch,)
    return tuple((tensor.name, tensor.shape, tensor.dtype, tensor.merge) for tensor in job.layout), by_slot


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value

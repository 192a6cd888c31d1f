"""`isthmus chaos`: its request, checked before anything starts, and its results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from isthmus.programs import DEFAULT, SHIPPED, settings
from isthmus.programs.command.config import absolute
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.request.new_folder import choose
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.study.terminal.figures import ProgressLine, show
from isthmus.programs.wings.chaos import chaos_plan as plans
from isthmus.programs.wings.chaos.chaos_page import PAGE, write_page
from isthmus.programs.wings.chaos.chaos_plan import ChaosPlan
from isthmus.programs.wings.chaos.chaos_strikes import check_permitted
from isthmus.programs.wings.chaos.chaos_trial import TrainingOrder, Tried, as_data, try_program
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.system.files import write_json

PROGRAMS: Final = (DEFAULT, "data-parallel", "elastic-data-parallel")


FIGURES: Final = "chaos.json"


_SUFFIX: Final = ".toml"


def chaos(what: Sequence[str], run_dir: Path | None, *, as_json: bool) -> bool:
    """Try programs under a plan, and show the figures; whether all runs were done and all faults happened.

    A program that fails is told, and the others go on; RunError if all do. ConfigError for a plan or a request that is
    wrong, before anything starts.
    """
    file, programs = _named(what)
    plan = plans.ChaosPlan() if file is None else _read(file)
    plans.check_programs(plan, [*programs, *SHIPPED])
    orders = [_order(plan, program) for program in programs]
    hosts = in_child(lambda: {order.program: _hosts(order) for order in orders})
    plans.check_hosts(plan, sorted({host for each in hosts.values() for host in each}))
    check_permitted()
    orders = [_placed(plan, order, hosts[order.program]) for order in orders]
    folder = choose(run_dir, "chaos", datetime.now())
    tried, failures, line = list[Tried](), list[RunError](), ProgressLine()
    for order in orders:
        try:
            tried.append(try_program(order, hosts[order.program], plan, folder, tried[:1], line.say))
        except RunError as error:
            failures.append(error)
            line.say(f"{order.program} failed: {error}")
            continue
        write_json(folder / FIGURES, as_data(tried))
        sheet = write_page(folder, tried)
    if not tried:
        raise failures[0]
    show(sheet, as_json=as_json, last=f"page  {os.path.relpath(folder / PAGE)}")
    return not failures and all(each.is_good for each in tried)


def _named(what: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The plan's file and the programs."""
    doing = "Reading the command line of `isthmus chaos`"
    files, programs = [text for text in what if text.endswith(_SUFFIX)], []
    if len(files) > 1:
        raise ConfigError(doing, "one plan", " and ".join(files), "Name one.")
    for text in what:
        if text in programs:
            raise ConfigError(doing, "each program once", f"{text} twice", "Name it once.")
        programs += [text] * (text not in files)
    return (Path(files[0]) if files else None), programs or list(PROGRAMS)


def _read(file: Path) -> ChaosPlan:
    document = settings.read_file(file, "the plan", "Name a plan, or leave it out for the built-in one.")
    return plans.read(document, str(file)).in_folder(file.absolute().parent, absolute)


def _order(plan: ChaosPlan, program: str) -> TrainingOrder:
    """A program with the settings of a plan's sections."""
    run = {key: value for key, value in plan.run.items() if key != "task"}
    sections = {"run": run, "program": plan.program.get(program, {}), "task": plan.task}
    keys = [(f"{name}.{key}", value) for name, section in sections.items() for key, value in section.items()]
    return TrainingOrder(
        program, plan.run.get("task"), tuple(f"{key}={settings.value(value)}" for key, value in keys), plan.links
    )


def _placed(plan: ChaosPlan, order: TrainingOrder, hosts: Sequence[str]) -> TrainingOrder:
    """The same order, on the plan's machines."""
    learners = sum(host.startswith(LEARNER) for host in hosts)
    return replace(order, machines=plans.machines_of(plan, hosts), learners=learners)


def _hosts(order: TrainingOrder) -> list[str]:
    """The hosts at the start of a run; ConfigError with the faults of the request."""
    from isthmus.programs.engine.recorder.graph_parts import roster_counts

    request = Options(order.program, None if order.task is None else [order.task], sets=list(order.sets)).request()
    counts = roster_counts(request.to_train().graph, request.job.learners)
    return [f"{role}/{slot}" for role, count in counts.items() for slot in range(count)]

"""`isthmus chaos`: its request, checked before anything starts, and its results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.text import Text

from isthmus.programs.arguments.config import absolute
from isthmus.programs.arguments.options import Options
from isthmus.programs.chaos import plan as plans
from isthmus.programs.chaos.comparison import Tried, as_data, try_program
from isthmus.programs.chaos.page import write_page
from isthmus.programs.chaos.plan import Plan
from isthmus.programs.chaos.processes import check_permitted
from isthmus.programs.chaos.trial import Order
from isthmus.programs.chaos.words import headline
from isthmus.programs.request import toml
from isthmus.programs.request.new_folder import choose
from isthmus.programs.request.program import DEFAULT, SHIPPED
from isthmus.programs.results.numbers import decimal, percent, seconds
from isthmus.programs.run.in_processes import apart
from isthmus.programs.terminal.fitted_table import Column, fitted
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import write_json

PROGRAMS: Final = (DEFAULT, "data-parallel", "elastic-data-parallel")
FIGURES: Final = "chaos.json"
_SUFFIX: Final = ".toml"


def chaos(what: Sequence[str], run_dir: Path | None, *, as_json: bool) -> bool:
    """Try programs under a plan, and show the figures; whether all runs were done and all faults happened. ConfigError
    for a plan or a request that is wrong, before anything starts."""
    file, programs = _named(what)
    plan = plans.Plan() if file is None else _read(file)
    plans.check_programs(plan, [*programs, *SHIPPED])
    orders = [_order(plan, program) for program in programs]
    hosts = apart(lambda: {order.program: _hosts(order) for order in orders})
    plans.check_hosts(plan, sorted({host for each in hosts.values() for host in each}))
    check_permitted()
    orders = [_placed(plan, order, hosts[order.program]) for order in orders]
    folder = choose(run_dir, "chaos", datetime.now())
    tried: list[Tried] = []
    for order in orders:
        tried.append(try_program(order, hosts[order.program], plan, folder, tried[:1], _say))
        write_json(folder / FIGURES, as_data(tried))
        page = write_page(folder, tried)
    if as_json:
        sys.stdout.write(json.dumps(as_data(tried), indent=2) + "\n")
    else:
        console = Console(highlight=False)
        console.print(_shown(tried, console.width))
        console.print(f"\npage  {os.path.relpath(page)}", soft_wrap=True)
    return all(each.is_good for each in tried)


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


def _read(file: Path) -> Plan:
    document = toml.read_file(file, "the plan", "Name a plan, or leave it out for the built-in one.")
    return plans.read(document, str(file)).in_folder(file.absolute().parent, absolute)


def _order(plan: Plan, program: str) -> Order:
    """A program with the settings of a plan's sections."""
    run = {key: value for key, value in plan.run.items() if key != "task"}
    sections = {"run": run, "program": plan.program.get(program, {}), "task": plan.task}
    keys = [(f"{name}.{key}", value) for name, section in sections.items() for key, value in section.items()]
    return Order(program, plan.run.get("task"), tuple(f"{key}={toml.value(value)}" for key, value in keys), plan.links)


def _placed(plan: Plan, order: Order, hosts: Sequence[str]) -> Order:
    """The same order, on the plan's machines."""
    learners = sum(host.startswith(plans.LEARNER) for host in hosts)
    return replace(order, machines=plans.machines_of(plan, hosts), learners=learners)


def _hosts(order: Order) -> list[str]:
    """The hosts at the start of a run; ConfigError with the faults of the request."""
    from isthmus.programs.recorder.summary import roster_counts

    sets = list(order.sets)
    request = Options(order.program, order.task, None, None, None, None, None, sets, None, None, None, None).request()
    counts = roster_counts(request.to_train().graph, request.job.learners)
    return [f"{role}/{slot}" for role, count in counts.items() for slot in range(count)]


# -- telling -----------------------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _shown(tried: Sequence[Tried], width: int) -> Group:
    """Tables: the programs, and the faults of each."""
    legend = (
        "calm: the same run undisturbed; kept: goodput / calm; waits: of inner steps on other hosts, more than 1 ms, "
        "by learners not struck"
    )
    parts: list[Any] = [_programs(tried, width), Text(legend, "dim"), *map(Text, headline(tried))]
    for each in tried:
        parts += [Text(""), Text(f"{each.order.program}, {each.struck.folder}", "bold"), _faults(each, width)]
    return Group(*parts)


def _programs(tried: Sequence[Tried], width: int) -> Any:
    rows = [each.as_data() for each in tried]
    columns = [
        Column("program", [row["program"] for row in rows], is_text=True),
        Column("outcome", [row["outcome"] for row in rows], is_text=True),
        Column("seconds", [decimal(each.struck.number("wall_seconds"), 1) for each in tried]),
        Column("uptime", [percent(row["uptime"]) for row in rows]),
        Column("goodput", [percent(row["goodput"]) for row in rows]),
        Column("calm", [percent(row["goodput_undisturbed"]) for row in rows]),
        Column("kept", [percent(each.ratio) for each in tried]),
        Column("merged", [percent(row["merged_share"]) for row in rows]),
        Column("loss", [decimal(row["eval_loss_final"]) for row in rows]),
        Column("calm", [decimal(row["eval_loss_undisturbed"]) for row in rows]),
        Column("waits", [str(row["waits_on_other_hosts"]) for row in rows]),
    ]
    return fitted(columns, width, ("outcome", "merged", "seconds"))


def _faults(tried: Tried, width: int) -> Any:
    back = {id(each.strike): each.seconds for each in tried.struck.recoveries}
    strikes = tried.struck.strikes
    columns = [
        Column("at", [seconds(each.fault.at) for each in strikes]),
        Column("fault", [each.fault.kind for each in strikes], is_text=True),
        Column("host", [each.fault.host for each in strikes], is_text=True),
        Column("works again", [seconds(back.get(id(each))) for each in strikes]),
        Column("proof", [each.proof or f"did not happen: {each.why}" for each in strikes], is_text=True),
    ]
    return fitted(columns, width, ("proof",))

"""A program run twice, undisturbed and under a plan, and the figures of several programs beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.programs.chaos.figures import Figures
from isthmus.programs.chaos.plan import DAEMON, FORK_SERVER, Plan, Planned, faults_of, machine_hosts
from isthmus.programs.chaos.trial import Order, run


@dataclass(frozen=True, slots=True)
class Tried:
    """A program: its undisturbed run (`calm`), and its run under the faults (`struck`), which are `planned` for all
    programs."""

    order: Order
    calm: Figures
    struck: Figures
    planned: tuple[Planned, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether both runs were done, and every fault happened."""
        is_done = all(each.summary["outcome"] == "done" for each in (self.calm, self.struck))
        return is_done and all(strike.proof for strike in self.struck.strikes)

    @property
    def ratio(self) -> float | None:
        """Goodput over the plan, of the program's own undisturbed goodput."""
        struck, calm = self.struck.number("goodput"), self.calm.number("goodput")
        return struck / calm if struck is not None and calm else None

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        summary = self.struck.summary
        return {
            "program": self.order.program,
            **{name: summary[name] for name in ("outcome", "uptime", "goodput")},
            "goodput_undisturbed": self.calm.summary["goodput"],
            "merged_share": summary["merged_share"],
            "eval_loss_final": summary["eval_loss_final"],
            "eval_loss_undisturbed": self.calm.summary["eval_loss_final"],
            "tokens_total": summary["tokens_total"],
            "seconds": summary["wall_seconds"],
            "seconds_undisturbed": self.calm.summary["wall_seconds"],
            "waits_on_other_hosts": self.struck.waits,
            "recoveries": [each.as_data() for each in self.struck.recoveries],
            "faults": [each.as_data() for each in self.struck.strikes],
            "folder": str(self.struck.folder),
        }


def try_program(
    order: Order,
    hosts: Sequence[str],
    plan: Plan,
    folder: Path,
    first: Sequence[Tried],
    say: Callable[[str], None],
) -> Tried:
    """Train undisturbed, and then under the faults of the plan: those of the `first` program, for existing `hosts`.

    RunError if a run fails, or leaves no figures.
    """
    own = folder / order.program.replace("/", "-")
    say(f"{order.program}: undisturbed")
    calm = run(order, own / "undisturbed", (), say)
    faults = first[0].planned if first else faults_of(plan, hosts, calm.number("wall_seconds") or 0.0)
    there = (*hosts, DAEMON, FORK_SERVER, *machine_hosts(order.machines))
    own_faults = [fault for fault in faults if fault.host in there]
    if not own_faults:
        return Tried(order, calm, calm, faults)
    say(f"{order.program}: under the plan")
    struck = run(order, own / "plan", own_faults, say, is_endless=plan.is_endless)
    return Tried(order, calm, struck, faults)


def as_data(tried: Sequence[Tried]) -> dict[str, Any]:
    """All figures, for --json."""
    return {"runs": [each.as_data() for each in tried]}

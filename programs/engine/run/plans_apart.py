"""The plans of a run's hosts, made in a child, so that a host loads the bodies of its own role and no others.

A graph names the bodies of every role, and needs what builds, checks and identifies it: more than a host itself. A
child builds it from the run's spec, and compares its fingerprint, as `Spec.graph` does; what it sends is a pickle for
each role. One of these is read where a host of its role begins, or is prepared, which loads its bodies. Nothing comes
from another process than this child, which runs the same files.

Of a program of the user's the plans are made in the process that asks: what its bodies close over may be anything.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request import spec
from isthmus.runtime.errors import RunError
from isthmus.runtime.system.processes import die_with_parent, name_process

if TYPE_CHECKING:
    from isthmus.runtime.graph.plans import Plan

TITLE: Final = "isthmus plans"
"""Of the child."""


@final
class PickledPlans(Mapping[str, "Plan"]):
    """The plan of each role, read when it is first asked for."""

    def __init__(self, pickles: Mapping[str, bytes]) -> None:
        self._pickles = dict(pickles)
        self._read: dict[str, Plan] = {}

    def __getitem__(self, role: str) -> Plan:
        if role not in self._read:
            self._read[role] = pickle.loads(self._pickles[role])
        return self._read[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pickles)

    def __len__(self) -> int:
        return len(self._pickles)


@final
class PlanMaker:
    """A child that loads what makes the plans of any run, makes those of one, and ends."""

    def __init__(self) -> None:
        """Fork it: from a process without threads of ours."""
        orders, self._order = os.pipe()
        self._answer, answers = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._order)
            os.close(self._answer)
            _make(orders, answers, parent)
        os.close(orders)
        os.close(answers)

    def begin(self, folder: Path) -> None:
        """Have it make the plans of the run in a folder."""
        with suppress(BrokenPipeError), os.fdopen(self._order, "wb") as order:  # It has died: `plans` says so.
            order.write(os.fsencode(folder))

    def plans(self) -> Mapping[str, Plan]:
        """Wait for what `begin` has asked for; RunError if they cannot be made, with the error of the child."""
        with os.fdopen(self._answer, "rb") as answers:
            text = answers.read()
        os.waitpid(self._pid, 0)
        made = pickle.loads(text) if text else "the process that makes them died"
        if isinstance(made, str):
            raise RunError(f"making the plans failed: {made}")
        return PickledPlans(made)

    def end(self) -> None:
        """End it: the plans are made elsewhere, or there is no run."""
        os.close(self._order)
        os.close(self._answer)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def plans_of(
    run_spec: spec.Spec, folder: Path, maker: PlanMaker | None = None, meanwhile: Callable[[], Any] = lambda: None
) -> Mapping[str, Plan]:
    """The plans of a run, of a program that is shipped by a child, which is there already or forked now; `meanwhile` is
    called while that makes them.

    ConfigError or RunError if there are none.
    """
    if run_spec.job.program not in SHIPPED:
        if maker is not None:
            maker.end()
        return run_spec.plans()
    maker = PlanMaker() if maker is None else maker
    maker.begin(folder)
    meanwhile()
    return maker.plans()


def _make(orders: int, answers: int, parent: int) -> NoReturn:
    """In the child: wait for a folder, and write what there is to answer."""
    try:
        die_with_parent(parent)
        name_process(TITLE)
        load_ahead()
        with os.fdopen(orders, "rb") as order:
            folder = os.fsdecode(order.read())
        if folder:
            with os.fdopen(answers, "wb") as answer:
                answer.write(pickle.dumps(_made(Path(folder))))
    finally:
        os._exit(0)  # Without an answer it has failed.


def load_ahead() -> None:
    """Load what makes graphs and plans, and the default program, and read its sources, while there is no run yet."""
    from isthmus.ops.exchange.fragments import Fragment
    from isthmus.programs.engine.request.fingerprint import sources
    from isthmus.programs.engine.request.program import Program

    for module in ("recorder.roles", "request.followers"):
        import_module(f"isthmus.programs.engine.{module}")
    sources([Program().builder(), Fragment])  # With any operator those of all are read.


def _made(folder: Path) -> dict[str, bytes] | str:
    """A pickle for each role, or why there is none."""
    try:
        return {role: _pickled(plan) for role, plan in spec.load(folder).plans().items()}
    except BaseException:
        return traceback.format_exc()


def _pickled(plan: Plan) -> bytes:
    file = BytesIO()
    _Pickler(file).dump(plan)
    return file.getvalue()


def _read_only(values: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(values)


@final
class _Pickler(pickle.Pickler):
    """Takes the read-only mappings of plans, too, which pickle does not."""

    def reducer_override(self, value: Any) -> Any:
        return (_read_only, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented

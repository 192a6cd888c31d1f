"""The tasks of a run whose slots train different ones: one model, written for several frameworks.

They are named by one reference, a call of `SlotTasks` with the references of all: whatever carries, permits, compares
or stores the task of a run takes it as it takes any other. A host imports only the task of its own slot. The home's is
the task of the run: it evaluates, it is what `load` returns, and its settings count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.request import reference
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNER, Replica, leader

SLOT: Final = "slot"
"""The only parameter of a function that names the task of each slot."""
_CALL: Final = f"{__name__}:SlotTasks"


@final
@dataclass(frozen=True, slots=True, init=False)
class SlotTasks:
    """The reference of the task of each slot.

    `home`: the task of the run; `slots`: those of the learners, by slot, the last one of all slots beyond, none where
    they train the home's; `machines`: (name of a machine, the task of the learners there), whatever their slots.
    """

    home: str
    slots: tuple[str, ...]
    machines: tuple[tuple[str, str], ...]

    def __init__(self, home: str, slots: Sequence[str] = (), machines: Mapping[str, str] | None = None) -> None:
        object.__setattr__(self, "home", home)
        object.__setattr__(self, "slots", tuple(slots))
        object.__setattr__(self, "machines", tuple((machines or {}).items()))

    @classmethod
    def by_slot(cls, references: Sequence[str]) -> SlotTasks:
        """Those of slots 0, 1 and so on; that of slot 0 is the home's."""
        slots = list(references)
        while len(slots) > 1 and slots[-1] == slots[-2]:
            slots.pop()
        return cls(slots[0], slots)

    @classmethod
    def read(cls, text: str) -> SlotTasks | None:
        """What the reference of a run's task names; None where it is one task."""
        if not text.startswith(f"{_CALL}("):
            return None
        return cls(**(reference.parse(text, "Reading the tasks of a run").keywords or {}))

    @property
    def text(self) -> str:
        """The reference that names them all."""
        table = {"home": self.home, "slots": self.slots or None, "machines": dict(self.machines) or None}
        return reference.called(_CALL, table)

    @property
    def references(self) -> tuple[str, ...]:
        """The reference of every task, once, the home's first."""
        return tuple(dict.fromkeys([self.home, *self.slots, *(task for _, task in self.machines)]))

    def of_slot(self, slot: int, machine: str = "") -> str:
        """The task of the learner in a slot, on a machine of that name."""
        of_machine = dict(self.machines).get(machine)
        if of_machine is not None:
            return of_machine
        return self.slots[min(slot, len(self.slots) - 1)] if self.slots else self.home

    def of(self, replica: Replica, machine: str) -> str:
        """The task of a host on a machine."""
        host = leader(replica)
        return self.of_slot(host.slot, machine) if host.role == LEARNER else self.home


def task_of(text: str, replica: Replica, machine: str) -> str:
    """The reference of the task that a host on a machine imports, where `text` is that of the run's task."""
    tasks = SlotTasks.read(text)
    return text if tasks is None else tasks.of(replica, machine)


def references_of(text: str) -> tuple[str, ...]:
    """The references of all tasks of a run whose task has this one."""
    tasks = SlotTasks.read(text)
    return (text,) if tasks is None else tasks.references


def portable(text: str) -> list[Any]:
    """The reference of a run's task without folders; of several all, and which slot and machine has which by number."""
    tasks = SlotTasks.read(text)
    if tasks is None:
        return [reference.portable(text)]
    number = tasks.references.index
    places = [[number(each) for each in tasks.slots], [[name, number(each)] for name, each in tasks.machines]]
    return [*map(reference.portable, tasks.references), *places]


def of_function(function: Callable[[int], Any], text: str, slots: int) -> SlotTasks:
    """The tasks that a function of the slot names; ConfigError if it names none for one of so many slots."""
    where, _ = reference.split(text)
    doing = f"Loading the task {text!r}"
    with reference.explained(doing, "a reference for every slot", reference.file_of(function)):
        named = [function(slot) for slot in range(slots)]
    for slot, each in enumerate(named):
        if not isinstance(each, str) or ":" not in each:
            do = 'Return for example "torch_nano.py:task", as --task takes it, for every slot.'
            raise ConfigError(f"{doing}, a function of the slot", f"one for slot {slot}", reference.kind(each), do)
    folder = Path(where).parent if reference.is_file(where) else None
    return SlotTasks.by_slot([reference.absolute(each, folder) for each in named])

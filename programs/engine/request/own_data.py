"""The data that the owner of a machine gives its learners, in the place of the run's.

A task that is shipped has its data as a keyword of its reference. On such a machine, and for its learners alone, the
owner's stand there, and nothing in the messages of a home can name others. What leaves the machine of them is
`SiteTerms`. Data are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASKS
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.runtime.errors import Fault

if TYPE_CHECKING:  # A daemon reads specs, and loads no tasks.
    from isthmus.programs.task import AnyTask

DATA: Final = "data"
_OF_HOME: Final = ("sets",)
"""Keywords with other files of the home, which learners do not read."""
_SHARED: Final = ("router",)
"""Keywords that share out the data of the run."""


@final
@dataclass(frozen=True, slots=True)
class OwnData:
    """The owner's data: files and folders, absolute, and what was found there by the task of a run."""

    paths: tuple[str, ...]
    terms: SiteTerms

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> OwnData:
        """That which some data stand for; KeyError or TypeError if they stand for none."""
        return cls(tuple(map(str, data["paths"])), SiteTerms(**data["terms"]))

    def given_to(self, task: AnyTask) -> AnyTask:
        """A task that was made with these data, which knows of what site they are."""
        return replace(task, site=self.terms)


def on_own_data(text: str, paths: tuple[str, ...]) -> str:
    """The reference of a shipped task, with these files and folders as its data."""
    keywords = dict(reference.parse(text, "Reading a task").keywords or {})
    kept = {name: value for name, value in keywords.items() if name not in _OF_HOME}
    return reference.called(reference.without_keywords(text), {**kept, DATA: paths})


def own_data_faults(text: str, machine: str) -> Iterator[Fault]:
    """Why learners of a run's task, or of one of its tasks, cannot train on data of this machine's owner."""
    for each in references_of(text):
        doing = f"Giving a task the own data of the machine {machine!r}"
        do = "Let that machine join a run of such a task, or leave its data out (--data, [runs] data)."
        if reference.without_keywords(each) not in SHIPPED_TASKS:
            expected = "a task that reads --data: the shipped one, or that of a model folder"
            yield Fault(doing, expected, reference.portable(each), do)
            continue
        keywords = reference.parse(each, doing).keywords or {}
        if shared := [name for name in _SHARED if keywords.get(name) is not None]:
            yield Fault(doing, "a run whose data no router gives to paths", f"task.{shared[0]}", do)

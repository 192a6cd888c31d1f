"""The data of this machine's owner, read by the task of a run before learners here train on them.

They are read in a process of their own, which a daemon outlives: corpora are large, and tokenizers are others' code.
The home hears that they are read, or that they cannot be, and by what kind of fault; the owner sees the table, and what
exactly is wrong. Texts, ids and names of files do not come into what goes to the home.

Decides when they are read: as soon as the home of a run asks whether this machine takes part, and again for the next
run. Tokens of texts lie in the cache by then, so that learners begin at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.machine_file import SiteRules
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.own_data import OwnData, on_own_data, own_data_faults
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.children import Child, serve_line
from isthmus.runtime.system.processes import end_after

READINGS_MAX: Final = 4
"""Tasks by which the data are read, or were for a run that has not begun: a home may ask for any number."""
READ_SECONDS: Final = 40.0
"""After which the home is told to ask again: less than it waits for an answer."""
UNREADABLE: Final = "files that the task cannot read"
UNMEANT: Final = "data that cannot be meant"
UNSPLIT: Final = "data that the task cannot train on and hold a part out of"
UNLIKE: Final = "text, where the run has token ids, or ids, where it has text"
LOST: Final = "a process that ended while it read them"
KINDS: Final = (UNREADABLE, UNMEANT, UNSPLIT, UNLIKE, LOST)
"""What the home hears of data that are refused."""


class UnreadError(ConfigError):
    """The data are being read; whoever asks again is told more."""


@dataclass(slots=True)
class _Reading:
    """One reading: the process, until it has said what it found, `found`."""

    child: Child
    found: asyncio.Future[Sequence[Mapping[str, Any]] | None]
    is_told: bool = False


@final
class OwnDataReader:
    """Reads the data that the owner of `machine` names by `rules`; `tell` gets lines for the owner."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, machine: str, rules: SiteRules, tell: Callable[[str], None]
    ) -> None:
        self._loop, self._machine, self._rules, self._tell = loop, machine, rules, tell
        self._readings: dict[str, _Reading] = {}
        self._doing = f"Reading the own data of the machine {machine!r}"

    @property
    def is_used(self) -> bool:
        """Whether there are such data."""
        return bool(self._rules.data)

    async def read(
        self, task: str, of_run: Mapping[str, Any], seconds_max: float | None = None
    ) -> tuple[OwnData, Mapping[str, Any]]:
        """The data, and their table, as the task of a run reads them, whose own data have the figures `of_run`, if they
        are known.

        ConfigError, which may go to the home, if it cannot train on them; UnreadError if that takes longer.
        """
        if faults := list(own_data_faults(task, self._machine)):
            raise ConfigError.of(faults)
        reading = self._readings.get(task)
        if reading is None:
            self._make_room()
            reading = self._readings[task] = self._begin(task)
        try:
            answers = await asyncio.wait_for(asyncio.shield(reading.found), seconds_max)
        except TimeoutError:
            expected, do = "data that are read", "Wait: its home asks again."
            raise UnreadError(self._doing, expected, "it reads them still", do) from None
        try:
            own, table = self._judged(task, answers, of_run)
        except ConfigError:
            self.taken(task)  # The owner may mend them.
            raise
        if answers and not reading.is_told:
            reading.is_told = True
            for line in answers[0]["lines"]:
                self._tell(f"its own data: {line}")
        return own, table

    def tell_of_adopted(self, own: OwnData | None) -> None:
        """Tell the owner where learners that are there already train on data, or by rules, other than those of now."""
        rules = self._rules
        former = SiteRules() if own is None else SiteRules(own.paths, own.terms.is_told, own.terms.keeps_own)
        if former != rules:
            names = ", ".join(former.data) or "the data of its run"
            told = "" if former.is_told or rules.is_told else "; the losses on them go to the home"
            self._tell(f"its learners there train on {names} still{told}. To change that, end this daemon in order "
                       "(Ctrl-C) and start it again")  # fmt: skip

    def _make_room(self) -> None:
        """Forget what was read for a run that has not begun, where there are many; UnreadError if none is read."""
        if len(self._readings) < READINGS_MAX:
            return
        task = next((task for task, each in self._readings.items() if each.found.done()), None)
        if task is None:
            do = "Wait: its home asks again."
            raise UnreadError(self._doing, f"fewer than {READINGS_MAX} runs that have them read", f"{READINGS_MAX}", do)
        self.taken(task)

    def taken(self, task: str) -> None:
        """A run has begun with what was read: the next one reads them again."""
        if (reading := self._readings.pop(task, None)) is not None:
            self._end(reading)

    def close(self) -> None:
        for reading in self._readings.values():
            self._end(reading)

    def _begin(self, task: str) -> _Reading:
        texts = [on_own_data(each, self._rules.data) for each in references_of(task)]
        # On the CPU: a device that it took would be lacking to a learner.
        variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
        child = Child(__name__, [json.dumps(texts)], variables=variables, leads=True)
        reading = _Reading(child, self._loop.create_future())
        self._loop.add_reader(child.line.fileno(), self._hear, reading)
        return reading

    def _hear(self, reading: _Reading) -> None:
        """Take what the process has found, its one message, or that it ended without."""
        messages = reading.child.line.hear()
        if messages or reading.child.line.is_over:
            self._end(reading)
            if not reading.found.done():
                reading.found.set_result(messages[0]["found"] if messages else None)

    def _end(self, reading: _Reading) -> None:
        if reading.child.line.fileno() >= 0:
            self._loop.remove_reader(reading.child.line.fileno())
        reading.child.end()

    def _judged(
        self, task: str, answers: Sequence[Mapping[str, Any]] | None, of_run: Mapping[str, Any]
    ) -> tuple[OwnData, Mapping[str, Any]]:
        """What was found by each task of the run; ConfigError for what cannot be trained on."""
        if answers is None:
            raise self._refusal(LOST, "It has printed why, or was killed: look at the memory of this machine.")
        for answer in answers:
            if "kind" in answer:
                raise self._refusal(answer["kind"], str(ConfigError.of([Fault(*each) for each in answer["faults"]])))
        first = answers[0]
        # The shipped task reads bytes as they are, and ids as ids: both at once are two languages.
        is_exact = reference.without_keywords(references_of(task)[0]) == SHIPPED_TASK
        if is_exact and of_run and _are_ids(first["table"]) is not _are_ids(of_run):
            do = "Name data in the form of the run's, or join a run of a model folder: its tokenizer reads texts."
            raise self._refusal(UNLIKE, do)
        figures = {name: first[name] for name in ("digest", "bytes", "tokens", "text_bytes")}
        terms = SiteTerms(**figures, is_told=self._rules.is_told, keeps_own=self._rules.keeps_own)
        return OwnData(self._rules.data, terms), first["table"]

    def _refusal(self, kind: str, reason: str) -> ConfigError:
        """The error for the home, by kind; the owner is told the reason."""
        self._tell(f"its own data are refused: {kind}. {reason} Its home asks again once this is started again.")
        do = f"Its owner sees the reason in what the daemon of {self._machine!r} prints."
        return ConfigError(self._doing, "data that the task trains on", kind, do)


def _are_ids(figures: Mapping[str, Any]) -> bool:
    """Whether data of these figures are token ids: of text each byte is a token."""
    return int(figures["bytes"]) != int(figures["tokens"])


def found_of(text: str) -> dict[str, Any]:
    """What the data in a task's reference are: figures, table, lines for the owner; or the `kind` of what is wrong with
    them, and its `faults`."""
    from isthmus.programs.engine.request.request import task_module
    from isthmus.programs.engine.results.data_words import lines
    from isthmus.programs.reading.forms import TEXT, FileForm, form_of
    from isthmus.programs.reading.found import find, finding_once
    from isthmus.programs.settings import Schema

    shipped = task_module(reference.without_keywords(text))
    settings = Schema.of("task", shipped.task).read(reference.parse(text, "Reading a task").keywords or {})
    kind = UNREADABLE
    try:
        with finding_once():
            table = shipped.data_table(settings)
            kind = UNMEANT
            if faults := list(table.faults()):
                raise ConfigError.of(faults)
            kind = UNSPLIT
            shipped.task(**settings)
            digest = contents_digest(Path(file.path) for file in find(settings["data"]).files)
    except ConfigError as error:
        return {"kind": kind, "faults": [list(fault) for fault in error.faults]}
    except OSError as error:
        return {"kind": UNREADABLE, "faults": [["Reading the machine's own data", "files", str(error), "Look there."]]}
    tokens = table.predicted if table.predicted is not None else table.tokens
    # Of rows, ids and packed files it is not known how many bytes of text they have.
    are_texts = all(form_of(f"data{kind}") == FileForm(TEXT, "") for kind in table.tokens_by_kind)
    figures = {
        "digest": digest,
        "bytes": table.bytes,
        "tokens": tokens,
        "text_bytes": table.bytes if are_texts else None,
    }
    warnings = [f"warning: {warning}" for warning in table.warnings()]
    return {**figures, "table": table.as_dict(), "lines": [*lines(table), *warnings]}


def contents_digest(paths: Iterable[Path]) -> str:
    """32 hexadecimal digits over the contents of files, whatever their names and order."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:32]


def main(arguments: list[str]) -> int:
    """Say what the data in each of some references are, on the line of the last argument."""
    line = serve_line("own data", arguments[1])
    line.send({"found": [found_of(text) for text in json.loads(arguments[0])]})
    return 0


if __name__ == "__main__":
    end_after(lambda: main(sys.argv[1:]))

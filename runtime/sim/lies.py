"""Machines that lie: an honest report of a station in, a false one out.

`Liar.lied` stands between a station and its link, in the simulator and, with the message of a real outpost, in a real
run. What it may say is whatever a machine can send that has an admitted key: any value in any field, a new one each
time, and claims that are well formed (`CLAIMS`): about the end of the run, about items and lives of others, about
orders. It decides nothing; `faults.Lie` says which machine lies when, and how.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from isthmus.runtime.clock import Duration
from isthmus.runtime.ids import COUNT_MAX, NUMBER_MAX, Member, Replica, keeps_run
from isthmus.runtime.supervision.incidents import Exited, Raised
from isthmus.runtime.supervision.messages import (
    Gone,
    ItemRefusal,
    Over,
    Report,
    ReportError,
    Seen,
    ShownHost,
    Stamp,
    hints_of,
    report_of,
)
from isthmus.runtime.supervision.rosters import Row
from isthmus.runtime.wire.control_messages import Message

ANY: Final = "any"
"""Another field, with another value, in each report."""
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0, 1, COUNT_MAX, COUNT_MAX + 1, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)),
    *(-0.5, 1e300, math.nan, math.inf, "", "x", "x" * 5000, "final", "tcp://127.0.0.1:99999"),
    *([], [1], ["x"], [["tcp://127.0.0.1:1"]], {}, {"kind": "danced"}, {"x": [1]}),
)


def fields_of(kind: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields of a type, and of the types of these, by their names from the outside inwards."""
    of = _struct(kind)
    for name, hint in {} if of is None else hints_of(of).items():
        yield (*names, name)
        yield from fields_of(hint, (*names, name))


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The record that a type is, or is made of: its elements, or the first of its alternatives."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind if issubclass(kind, msgspec.Struct) else None
    return next((found for each in get_args(kind) if (found := _struct(each)) is not None), None)


def _is_list(kind: Any) -> bool:
    return _is_list(get_args(kind)[0]) if get_origin(kind) is Annotated else get_origin(kind) in (tuple, list)


FIELDS: Final = tuple(".".join(names) for names in (("report",), *fields_of(Report, ("report",))))
"""The fields of a report, such as 'report.lives.heartbeat.steps'; of a list, those of all of its elements."""
SHOWN_FIELDS: Final = tuple(".".join(names) for names in (("shown",), *fields_of(ShownHost, ("shown",))))
"""The same of the status that is shown to people."""


def forged(message: Message, field: str, value: Any) -> Message:
    """A message of an outpost with `value` in one of FIELDS or SHOWN_FIELDS; the same message where there is none."""
    top, *names = field.split(".")
    kind = Report if top == "report" else tuple[ShownHost, ...]
    return {**message, top: _replaced(message[top], kind, names, value)}


def _replaced(plain: Any, kind: Any, names: Sequence[str], value: Any) -> Any:
    if not names:
        return value
    if _is_list(kind) and isinstance(plain, Sequence):
        return [_replaced(each, _struct(kind), names, value) for each in plain]
    of = _struct(kind)
    if of is None or plain is None:
        return plain
    name, hint = names[0], hints_of(of)[names[0]]
    if isinstance(plain, Mapping):
        return {**plain, name: _replaced(plain.get(name), hint, names[1:], value)}
    if not isinstance(plain, list | tuple):  # Another lie came before.
        return plain
    index = of.__struct_fields__.index(name)
    rest = [*plain, *[None] * (index + 1 - len(plain))]
    return [*rest[:index], _replaced(rest[index], hint, names[1:], value), *rest[index + 1 :]]


class Liar:
    """One machine that lies: `claim` is a name of CLAIMS, ANY, or a field, which gets `VALUES[value]`.

    `edges` are the names of the edges of the graph; `roster` names all hosts of the run, as the machine has learned.
    """

    def __init__(self, claim: str, value: int, seed: str, edges: Sequence[str]) -> None:
        self._claim, self._value, self._edges = claim, value, tuple(edges)
        self._rng = random.Random(seed)

    def lied(self, message: Message, roster: Sequence[Row]) -> Message:
        """A false message in place of an honest one of an outpost."""
        if self._claim == ANY:
            fields = FIELDS + (SHOWN_FIELDS if message["shown"] else ())
            return forged(message, self._rng.choice(fields), self._rng.choice(VALUES))
        if self._claim not in CLAIMS:
            return forged(message, self._claim, VALUES[self._value])
        others = [Member(Replica.parse(row[0]), row[1]) for row in roster]
        try:
            report = report_of(message["report"])
        except ReportError:  # Another lie came before.
            return message
        return {**message, "report": msgspec.to_builtins(CLAIMS[self._claim](self, report, others))}

    def refusals(self, others: Sequence[Member]) -> tuple[ItemRefusal, ...]:
        """Items of all others, refused on every edge."""
        refused = [(member, edge) for member in others for edge in self._edges]
        return tuple(ItemRefusal(*each, "norms", "a list", "'x'", 9, is_vote=True) for each in refused[:256])


def _each(report: Report, change: Callable[[Seen], Seen]) -> Report:
    return msgspec.structs.replace(report, lives=tuple(map(change, report.lives)))


def _end(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """The run is over, all of its files are final."""

    def final(life: Seen) -> Seen:
        heartbeat = msgspec.structs.replace(life.heartbeat, phase="final")
        return msgspec.structs.replace(life, beats=life.beats + 1, heartbeat=heartbeat, over=Over())

    return _each(report, final)


def _refusals(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """Items of every other host were refused."""
    refusals = liar.refusals(others)
    return _each(
        report,
        lambda life: msgspec.structs.replace(
            life, heartbeat=msgspec.structs.replace(life.heartbeat, refusals=refusals)
        ),
    )


def _claimed(liar: Liar, report: Report, others: Sequence[Member], number: int = NUMBER_MAX) -> Report:
    """The lives of all others are here, with numbers far beyond theirs; and the recorder says that all is over."""
    claimed = [Member(each.replica, number) for each in others]
    lives = tuple(Seen(each, 1, 9, over=Over() if keeps_run(each.replica) else None) for each in claimed)
    return msgspec.structs.replace(report, lives=report.lives + lives, newest=report.newest + tuple(claimed))


def _next_lives(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """The same with numbers that a home gives after a lost ledger."""
    return _claimed(liar, report, others, 2000)


def _ended(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """The lives of all others have ended."""
    return msgspec.structs.replace(report, ended=report.ended + tuple(Gone(each, Exited(1)) for each in others))


def _stamp(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """Orders of the last epoch were obeyed."""
    return msgspec.structs.replace(report, obeyed=Stamp(report.obeyed.term, COUNT_MAX, COUNT_MAX))


def _quick(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """Steps take no time, and some were always made."""

    def stepping(life: Seen) -> Seen:
        steps, nothing = life.heartbeat.steps + 1000 * life.beats, Duration(0)
        heartbeat = msgspec.structs.replace(life.heartbeat, phase="stepping", steps=steps, busy=nothing, firing=nothing)
        return msgspec.structs.replace(life, heartbeat=heartbeat)

    return _each(report, stepping)


def _failures(liar: Liar, report: Report, others: Sequence[Member]) -> Report:
    """Every host here has met an error of the program."""
    error = Raised("inner-step", "ValueError", "a lie", "task.py", 1)
    return _each(report, lambda life: msgspec.structs.replace(life, error=error))


CLAIMS: Final[Mapping[str, Callable[[Liar, Report, Sequence[Member]], Report]]] = {
    "end": _end,
    "refusals": _refusals,
    "lives": _claimed,
    "next lives": _next_lives,
    "ends of others": _ended,
    "stamp": _stamp,
    "quick steps": _quick,
    "failures": _failures,
}
"""False claims of good form, by name."""

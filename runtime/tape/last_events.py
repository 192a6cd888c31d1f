"""The last events of what an error of a core is about, for people: an impossible state alone does not say how it came.

They are read from the tape, which the shell has anyway: a core keeps no history, and an event costs no more than
before. Nothing is decided by them, and nothing reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, final

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import CoreError, CoreSubject, shortened
from isthmus.runtime.ids import Member
from isthmus.runtime.tape.writing import Tape

EVENTS_MAX: Final = 8
"""Lines of an error: a firing with what it took and sent is three or four events."""
LINE_LENGTH_MAX: Final = 400
"""Characters of a line: a report of a machine has thousands."""
DEPTH_MAX: Final = 2
"""What an event names is one of its fields, in one of these, or a member in one: a report deeper down names all."""
NAMED: Final = ("node", "edge", "timer", "machine")
"""Fields by which an event names something, beside those that are members."""


class TapedEvent(Protocol):
    """A record of a tape, as its reader decodes it."""

    at: Instant
    event: Any
    commands: list[Any]


class _Line(NamedTuple):
    """A line, of this many events of one kind that follow each other, the newest of which it shows."""

    kind: type[Any]
    text: str
    events: int
    is_quiet: bool
    """Whether none of the event's commands concerns the subject, so that one such line stands for those before it."""


@final
class LastEvents:
    """The last events on a `tape` whose records are of the type `record`."""

    def __init__(self, tape: Tape | None, record: type[Any]) -> None:
        self._tape, self._record = tape, record

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of a core that leave this context tell their last events."""
        try:
            yield
        except CoreError as error:
            self.add_to(error)
            raise

    def add_to(self, error: CoreError, event: Any = None) -> None:
        """Add the last events to an error, which was raised at an `event`, if at one, that is not on the tape."""
        about = error.about or named_by(event)
        lines: list[_Line] = []
        for record in self._newest_first():
            doing = [each for each in record.commands if not about or concerns(each, about)]
            if about and not doing and not concerns(record.event, about):
                continue
            kind = type(record.event)
            if not doing and lines and lines[-1].is_quiet and lines[-1].kind is kind:
                lines[-1] = lines[-1]._replace(events=lines[-1].events + 1)
            elif len(lines) == EVENTS_MAX:
                break
            else:
                lines.append(_Line(kind, _words(record.at, record.event, doing), 1, not doing))
        lines.reverse()
        shown = [line.text if line.events == 1 else f"{line.text}, and {line.events - 1} before" for line in lines]
        if event is not None:
            shown.append(_cut(f"now: {event}"))
        error.last_events = tuple(shown)

    def _newest_first(self) -> Iterator[TapedEvent]:
        if self._tape is not None:
            decode: Callable[[bytes], TapedEvent] = msgspec.msgpack.Decoder(self._record).decode
            yield from map(decode, reversed(self._tape.last()))


def named_by(event: Any) -> tuple[CoreSubject, ...]:
    """What an event names: a node, an edge, a timer, a machine, the replicas of its members."""
    if not isinstance(event, msgspec.Struct):
        return ()
    fields = [(name, getattr(event, name)) for name in event.__struct_fields__]
    things = [CoreSubject(name, value) for name, value in fields if name in NAMED]
    return (*things, *(CoreSubject("replica", value.replica) for _, value in fields if isinstance(value, Member)))


def concerns(value: Any, about: Sequence[CoreSubject], depth: int = 0) -> bool:
    """Whether an event or a command names one of these."""
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, Mapping):
        fields = list(value.items())
    elif isinstance(value, list | tuple):
        fields = [("", each) for each in value]
    else:
        return False
    if any(subject.name == name and subject.value == each for name, each in fields for subject in about):
        return True
    return depth < DEPTH_MAX and any(concerns(each, about, depth + 1) for _, each in fields)


def _words(at: Instant, event: Any, commands: Sequence[Any]) -> str:
    doing = "" if not commands else f" -> {', '.join(map(str, commands))}"
    return _cut(f"at {at} ns: {event}{doing}")


def _cut(text: str) -> str:
    return shortened(text, LINE_LENGTH_MAX, "the tape has all of it")

"""A replay in words and as JSON: the one place where sentences are made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from isthmus.programs.replay.outcome import Difference, Replay, Replayed
from isthmus.programs.results import numbers

_SHOWN_MAX: Final = 400
"""Letters of an event or a command; one that has more names many hosts."""


def as_object(replay: Replay, took_seconds: float) -> dict[str, Any]:
    """What `isthmus replay --json` prints."""
    return {
        "run": replay.run,
        "identical": replay.is_identical,
        "records": replay.records,
        "commands": replay.commands,
        "merges": replay.merges,
        "seconds": round(took_seconds, 3),
        "hosts": [_object(each) for each in replay.tapes],
        "absent": list(replay.absent),
    }


def told(tape: Replayed) -> str:
    """What came of one tape, in a word or two."""
    if not tape.is_replayed:
        return "not replayed"
    if tape.difference is not None:
        return "different"
    return "identical" if tape.records else "empty"


def remarks(replay: Replay) -> Iterator[str]:
    """What is to be known of tapes that are not whole, or not here."""
    for tape in replay.tapes:
        if tape.begins_ns is not None:
            begins = f"begins {_since(tape.begins_ns)} after the submission; the part before is not kept"
            yield f"{name(tape)}: {begins}, so there is no state to start from."
        if tape.torn_bytes:
            torn = numbers.size(tape.torn_bytes)
            yield f"{name(tape)}: its last record was never finished ({torn}), and is left out."
    if replay.absent:
        yield f"No tape here of {', '.join(replay.absent)}: tapes stay on the machine of their host."


def name(tape: Replayed) -> str:
    """Whose a tape is: 'learner/2, life 3', 'home of daemon 4711'."""
    is_daemon = tape.host in ("home", "station")
    return f"{tape.host} of daemon {tape.number}" if is_daemon else f"{tape.host}, life {tape.number}"


def story(tape: Replayed, difference: Difference) -> Iterator[tuple[str, str]]:
    """The first difference of a tape: a word and what it says."""
    yield "host", name(tape)
    yield "tape", tape.tape
    yield "record", f"{numbers.whole(difference.number)}, {_since(difference.at_ns)} after the submission"
    if difference.place:
        yield "at", difference.place
    yield "event", _shown(difference.event)
    if difference.error:
        yield "taped", _listed(difference.taped)
        yield "replayed", f"raised {difference.error}"
        return
    yield "command", f"{difference.command} of this record is the first that differs"
    yield "taped", _listed(difference.taped)
    yield "replayed", _listed(difference.said)


def ending(replay: Replay, took_seconds: float) -> str:
    """The last line: how much was replayed, and whether it was the same."""
    done = [each for each in replay.tapes if each.is_replayed]
    merges = f", {numbers.whole(replay.merges)} merge rounds" if replay.merges else ""
    counts = f"{_count(len(done), 'tape')}, {_count(replay.commands, 'command')}{merges}"
    verdict = "identical" if replay.is_identical else "different"
    return f"{verdict}: {counts}, in {numbers.seconds(took_seconds)}"


def _object(tape: Replayed) -> dict[str, Any]:
    return {
        "tape": tape.tape,
        "host": tape.host,
        "number": tape.number,
        "is_replayed": tape.is_replayed,
        "begins_ns": tape.begins_ns,
        "records": tape.records,
        "commands": tape.commands,
        "merges": tape.merges,
        "torn_bytes": tape.torn_bytes,
        "difference": None if tape.difference is None else _difference(tape.difference),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "record": difference.number,
        "at_ns": difference.at_ns,
        "place": difference.place,
        "event": msgspec.to_builtins(difference.event),
        "command": difference.command,
        "taped": msgspec.to_builtins(list(difference.taped)),
        "replayed": msgspec.to_builtins(list(difference.said)),
        "error": difference.error,
    }


def _listed(commands: Sequence[Any]) -> str:
    """The first of some commands, and how many follow."""
    if not commands:
        return "no command"
    more = f", and {_count(len(commands) - 1, 'more')}" if len(commands) > 1 else ""
    return f"{_shown(commands[0])}{more}"


def _shown(thing: Any) -> str:
    text = str(thing)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def _since(at_ns: int) -> str:
    return f"{at_ns / 1e9:.6f} s"


def _count(count: int, what: str) -> str:
    plural = "" if count == 1 or what == "more" else "s"
    return f"{numbers.whole(count)} {what}{plural}"

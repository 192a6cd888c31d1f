"""A replay in words and as JSON: the one place that words it as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from isthmus.programs.replay.merges import OtherBytes
from isthmus.programs.replay.outcome import Difference, Replay, Replayed
from isthmus.programs.results import numbers

_SHOWN_MAX: Final = 400
"""Letters of an event or a command; one that has more names many hosts."""


def as_object(replay: Replay, took_seconds: float) -> dict[str, Any]:
    """The JSON object of `isthmus replay --json`."""
    return {
        "run": replay.run,
        "identical": replay.is_identical,
        "records": replay.records,
        "commands": replay.commands,
        "merges": replay.merges,
        "merges_computed": replay.computed,
        "seconds": round(took_seconds, 3),
        "hosts": [_object(each) for each in replay.tapes],
        "absent": list(replay.absent),
    }


def told(tape: Replayed) -> str:
    """The result of one tape, in a word."""
    if not tape.is_identical:
        return "different"
    return "identical" if tape.records else "empty"


def remarks(replay: Replay) -> Iterator[str]:
    """Remarks on incomplete or absent tapes."""
    for tape in replay.tapes:
        if tape.begins_ns is not None:
            begins = f"replayed from {_since(tape.begins_ns)} after the submission on, from the core's state then"
            yield f"{name(tape)}: {begins}; {_count(tape.before, 'record')} before are not kept (run.tape_bytes)."
        if tape.missing:
            missing = _count(tape.missing, "record")
            yield f"{name(tape)}: {missing} in the middle were lost to a full disk; replayed before and behind them."
        if (made := tape.computed) is not None and made.difference is None and made.merges < tape.merges:
            there = ", ".join(f"{_count(count, 'firing')} of {node}" for node, count in made.firings.items())
            yield f"{name(tape)}: payloads of {there} are there; merges behind them are not computed again."
        if tape.torn_bytes:
            torn = numbers.size(tape.torn_bytes)
            yield f"{name(tape)}: its last record was never finished ({torn}), and is left out."
    if replay.absent:
        absent = ", ".join(replay.absent)
        yield f"No tape here of {absent}: it was not fetched from its machine, or was lost with it."


def name(tape: Replayed) -> str:
    """The owner of a tape: 'learner/2, life 3', 'home of daemon 4711'."""
    is_daemon = tape.host in ("home", "station")
    return f"{tape.host} of daemon {tape.number}" if is_daemon else f"{tape.host}, life {tape.number}"


def story(tape: Replayed, difference: Difference) -> Iterator[tuple[str, str]]:
    """The first difference of a tape: keywords and texts."""
    yield "host", name(tape)
    yield "tape", tape.tape
    yield "record", f"{numbers.whole(difference.number)}, {_since(difference.at_ns)} after the submission"
    if difference.place:
        yield "at", difference.place
    yield "event", _shown(difference.event)
    if difference.error:
        yield "taped", _listed(difference.taped)
        yield "replayed", difference.error
        return
    yield "command", f"{difference.command} of this record is the first that differs"
    yield "taped", _listed(difference.taped)
    yield "replayed", _listed(difference.said)


def other_bytes(tape: Replayed, found: OtherBytes) -> Iterator[tuple[str, str]]:
    """The first item of a life with other bytes: keywords and texts."""
    yield "host", name(tape)
    yield "firing", f"{numbers.whole(found.firing)} of {found.node}"
    yield "given", found.given
    yield "item", f"{found.port}{': ' if found.item else ''}{found.item}"
    yield "kept", found.kept
    yield "computed", found.computed


def ending(replay: Replay, took_seconds: float) -> str:
    """The last line: how much was replayed, and whether it was the same."""
    merges = f", {numbers.whole(replay.merges)} merge rounds" if replay.merges else ""
    if replay.computed is not None:
        merges += f", {numbers.whole(replay.computed)} merges computed again"
    counts = f"{_count(len(replay.tapes), 'tape')}, {_count(replay.commands, 'command')}{merges}"
    verdict = "identical" if replay.is_identical else "different"
    return f"{verdict}: {counts}, in {numbers.seconds(took_seconds)}"


def _object(tape: Replayed) -> dict[str, Any]:
    return {
        "tape": tape.tape,
        "host": tape.host,
        "number": tape.number,
        "begins_ns": tape.begins_ns,
        "before": tape.before,
        "missing": tape.missing,
        "records": tape.records,
        "commands": tape.commands,
        "merges": tape.merges,
        "torn_bytes": tape.torn_bytes,
        "merges_computed": None if tape.computed is None else tape.computed.merges,
        "other_bytes": None if not (made := tape.computed) or not made.difference else made.difference._asdict(),
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

"""The page of `isthmus borders`: what crossed between machines and regions, and what is not known of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from isthmus.programs.engine.request.graph_view import table
from isthmus.programs.engine.results.words import size
from isthmus.programs.wings.borders.borders import Borders, BorderWay, CrossingSum, Unknown

_HEAD: Final = ("kind", "what", "items", "bytes", "largest", "first", "last", "on tape", "digest")
NOT_COUNTED: Final = (
    "Not counted: connections that were refused, commands that ask a daemon, snapshots at a URL, and what "
    "the processes of one island exchange among themselves where it spans machines."
)


def page(borders: Borders) -> str:
    """The page, in lines of text."""
    return "\n".join(_lines(borders))


def _lines(borders: Borders) -> Iterator[str]:
    until = "" if borders.at is None else f", as of {_time(borders.at, with_date=True)} UTC"
    yield f"{borders.run}: what crossed between machines{until}"
    if not (borders.machines or borders.within):
        yield "Nothing: no host of this run has an account. One process, as with --transport inproc, has no sockets."
    elif not borders.machines:
        yield "Nothing crossed between machines: all hosts were on one."
    for title, ways in (
        ("between machines", borders.machines),
        ("between regions, of the same", borders.regions),
        ("within a machine", borders.within),
        ("relayed by a third host, and in the lines above as such", borders.relayed),
    ):
        if ways:
            yield from ("", title)
            yield from _ways(ways)
    yield from _lent(borders.lent)
    yield from _names(borders)
    yield from ("", NOT_COUNTED)
    yield from map(_unknown, borders.unknown)


def _ways(ways: Mapping[BorderWay, Sequence[CrossingSum]]) -> Iterator[str]:
    rows = [_HEAD]
    for way, sums in sorted(ways.items()):
        whole = sum(each.size_bytes for each in sums)
        rows.append((f"{way.source} -> {way.target}", "", "", size(whole), "", "", "", "", ""))
        rows += [
            (
                f"  {each.kind}",
                each.name if each.name != each.kind else "",
                f"{each.items:,}" if each.items else "",
                size(each.size_bytes),
                size(each.largest) if each.items else "",
                _time(each.first),
                _time(each.last),
                f"{len(each.digests):,}" if each.digests else "",
                each.digest or "",
            )
            for each in sums
        ]
    return iter(table(rows))


def _lent(lent: Mapping[str, int]) -> Iterator[str]:
    """What of it went through shared memory, where any was shared or should have been."""
    if any(lent.values()):
        there, not_there = (
            f"{lent[f'items_{name}']:,} items ({size(lent[f'bytes_{name}'])})" for name in ("lent", "unlent")
        )
        yield ""
        yield f"Within a machine {there} went through shared memory, {not_there} of that size by TCP."
        yield f"Of these {size(lent['bytes_copied'])} were copied there, an array once for all that read it."
    if lent.get("desk_unreached"):
        yield f"{lent['desk_unreached']:,} connections between hosts of one machine could not share memory."


def _names(borders: Borders) -> Iterator[str]:
    """Where texts of errors stay: they cross in reports, or do not."""
    told = [each for each in borders.names if each["error_texts"] is not None]
    if len(told) > 1:
        yield ""
    for each in told if len(told) > 1 else ():
        where = "stay there" if each["error_texts"] == "local" else "go to the home of the run, in reports and files"
        yield f"Texts of errors of {each['name']} {where} ([runs] error_texts of its machine.toml)."


def _unknown(unknown: Unknown) -> str:
    name = f"{unknown.host}, life {unknown.incarnation}" if unknown.incarnation else unknown.host
    if unknown.until is None:
        return f"No account of {name}: it is on its machine, or was lost. What crossed is by those of its peers."
    return (
        f"{name} was cut off: its account is of {_time(unknown.until)} UTC. Later ones of its peers count; what it "
        "sent after it and did not arrive is not known."
    )


def _time(seconds: float | None, *, with_date: bool = False) -> str:
    """The time of day, UTC."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")

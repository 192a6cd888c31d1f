"""`isthmus doctor --link`: has daemons measure the links between them, and shows what they carry of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from isthmus.ops.exchange.formats import FORMATS
from isthmus.programs.engine.cluster.cluster_file import Cluster, checked_address, read
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.link_trials import MEASURE, TRIAL_SECONDS
from isthmus.programs.engine.request.graph_view import table
from isthmus.programs.engine.results import words
from isthmus.programs.study.terminal.figures import ProgressLine
from isthmus.runtime.errors import ConfigError, Fault, nearest, printable

PARAMETERS_MAX: Final = 10**14


class LinkEnd(NamedTuple):
    """A machine as a trial needs it; `address` is empty where only its link is known."""

    name: str
    address: str
    public_key: str


def link(ends: Sequence[str], file: Path | None, parameters: int | None, *, as_json: bool) -> None:
    """Measure the link between two machines, or all of a cluster. ConfigError where one is not measured."""
    cluster = None if file is None else read(file)
    if parameters is not None and not 1 <= parameters <= PARAMETERS_MAX:
        do = "Give the number of the model's parameters: --parameters 1200000000."
        raise ConfigError("Reading --parameters", f"from 1 to {PARAMETERS_MAX:,}", str(parameters), do)
    pairs = _pairs(ends, cluster)
    line, measured = ProgressLine(), []
    for one, other in pairs:
        line.show(f"measuring {one.name} - {other.name}; {TRIAL_SECONDS:.0f} s at most")
        try:
            measured.append(_measure(one, other, cluster))
        finally:
            line.show("")
    if as_json:
        typer.echo(json.dumps(_data(measured, parameters), indent=2))
    else:
        typer.echo(printable("\n".join(_page(measured, parameters))))


def check_alone(*, invite: Path | None, island: str | None, is_both: bool) -> None:
    """ConfigError for options of `isthmus doctor` that a link has no use for."""
    found = {"--invite": invite is not None, "--for": island is not None, "--link and --links": is_both}
    if wrong := [name for name, is_there in found.items() if is_there]:
        do = "Measure links by themselves: isthmus doctor --link A B, with --cluster FILE.toml where A and B are names."
        raise ConfigError("Reading the command line", "--link A B, or --links, alone", ", ".join(wrong), do)


def _pairs(ends: Sequence[str], cluster: Cluster | None) -> list[tuple[LinkEnd, LinkEnd]]:
    doing, do = (
        "Reading the machines",
        "Type isthmus doctor --link A B, or isthmus doctor --links --cluster FILE.toml for all pairs.",
    )
    if not ends and cluster is not None:
        peers = [LinkEnd(each.name, each.endpoint, each.public_key or "") for each in cluster.machines if each.address]
        if len(peers) < 2:
            raise ConfigError(doing, f"two machines of {cluster.file} with an address", f"{len(peers)}", do)
        return list(combinations(peers, 2))
    if len(ends) != 2:
        raise ConfigError(doing, "a cluster file, for all pairs", "none", do)
    if ends[0] == ends[1]:
        raise ConfigError(doing, "two machines", f"{ends[0]} twice", do)
    one, other = (_peer(end, cluster) for end in ends)
    if not one.address:
        one, other = other, one
    if not one.address:
        names = [] if cluster is None else [each.name for each in cluster.machines]
        do = nearest(ends[0], names) if names else do
        raise ConfigError(doing, "one with an address, at least", " and ".join(ends), do)
    return [(one, other)]


def _peer(end: str, cluster: Cluster | None) -> LinkEnd:
    """A machine of the cluster file, by name or address; an address of its own; or one that is linked to the other."""
    if cluster is not None:
        for each in cluster.machines:
            if end == each.name or (each.address and end == each.endpoint):
                return LinkEnd(each.name, each.endpoint if each.address else "", each.public_key or "")
    if "://" in end:
        return LinkEnd("", checked_address(end, "Reading the machines", has_keys=cluster is not None), "")
    return LinkEnd(end, "", "")


def _measure(one: LinkEnd, other: LinkEnd, cluster: Cluster | None) -> dict[str, Any]:
    """What the daemon of one machine has measured of the link to another; ConfigError, which names both, if none."""
    keys = None
    if cluster is not None and cluster.secret is not None:
        keys = DaemonClient.of(cluster).keys
    client = DaemonClient(one.name or one.address, one.address, keys, one.public_key)
    between = f"{one.name or one.address} to {other.name or other.address}"
    try:
        answer = client.say({"type": MEASURE, "peer": dict(zip(("name", "address", "public_key"), other, strict=True))})
    except ConfigError as error:
        doing = f"Measuring the link from {between}"
        named = [
            each if each[0].startswith(doing) else Fault(f"{doing}: {each[0]}", *each[1:]) for each in error.faults
        ]
        raise ConfigError.of(named) from None
    return answer


def _loss(direction: Mapping[str, Any]) -> float | None:
    segments, resent = direction["segments"], direction["resent"]
    return None if segments is None else resent / segments


def _seconds(direction: Mapping[str, Any], size: int) -> float | None:
    """The time that so many bytes take: what they take on the link, and half a round trip."""
    each = direction["bytes_per_second"]
    return None if not each else size / each + (direction["round_trip_seconds"] or 0.0) / 2


def _data(measured: Sequence[Mapping[str, Any]], parameters: int | None) -> dict[str, Any]:
    pairs = []
    for each in measured:
        directions = [{**way, "loss": _loss(way)} for way in each["directions"]]
        for way in directions if parameters is not None else ():
            sizes = _sizes(parameters or 0)
            way["formats"] = [
                {"format": name, "bytes": size, "seconds": _seconds(way, size)} for name, size in sizes.items()
            ]
        pairs.append({"is_relayed": each["is_relayed"], "directions": directions})
    return {"parameters": parameters, "pairs": pairs}


def _sizes(parameters: int) -> dict[str, int]:
    """The bytes of a push, or of an update, of so many parameters, by format."""
    return {name: each.payload([parameters]) for name, each in FORMATS.items()}


def _page(measured: Sequence[Mapping[str, Any]], parameters: int | None) -> Iterator[str]:
    ways = [(each, way) for each in measured for way in each["directions"]]
    rows: list[tuple[str, ...]] = [("from", "to", "a second", "round trip", "loss", "measured over")]
    for each, way in ways:
        loss = _loss(way)
        rows.append(
            (
                way["source"],
                way["target"],
                "too slow" if way["bytes_per_second"] is None else f"{words.size(way['bytes_per_second'])}",
                words.seconds(way["round_trip_seconds"]),
                "not measured" if loss is None else f"{100 * loss:.2f} % of {way['segments']:,} segments",
                f"{words.size(way['bytes'])}{', relayed by a porter' if each['is_relayed'] else ''}",
            )
        )
    yield from table(rows)
    if parameters is None:
        return
    yield ""
    yield f"a push, or an update, of {parameters:,} parameters, all fragments together"
    heads = [f"{way['source']} -> {way['target']}" for _, way in ways]
    rows = [("format", "bytes", *heads)]
    for name, size in _sizes(parameters).items():
        rows.append((name, words.size(size), *(words.seconds(_seconds(way, size)) for _, way in ways)))
    yield from table(rows)

"""What crossed between the machines of a run, and between its regions, by the accounts of its hosts and of its home.

Decides whose account counts, and what each line of it is; reads the run folder, which may be of a run that goes on.

Theory of operation. Each end of a connection has an account of what it sent and of what it received. What went from A
to B is by A's account, unless B's is newer: A was killed, or is on a machine whose files come at the end. Every byte is
in one line, of the machines between which it travelled: of what was relayed, in that of each leg, as `relayed`; what
was relayed, and for whom, is listed apart. Digests are those of items on the tape of the host that received them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from isthmus.programs.engine.results import tapes
from isthmus.programs.engine.results.crossing_kinds import CONTROL, FILES, FRAMING, KINDS, RELAYED, REPORTS, STATE
from isthmus.runtime.channels import crossings
from isthmus.runtime.channels.crossings import Account, EdgeCrossing
from isthmus.runtime.cores.scheduler_events import ItemArrived
from isthmus.runtime.ids import Member
from isthmus.runtime.system.files import read_text
from isthmus.runtime.wire import account_files

_OF_MESSAGES: Final[Mapping[str, str]] = {"files": FILES, "piece": FILES, "report": REPORTS, "model": STATE}
"""Types of messages between daemons -> their kinds; all others are control."""
_OF_LINES: Final = {crossings.CONTROL: CONTROL, crossings.RELAYED: RELAYED, crossings.FRAMING: FRAMING}
DAEMONS: Final = "daemons"


class BorderLife(NamedTuple):
    """A life of a host; life 0 of `daemon/0` are all daemons of the run's home, or another machine's."""

    host: str
    incarnation: int


class BorderWay(NamedTuple):
    """From where to where: between machines, or regions."""

    source: str
    target: str


@dataclass(slots=True)
class CrossingSum:
    """Things of one kind, and of one edge or type of message, that crossed. `first` and `last` are seconds since 1970,
    None where unknown; `digests` those on tapes, in the order of arrival."""

    kind: str
    name: str
    items: int = 0
    size_bytes: int = 0
    largest: int = 0
    first: float | None = None
    last: float | None = None
    digests: list[str] = field(default_factory=list)

    def add(self, line: EdgeCrossing, epoch: float) -> None:
        """Add a line of an account, whose clock began at `epoch`."""
        self.items += line.count
        self.size_bytes += line.size_bytes
        self.largest = max(self.largest, line.largest)
        if line.last:
            first, last = epoch + line.first / 1e9, epoch + line.last / 1e9
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)

    @property
    def digest(self) -> str | None:
        """The xxh3-64 of the digests, as texts of 16 digits, one after another."""
        return xxhash.xxh3_64_hexdigest("".join(self.digests).encode()) if self.digests else None

    def as_data(self, *, with_digests: bool) -> dict[str, Any]:
        """The sum as plain data."""
        data = {
            "kind": self.kind,
            "name": self.name,
            "items": self.items,
            "bytes": self.size_bytes,
            "largest_bytes": self.largest,
            "first": self.first,
            "last": self.last,
            "on_tape": len(self.digests),
            "digest": self.digest,
        }
        return {**data, "digests": list(self.digests)} if with_digests else data


class Unknown(NamedTuple):
    """What is not known of a run: `kind` is 'no account' (of a host that was there), 'cut off' (it did not write its
    last account; what is known of it is `until` then, in seconds since 1970), or 'no tape'."""

    kind: str
    host: str
    incarnation: int
    until: float | None


@dataclass(slots=True)
class Borders:
    """What crossed in a run, by way: `machines` and `regions`; `within` are both ends on one machine, `relayed` items
    that a third host passed on, which are in other lines already. `at` is the time of the newest account, `lent` what
    went through shared memory, by `crossings.LENT`."""

    run: str
    at: float | None
    names: Sequence[Mapping[str, Any]]
    machines: dict[BorderWay, list[CrossingSum]]
    within: dict[BorderWay, list[CrossingSum]]
    regions: dict[BorderWay, list[CrossingSum]]
    relayed: dict[BorderWay, list[CrossingSum]]
    unknown: Sequence[Unknown]
    lent: dict[str, int] = field(default_factory=dict)

    @property
    def within_moved_bytes(self) -> int:
        """Bytes that moved within machines: by sockets, or into shared memory, once for all that read them there."""
        crossed = sum(each.size_bytes for sums in self.within.values() for each in sums)
        return crossed - self.lent.get("bytes_lent", 0) + self.lent.get("bytes_copied", 0)

    def as_data(self, *, with_digests: bool = False) -> dict[str, Any]:
        """All of it as plain data."""

        def rows(ways: Mapping[BorderWay, Sequence[CrossingSum]]) -> list[dict[str, Any]]:
            return [
                {
                    "source": way.source,
                    "target": way.target,
                    "bytes": sum(each.size_bytes for each in sums),
                    "kinds": [each.as_data(with_digests=with_digests) for each in sums],
                }
                for way, sums in sorted(ways.items())
            ]

        return {
            "run": self.run,
            "at": self.at,
            "machines": [dict(each) for each in self.names],
            "pairs": rows(self.machines),
            "within": rows(self.within),
            "regions": rows(self.regions),
            "relayed": rows(self.relayed),
            "shared_memory": self.lent,
            "within_moved_bytes": self.within_moved_bytes,
            "unknown": [each._asdict() for each in self.unknown],
        }


def read(run: Path) -> Borders:
    """What crossed in the run of a folder, as far as its files say. OSError or ValueError if it is none."""
    graph = json.loads(read_text(run / "graph.json"))
    carries = {f"{edge['source']} -> {edge['target']}": edge.get("carries") for edge in graph["edges"]}
    accounts, damaged = _accounts(run)
    sites = _sites(run)
    regions = {name: site["region"] for name, site in sites.items() if site.get("region") is not None}
    tapes_of = _digests(run, {name: index for index, name in enumerate(carries)}) if accounts else {}
    borders = Borders(run.name, None, [], {}, {}, {}, {}, [])
    sums: dict[tuple[str, BorderWay, str, str], CrossingSum] = {}

    def count(
        group: str, way: BorderWay, kind: str, name: str, line: EdgeCrossing, epoch: float, digests: Sequence[str]
    ) -> None:
        total = sums.setdefault((group, way, kind, name), CrossingSum(kind, name))
        total.add(line, epoch)
        total.digests += digests

    machines: set[str] = set(sites)
    for source, target, line, epoch in _directed(accounts):
        kind, name = _kind(line, carries)
        machines.update((source.machine, target.machine))
        way = BorderWay(source.machine, target.machine)
        digests = tapes_of.get((source.life, target.life, line.edge), ()) if line.kind == crossings.ITEMS else ()
        if line.through:
            count("relayed", BorderWay(source.life.host, target.life.host), kind, name, line, epoch, ())
            continue
        count("within" if way.source == way.target else "machines", way, kind, name, line, epoch, digests)
        beyond = BorderWay(*(f"region {regions[each]}" if each in regions else "no region" for each in way))
        if regions and beyond.source != beyond.target:
            count("regions", beyond, kind, name, line, epoch, digests)
    order = {kind: index for index, kind in enumerate(KINDS)}
    for (group, way, _, _), total in sorted(sums.items(), key=lambda each: (order.get(each[0][2], 5.5), each[0])):
        getattr(borders, group).setdefault(way, []).append(total)
    texts = {name: where for account in accounts for name, where in account.error_texts.items()}
    homes = {account.machine for account in accounts if account.host == HOME_HOST}
    borders.names = [
        {"name": name, "region": regions.get(name), "error_texts": "home" if name in homes else texts.get(name)}
        for name in sorted(machines - {""})
    ]
    borders.lent = {name: sum(account.lent.get(name, 0) for account in accounts) for name in crossings.LENT}
    borders.at = max((account.time for account in accounts), default=None)
    borders.unknown = [*damaged, *_unknown(run, accounts)]
    return borders


HOME_HOST: Final = "daemon/0"


class _End(NamedTuple):
    """One end of a crossing."""

    life: BorderLife
    machine: str


def _accounts(run: Path) -> tuple[list[Account], list[Unknown]]:
    accounts, damaged = [], []
    for path in sorted((run / account_files.FOLDER).glob("*.json")):
        try:
            accounts.append(account_files.read(path))
        except (OSError, ValueError):
            damaged.append(Unknown("no account", path.stem, 0, None))
    return accounts, damaged


def _sites(run: Path) -> dict[str, dict[str, Any]]:
    """The machines of a run by name, as cluster.json has them; none for a run of one machine."""
    try:
        return {site["name"]: site for site in json.loads(read_text(run / "cluster.json"))["sites"]}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _directed(accounts: Sequence[Account]) -> Iterator[tuple[_End, _End, EdgeCrossing, float]]:
    """(source, target, line, epoch of its clock) of everything that crossed, once: by one of the two accounts."""
    told: dict[tuple[BorderLife, BorderLife], list[tuple[bool, Account, list[EdgeCrossing]]]] = {}
    machines = {BorderLife(each.host, each.incarnation): each.machine for each in accounts if each.host != HOME_HOST}
    for account in accounts:
        own = BorderLife(account.host, account.incarnation)
        ways: dict[tuple[BorderLife, BorderLife], list[EdgeCrossing]] = {}
        for line in account.lines:
            peer = BorderLife(line.peer if account.host != HOME_HOST else f"{line.machine}:{DAEMONS}", line.incarnation)
            machines.setdefault(peer, line.machine)
            is_sent = line.direction == "sent"
            ways.setdefault((own, peer) if is_sent else (peer, own), []).append(line)
        for way, those in ways.items():
            told.setdefault(way, []).append((way[0] == own, account, those))
        if account.host == HOME_HOST:
            machines[own] = account.machine
    for (source, target), versions in told.items():
        chosen = versions
        if HOME_HOST not in (source.host, target.host):  # Each daemon of the home has counted what the others did not.
            chosen = [max(versions, key=lambda each: (each[1].is_last, each[1].clock, each[0]))]
        for _, account, those in chosen:
            ends = [
                _End(life, account.machine if life.host == HOME_HOST else machines[life]) for life in (source, target)
            ]
            for line in those:
                yield ends[0], ends[1], line, account.time - account.clock / 1e9


def _kind(line: EdgeCrossing, carries: Mapping[str, str | None]) -> tuple[str, str]:
    """(kind, name) of a line: of an edge of a user's own graph its name is its kind."""
    if line.kind != crossings.ITEMS:
        return _OF_LINES.get(line.kind, line.kind), ""
    if line.edge in carries:
        return carries[line.edge] or line.edge, line.edge
    return (_OF_MESSAGES.get(line.edge, CONTROL), line.edge) if " -> " not in line.edge else (line.edge, line.edge)


def _digests(run: Path, known: Mapping[str, int]) -> dict[tuple[BorderLife, BorderLife, str], list[str]]:
    """The digests of the items that hosts received, by (source, target, edge), as far as there are tapes."""
    names = {index: name for name, index in known.items()}
    found: dict[tuple[BorderLife, BorderLife, str], list[str]] = {}
    for tape in tapes.of_folder(run)[0]:
        if tape.member is None:
            continue
        try:
            records = tapes.read(tape).records
        except (OSError, ValueError):
            continue
        for record in records:
            event = record.event
            if isinstance(event, ItemArrived):
                key = _life(event.source), _life(tape.member), names.get(event.edge, str(event.edge))
                found.setdefault(key, []).append(f"{event.digest & (1 << 64) - 1:016x}")
    return found


def _life(member: Member) -> BorderLife:
    return BorderLife(str(member.replica), member.incarnation)


def _unknown(run: Path, accounts: Iterable[Account]) -> Iterator[Unknown]:
    """Hosts whose account is missing, or is not the last one."""
    own = {BorderLife(each.host, each.incarnation): each for each in accounts if each.host != HOME_HOST}
    peers: dict[BorderLife, None] = {}
    for account in own.values():
        peers |= {BorderLife(line.peer, line.incarnation): None for line in account.lines}
    is_over = (run / "over.json").exists() or (run / "summary.json").exists()
    for life in sorted({**own, **peers}):
        last = own.get(life)
        if last is None:
            yield Unknown("no account", *life, None)
        elif is_over and not last.is_last:
            yield Unknown("cut off", *life, last.time)

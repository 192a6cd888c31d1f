"""Digests of everything that a run's machines must have alike and that does not travel: isthmus, sources, data.

The sources are the files of program and task. They are compared by contents, not by names or times. Nothing is
imported: files are found by their references.

The message by which a command hands a run over to its home: spec, configuration, graph, and participants.

The run folder is made from it on the home machine, below the root of its daemon (`RunRoot`), so a command may be on
any machine that reaches home. The participants are kept in the folder (`cluster.json`), for the next daemon of the
home.

The place of run folders that are requested over the wire: below one folder, the root of a machine's daemon.

A request may name a place below the root, in plain words: no absolute path, no `..`, nothing hidden, no way through a
link or through the folder of another run, and no folder that has anything in it. So the files that a daemon writes on
request, some of them in the request's own words (`config.toml`), never lie where another program would read them. Only
the owner of the machine sets the root.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, final

import msgspec
import xxhash

from isthmus.ops.data.corpus import DataError
from isthmus.programs import FOLDER, SHIPPED_TASKS
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.request import new_folder, reference, sources, spec
from isthmus.programs.engine.request.kept_model import keep
from isthmus.programs.engine.request.new_folder import LOCK
from isthmus.programs.engine.request.own_data import OwnData
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.engine.request.sources import Sources
from isthmus.programs.engine.request.spec import CLUSTER, Spec
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.program_graph import EVALUATOR, REGION, SYNCER
from isthmus.programs.reading.found import contents, find
from isthmus.runtime.errors import ConfigError, shortened
from isthmus.runtime.ids import HOSTS_MAX, LEARNER, LEARNERS_MAX, MachineOwner, Party, Replica, leader, owner_party
from isthmus.runtime.supervision.home_events import Places
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.refusals import remedy

_BLOCK_BYTES: Final = 4 << 20


def digest(program: str, task: str, *, has_own_data: bool = False) -> str:
    """32 hexadecimal digits over the files of two references, and 32 over the data of the shipped task; it reads all of
    them. The first 32 alone where the learners here have data of their own.

    ConfigError if something cannot be read.
    """
    hasher, of_data = xxhash.xxh3_128(), xxhash.xxh3_128()
    for folder in reference.OWN_FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            _add(hasher, path)
    for text in (program, *references_of(task)):
        target = reference.parse(text, "Reading a reference") if ":" in text else None
        if target is not None and target.is_file:
            _add(hasher, Path(target.where))
        if target is not None and reference.without_keywords(text) in SHIPPED_TASKS:
            keywords = target.keywords or {}
            try:
                paths = [] if has_own_data else [*keywords.get("data", ()), *(keywords.get("sets") or {}).values()]
                for source in () if has_own_data else find(paths).files:
                    _add(of_data, Path(source.path))
                for path in contents(Path(keywords[FOLDER])) if FOLDER in keywords else ():
                    _add(hasher, path)
                if keywords.get("router") is not None:
                    _add(hasher, Path(keywords["router"]))
            except DataError as error:
                raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
    return hasher.hexdigest() if has_own_data else f"{hasher.hexdigest()}{of_data.hexdigest()}"


def _add(hasher: xxhash.xxh3_128, path: Path) -> None:
    """Add a file to the digest: name, size and contents."""
    try:
        with open_regular(path) as file:
            hasher.update(f"{path.name}/{path.stat().st_size}".encode())
            while block := file.read(_BLOCK_BYTES):
                hasher.update(block)
    except OSError as error:
        do = "Put the file at the same path on every machine that trains."
        raise ConfigError(f"Reading {path}", "a file that can be read", str(error), remedy(error, do)) from None


PARTS_MAX: Final = 8
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Valid names of a run among the daemons of its machines; an outpost's folder has this name."""
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DO: Final = "Name a folder below it with --run-dir, or let its owner set [runs] folder in machine.toml."


@final
@dataclass(frozen=True, slots=True)
class RunRoot:
    """The folder below which the runs of a daemon are, without links."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None) -> Self:
        """The root that machine.toml names, or else the current folder."""
        return cls(Path(os.path.realpath(folder or Path.cwd())))

    def name_of(self, path: Path, doing: str) -> str:
        """The name of a folder relative to the root; ConfigError if it is not below it."""
        if not path.is_relative_to(self.folder) or path == self.folder:
            raise ConfigError(doing, f"a folder below {self.folder}", str(path), _DO)
        return str(path.relative_to(self.folder))

    def make(self, name: str, program: str, now: datetime, text: str) -> Path:
        """Make the run folder of that name, or, without one, the next free one of the program, with `text` as its
        config.toml; ConfigError for a name that is none, and for a folder that cannot be made."""
        doing = f"Making the run folder {name[:200]!r} below {self.folder}"
        if not name:
            _check_part(program, f"Naming a run folder after the program {program[:200]!r}")
            path = new_folder.choose(None, program, now, self.folder)
        else:
            path = self._place(name, doing)
            new_folder.choose(path, program, now)
        self._check_way(path, doing)
        return new_folder.make(path, text, is_given=bool(name))

    def existing(self, name: str, doing: str) -> Path:
        """The existing folder of that name; ConfigError if there is none."""
        path = self._place(name, doing)
        self._check_links(path, doing)
        if not path.is_dir():
            do = "Copy the run folder there, or name one that is."
            raise ConfigError(doing, f"a folder below {self.folder}", f"{path}, where none is", do)
        return path

    def _place(self, name: str, doing: str) -> Path:
        """The path of a name; ConfigError if the name is invalid."""
        parts = name.split("/")
        if len(parts) > PARTS_MAX:
            raise ConfigError(doing, f"a path of at most {PARTS_MAX} parts", f"{len(parts)} of them", _DO)
        for part in parts:
            _check_part(part, doing)
        return self.folder.joinpath(*parts)

    def _check_way(self, path: Path, doing: str) -> None:
        """ConfigError if the path to a folder contains a symbolic link or a run, or the folder is not empty."""
        self._check_links(path, doing)
        for above in path.parents:
            if above == self.folder:
                break
            if new_folder.has_run(above):
                raise ConfigError(doing, "a folder outside of other runs", f"{path}, in the run {above}", _DO)
        if path.exists() and any(entry.name != LOCK for entry in path.iterdir()):
            raise ConfigError(doing, "a new folder, or an empty one", f"{path}, with something in it", _DO)

    def _check_links(self, path: Path, doing: str) -> None:
        if os.path.realpath(path) != str(path):
            raise ConfigError(doing, "a path without links", f"{path}, which leads to {os.path.realpath(path)}", _DO)


def _check_part(part: str, doing: str) -> None:
    """ConfigError unless `part` is a plain folder name."""
    if not _PART.fullmatch(part):
        expected = "names of letters, digits, '.', '_' and '-', which begin with no '.', between single '/'"
        raise ConfigError(doing, expected, shortened(repr(part), 200), _DO)


MOVABLE: Final = (SYNCER, REGION, EVALUATOR)
"""Roles whose next life may be on another machine; where machines have regions, the syncer of one on those of its own.
"""


@final
@dataclass(frozen=True, slots=True)
class MachineSite:
    """A machine as a run knows it.

    The address of its daemon and its public key, where it has them; the roles that it takes (all, if empty); and the
    declared number of `islands`, of `devices` in each, and the names of their kind: 0 and empty if not declared.
    `region` is the number of its region, None where that is not declared; `owner` whose it is, '' if nobody else has
    to know, and `weight_share_max` the largest share of a merge of its own, or its owner's, None without one.
    """

    name: str
    address: str | None = None
    public_key: str | None = None
    roles: tuple[str, ...] = ()
    islands: int = 0
    devices: int = 0
    kinds: tuple[str, ...] = ()
    region: int | None = None
    owner: str = ""
    weight_share_max: float | None = None

    @classmethod
    def of(cls, machine: Machine, region: int | None = None) -> MachineSite:
        """The site of a machine in a cluster file."""
        device = machine.device
        declared = () if device is None else (machine.islands or 0, machine.devices, (device.kind, *device.names))
        site = cls(machine.name, machine.address, machine.public_key, machine.roles, *declared)
        return replace(site, region=region, owner=machine.owner, weight_share_max=machine.weight_share_max)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> MachineSite:
        """The site that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        return cls(**{**data, **{name: tuple(data[name]) for name in ("roles", "kinds")}})

    @property
    def host(self) -> str:
        """The address at which its hosts listen: that of its daemon."""
        return "127.0.0.1" if self.address is None else self.address.removeprefix("tcp://").rpartition(":")[0]

    def here(self, address: str, learners: int, secret: str = "") -> spec.Here:
        """The description of this machine for its processes."""
        return spec.Here(
            address,
            learners,
            self.name,
            secret,
            islands=self.islands,
            devices=self.devices,
            kinds=self.kinds,
            daemon=self.address or "",
        )

    @property
    def movable(self) -> tuple[str, ...]:
        """The roles that may be moved here; of the syncers of regions those of its own, where that is declared."""
        return tuple(role for role in MOVABLE if self.address and (not self.roles or role in self.roles))


@final
@dataclass(frozen=True, slots=True)
class Sites:
    """The machines of a run: its home, all sites by name, the placement of replicas, and a digest.

    The digest is of the files and data that must be equal on all machines that compute. `term` counts the homes so far;
    `former` is the previous one, which was lost.
    """

    home: str
    sites: Mapping[str, MachineSite]
    placement: Mapping[Replica, str]
    digest: str
    term: int = 1
    former: str = ""

    @classmethod
    def of(cls, home: str, machines: Sequence[Machine], placement: Mapping[Replica, str], digest: str) -> Sites:
        topology = Topology(tuple(machines))
        sites = {machine.name: MachineSite.of(machine, topology.region_of(machine)) for machine in machines}
        return cls(home, sites, placement, digest)

    @property
    def others(self) -> list[MachineSite]:
        """All sites but home."""
        return [site for name, site in self.sites.items() if name != self.home]

    def owners(self, invited: Mapping[str, MachineOwner]) -> dict[str, MachineOwner]:
        """Whose the machines are that have an owner, or a largest share of a merge of their own, by name.

        What an owner may have is said at one of its machines, or the same at several. Of machines that are `invited`
        their invitations say it, where the cluster file does not.
        """
        said = [each for each in self.sites.values() if each.owner or each.weight_share_max is not None]
        sites = {site.name: MachineOwner(site.owner, site.weight_share_max) for site in said}
        both = {**{name: owner for name, owner in invited.items() if name not in sites}, **sites}
        named = [(name, owner.name or name, owner.weight_share_max) for name, owner in both.items()]
        most = {owner: share for _, owner, share in named if share is not None}
        return {
            name: MachineOwner(owner, most.get(owner)) for name, owner, _ in named if owner != name or owner in most
        }

    def parties(self, invited: Mapping[str, Party]) -> dict[str, Party]:
        """Who brought the machines, of those that others have brought.

        An owner has all that the cluster file says are its own, and those that were `invited` as its own; together they
        have slots for the learners that the file places, and for those of the invitations.
        """
        owners = {site.name: owner_party(site.owner) for site in self.sites.values() if site.owner}
        placed = Counter(owners.get(name) for replica, name in self.placement.items() if replica.role == LEARNER)
        parties = {name: Party(party) for name, party in owners.items()}
        for name, party in invited.items():
            if name in owners:
                continue
            is_bounded = party.slots is not None and name not in self.sites
            parties[name] = Party(party.name, (party.slots or 0) + placed[party.name] if is_bounded else None)
        return parties

    @property
    def heirs(self) -> list[MachineSite]:
        """The sites that may be its home: machines that lose the present one look for the next there."""
        return [site for site in self.sites.values() if site.address is not None]

    def moved(self, home: str, sites: Sequence[MachineSite], term: int) -> Sites:
        """The same run with another home, in that term; `sites` are those of today's cluster file.

        Replicas at the former home move to the new one, except learners, which belong to the islands of their machines.
        """
        by_name = {**self.sites, **{site.name: site for site in sites}}
        placement = {
            replica: home if name == self.home and leader(replica).role != LEARNER else name
            for replica, name in self.placement.items()
        }
        return Sites(home, by_name, placement, self.digest, term, self.home if self.home != home else "")

    def offers(self, site: MachineSite) -> tuple[str, ...]:
        """The roles that may be moved to a site; instead of that of regions the replicas of its own, where that is
        declared."""
        if site.region is None:
            return site.movable
        regions = 1 + max(each.region for each in self.sites.values() if each.region is not None)
        hosts = sorted(each for each in self.placement if each.role == REGION)
        own = [str(each) for each in hosts if each.slot % regions == site.region]
        return tuple(name for role in site.movable for name in (own if role == REGION else [role]))

    def computes(self, site: MachineSite, computing: Sequence[str]) -> bool:
        """Whether a host may ever be there that imports the task."""
        there = {leader(replica).role for replica, name in self.placement.items() if name == site.name}
        return not (there | set(self.offers(site))).isdisjoint(computing)

    def listening(self, roles: Mapping[str, int]) -> int:
        """The number of hosts at home that listen, where a run has so many of each role."""
        elsewhere = sum(name != self.home and leader(who).role != LEARNER for who, name in self.placement.items())
        return sum(count for role, count in roles.items() if leader(Replica(role, 0)).role != LEARNER) - elsewhere

    def here(self, secret: Path | None) -> spec.Here:
        """The description of the home machine for its processes; `secret` is its key file, if any.

        A run without keys on a single machine stays on loopback.
        """
        home = self.sites[self.home]
        learners = sum(name == self.home and leader(who).role == LEARNER for who, name in self.placement.items())
        address = home.host if secret is not None or self.others else "127.0.0.1"
        return home.here(address, learners, str(secret or ""))

    def places(self) -> Places:
        """The placement, in the form that a home's core takes."""
        elsewhere = {replica: name for replica, name in self.placement.items() if name != self.home}
        offers = {site.name: self.offers(site) for site in self.others}
        home_offers = self.offers(self.sites[self.home]) or MOVABLE
        return Places(
            home=self.home,
            machines=elsewhere,
            offers=offers,
            home_offers=home_offers,
            term=self.term,
            former=self.former,
        )

    def as_data(self) -> dict[str, Any]:
        placement = {str(replica): name for replica, name in self.placement.items()}
        sites = [asdict(site) for site in self.sites.values()]
        return {"home": self.home, "sites": sites, "placement": placement, "digest": self.digest,
                "term": self.term, "former": self.former}  # fmt: skip

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Sites:
        """The sites that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        sites = [MachineSite.read(site) for site in data["sites"]]
        placement = {Replica.parse(text): str(name) for text, name in data["placement"].items()}
        by_name, term = {site.name: site for site in sites}, int(data["term"])
        return cls(str(data["home"]), by_name, placement, str(data["digest"]), term, str(data["former"]))

    @classmethod
    def load(cls, folder: Path) -> Sites:
        return cls.read(json.loads(read_text(folder / CLUSTER)))

    @classmethod
    def load_former(cls, folder: Path, number: int) -> Sites:
        """The sites of the run when its `number`-th spec was put aside: of a former home, if it has moved since."""
        aside = folder / f"cluster-{number}.json"
        return cls.read(json.loads(read_text(aside))) if aside.exists() else cls.load(folder)

    @classmethod
    def archive(cls, folder: Path, number: int) -> None:
        """Keep the present ones beside the `number`-th spec."""
        write_json(folder / f"cluster-{number}.json", cls.load(folder).as_data())


@final
@dataclass(frozen=True, slots=True)
class Handover:
    """A run that is ready to start, as data. `folder` is the name of its folder below the root of the home's daemon;
    empty for one that the daemon finds a name for. `data`: the table of its data, empty where that is not known.
    `sources`: the files that it is made of, as the command has them."""

    name: str
    folder: str
    config: str
    graph: Mapping[str, Any]
    spec: Mapping[str, Any]
    sites: Sites
    data: Mapping[str, Any] = field(default_factory=dict)
    sources: Sources | None = None

    def as_data(self) -> dict[str, Any]:
        """The data of a message."""
        return {"name": self.name, "folder": self.folder, "config": self.config, "graph": json.dumps(self.graph),
                "spec": dict(self.spec), "cluster": self.sites.as_data(), "data": json.dumps(self.data),
                "sources": None if self.sources is None else msgspec.to_builtins(self.sources)}  # fmt: skip

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Handover:
        """The run that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        sites = Sites.read(data["cluster"])
        name, folder, config = (str(data[key]) for key in ("name", "folder", "config"))
        spec.read(data["spec"])
        graph, table = json.loads(data["graph"]), json.loads(data["data"])
        try:
            files = sources.of_former(data.get("sources"))
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return cls(name, folder, config, graph, data["spec"], sites, dict(table), files)

    def check(self, run_spec: Spec, machine: str, names: Collection[str], doing: str) -> None:
        """ConfigError for a run whose home is not this `machine`, whose name is taken or invalid, that
        has too many hosts, or snapshots at no URL."""
        if self.sites.home != machine:
            do = "Hand a run to its home: the first machine with an address in the cluster file."
            raise ConfigError(doing, f"a run whose home is {machine!r}", shortened(repr(self.sites.home), 100), do)
        if not isinstance(run_spec.run, str) or not RUN_NAME.fullmatch(run_spec.run) or run_spec.run in names:
            name_text = (
                f"{shortened(str(run_spec.run), 200)!r}{', of which there is one' if run_spec.run in names else ''}"
            )
            raise ConfigError(doing, "a run with a name of its own", name_text, "Use one version everywhere.")
        if run_spec.settings.snapshots:
            from isthmus.programs.engine.snapshots.stored import place_of  # Of a run that has a second place.

            if place_of(run_spec.settings.snapshots).is_folder:
                do = "Name a URL: a command names no folder of another machine."
                raise ConfigError(doing, "run.snapshots at a URL", shortened(run_spec.settings.snapshots, 200), do)
        counts = [*run_spec.roles.values(), *run_spec.most.values()]
        is_counted = all(type(count) is int and 0 <= count <= HOSTS_MAX for count in counts)
        slots = max([run_spec.roles.get(LEARNER, 0), *run_spec.most.values()]) if is_counted else 0
        if not is_counted or sum(run_spec.roles.values()) > HOSTS_MAX or slots > LEARNERS_MAX:
            expected = f"at most {LEARNERS_MAX} learners and slots, LEARNERS_MAX, and {HOSTS_MAX} hosts, HOSTS_MAX"
            do = "Ask for fewer learners, and lower run.slots_max."
            raise ConfigError(doing, expected, shortened(", ".join(map(str, counts)), 200), do)

    def make_folder(self, root: RunRoot, zero_ns: int, secret: Path | None, own: OwnData | None = None) -> Path:
        """Make the run folder on the home machine; ConfigError if it cannot be made.

        `zero_ns` is the present time of its clock, `secret` its key file; `own`: what its learners train on, if its
        owner says so.
        """
        folder = root.make(self.folder, self.name, datetime.now(), self.config)
        with new_folder.prepared(folder):
            write_json(folder / "graph.json", self.graph)
            if self.data:
                write_json(folder / DATA, self.data)
            if self.sources is not None:
                sources.write(folder, self.sources)
            keep(folder, spec.read(self.spec).job.task.text)
            write_json(folder / CLUSTER, self.sites.as_data())
            here = replace(self.sites.here(secret), own_data=own)
            spec.write(folder, {**self.spec, "zero_ns": zero_ns, "here": asdict(here)})
        return folder

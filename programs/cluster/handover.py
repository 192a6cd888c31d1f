"""The message by which a command hands a run over to its home: spec, configuration, graph, and participants.

The run folder is made from it on the home machine, below the root of its daemon (`run_root`), so a command may be on
any machine that reaches home. The participants are kept in the folder (`cluster.json`), for the next daemon of the
home.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.cluster.run_root import RUN_NAME, RunRoot
from isthmus.programs.request import new_folder, spec
from isthmus.programs.request.spec import CLUSTER, Spec
from isthmus.programs.snapshots.urls import place_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.placement import Machine
from isthmus.runtime.ids import LEARNER, SYNCER, Replica, leader
from isthmus.runtime.supervision.home_events import Places
from isthmus.runtime.system.files import write_json

HOSTS_MAX: Final = 1024
"""Hosts that a run may have at its start, and slots."""
MOVABLE: Final = (SYNCER, "evaluator")
"""Roles whose next life may be on another machine."""


@final
@dataclass(frozen=True, slots=True)
class Site:
    """A machine as a run knows it.

    The address of its daemon and its public key, where it has them; the roles that it takes (all, if empty); and the
    declared number of `islands`, of `devices` in each, and the names of their kind: 0 and empty if not declared.
    """

    name: str
    address: str | None = None
    public_key: str | None = None
    roles: tuple[str, ...] = ()
    islands: int = 0
    devices: int = 0
    kinds: tuple[str, ...] = ()

    @classmethod
    def of(cls, machine: Machine) -> Site:
        """The site of a machine in a cluster file."""
        device = machine.device
        declared = () if device is None else (machine.islands or 0, machine.devices, (device.kind, *device.names))
        return cls(machine.name, machine.address, machine.public_key, machine.roles, *declared)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Site:
        """The site that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        return cls(**{**data, **{name: tuple(data[name]) for name in ("roles", "kinds")}})

    @property
    def host(self) -> str:
        """The address at which its hosts listen: that of its daemon."""
        return "127.0.0.1" if self.address is None else self.address.removeprefix("tcp://").rpartition(":")[0]

    def here(self, address: str, learners: int, secret: str = "") -> spec.Here:
        """The description of this machine for its processes."""
        return spec.Here(
            address, learners, self.name, secret, islands=self.islands, devices=self.devices, kinds=self.kinds
        )

    @property
    def movable(self) -> tuple[str, ...]:
        """The roles that may be moved here."""
        return tuple(role for role in MOVABLE if self.address and (not self.roles or role in self.roles))


@final
@dataclass(frozen=True, slots=True)
class Sites:
    """The machines of a run: its home, all sites by name, the placement of replicas, and a digest.

    The digest is of the files and data that must be equal on all machines that compute. `term` counts the homes so far;
    `former` is the previous one, which was lost.
    """

    home: str
    sites: Mapping[str, Site]
    placement: Mapping[Replica, str]
    digest: str
    term: int = 1
    former: str = ""

    @classmethod
    def of(cls, home: str, machines: Sequence[Machine], placement: Mapping[Replica, str], digest: str) -> Sites:
        return cls(home, {machine.name: Site.of(machine) for machine in machines}, placement, digest)

    @property
    def others(self) -> list[Site]:
        """All sites but home."""
        return [site for name, site in self.sites.items() if name != self.home]

    @property
    def heirs(self) -> list[Site]:
        """The sites that may be its home: machines that lose the present one look for the next there."""
        return [site for site in self.sites.values() if site.address is not None]

    def moved(self, home: str, sites: Sequence[Site], term: int) -> Sites:
        """The same run with another home, in that term; `sites` are those of today's cluster file.

        Replicas at the former home move to the new one, except learners, which belong to the islands of their machines.
        """
        by_name = {**self.sites, **{site.name: site for site in sites}}
        placement = {
            replica: home if name == self.home and leader(replica).role != LEARNER else name
            for replica, name in self.placement.items()
        }
        return Sites(home, by_name, placement, self.digest, term, self.home if self.home != home else "")

    def computes(self, site: Site, computing: Sequence[str]) -> bool:
        """Whether a host may ever be there that imports the task."""
        there = {leader(replica).role for replica, name in self.placement.items() if name == site.name}
        return not (there | set(site.movable)).isdisjoint(computing)

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
        offers = {site.name: site.movable for site in self.others}
        home_offers = self.sites[self.home].movable or MOVABLE
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
        sites = [Site.read(site) for site in data["sites"]]
        placement = {Replica.parse(text): str(name) for text, name in data["placement"].items()}
        by_name, term = {site.name: site for site in sites}, int(data["term"])
        return cls(str(data["home"]), by_name, placement, str(data["digest"]), term, str(data["former"]))

    @classmethod
    def load(cls, folder: Path) -> Sites:
        return cls.read(json.loads((folder / CLUSTER).read_text()))

    @classmethod
    def load_former(cls, folder: Path, number: int) -> Sites:
        """The sites of the run when its `number`-th spec was put aside: of a former home, if it has moved since."""
        aside = folder / f"cluster-{number}.json"
        return cls.read(json.loads(aside.read_text())) if aside.exists() else cls.load(folder)

    @classmethod
    def put_aside(cls, folder: Path, number: int) -> None:
        """Keep the present ones beside the `number`-th spec."""
        write_json(folder / f"cluster-{number}.json", cls.load(folder).as_data())


@final
@dataclass(frozen=True, slots=True)
class Handover:
    """A run that is ready to start, as data. `folder` is the name of its folder below the root of the home's daemon;
    empty for one that the daemon finds a name for."""

    name: str
    folder: str
    config: str
    graph: Mapping[str, Any]
    spec: Mapping[str, Any]
    sites: Sites

    def as_data(self) -> dict[str, Any]:
        """The data of a message."""
        return {"name": self.name, "folder": self.folder, "config": self.config, "graph": json.dumps(self.graph),
                "spec": dict(self.spec), "cluster": self.sites.as_data()}  # fmt: skip

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Handover:
        """The run that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        sites = Sites.read(data["cluster"])
        name, folder, config = (str(data[key]) for key in ("name", "folder", "config"))
        spec.read(data["spec"])
        return cls(name, folder, config, json.loads(data["graph"]), data["spec"], sites)

    def check(self, told: Spec, machine: str, names: Collection[str], doing: str) -> None:
        """ConfigError for a run with spec `told` whose home is not this `machine`, whose name is taken or invalid, that
        has too many hosts, or snapshots at no URL."""
        if self.sites.home != machine:
            do = "Hand a run to its home: the first machine with an address in the cluster file."
            raise ConfigError(doing, f"a run whose home is {machine!r}", repr(self.sites.home[:100]), do)
        if not isinstance(told.run, str) or not RUN_NAME.fullmatch(told.run) or told.run in names:
            found = f"{str(told.run)[:200]!r}{', of which there is one' if told.run in names else ''}"
            raise ConfigError(doing, "a run with a name of its own", found, "Use one version everywhere.")
        if told.snapshots and (not isinstance(told.snapshots, str) or place_of(told.snapshots).is_folder):
            do = "Name a URL: a command names no folder of another machine."
            raise ConfigError(doing, "run.snapshots at a URL", str(told.snapshots)[:200], do)
        counts = [*told.roles.values(), *told.slots_max.values()]
        is_counted = all(type(count) is int and 0 <= count <= HOSTS_MAX for count in counts)
        if not is_counted or sum(told.roles.values()) > HOSTS_MAX:
            do = "Ask for fewer learners, and lower run.slots_max."
            raise ConfigError(doing, f"at most {HOSTS_MAX} hosts, and slots", ", ".join(map(str, counts))[:200], do)

    def make_folder(self, root: RunRoot, zero_ns: int, secret: Path | None) -> Path:
        """Make the run folder on the home machine; ConfigError if it cannot be made.

        `zero_ns` is the present time of its clock, `secret` its key file.
        """
        folder = root.make(self.folder, self.name, datetime.now(), self.config)
        with new_folder.prepared(folder):
            write_json(folder / "graph.json", self.graph)
            write_json(folder / CLUSTER, self.sites.as_data())
            spec.write(folder, {**self.spec, "zero_ns": zero_ns, "here": asdict(self.sites.here(secret))})
        return folder

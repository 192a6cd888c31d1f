"""What a command hands to the home of a run, in one message: spec, configuration, graph, and who takes part.

The run folder is made from it on the home machine, so a command may be on any machine that reaches home. Who takes part
is kept in the folder (`cluster.json`), for the next daemon of the home.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs import run_folder, spec
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica
from isthmus.runtime.store import write_json
from isthmus.runtime.supervision.home_events import Places
from isthmus.runtime.topology import LEARNER, Machine

CLUSTER: Final = "cluster.json"
MOVABLE: Final = ("syncer", "evaluator")
"""Roles whose next life may be on another machine."""


@final
@dataclass(frozen=True, slots=True)
class Site:
    """A machine as a run knows it: where its daemon listens, if anywhere, its public key, if there are keys, and the
    roles that it takes (any, where none are named)."""

    name: str
    address: str | None = None
    public_key: str | None = None
    roles: tuple[str, ...] = ()

    @classmethod
    def of(cls, machine: Machine) -> Site:
        """The site of a machine in a cluster file."""
        return cls(machine.name, machine.address, machine.public_key, machine.roles)

    @property
    def host(self) -> str:
        """Where its hosts listen: on the address of its daemon."""
        return "127.0.0.1" if self.address is None else self.address.removeprefix("tcp://").rpartition(":")[0]

    @property
    def movable(self) -> tuple[str, ...]:
        """The roles that may be moved here."""
        return tuple(role for role in MOVABLE if self.address and (not self.roles or role in self.roles))


@final
@dataclass(frozen=True, slots=True)
class Sites:
    """Who takes part in a run: its home, all sites by name, which replica is where, and the digest of the files and
    data that those who compute must have alike."""

    home: str
    sites: Mapping[str, Site]
    placement: Mapping[Replica, str]
    digest: str

    @classmethod
    def of(cls, home: str, machines: Sequence[Machine], placement: Mapping[Replica, str], digest: str) -> Sites:
        """Those of a cluster."""
        return cls(home, {machine.name: Site.of(machine) for machine in machines}, placement, digest)

    @property
    def others(self) -> list[Site]:
        """All sites but home."""
        return [site for name, site in self.sites.items() if name != self.home]

    def computes(self, site: Site, computing: Sequence[str]) -> bool:
        """Whether a host may ever be there that imports the task."""
        roles = {replica.role for replica, name in self.placement.items() if name == site.name} | set(site.movable)
        return not roles.isdisjoint(computing)

    def places(self) -> Places:
        """The same, as a home's core takes it."""
        elsewhere = {replica: name for replica, name in self.placement.items() if name != self.home}
        offers = {site.name: site.movable for site in self.others}
        home_offers = self.sites[self.home].movable or MOVABLE
        return Places(home=self.home, machines=elsewhere, offers=offers, home_offers=home_offers)

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        placement = {str(replica): name for replica, name in self.placement.items()}
        sites = [asdict(site) for site in self.sites.values()]
        return {"home": self.home, "sites": sites, "placement": placement, "digest": self.digest}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Sites:
        """The sites that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        sites = [Site(**{**site, "roles": tuple(site["roles"])}) for site in data["sites"]]
        placement = {Replica.parse(text): str(name) for text, name in data["placement"].items()}
        return cls(str(data["home"]), {site.name: site for site in sites}, placement, str(data["digest"]))

    @classmethod
    def load(cls, folder: Path) -> Sites:
        """Those in a run folder."""
        return cls.read(json.loads((folder / CLUSTER).read_text()))


@final
@dataclass(frozen=True, slots=True)
class Handover:
    """A run that is ready to start, as data."""

    name: str
    run_dir: str
    config: str
    graph: Mapping[str, Any]
    spec: Mapping[str, Any]
    sites: Sites

    def as_data(self) -> dict[str, Any]:
        """As a message carries it."""
        return {"name": self.name, "run_dir": self.run_dir, "config": self.config, "graph": json.dumps(self.graph),
                "spec": dict(self.spec), "cluster": self.sites.as_data()}  # fmt: skip

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Handover:
        """The run that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
        sites = Sites.read(data["cluster"])
        name, run_dir, config = (str(data[key]) for key in ("name", "run_dir", "config"))
        spec.read(data["spec"])
        return cls(name, run_dir, config, json.loads(data["graph"]), data["spec"], sites)

    def make_folder(self, zero_ns: int, secret: Path | None) -> Path:
        """Make the run folder on the home machine, whose clock shows `zero_ns`, and which has a file with a `secret`
        key; ConfigError if it cannot be made. A run without keys that is on one machine stays on loopback."""
        folder = run_folder.choose(self.run_dir, self.name, datetime.now())
        doing = f"Making the run folder {folder}"
        home = self.sites.sites[self.sites.home]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / run_folder.CONFIG).write_text(self.config, encoding="utf-8")
            write_json(folder / "graph.json", self.graph)
            write_json(folder / CLUSTER, self.sites.as_data())
            learners = sum(where == home.name and who.role == LEARNER for who, where in self.sites.placement.items())
            address = home.host if secret is not None or self.sites.others else "127.0.0.1"
            here = spec.Here(address, learners, home.name, str(secret or ""))
            spec.write(folder, {**self.spec, "zero_ns": zero_ns, "here": asdict(here)})
        except OSError as error:
            do = "Name a folder with --run-dir that the daemon of that machine can write to."
            raise ConfigError(doing, "a folder that can be written to", str(error), do) from None
        return folder

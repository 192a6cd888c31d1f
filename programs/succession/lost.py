"""Whether the home of a run is lost, and which term the next home begins: from the answers of machines.

Pure: the machines are asked elsewhere. One yes is enough to refuse: a machine that has the run as its home, or one that
takes part in it and hears its home.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from isthmus.programs.cluster.handover import Site
from isthmus.programs.succession.folder import Estate
from isthmus.runtime.errors import ConfigError, Fault

LOST: Final = "a run whose home was lost"


class Standing(NamedTuple):
    """A machine's knowledge of a run's home: name, term, whether it is heard; '', 0, False if it has no part."""

    home: str
    term: int
    is_heard: bool


def check_nowhere(run: str, going_on: Mapping[str, Collection[str]], doing: str) -> None:
    """ConfigError if a run has its home on one of some machines; `going_on` names the runs that do, by machine."""
    alive = next((machine for machine, names in going_on.items() if run in names), None)
    if alive is not None:
        do = f"Leave it there, or end the daemon of {alive!r} first."
        raise ConfigError(doing, LOST, f"{run}, which goes on under {alive!r}", do)


def next_home(name: str, estate: Estate, sites: Sequence[Site], doing: str) -> Site:
    """The machine of that name among `sites`, those of a cluster file; ConfigError unless it has an address, for the
    other machines look for their home there, and unless that file has a machine of the run."""
    found = next((site for site in sites if site.name == name and site.address), None)
    if found is None:
        do = "Write [[machine]] with that name and its address into the cluster file, or choose another --home."
        raise ConfigError(doing, f"{name!r} with an address in the cluster file", "none", do)
    names = [site.name for site in sites]
    if not set(names) & set(estate.machines):
        expected = f"a run of the machines in the cluster file, {', '.join(names)}"
        do = "Name the cluster file of that run, or another run."
        raise ConfigError(doing, expected, f"{estate.told.run}, of {', '.join(estate.machines)}", do)
    return found


def to_ask(name: str, estate: Estate, sites: Sequence[Site]) -> list[Site]:
    """The machines that have had a part in a run, but for its lost home and the next one, `name`."""
    known = {**estate.sites.sites, **{site.name: site for site in sites}}
    return [known.get(each, Site(each)) for each in estate.machines if each not in (name, estate.sites.home)]


def next_term(estate: Estate, standings: Mapping[str, Standing], doing: str) -> int:
    """The term of the next home, after all known ones; ConfigError, naming the machines, if any hears the present."""
    do = "Wait for its end, or end its daemon. If it was lost just now, try again."
    faults = [
        Fault(doing, LOST, f"its home {each.home!r}, which {name!r} hears", do)
        for name, each in standings.items()
        if each.is_heard
    ]
    if faults:
        raise ConfigError.of(faults)
    return 1 + max((estate.term, *(each.term for each in standings.values())))

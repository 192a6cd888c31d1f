"""Whether a machine reaches the other machines of a run, besides its home: tried before it takes part.

A machine that joins is linked to the home, and may yet reach no other: behind a tunnel that leads to the home, a wall,
or a network of containers. Its learners would step, be cut off, and never be merged. So a home says with its `check`
where hosts are that every learner needs, and the machine dials the porters there. Hosts of regions, and those that
only evaluate, are not needed to be merged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from isthmus.programs.engine.cluster.handover import Sites
from isthmus.programs.program_graph import EVALUATOR, REGION
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import Replica, leader, takes_island
from isthmus.runtime.wire import porter_relay

SECONDS_MAX: Final = 5.0
"""For a way to one machine; all are tried at once."""
WAYS_MAX: Final = 64
UNREACHED: Final = "unreached"
"""The field of an answer with the faults; it is no refusal, because a way may be there a moment later."""


class UnreachedError(ConfigError):
    """A machine lacks a way that its learners would need."""


def needed(placed: Iterable[tuple[Replica, str]], sites: Sites, home: str) -> list[list[Any]]:
    """[machine, address, hosts] of the machines beside `home` that have hosts which every learner needs, as `placed`
    says, by name; those without an address cannot be dialled at all."""
    addresses = {name: site.address for name, site in sites.sites.items()}
    hosts: dict[str, list[str]] = {}
    for replica, name in sorted(placed):
        if name != home and not takes_island(replica) and leader(replica).role not in (EVALUATOR, REGION):
            hosts.setdefault(name, []).append(str(replica))
    return [[name, addresses.get(name) or "", hosts[name]] for name in sorted(hosts)]


async def faults(ways: Any, own: str, doing: str) -> list[Fault]:
    """What is wrong with the `needed` ways from the machine `own`; ValueError or TypeError for what are none."""
    rows = [(str(name), str(address), ", ".join(map(str, hosts))) for name, address, hosts in list(ways)[:WAYS_MAX]]
    reasons = await asyncio.gather(*(_refusal(address) for name, address, _ in rows if name != own))
    tried = zip((row for row in rows if row[0] != own), reasons, strict=True)
    return [_fault(*row, reason, doing) for row, reason in tried if reason]


def told(answer: Mapping[str, Any]) -> list[Fault]:
    """The faults in a machine's answer to a `check`, of ways that it lacks."""
    return [Fault(*map(str, fault)) for fault in answer.get(UNREACHED, [])]


async def _refusal(address: str) -> str:
    """Why no porter answers at an address; empty where one does."""
    if not address:
        return "it has no address"
    try:
        await asyncio.to_thread(porter_relay.check, address.removeprefix("tcp://"), SECONDS_MAX)
    except OSError as error:
        return str(error)
    return ""


def _fault(name: str, address: str, hosts: str, reason: str, doing: str) -> Fault:
    expected = f"a way to {name}, which has {hosts}, at {address or 'an address'}"
    do = f"Let this machine reach {name} there (ssh -L for a port of loopback), or have {hosts} at the home."
    return Fault(doing, expected, reason, do)

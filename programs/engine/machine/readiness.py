"""Whether all machines of a run are there and take it, before anything starts: checked by its home, all faults at once.

A machine with an address is called there, and then links itself to the home; one without has linked itself before. Each
is asked what it permits; one that will compute also compares its data. The result comes in time to answer a command
that waits for it (`client.patience`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, final

from isthmus.programs.engine.cluster import handover
from isthmus.programs.engine.cluster.handover import MachineSite, Sites
from isthmus.programs.engine.machine import ways_to_others
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.links import HomeAddress, MachineLinks
from isthmus.programs.job import Job
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import takes_island
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring

LINK_SECONDS_MAX: Final = 8.0
"""Time limit for a called machine to link itself."""
CHECK_SECONDS_MAX: Final = 60.0
"""Time limit for a machine to read its data."""


@final
@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A request to one machine: link itself to `home`, and answer `check`."""

    site: MachineSite
    home: HomeAddress
    check: Message


def to_take_part(sites: Sites, home: str, program: str, task: str, computing: list[str]) -> list[LinkRequest]:
    """The requests of `home` to the machines of a run before it starts: whether they take program and task.

    Machines whose hosts may compute, by their roles, also compare sources and data.
    """
    at_home = sites.sites[sites.home]
    here, check = HomeAddress(home, str(at_home.address), at_home.public_key or ""), {"program": program, "task": task}
    needed = ways_to_others.needed(sites.placement.items(), sites, home)
    with_learners = {name for replica, name in sites.placement.items() if takes_island(replica)}

    def asked(site: MachineSite) -> Message:
        digest = sites.digest if sites.computes(site, computing) else ""
        return {"type": "check", **check, "digest": digest, "ways": needed if site.name in with_learners else []}

    return [LinkRequest(site, here, asked(site)) for site in sites.others]


async def check_machines(
    links: MachineLinks, requests: list[LinkRequest], keys: Keyring | None
) -> tuple[list[Fault], dict[str, str]]:
    """The faults of all machines together; and by machine the digests of the script, where there is one that they have
    looked at."""
    async with asyncio.TaskGroup() as group:
        tasks = {each.site.name: group.create_task(answer_of(links, each, keys)) for each in requests}
    faults = [fault for task in tasks.values() for fault in task.result()[0]]
    digests = {name: str(task.result()[1].get("script", "")) for name, task in tasks.items()}
    return faults, {name: digest for name, digest in digests.items() if digest}


async def check_sources(job: Job, wanted: str, doing: str) -> None:
    """ConfigError if this machine's sources and data differ from the run's digest `wanted`; '' for none needed."""
    digest = await asyncio.to_thread(handover.digest, job.program, job.task.text)
    if wanted not in ("", digest):
        do = "Put the same isthmus, program, task and data here. To go on with others, stop the run once its home is "
        do += "here, change them, and type isthmus train --resume RUN --cluster FILE --accept-changes."
        raise ConfigError(doing, f"the sources and data of the run, {wanted[:8]}", f"others, {digest[:8]}", do)


async def answer_of(
    links: MachineLinks, request: LinkRequest, keys: Keyring | None
) -> tuple[tuple[Fault, ...], Message]:
    """The faults of one machine, and its answer, which is empty where there are any."""
    try:
        await reach(links, request, keys)
        answer = await links.request(request.site.name, request.check, CHECK_SECONDS_MAX)
    except ConfigError as error:
        return tuple(error.faults), {}
    unreached = ways_to_others.told(answer)
    return tuple(unreached), {} if unreached else answer


async def reach(links: MachineLinks, request: LinkRequest, keys: Keyring | None) -> None:
    """See to it that a machine is linked; ConfigError if it is not."""
    site, home = request.site, request.home
    if links.is_up(site.name):
        return
    if keys is not None and (site.public_key is not None or not keys.admits(site.name)):
        key = site.public_key or "KEY"
        if keys.name_of(key) != site.name:
            doing, expected = f"Waiting for the machine {site.name!r}", f"a key of it that {home.name!r} admits"
            do = f"Type on {home.name}: isthmus admit {site.name} {key}, or: isthmus invite {site.name}"
            raise ConfigError(doing, expected, "none" if site.public_key is None else f"that {key} is not", do)
    if site.address is not None:
        message = {"type": "call", "home": home.as_data()}
        daemon = DaemonClient(site.name, site.address, keys, site.public_key or "")
        await asyncio.to_thread(daemon.find, message)
    if not await links.wait_for(site.name, LINK_SECONDS_MAX if site.address is not None else 0.0):
        do = f"Start it there: isthmus join {home.address} --name {site.name}"
        if site.address is not None:
            do = f"Look whether {home.address}, the address of {home.name!r}, can be reached from there."
        raise ConfigError(f"Waiting for the machine {site.name!r}", f"a link to {home.name!r}", "none", do)

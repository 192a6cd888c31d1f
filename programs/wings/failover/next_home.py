"""Makes this machine the home of a run whose home was lost: from its folder here, or from the snapshots in its store.

The machines report whether the home is lost, and `takeover` decides the consequences. Nothing is changed before, and
from there on nothing is waited for, so no other message comes between.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, final

from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.machine.absent_homes import LATE, HomeView, lonely_seconds
from isthmus.programs.engine.machine.inherited import inherit
from isthmus.programs.engine.machine.links import UP_SECONDS, HomeAddress, MachineLinks
from isthmus.programs.engine.machine.outposts import NOTE
from isthmus.programs.engine.machine.readiness import LinkRequest, check_sources, reach
from isthmus.programs.engine.machine.run import UNABLE, told_of, unable
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.run.resume import aside
from isthmus.programs.engine.run.standstill import FOR_EVER
from isthmus.programs.engine.snapshots.keeping import FetchedSnapshot, begin_term
from isthmus.programs.engine.snapshots.stored import StorePlace
from isthmus.programs.wings.failover import takeover as failover
from isthmus.programs.wings.failover import takeover as rules
from isthmus.programs.wings.failover.takeover import TakeoverState
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring


class _Standing(NamedTuple):
    """The next term of a run, the machines that cannot be reached, with reasons, and for how many nanoseconds hosts may
    have lived on others since the files of the run were written."""

    term: int
    missing: dict[str, str]
    elsewhere_ns: int


STANDING_SECONDS_MAX: Final = 5.0
"""Time limit for a machine's answer about a home, which needs no reading of data."""
HEARD_TRIES: Final = 3
"""How often machines are asked whether they hear the home of a run: they need UP_SECONDS to miss it."""


@final
class NextHome(DaemonService):
    """Makes a machine the next home of runs."""

    messages = MappingProxyType({"resume": "resume", "restore": "restore"})

    def start(self, machine: ServedMachine) -> None:
        self._machine, self._name, self._root = machine, machine.name, machine.root
        self._doing = f"Making {machine.name!r} the home of a run"

    async def resume(self, message: Message) -> Message:
        """Resume from a folder on this machine; ConfigError if that is impossible."""
        takeover = rules.read(self._root.existing(str(message["run"]), self._doing), self._doing)
        standing = await self._next_term(takeover, message)
        return self._succeed(rules.read(takeover.folder, self._doing), message, standing)

    async def restore(self, message: Message) -> Message:
        """Resume from a store, in a new folder; ConfigError if that is impossible, and then the folder is removed."""
        store = rules.place(str(message["url"]), self._doing)
        with aside(self._root.folder, self._doing) as fresh:
            snapshot = await fetched_into(store, fresh, self._doing)
            standing = await self._next_term(rules.read(fresh, self._doing), message)
            name, run = str(message["run"]), snapshot.head.run
            home = self._root.folder / name
            await asyncio.to_thread(begin_term, store, snapshot, fresh, home, DISK, self._doing)
            rules.check_nowhere(run, {self._name: self._machine.run_names()}, self._doing)  # As in `_next_term`.
            folder = rules.settled(snapshot, fresh, self._root, name)
        try:
            return self._succeed(rules.read(folder, self._doing), message, standing)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def _next_term(self, takeover: TakeoverState, message: Message) -> _Standing:
        """What the other machines say of a run whose home was lost.

        ConfigError if a machine of the run hears its home, or refuses to take part, or if this one may not run it.
        """
        run, job, name = takeover.run_spec.run, takeover.run_spec.job, self._name
        going_on = {str(machine): list(map(str, names)) for machine, names in dict(message["going_on"]).items()}
        rules.check_nowhere(run, {**going_on, name: self._machine.run_names()}, self._doing)
        sites = _sites(message)
        me = rules.next_home(name, takeover, sites, self._doing)
        computes = takeover.sites.computes(me, takeover.run_spec.computing)
        self._machine.permit(job.program, job.task.text, run, computes=computes)
        await check_sources(job, takeover.sites.digest, self._doing)
        here = HomeAddress(name, str(me.address), me.public_key or "")
        check = {"type": "check", "program": job.program, "task": job.task.text, "digest": "", "run": run}
        requests = [LinkRequest(site, here, check) for site in rules.to_ask(name, takeover, sites)]
        own = name, lambda: self._machine.neighbours.outposts.standing(run, name)
        views, missing = await standings(self._machine.neighbours.links, requests, self._machine.keys, own)
        # Another request may have taken it meanwhile.
        rules.check_nowhere(run, {name: self._machine.run_names()}, self._doing)
        # What cannot be reached may live, as long as it does without its home.
        elsewhere_ns = round(LATE * lonely_seconds(takeover.run_spec) * 1e9) if missing else 0
        is_held = any(view.home for view in views.values())
        term = rules.next_term(takeover, views, self._doing)
        return _Standing(term, missing, FOR_EVER if is_held else elsewhere_ns)

    def _succeed(self, takeover: TakeoverState, message: Message, standing: _Standing) -> Message:
        """Become the home of a run, with its hosts on this machine; ConfigError on failure."""
        run, folder, outposts = takeover.run_spec.run, takeover.folder, self._machine.neighbours.outposts
        term = standing.term
        former = outposts.release(run)
        moved = takeover.sites.moved(self._name, _sites(message), term)
        rules.check_data(moved, former, has_own_data=outposts.own_data.is_used, doing=self._doing)
        try:
            rules.write(takeover, moved, self._machine.config.secret, former, elsewhere_ns=standing.elsewhere_ns)
            if former is not None:
                inherit(folder, former)
            self._machine.hold_next(folder, told_of(folder, self._doing), moved)
        except BaseException as error:
            if former is not None:
                outposts.adopt(former)
            if not isinstance(error, UNABLE):
                raise
            raise unable(self._doing, error) from error
        if former is not None:
            (former / NOTE).unlink(missing_ok=True)
        return {"type": "taken", "run": str(folder), "name": run, "term": term, "missing": standing.missing}


async def standings(
    links: MachineLinks, requests: list[LinkRequest], keys: Keyring | None, own: tuple[str, Callable[[], HomeView]]
) -> tuple[dict[str, HomeView], dict[str, str]]:
    """Each machine's knowledge of a run's home, by name, `own` included; and the reasons of unreachable machines.

    ConfigError with the others' refusals. They are asked again while one hears the home, which it may not have missed
    yet.
    """
    name, here = own
    for left in reversed(range(HEARD_TRIES)):
        views, missing = await _standings(links, requests, keys)
        views[name] = here()
        if not left or not any(each.is_heard for each in views.values()):
            break
        await asyncio.sleep(UP_SECONDS)
    return views, missing


async def _standings(
    links: MachineLinks, requests: list[LinkRequest], keys: Keyring | None
) -> tuple[dict[str, HomeView], dict[str, str]]:
    views, missing, faults = dict[str, HomeView](), dict[str, str](), list[Fault]()

    async def one(each: LinkRequest) -> None:
        try:
            await reach(links, each, keys)
        except ConfigError as error:
            missing[each.site.name] = str(error.faults[0].found)
            return
        try:
            answer = await links.request(each.site.name, each.check, STANDING_SECONDS_MAX)
            views[each.site.name] = HomeView(str(answer["home"]), int(answer["term"]), bool(answer["is_heard"]))
        except ConfigError as error:
            faults.extend(error.faults)

    async with asyncio.TaskGroup() as group:
        for each in requests:
            group.create_task(one(each))
    if faults:
        raise ConfigError.of(faults)
    return views, missing


async def fetched_into(store: StorePlace, folder: Path, doing: str) -> FetchedSnapshot:
    """Fetch a snapshot with `failover.fetched`, in a thread, which cannot be stopped.

    If the caller is cancelled, the folder is removed once the thread has ended.
    """
    work = asyncio.get_running_loop().run_in_executor(None, failover.fetched, store, folder, doing)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: _take_away(done, folder))
        raise


def _take_away(done: asyncio.Future[FetchedSnapshot], folder: Path) -> None:
    done.exception()  # Retrieved, so that asyncio does not report it.
    shutil.rmtree(folder, ignore_errors=True)


def _sites(message: Message) -> list[MachineSite]:
    return [MachineSite.read(site) for site in message["sites"]]

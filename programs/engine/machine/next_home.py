"""Makes this machine the home of a run whose home was lost: from its folder here, or from the snapshots in its store.

The machines report whether the home is lost (`readiness`), and `failover` decides the consequences. Nothing is
changed before, and from there on nothing is waited for, so no other message comes between.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, Protocol, final

from isthmus.programs.engine.cluster.handover import MachineSite, RunRoot, Sites
from isthmus.programs.engine.machine import failover
from isthmus.programs.engine.machine.failover import TakeoverState, inherit
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.engine.machine.neighbours import Neighbours
from isthmus.programs.engine.machine.outposts import NOTE
from isthmus.programs.engine.machine.readiness import LinkRequest, check_sources, fetched_into, standings
from isthmus.programs.engine.machine.run import UNABLE, told_of, unable
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.engine.run.resume import aside
from isthmus.programs.engine.run.standstill import FOR_EVER
from isthmus.programs.engine.snapshots.keeping import begin_term
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring


class RunTakeover(Protocol):
    """Takes over a run whose home this machine has become, by its folder; raises one of UNABLE on failure."""

    def __call__(self, folder: Path, run_spec: Spec, sites: Sites) -> None: ...


class _Standing(NamedTuple):
    """The next term of a run, the machines that cannot be reached, with reasons, and for how many nanoseconds hosts may
    have lived on others since the files of the run were written."""

    term: int
    missing: dict[str, str]
    elsewhere_ns: int


@final
class NextHome:
    """Makes the machine `name` the next home of runs; run folders are below `root`, `secret` is its key file, if any.

    `permit` raises ConfigError for a program, task and run that are not permitted here; `runs` returns the names of the
    runs whose home this machine is.
    """

    def __init__(
        self,
        name: str,
        root: RunRoot,
        secret: Path | None,
        keys: Keyring | None,
        neighbours: Neighbours,
        *,
        permit: Callable[[str, str, str], None],
        runs: Callable[[], Collection[str]],
        hold: RunTakeover,
    ) -> None:
        self._name, self._root, self._secret, self._keys, self._neighbours = name, root, secret, keys, neighbours
        self._permit, self._runs, self._hold = permit, runs, hold
        self._doing = f"Making {name!r} the home of a run"

    async def resume(self, message: Message) -> Message:
        """Resume from a folder on this machine; ConfigError if that is impossible."""
        takeover = failover.read(self._root.existing(str(message["run"]), self._doing), self._doing)
        standing = await self._next_term(takeover, message)
        return self._succeed(failover.read(takeover.folder, self._doing), message, standing)

    async def restore(self, message: Message) -> Message:
        """Resume from a store, in a new folder; ConfigError if that is impossible, and then the folder is removed."""
        store = failover.place(str(message["url"]), self._doing)
        with aside(self._root.folder, self._doing) as fresh:
            snapshot = await fetched_into(store, fresh, self._doing)
            standing = await self._next_term(failover.read(fresh, self._doing), message)
            name, run = str(message["run"]), snapshot.head.run
            home = self._root.folder / name
            await asyncio.to_thread(begin_term, store, snapshot, fresh, home, DISK, self._doing)
            failover.check_nowhere(run, {self._name: self._runs()}, self._doing)  # As in `_next_term`.
            folder = failover.settled(snapshot, fresh, self._root, name)
        try:
            return self._succeed(failover.read(folder, self._doing), message, standing)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def _next_term(self, takeover: TakeoverState, message: Message) -> _Standing:
        """What the other machines say of a run whose home was lost.

        ConfigError if a machine of the run hears its home, or refuses to take part, or if this one may not run it.
        """
        run, job, name = takeover.run_spec.run, takeover.run_spec.job, self._name
        self._permit(job.program, job.task.text, run)
        going_on = {str(machine): list(map(str, names)) for machine, names in dict(message["going_on"]).items()}
        failover.check_nowhere(run, {**going_on, name: self._runs()}, self._doing)
        sites = _sites(message)
        me = failover.next_home(name, takeover, sites, self._doing)
        await check_sources(job, takeover.sites.digest, self._doing)
        here = HomeAddress(name, str(me.address), me.public_key or "")
        check = {"type": "check", "program": job.program, "task": job.task.text, "digest": "", "run": run}
        requests = [LinkRequest(site, here, check) for site in failover.to_ask(name, takeover, sites)]
        own = name, lambda: self._neighbours.outposts.standing(run, name)
        views, missing = await standings(self._neighbours.links, requests, self._keys, own)
        failover.check_nowhere(run, {name: self._runs()}, self._doing)  # Another request may have taken it meanwhile.
        # What cannot be reached may live, as long as it does without its home.
        elsewhere_ns = round(failover.LATE * failover.lonely_seconds(takeover.run_spec) * 1e9) if missing else 0
        is_held = any(view.home for view in views.values())
        term = failover.next_term(takeover, views, self._doing)
        return _Standing(term, missing, FOR_EVER if is_held else elsewhere_ns)

    def _succeed(self, takeover: TakeoverState, message: Message, standing: _Standing) -> Message:
        """Become the home of a run, with its hosts on this machine; ConfigError on failure."""
        run, folder, outposts = takeover.run_spec.run, takeover.folder, self._neighbours.outposts
        term = standing.term
        former = outposts.release(run)
        moved = takeover.sites.moved(self._name, _sites(message), term)
        try:
            failover.write(takeover, moved, self._secret, former, elsewhere_ns=standing.elsewhere_ns)
            if former is not None:
                inherit(folder, former)
            self._hold(folder, told_of(folder, self._doing), moved)
        except BaseException as error:
            if former is not None:
                outposts.adopt(former)
            if not isinstance(error, UNABLE):
                raise
            raise unable(self._doing, error) from error
        if former is not None:
            (former / NOTE).unlink(missing_ok=True)
        return {"type": "taken", "run": str(folder), "name": run, "term": term, "missing": standing.missing}


def _sites(message: Message) -> list[MachineSite]:
    return [MachineSite.read(site) for site in message["sites"]]

"""A machine's daemon and the daemons of other machines: links in both directions, and their messages.

Here runs that have their home on this machine meet the outposts that they have elsewhere, and the outposts on this
machine their homes. A machine's messages count for that machine only: with keys, its key identifies it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, final

from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import ways_to_others
from isthmus.programs.engine.machine.followed_runs import RUNNING, FollowedRuns, FormerRuns
from isthmus.programs.engine.machine.island_parts import IslandPart, IslandParts
from isthmus.programs.engine.machine.links import (
    EXPELLED,
    LINK,
    RESPONSE,
    HomeAddress,
    HomeHandler,
    HomeLink,
    MachineLinks,
)
from isthmus.programs.engine.machine.outposts import RESUMED, SUPERSEDED, UNSTATIONED, Guest, Outposts
from isthmus.programs.engine.machine.run import CHECK_SECONDS_MAX, MachineRun
from isthmus.runtime.daemon.outpost import REPORT, of_orders, over, read_report
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.ids import LIVES_MAX
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.home_events import Taken
from isthmus.runtime.supervision.messages import Orders, Stamp
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_curve import UNADMITTED, WORDS
from isthmus.runtime.wire.security_keys import Keyring

ERROR_LENGTH_MAX: Final = 500
FORMER_MAX: Final = 100
"""Runs that are over whose outcomes a daemon keeps."""
LEAVE: Final = "leave"
WAYS_SECONDS: Final = 30.0
"""After which a machine that lacks a way to another one of the run is asked again."""
PARTING_SECONDS: Final = 0.25
"""For the last message to leave this process; without it a home takes this machine for lost 20 s later."""


@final
class Neighbours:
    """The other machines of a daemon.

    Arguments:
        loop: that of the daemon.
        name: this machine.
        folder: its state is below.
        config: what the machine permits.
        keys: its own and the admitted ones; None without.
        runs: returns the runs that have their home here.
        send: sends a message to a peer of the control server.
        caller: returns the machine whose message is being handled, by its key; None without keys.
        tell: gets lines for people.
        on_change: called when an outpost is added or removed.
        on_expelled: called with the name of a home that has expelled this machine, and the runs that it is taken away
            from.
        on_loop: called with the name of a machine that is the daemon of a loop, at each of its announcements.
        home_handler: returns what answers a message of a home that is about no run.
        guest: the process of a user's loop that is the only host here, if there is one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        folder: Path,
        config: MachineConfig,
        keys: Keyring | None,
        *,
        runs: Callable[[], Iterable[MachineRun]],
        send: Callable[[bytes, Message], None],
        caller: Callable[[], str | None],
        tell: Callable[[str], None],
        on_change: Callable[[], None],
        on_expelled: Callable[[str, list[str]], None],
        on_loop: Callable[[str], None],
        home_handler: Callable[[str], HomeHandler | None],
        guest: Guest | None = None,
    ) -> None:
        self.links = MachineLinks(loop, send)
        self.islands: int | None = None
        self.own_part: IslandPart | None = None
        self._parts = IslandParts(self.links.is_up)
        self._loop, self._name, self._keys, self._is_far = loop, name, keys, config.is_far
        self._runs, self._send, self._caller = runs, send, caller
        self._tell, self._on_expelled, self._home_handler = tell, on_expelled, home_handler
        self._homes: dict[str, HomeLink] = {}
        self._expelled: dict[str, str] = {}
        self._joining: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.followed = FollowedRuns() if config.until_over else None
        """Of a daemon that ends with its runs."""
        self.former = FormerRuns(FORMER_MAX)
        self._on_loop = on_loop
        self._first_loop = ""
        """The loop that the model of a run came from: it has the first slot, before others join."""
        self._judge = ""
        """The loop that evaluates."""
        self.set_aside: set[str] = set()
        """The runs of this home with which its next daemon goes on."""
        self._joined = ""
        """The identity of the home that this machine has joined."""
        self.outposts = Outposts(
            loop,
            name,
            folder,
            config,
            tell=tell,
            on_change=on_change,
            link=self.link,
            is_operator=lambda key: keys is None or key in keys.operators,
            at_home=self._called,
            guest=guest,
        )
        self.handlers: Mapping[str, Callable[[bytes, Message], None]] = {
            LINK: self._linked,
            LEAVE: self._left,
            REPORT: self._reported,
            RESPONSE: self._responded,
            UNSTATIONED: self._unstationed,
            SUPERSEDED: self._superseded,
        }

    # -- homes of others -----------------------------------------------------------------------------------------------

    def link(self, home: HomeAddress) -> HomeLink:
        """The link to a home; dials it if there is none yet."""
        home_link = self._homes.get(home.identity)
        if home_link is None:
            link = HomeLink(
                self._loop,
                home,
                self._keys,
                describe=lambda: self._described(home),
                orders=self._ordered,
                answer=self._answer,
                on_refused=self._not_linked,
                is_far=self._is_far,
            )
            home_link = self._homes[home.identity] = link
        return home_link

    async def _answer(self, home: HomeAddress, message: Message) -> Message:
        """The answer to a home's request; ConfigError for a refusal."""
        handler = self._home_handler(str(message["type"]))
        return await (handler or self.outposts.answer)(home, message)

    def join(
        self,
        home: HomeAddress,
        islands: int,
        part: IslandPart | None = None,
        *,
        locate: Callable[[], str] | None = None,
    ) -> HomeLink:
        """Offer islands to the runs of a home, from now on; or this machine's part of one island. `locate` returns the
        address of the home by now."""
        self.islands, self.own_part, self._joined = islands, part, home.identity
        link = self.link(home)
        if locate is not None:
            link.locate_by(locate)
        return link

    def put_first(self, loop: str) -> None:
        """Let a loop have the first slot of a run, before others join; '': let all join."""
        self._first_loop = loop

    def _not_linked(self, home: HomeAddress, reason: str) -> None:
        """Tell people once why a home that has runs here cannot be reached; one that is joined tells it itself."""
        if home.identity != self._joined and (home.identity, reason) not in self._told:
            self._told.add((home.identity, reason))
            key = "" if self._keys is None else self._keys.pair.public
            do = f"; type there: isthmus admit {self._name} {key}" if reason == UNADMITTED else ""
            self._tell(f"not linked to {home.name} at {home.address}: {WORDS[reason]}{do}")

    def close(self) -> None:
        """Hang up everywhere."""
        self.outposts.close()
        for link in self._homes.values():
            link.close()

    def _described(self, home: HomeAddress) -> Message:
        is_joined = home.identity == self._joined
        part = self.own_part.as_data() if self.own_part is not None and is_joined else None
        offers = {"islands": self.islands if is_joined else None, "part": part}
        follows = [] if self.followed is None else self.followed.of(home.identity)
        guest = self.outposts.guest
        loop = {"loop": guest is not None, "evaluates": guest is not None and guest.evaluates}
        told = {"runs": self.outposts.runs(home), "error_texts": self.outposts.error_texts, "far": self._is_far}
        return {"name": self._name, **told, "follows": follows, **loop, **offers}

    def _ordered(self, link: HomeLink, message: Message) -> None:
        if message["type"] == EXPELLED:
            runs = self.outposts.runs(link.home)  # Before they end.
            self._part_from(link)
            self._on_expelled(link.home.name, runs)
        elif message["type"] == "refused":
            link.refuse([Fault(*fault) for fault in message["faults"]])
        elif message["type"] == "linked":
            link.name_home(str(message["name"]))
            outcomes = {str(run): str(outcome) for run, outcome in dict(message["outcomes"]).items()}
            self.note(link.home.identity, outcomes)
            if self.outposts.guest is not None:
                self.outposts.guest.choose(is_chosen=bool(message.get("evaluates")))
        else:
            self.outposts.on_message(link, message)

    def note(self, home: str, outcomes: Mapping[str, str]) -> None:
        """Note what a home, by its identity, says of its runs."""
        if self.followed is not None:
            self.followed.note(home, outcomes)

    def _part_from(self, link: HomeLink) -> None:
        """Leave all runs of a home, and close its link."""
        self.outposts.end_of(link.home)
        self._homes.pop(link.home.identity, None)
        link.close()

    # -- machines that are linked here ---------------------------------------------------------------------------------

    def expel(self, name: str) -> int:
        """Remove a machine from all runs here, and this one from all of its; returns the number of runs that it left.

        Idempotent.
        """
        for link in [link for link in self._homes.values() if link.home.name == name]:
            self._part_from(link)
        self._expelled[self.links.instance(name)] = name
        count = self._take_away(name, EXPELLED)
        self.links.send(name, {"type": EXPELLED})
        self.links.drop(name)
        return count

    def leave(self, seconds_max: float) -> None:
        """Let the hosts here give what they have within so many seconds, and end; `part` follows."""
        self.outposts.leave(seconds_max)

    def end(self) -> None:
        """End the hosts here at once; `part` follows."""
        self.outposts.end()

    def part(self) -> float:
        """Tell all homes that this machine has left; returns the seconds that this takes on the way."""
        for link in self._homes.values():
            link.part({"type": LEAVE})
        return PARTING_SECONDS if self._homes else 0.0

    def _take_away(self, name: str, how: Taken) -> int:
        runs = [run for run in self._runs() if name in run.daemon.home.fleet.others]
        for run in runs if name == self._judge else ():
            run.log(
                f"machine {name} evaluates no more: nothing is evaluated, unless another loop with evaluate= is there"
            )
        for run in runs:
            for each in self._parts.together(name):  # The rest of its island joins again when it is whole again.
                run.log(f"machine {each} {how if each == name else 'left'}")
                run.daemon.take_away(each, how if each == name else "left")
        return len(runs)

    def _left(self, peer: bytes, message: Message) -> None:
        """A machine leaves all runs, because its daemon ends."""
        name = self._name_of(peer)
        if name is not None:
            self._tell(f"machine {name} leaves")
            self._take_away(name, "left")
            self.links.drop(name)

    def replace(self, name: str) -> None:
        """Another machine has the name of one that is away: what that one had is over, and its messages are dropped."""
        self._take_away(name, "left")
        self.links.drop(name)
        self.links.expect(name)

    def readmit(self, name: str) -> None:
        """Let a machine link itself, perhaps one that was expelled before."""
        self.links.expect(name)
        self._expelled = {instance: each for instance, each in self._expelled.items() if each != name}

    def _linked(self, peer: bytes, message: Message) -> None:
        """Handle a machine's announcement: send it the runs that it lacks, or let it join."""
        name, instance = str(message["name"]), str(message["instance"])
        held, follows = {str(run) for run in message["runs"]}, [str(run) for run in message["follows"]]
        # More than a machine can have would only keep this daemon busy.
        islands = None if message["islands"] is None else min(int(message["islands"]), LIVES_MAX)
        caller = self._caller()
        if caller is not None and caller != name:
            do = f"Start its daemon with --name {caller}, or admit its key under the name {name!r}."
            raise ConfigError(f"Linking the machine {name!r}", f"the key of {name!r}", f"that of {caller!r}", do)
        if instance in self._expelled:
            self._send(peer, {"type": EXPELLED})
            return
        part = None if message.get("part") is None else IslandPart.read(message["part"])
        self._parts.record(name, part)  # Before the answer that it is linked, which a refusal has to precede.
        is_new = not self.links.is_up(name)
        self.links.record(peer, message)
        outcomes = {**self.former.for_machine(name, follows), **{run.name: RUNNING for run in self._runs()}}
        evaluates = bool(message.get("evaluates")) and self._is_judge(name)
        self._send(peer, {"type": "linked", "name": self._name, "outcomes": outcomes, "evaluates": evaluates})
        if is_new:
            self._tell(f"machine {name} is linked")
        is_loop = bool(message.get("loop"))
        if is_loop:
            self._on_loop(name)
        for run in self._runs():
            if name in run.daemon.home.fleet.others:
                if run.name not in held:
                    run.station(name, host=self._parts.host(name))
            elif part is not None and run.is_running:
                self._let_island_join(run, self._parts.whole(name))
            elif run.is_running and (count := islands or len(run.daemon.home.fleet.left_by(name))):
                self._let_join(run, name, instance, count, is_loop=is_loop)

    def _is_judge(self, name: str) -> bool:
        """Whether a loop that can evaluate is the one that does: the first that takes part, as long as it does."""
        runs = [run for run in self._runs() if run.takes_loops]

        def takes_part(loop: str) -> bool:
            parts = [run for run in runs if loop in run.daemon.home.fleet.others]
            return self.links.is_up(loop) and (loop == self._first_loop or bool(parts) or not runs)

        if self._judge != name and not takes_part(self._judge) and takes_part(name):
            self._judge = name
            self._tell(f"machine {name} evaluates")
        return self._judge == name

    def _let_join(self, run: MachineRun, name: str, instance: str, islands: int, *, is_loop: bool) -> None:
        """Let a machine join a run, once it confirms that it may load the program; asks each process once."""
        key = run.name, instance
        if key in self._joining or key in self._refused or not self._may_join(run, name, is_loop=is_loop):
            return
        self._joining.add(key)
        task = self._loop.create_task(self._join_run(run, name, key, islands))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may_join(self, run: MachineRun, name: str, *, is_loop: bool) -> bool:
        """Whether a machine may join a run now: loops join runs of loops, in which the first of them comes first."""
        if run.takes_loops != is_loop or run.leaves_out(name):
            return False
        if self._first_loop not in ("", name) and self.links.is_up(self._first_loop):
            return not is_loop
        self._first_loop = ""
        return True

    async def _join_run(self, run: MachineRun, name: str, key: tuple[str, str], islands: int) -> None:
        try:
            answer = await self._check(run, name)
            if other := run.other_script(name, answer):
                self._tell(f"{run.folder}: {other}")
                run.log(other)
            run.station(name, islands)
            slots = run.daemon.join(name, islands)
            slots_text = ", ".join(map(str, slots)) or "no slot"
            slots_text += _bound(run.daemon.home.fleet, name, islands - len(slots))
            self._tell(f"machine {name} joins {run.folder}: {slots_text}")
            run.log(f"{name} joins: {slots_text}")
        except ConfigError as error:
            self._refuse([key], error)
            self._tell(f"machine {name} does not join {run.folder}: {error}")
        finally:
            self._joining.discard(key)

    async def _check(self, run: MachineRun, name: str) -> Message:
        """The answer of a machine that may take part in a run; ConfigError if it may not, UnreachedError for want of a
        way."""
        answer = await self.links.request(name, run.check(), CHECK_SECONDS_MAX)
        if faults := ways_to_others.told(answer):
            raise ways_to_others.UnreachedError.of(faults)
        return answer

    def _refuse(self, keys: list[tuple[str, str]], error: ConfigError) -> None:
        """Let machines not join a run: never, or, for want of a way that may come, for a while."""
        self._refused.update(keys)
        if isinstance(error, ways_to_others.UnreachedError):
            self._loop.call_later(WAYS_SECONDS, self._refused.difference_update, keys)

    def _let_island_join(self, run: MachineRun, names: tuple[str, ...]) -> None:
        """Let the machines of an island that is whole join a run, once each confirms that it may load the program."""
        keys = [(run.name, self.links.instance(name)) for name in names]
        is_begun = any(key in self._joining or key in self._refused for key in keys)
        if not names or any(map(run.leaves_out, names)) or is_begun or set(names) & set(run.daemon.home.fleet.others):
            return
        self._joining.update(keys)
        task = self._loop.create_task(self._join_island(run, names, keys))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join_island(self, run: MachineRun, names: tuple[str, ...], keys: list[tuple[str, str]]) -> None:
        together = ", ".join(names)
        try:
            for name in names:
                await self._check(run, name)
            slots = run.daemon.join_island(names)
            for name in names if slots else ():  # After the slot is known: their processes learn how many they are.
                run.station(name, host=self._parts.host(name))
            slots_text = str(slots[0]) if slots else f"no slot{_bound(run.daemon.home.fleet, names[0], 1)}"
            self._tell(f"machines {together}, one island, join {run.folder}: {slots_text}")
            run.log(f"{together}, one island, join: {slots_text}")
            if not slots:
                self._refused.update(keys)
        except ConfigError as error:
            self._refuse(keys, error)
            self._tell(f"machines {together}, one island, do not join {run.folder}: {error}")
        finally:
            self._joining.difference_update(keys)

    def _responded(self, peer: bytes, message: Message) -> None:
        name = self._name_of(peer)
        if name is not None:
            self.links.on_response(name, message)

    def _reported(self, peer: bytes, message: Message) -> None:
        name = self._name_of(peer)
        run = next((run for run in self._runs() if run.name == message["run"]), None)
        if name is None or message["run"] in self.set_aside:
            return  # Its next announcement identifies it. Of what is set aside the next daemon speaks: hosts work on.
        if run is not None and name in run.daemon.home.fleet.away and message.get(RESUMED, 0) != run.resumed:
            # It may join once more: its hosts end with these orders, too, and what these have left stays there.
            orders = of_orders(Orders(stamp=Stamp(run.daemon.home.term), home=self._name), None)
            self._send(peer, {**orders, "run": run.name, RESUMED: run.resumed})
            return
        if run is None or name in run.daemon.home.fleet.away:
            term = read_report(message)[0].obeyed.term if run is None else run.daemon.home.term
            self._send(peer, {**over(self._name, term), "run": message["run"]})
        elif message.get(RESUMED, 0) == run.resumed:  # Hosts of before end with the next orders.
            run.daemon.on_message(name, message)

    def _called(self, link: HomeLink, run: str, term: int) -> bool:
        """A machine claims to be the home of a run; returns whether that run has its home here."""
        for mine in self._runs():
            if mine.name == run:
                mine.call(link, term)
                return True
        return False

    def _superseded(self, peer: bytes, message: Message) -> None:
        """A machine reports another home for a run than this one.

        The report is only a hint: the other home is dialled, and makes the claim itself if it is true.
        """
        name = self._name_of(peer)
        for run in self._runs():
            if name is not None and run.name == message["run"] and name in run.daemon.home.fleet.others:
                heir = run.heir(str(message["by"]))
                if heir is not None:
                    self.link(heir)

    def _name_of(self, peer: bytes) -> str | None:
        """The sender of the message: the machine that has this link, and whose key was used."""
        name, caller = self.links.name_of(peer), self._caller()
        return name if caller in (None, name) else None

    def _unstationed(self, peer: bytes, message: Message) -> None:
        name = self._name_of(peer)
        for run in self._runs():
            if name is not None and run.name == message["run"] and name in run.daemon.home.fleet.others:
                error = shortened(str(message["error"]), ERROR_LENGTH_MAX, f"the log of {name} has all of it")
                why = f"the machine {name} cannot take part: {error}"
                self._tell(f"{run.folder}: {why}")
                run.log(why)
                run.daemon.take_away(name, "left")


def _bound(fleet: Fleet, machine: str, left_out: int) -> str:
    """Why so many islands of a machine that joins have no slot; '' where they all have one."""
    party = fleet.parties.of(machine)
    if left_out <= 0:
        return ""
    others = [each for each in fleet.learners if fleet.parties.of(fleet.name(each)).name == party.name]
    if party.slots is None or len(others) < party.slots:
        return f"; {left_out} more have none: run.slots_max are taken"
    return f"; {left_out} more have none: all machines of its invitation have {party.slots} slots together at most"

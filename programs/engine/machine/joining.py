"""`isthmus join`: a machine that offers its islands to the runs of another, for as long as this process lives.

It only dials out, so it may be behind NAT. Off loopback it has a key, which is made if there is none. By invitation the
home admits that key at once; otherwise the machine waits until somebody has, and prints the command to type there. It
waits for a home that is not there, for ever if nothing bounds it, and finds it at another address where the invitation
names another one by then. Ctrl-C takes the machine away again; SIGTERM, too, after a last answer.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from isthmus.programs.engine.cluster import cluster_file, machine_file
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import admissions, serve
from isthmus.programs.engine.machine.bucket import Bucket, listener_in
from isthmus.programs.engine.machine.bucket_road import RoadPlace
from isthmus.programs.engine.machine.invitations import GivenText, InvitationClaim, InvitationFile, home_in
from isthmus.programs.engine.machine.island_parts import IslandPart, host_towards, part_of
from isthmus.programs.engine.machine.links import HomeAddress, HomeLink
from isthmus.programs.engine.machine.loop_guest import LoopGuest
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.metrics.exporter import MetricsAddress
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import LIVES_MAX
from isthmus.runtime.wire.security_curve import UNADMITTED, WORDS
from isthmus.runtime.wire.security_keys import KeyPair, is_loopback, read_pair, read_public

LOOK_SECONDS: Final = 0.5


@final
@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What `isthmus join` was asked for, and how long to wait for the home.

    The home is given by its `address`, or in a file, which is read again: an `invitation` or a `cluster` file.
    """

    address: str | None = None
    name: str | None = None
    islands: int = 1
    server_key: str | None = None
    config: Path | None = None
    invitation: Path | None = None
    wait_seconds: float | None = None
    until_over: bool = False
    cluster: Path | None = None
    grace: float = GRACE_SECONDS
    metrics: MetricsAddress | None = None
    invitation_text: GivenText | None = None
    """An invitation that came in the environment, or on standard input; it counts where no other home is named."""
    part: tuple[str, int | None, int | None] | None = None
    """Island, rank and size, of which this machine is a part; None for a rank and size that the environment has."""
    host: str = field(default_factory=socket.gethostname)
    """What this machine is called where neither `name` nor an invitation says it."""
    guest: LoopGuest | None = None
    """The loop whose daemon this one is, if any."""
    via: str | None = None
    """The store through which the home is reached, and nothing else; it is looked at `every` so many seconds."""
    every: float | None = None
    own_data: tuple[str, ...] = ()
    """Files and folders on which learners here train, in place of a run's data."""


def join(request: JoinRequest) -> int:
    """Offer islands until signals end it, or the home expels this machine, or, if so requested, its runs are over.

    Returns the exit status: 1 if it ends with runs of which one has failed.

    ConfigError if the request is wrong, or the home refuses it or does not come in time. A machine that an invitation
    was refused to leaves nothing.
    """
    name, home, permitted, invitation, place = _checked(request)
    part = _part(request, home)
    written = [Path(f"{name}.key").absolute(), Path(f"{name}.pub").absolute(), admissions.path_of(name)]
    new = [path for path in written if not path.exists()]
    if home.public_key and permitted.pair is None:
        permitted = replace(permitted, pair=_own_pair(name), secret=written[0])
    bucket = None
    if place is not None:
        pairs = [] if invitation is None else [invitation.pair]
        pairs += [] if permitted.pair is None else [permitted.pair]
        bucket = Bucket(place, pairs, home.public_key, listener_in(serve.parts_folder(name)))
    own = "" if permitted.pair is None else permitted.pair.public
    joining = _Joining(request, name, home, invitation, own, part, bucket)
    permitted = replace(
        permitted,
        error_texts=permitted.error_texts or "local",
        is_far=bucket is not None,
        grace=request.grace,
        until_over=request.until_over,
    )
    services = [each for each in (bucket, request.guest, joining) if each is not None]
    try:
        return serve.run(name, "tcp://127.0.0.1:*", permitted, services, request.metrics)
    finally:
        if invitation is not None and not joining.is_admitted:
            for path in new:
                path.unlink(missing_ok=True)


def _checked(
    request: JoinRequest,
) -> tuple[str, HomeAddress, MachineConfig, InvitationFile | None, RoadPlace | None]:
    """The name of this machine, its home, its configuration, its invitation, and the store that it has instead of a
    network; ConfigError with all faults."""
    faults: list[Fault] = []
    name, home, permitted, invitation = "", HomeAddress("", ""), MachineConfig(), None
    with collecting(faults):
        given = {"tcp://HOME:PORT": request.address, "--invite": request.invitation, "--cluster": request.cluster}
        found = ", ".join(each for each, value in given.items() if value is not None)
        text = None if found else request.invitation_text
        if found not in given and text is None:
            do = "Type `isthmus join --invite FILE`, or one of the others with --name NAME."
            raise ConfigError("Reading the command line", f"one of {', '.join(given)}", found or "none", do)
        if request.address is None and request.server_key is not None:
            do = "Leave it out: the file has it."
            raise ConfigError("Reading --server-key", f"none beside {found}", request.server_key, do)
        if request.invitation is not None:
            invitation = InvitationFile.read(request.invitation)
        elif text is not None:
            invitation = InvitationFile.given(text)
        if invitation is not None:
            name, home = invitation.name_for(request.name, request.host), invitation.home
    if invitation is None and not faults:
        with collecting(faults):
            own = "" if request.guest is None else request.host
            name = cluster_file.checked_name(request.name or own, "Reading --name", "for example --name beta")
        with collecting(faults):
            home = _home(request)
    with collecting(faults):
        permitted = machine_file.read(request.config, request.own_data)
    if not 1 <= request.islands <= LIVES_MAX:
        do = "Each island is for one learner; divide a larger machine into several, each with a name of its own."
        expected = f"1 or more, at most {LIVES_MAX}, LIVES_MAX"
        faults.append(Fault("Reading --islands", expected, str(request.islands), do))
    if request.wait_seconds is not None and not request.wait_seconds > 0:
        do = "Leave it out to wait for ever."
        faults.append(Fault("Reading --wait", "seconds above 0", str(request.wait_seconds), do))
    if request.part is not None and request.islands != 1:
        do = "Leave --islands out: this machine is a part of one island."
        faults.append(Fault("Reading --islands", "1 beside --island", str(request.islands), do))
    place = None
    with collecting(faults):
        place = serve.checked_road(request.via, request.every)
    if place is not None and not faults and not home.public_key:
        do = "Give --server-key KEY, or the file NAME.pub, of the home; an invitation has it."
        faults.append(Fault("Reading --via", "the public key of the home", "none", do))
    if place is not None and request.part is not None:
        do = "The machines of one island need a network between them, and one of them a way to the home."
        faults.append(Fault("Reading --via", "no --island beside it", "one", do))
    if faults:
        raise ConfigError.of(faults)
    return name, home, permitted, invitation, place


def _part(request: JoinRequest, home: HomeAddress) -> IslandPart | None:
    """This machine's part of an island; None for an island of its own, or one of one machine. ConfigError as there."""
    if request.part is None:
        return None
    part = part_of(*request.part, os.environ, lambda: host_towards(home.address))
    return part if part.size > 1 else None


def _home(request: JoinRequest) -> HomeAddress:
    """The home to dial, without an invitation; ConfigError if its address is not valid, or needs a key and has none."""
    if request.cluster is not None:
        return home_in(request.cluster, None, "Joining")
    doing = "Reading the address of the home"
    endpoint = cluster_file.checked_address(request.address or "", doing, has_keys=True)
    if request.server_key is not None:
        return HomeAddress("", endpoint, read_public(request.server_key, Path(), "Reading --server-key"))
    if not is_loopback(endpoint):
        do = "Give --server-key KEY, or the file NAME.pub, of the machine that listens there."
        raise ConfigError(doing, "its public key, because it is another machine", "none", do)
    return HomeAddress("", endpoint)


def _own_pair(name: str) -> KeyPair:
    """The machine's pair, whose secret key is in this folder; made if it is missing."""
    path = Path(f"{name}.key").absolute()
    if not path.exists():
        KeyPair.make().write(Path.cwd(), name)
    return read_pair(path)


@final
class _Joining(DaemonService):
    """From the claim of an invitation to the link, and what is told about both. `own` is this machine's public key."""

    def __init__(
        self,
        request: JoinRequest,
        name: str,
        home: HomeAddress,
        invitation: InvitationFile | None,
        own: str,
        part: IslandPart | None = None,
        bucket: Bucket | None = None,
    ) -> None:
        self.is_admitted = False
        self._part, self._bucket = part, bucket
        self._request, self._name, self._home, self._invitation, self._own = request, name, home, invitation, own
        self._claim: InvitationClaim | None = None
        self._link: HomeLink | None = None
        self._was_up = False
        self._last = self._last_unreadable = ""
        self._since = time.monotonic()

    def start(self, machine: ServedMachine) -> None:
        """Dial, and go on until the daemon ends."""
        self._machine = machine
        if self._invitation is None:
            self._join()
        else:
            self._claim = InvitationClaim(
                machine.loop,
                self._invitation,
                self._name,
                self._own,
                locate=self._located,
                on_admitted=self._join,
                on_refused=machine.fail,
                is_far=self._bucket is not None,
            )
        machine.later(LOOK_SECONDS, self._look)

    def expelled(self) -> None:
        """The home has expelled this machine, which ends with that."""
        self._machine.request_end()

    def close(self) -> None:
        """Claim no longer."""
        if self._claim is not None:
            self._claim.close()

    def _join(self) -> None:
        self.is_admitted, home = True, replace(self._home, address=self._located())
        neighbours, islands = self._machine.neighbours, self._request.islands
        self._link = neighbours.join(home, islands, self._part, locate=self._located)
        if self._link.home.address != home.address:  # Of a part that the daemon before this one had.
            self._link.redial()

    def _located(self) -> str:
        """The home's address by now: what the invitation or the cluster file says, as long as that can be read."""
        if self._bucket is not None:
            return self._bucket.address
        path = self._request.invitation
        if path is None and self._request.cluster is None:
            return self._home.address
        try:
            home = _home(self._request) if path is None else InvitationFile.read(path).home
            if home.public_key == self._home.public_key:
                self._home = home
        except ConfigError as error:
            if str(error) != self._last_unreadable:
                self._machine.tell(f"goes on with {self._home.address}: {error}")
            self._last_unreadable = str(error)
        return self._home.address

    def _look(self) -> None:
        """Tell a line whenever the state has changed; end where it is hopeless, or was waited for too long."""
        link, machine = self._link, self._machine
        if link is not None and link.is_hopeless:
            machine.fail(ConfigError.of(link.faults))
            return
        self._was_up |= link is not None and link.is_up and not link.refused
        wait, waited = self._request.wait_seconds, time.monotonic() - self._since
        if machine.fault is None and wait is not None and waited > wait and not self._was_up:
            machine.fail(self._waited_too_long(wait))
            return
        line = self._state(link)
        if line != self._last:
            self._last = line
            machine.tell(line)
            if self._request.guest is not None:
                self._request.guest.tell(state=line)
        machine.later(LOOK_SECONDS, self._look)

    def _state(self, link: HomeLink | None) -> str:
        if link is None:
            reason = "" if self._claim is None else self._claim.waiting
            why = "" if self._claim is None or not self._claim.unanswered else f": {self._claim.unanswered}"
            return f"waits {reason}" if reason else f"waits for {self._where}{why}"
        do = f"; type there: {self._admit}" if self._admit else ""
        what = f"{self._request.islands} island{'' if self._request.islands == 1 else 's'}"
        if self._part is not None:
            what = f"{self._part}{f', as {self._part.source} say' if self._part.source else ''}"
        if link.refused:
            return f"not linked: {link.refused}{do}"
        if link.is_up:
            way = "" if self._request.via is None else f" through {self._request.via}"
            return f"linked to {link.home.name or link.home.address}{way}, with {what}"
        if self._was_up:
            return f"has lost {link.home.name}, and goes on dialling"
        return f"waits for {self._where}{do and f'; to be admitted{do[1:]}'}"

    @property
    def _where(self) -> str:
        """Where the home is expected."""
        return self._request.via or self._home.address

    @property
    def _admit(self) -> str:
        """What has to be typed at the home; nothing where there are no keys, or the invitation does it."""
        return f"isthmus admit {self._name} {self._own}" if self._own and self._invitation is None else ""

    def _waited_too_long(self, seconds: float) -> ConfigError:
        doing, expected = f"Joining the home at {self._where}", f"a link within {seconds:g} s"
        if self._link is not None and self._link.refused == WORDS[UNADMITTED]:
            return ConfigError(doing, expected, self._link.refused, f"Type there: {self._admit}")
        if self._claim is not None and self._claim.waiting:
            do = "Join with another --name, or wait for longer."
            return ConfigError(doing, expected, f"another machine that had the name {self._name!r}", do)
        found = "no answer" if self._claim is None or not self._claim.unanswered else self._claim.unanswered
        found = found if self._link is None or not self._link.refused else self._link.refused
        do = "Start it there: isthmus daemon --name NAME --listen ADDRESS; and look at the way to it."
        if self._request.via is not None:
            do = "Start it there, with the same --via: isthmus daemon --name NAME --listen ADDRESS --via URL."
        return ConfigError(doing, expected, found, do)

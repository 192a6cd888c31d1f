"""The checks of `isthmus doctor`: from measured facts to what is in order, what is worth knowing, and what fails.

Decides the state of each check and its words; nothing is measured here. A check *fails* if a run that needs what is
checked cannot start, or dies; it is a *note* if a run works, but not as its user may expect, or if it was not possible
to tell.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, final

from isthmus.programs.engine.results.words import seconds, size
from isthmus.programs.engine.run.room_for_hosts import COMPILER, DESCRIPTORS_A_HOST, DESCRIPTORS_BASE
from isthmus.runtime.wire.security_keys import is_loopback

State: TypeAlias = Literal["ok", "note", "fails"]
OK: Final = "ok"
NOTE: Final = "note"
FAILS: Final = "fails"

THREADS_PER_HOST: Final = 24
THREADS_PER_CORE: Final = 2
"""Of a host: 20 were counted on 2 cores; the pools of jax have a thread for each core."""
SKEW_SECONDS_NOTED: Final = 1.0
SKEW_SECONDS_MAX: Final = 900.0
"""Stores refuse a signed request from a clock that is further off (S3: 15 minutes)."""
SHARED_MEMORY_BYTES_MIN: Final = 1 << 30
"""For NCCL, between the GPUs of one machine; Docker gives 64 MiB by default."""
SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD")
"""Signals that end a run, or tell of the end of a process."""


@final
@dataclass(frozen=True, slots=True)
class Check:
    """One check: `found` was measured; `do` is empty where the state is ok."""

    name: str
    state: State
    found: str
    expected: str
    do: str = ""


@final
@dataclass(frozen=True, slots=True)
class JaxFacts:
    """Devices as jax opens them in a process of its own; `refusal` is the reason if it does not."""

    platform: str = ""
    kinds: tuple[str, ...] = ()
    seconds: float | None = None
    refusal: str = ""


@final
@dataclass(frozen=True, slots=True)
class DeclaredDevices:
    """What the cluster file says of this machine: names of the kind, and the number on all of its islands."""

    kinds: tuple[str, ...]
    count: int


@final
@dataclass(frozen=True, slots=True)
class UserFacts:
    """The user: `name` is None without an entry in the password database; `refused` has folders that cannot be written
    to, with the reason."""

    uid: int
    name: str | None
    home: str | None
    refused: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk below a folder: free bytes, and bytes a second of a write that ends on the disk."""

    folder: str
    free_bytes: int | None = None
    bytes_per_second: float | None = None
    refusal: str = ""


@final
@dataclass(frozen=True, slots=True)
class NeedFacts:
    """What the run needs here: hosts, learners, memory of this machine, a snapshot and its interval (0 for never), and
    room on the disk of the run folder, and on that of its `store` of snapshots, if that is a folder: at `least`, or it
    is refused, and at `most`, with which no snapshot waits.

    `refusal` is the reason if the request could not be prepared: in time, or at all if it `is_wrong`.
    """

    what: str
    hosts: int = 0
    learners: int = 0
    memory_bytes: int = 0
    snapshot_bytes: int = 0
    snapshot_seconds: float = 0.0
    disk_least: int = 0
    disk_most: int = 0
    store: str = ""
    store_least: int = 0
    store_most: int = 0
    refusal: str = ""
    is_wrong: bool = False


@final
@dataclass(frozen=True, slots=True)
class TriedConnection:
    """A TCP connection that was tried: to where, and the result; `is_refused`: the way is open, and nothing listens."""

    endpoint: str
    seconds: float | None = None
    is_refused: bool = False
    refusal: str = ""

    @property
    def is_open(self) -> bool:
        """Whether packets went to and fro."""
        return self.seconds is not None or self.is_refused


@final
@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What the daemon of another machine answered, and what was tried with it.

    `skew_seconds` is how far its clock is ahead, `error_seconds` how far that may be off. `there` is the way to a port
    that it opened, `back` its way to one of this machine; None if it was not asked to dial, or does not for this key.
    """

    skew_seconds: float
    error_seconds: float
    there: TriedConnection
    back: TriedConnection | None = None


@final
@dataclass(frozen=True, slots=True)
class PeerFacts:
    """Another machine of the cluster, or this one (`is_here`), at its address.

    `unresolved`: why its host name has no address; `way`: to its daemon, None if that has none; `answer` of its daemon,
    or `fault`, (expected, found, what to do), if that refuses; neither if nothing listens.
    """

    name: str
    endpoint: str
    unresolved: str = ""
    way: TriedConnection | None = None
    is_here: bool = False
    answer: PeerAnswer | None = None
    fault: tuple[str, str, str] | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether its address is one of loopback, to which a tunnel may lead."""
        return is_loopback(self.endpoint)


@final
@dataclass(frozen=True, slots=True)
class IslandFacts:
    """An island of several machines that this one is a part of: its machines, and the ports that the kernel gives."""

    name: str
    machines: tuple[str, ...]
    ports: tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was measured; None where it could not be. `peers` and `island` are of a cluster."""

    versions: Mapping[str, str | None]
    jax: JaxFacts
    devices: Mapping[str, int]
    """Device files of each platform, `cuda` and `tpu`."""
    usable: str | None
    """The platform that learners here compute on; None for the CPU."""
    declared: DeclaredDevices | None
    stale: tuple[str, ...]
    """Variables of a former life."""
    user: UserFacts
    loopback: str
    pidfd: str
    """Why the kernel does not permit that; empty if it does, and so `ipv6`."""
    ipv6: str
    host_name: str
    host_addresses: tuple[str, ...]
    blocked: tuple[str, ...]
    ignored: tuple[str, ...]
    descriptors: int
    descriptors_max: int
    processes_max: int | None
    """How many processes and threads this user may still start; None without a limit."""
    cores: float
    memory_bytes: int | None
    shared_memory_bytes: int | None
    disk: DiskFacts
    need: NeedFacts
    store: DiskFacts | None = None
    peers: tuple[PeerFacts, ...] = ()
    island: IslandFacts | None = None
    misplaced: str = ""
    """Why this machine cannot be the one that --for names."""


def judge(facts: Facts) -> list[Check]:
    """The checks, in the order in which they are shown."""
    return [*_software(facts), *_process(facts), *_limits(facts), *_disk(facts), *_network(facts)]


def _software(facts: Facts) -> Iterator[Check]:
    parts = [f"{name} {version}" for name, version in facts.versions.items() if version is not None]
    missing = [name for name, version in facts.versions.items() if version is None]
    state: State = OK if not missing else NOTE if missing == [COMPILER] else FAILS
    do = f"Install isthmus again, with its requirements: {', '.join(missing)} is missing." if missing else ""
    if state == NOTE:
        do = f"Nothing, where this machine joins runs. To train here, or be a home: pip install {COMPILER}."
    yield Check("versions", state, ", ".join(parts), f"python, isthmus, jax, jaxlib, {COMPILER}", do)
    yield _devices(facts)
    found = ", ".join(facts.stale) or "none"
    do = "Nothing: a learner on a TPU clears those by which jax would wait for processes that are gone."
    yield Check("variables", NOTE if facts.stale else OK, found, "none of a former life", do if facts.stale else "")


def _devices(facts: Facts) -> Check:
    jax, declared = facts.jax, facts.declared
    expected = "devices that jax can use"
    if declared is not None:
        expected = f"{declared.count} x {declared.kinds[0]}"
    if jax.refusal:
        do = "Install what jax needs for them, or end what has them: a device may be in use."
        return Check("devices", FAILS, f"jax: {jax.refusal}", expected, do)
    kinds = list(dict.fromkeys(jax.kinds))
    found = ", ".join(f"{jax.kinds.count(kind)} x {kind}" for kind in kinds)
    found += f" ({jax.platform}), opened in {seconds(jax.seconds)}"
    if declared is not None and declared.kinds and not set(kinds) <= set(declared.kinds):
        return Check("devices", FAILS, found, expected, "Correct `device` of this machine in the cluster file.")
    if declared is not None and "cpu" not in kinds and len(jax.kinds) < declared.count:
        do = "Lower `islands` or `devices` of this machine in the cluster file."
        return Check("devices", FAILS, found, expected, do)
    unused = [platform for platform, count in facts.devices.items() if count and facts.usable != platform]
    if unused and facts.usable is None:
        files = ", ".join(f"{facts.devices[platform]} for {platform}" for platform in unused)
        extra = "jax[cuda12]" if "cuda" in unused else "jax[tpu]"
        do = f"To compute on them: pip install '{extra}', and leave JAX_PLATFORMS unset."
        return Check("devices", NOTE, f"{found}; device files of {files} unused", "all devices in use", do)
    return Check("devices", OK, found, expected)


def _process(facts: Facts) -> Iterator[Check]:
    user = facts.user
    who = f"uid {user.uid}, {user.name or 'without a name'}, home {user.home or 'none'}"
    state: State = OK
    do = ""
    if user.refused:
        state, refused = FAILS if "state" in user.refused else NOTE, "; ".join(user.refused.values())
        do = "Set HOME, or XDG_STATE_HOME and XDG_CACHE_HOME, to folders that can be written to."
        who = f"{who}; {refused}"
    elif user.home is None:
        state, do = NOTE, "Set HOME: state goes to the temporary folder, and compiled programs are not kept."
    elif user.name is None:
        state, do = NOTE, "Nothing, as long as your task asks for no user name (getpass, torch's compiler)."
    yield Check("user", state, who, "a name, and a home that can be written to", do)

    blocked = [name for name in SIGNALS if name in facts.blocked]
    ignored = [name for name in SIGNALS if name in facts.ignored and name != "SIGHUP"]
    found = "; ".join(
        [f"blocked: {', '.join(blocked)}"] * bool(blocked)
        + [f"ignored: {', '.join(ignored)}"] * bool(ignored)
        + ["SIGHUP ignored, as nohup does"] * ("SIGHUP" in facts.ignored)
    )
    do = ""
    if blocked or ignored:
        do = "isthmus unblocks signals for itself; let what starts this command reset them (sigaction, sigprocmask)."
    state = NOTE if blocked or ignored else OK
    yield Check("signals", state, found or "none blocked or ignored", "none blocked or ignored", do)

    expected = "pidfd_open and pidfd_send_signal, of Linux 5.3 or later"
    do = "Use a newer kernel, or a confinement (seccomp) that permits them."
    if facts.pidfd:
        yield Check("kernel", FAILS, facts.pidfd, expected, do)
    else:
        yield Check("kernel", OK, "processes are watched by descriptor", expected)


def _limits(facts: Facts) -> Iterator[Check]:
    need = facts.need
    if need.refusal:
        do = "Correct it as `isthmus train` demands; memory and limits are judged once it can be prepared."
        yield Check("request", FAILS if need.is_wrong else NOTE, need.refusal, f"{need.what}, prepared", do)
    hosts = max(need.hosts, 1)
    least = DESCRIPTORS_BASE + DESCRIPTORS_A_HOST * hosts
    limit = f"{facts.descriptors} (hard {facts.descriptors_max})"
    do = f"ulimit -n {least}" if facts.descriptors_max >= least else f"Raise the hard limit to {least} or more."
    is_enough = facts.descriptors >= least
    expected = f"{least} or more for {_counted(hosts, 'host')}"
    yield Check("descriptors", OK if is_enough else FAILS, limit, expected, "" if is_enough else do)

    least = hosts * (THREADS_PER_HOST + THREADS_PER_CORE * round(facts.cores))
    free, expected = facts.processes_max, f"{least} or more for {_counted(hosts, 'host')}"
    if free is None or free >= least:
        yield Check("processes", OK, "no limit" if free is None else f"room for {free}, threads too", expected)
    else:
        do = "Raise ulimit -u, or the limit of the container or unit (pids.max, TasksMax)."
        yield Check("processes", FAILS, f"room for {free}, threads too", expected, do)

    cores, expected = f"{facts.cores:g}", f"{need.learners}, one for each learner on the CPU"
    is_crowded = facts.usable is None and facts.cores < need.learners
    do = "Learners share cores, each is slower: take fewer (--learners), or more machines."
    yield Check("cores", NOTE if is_crowded else OK, cores, expected, do if is_crowded else "")
    yield _memory(facts)

    shared, expected = facts.shared_memory_bytes, f"{size(SHARED_MEMORY_BYTES_MIN)} where several GPUs compute as one"
    is_several = facts.usable == "cuda" and len(facts.jax.kinds) > 1
    found = "no /dev/shm" if shared is None else f"{size(shared)} free"
    is_enough = not is_several or (shared is not None and shared >= SHARED_MEMORY_BYTES_MIN)
    do = "Start the container with --shm-size=1g (--ipc=host), or set NCCL_SHM_DISABLE=1."
    yield Check("/dev/shm", OK if is_enough else FAILS, found, expected, "" if is_enough else do)


def _memory(facts: Facts) -> Check:
    free, need = facts.memory_bytes, facts.need
    expected = f"{size(need.memory_bytes)} at least for {need.what}, beside processes and batches"
    if free is None:
        return Check("memory", NOTE, "not known: /proc/meminfo cannot be read", expected, "Mount /proc (proc(5)).")
    if need.refusal or not need.memory_bytes:
        return Check("memory", OK, f"{size(free)} free", "not known")
    found = f"{size(free)} free, {size(need.memory_bytes)} needed at least"
    if free < need.memory_bytes:
        do = (
            "Take a smaller model, fewer learners here (`islands`), more shards, or a machine with more memory; of a "
            "container, raise the limit."
        )
        return Check("memory", FAILS, found, expected, do)
    return Check("memory", OK, found, expected)


def _disk(facts: Facts) -> Iterator[Check]:
    need = facts.need
    yield _room("disk", facts.disk, need, need.disk_least, need.disk_most)
    if facts.store is not None:
        yield _room("disk of snapshots", facts.store, need, need.store_least, need.store_most)


def _room(name: str, disk: DiskFacts, need: NeedFacts, least: int, most: int) -> Check:
    """A disk with what snapshots take there; without any, that it can be written to."""
    do = "Make room, or take another folder: --run-dir, or [runs] folder in machine.toml; of a store, run.snapshots."
    if disk.refusal or disk.free_bytes is None:
        return Check(name, FAILS, f"{disk.folder}: {disk.refusal}", "a folder that can be written to", do)
    found = f"{size(disk.free_bytes)} free in {disk.folder}"
    if disk.bytes_per_second is not None:
        found += f", {size(disk.bytes_per_second)}/s"
    expected = f"{size(least)} at least, for one snapshot; {size(most)} for all that may be there at once"
    if not least:
        return Check(name, OK, found, "a folder that can be written to")
    if disk.free_bytes < least:
        return Check(name, FAILS, found, expected, do)
    if disk.free_bytes < most:
        return Check(name, NOTE, found, expected, f"{do} A snapshot that does not fit waits.")
    speed, every = disk.bytes_per_second, need.snapshot_seconds
    if speed is not None and every and need.snapshot_bytes > speed * every:
        takes = seconds(need.snapshot_bytes / speed)
        expected = f"a snapshot within its interval, {seconds(every)}; it takes {takes}"
        do = "Raise run.snapshot_every_seconds, or take a faster disk: more work is undone after a failure."
        return Check(name, NOTE, found, expected, do)
    return Check(name, OK, found, expected)


def _network(facts: Facts) -> Iterator[Check]:
    expected = "processes of this machine reach each other"
    if facts.loopback:
        do = "Bring it up (ip link set lo up); set TMPDIR to a folder that can be written to."
        yield Check("loopback", FAILS, facts.loopback, expected, do)
    else:
        yield Check("loopback", OK, "127.0.0.1 and a socket of this user", expected)
    needed = [peer.name for peer in facts.peers if "[" in peer.endpoint]
    do = "Give machines IPv4 addresses, or enable IPv6 here."
    if facts.ipv6 and needed:
        yield Check("IPv6", FAILS, facts.ipv6, f"IPv6, for {', '.join(needed)}", do)
    else:
        found = f"none ({facts.ipv6}); IPv4 is used" if facts.ipv6 else "available"
        yield Check("IPv6", OK, found, "only where an address is IPv6")
    expected, addresses = "an address for this machine's own name", ", ".join(facts.host_addresses)
    if facts.host_addresses:
        yield Check("host name", OK, f"{facts.host_name}: {addresses}", expected)
    else:
        state: State = FAILS if facts.island is not None else NOTE
        do = f"Add a line ADDRESS {facts.host_name} to /etc/hosts: gloo, in islands of several processes, needs it."
        yield Check("host name", state, f"{facts.host_name}: no address", expected, do)
    if facts.misplaced:
        do = "Run this command on that machine, or name another one with --for."
        yield Check("--for", FAILS, facts.misplaced, "the machine that it runs on", do)
    for peer in facts.peers:
        yield from _peer(peer)
    if facts.island is not None:
        low, high = facts.island.ports
        others = ", ".join(facts.island.machines)
        found = f"any of {low}-{high} (net.ipv4.ip_local_port_range), between {others}"
        do = "Open these between them: jax's coordinator, gloo and NCCL take any free port there."
        yield Check(f"ports of {facts.island.name}", NOTE, found, "open between the machines of an island", do)


def _peer(peer: PeerFacts) -> Iterator[Check]:
    name, expected = peer.name, "a host name that resolves"
    if peer.unresolved:
        yield Check(name, FAILS, f"{peer.endpoint}: {peer.unresolved}", expected, "Correct `address`, or the DNS.")
        return
    way, expected = peer.way, f"the daemon {name!r} at {peer.endpoint}"
    if way is None or not way.is_open:
        why = "not tried" if way is None else way.refusal
        do = "Open this port there (firewall, security group), and look whether the machine is up."
        yield Check(name, FAILS, f"{peer.endpoint}: {why}", expected, do)
        return
    if way.is_refused:
        do = f"Before a run: isthmus daemon --name {name} --listen {peer.endpoint}"
        if peer.is_loopback:
            do += "; or the tunnel to it, for example ssh -L"
        where = "on this machine: nothing listens yet" if peer.is_here else "the way is open, nothing listens yet"
        yield Check(name, NOTE, f"{peer.endpoint}, {where}", expected, do)
        return
    if peer.fault is not None:
        yield Check(name, FAILS, peer.fault[1], peer.fault[0], peer.fault[2])
        return
    where = f" in {seconds(way.seconds)}"
    if peer.is_here:
        where = ", on this machine or at the end of a tunnel" if peer.is_loopback else ", on this machine"
    does = "accepts connections" if peer.answer is None else "answers"
    yield Check(name, OK, f"its daemon {does} at {peer.endpoint}{where}", expected)
    if peer.answer is not None and not peer.is_here:
        yield _clock(name, peer.answer)
        yield from _ports(name, peer.answer)


def _clock(peer: str, answer: PeerAnswer) -> Check:
    name, expected, skew = f"clock of {peer}", f"within {seconds(SKEW_SECONDS_NOTED)}", answer.skew_seconds
    found = f"{seconds(abs(skew))} {'ahead' if skew > 0 else 'behind'}, +/- {seconds(answer.error_seconds)}"
    do = "Let both follow a time server (chrony, systemd-timesyncd)."
    off = abs(skew) - answer.error_seconds
    if off > SKEW_SECONDS_MAX:
        return Check(name, FAILS, found, f"{expected}; stores refuse {seconds(SKEW_SECONDS_MAX)}", do)
    return Check(name, NOTE, found, expected, do) if off > SKEW_SECONDS_NOTED else Check(name, OK, found, expected)


def _ports(peer: str, answer: PeerAnswer) -> Iterator[Check]:
    name, way, expected = f"ports of {peer}", answer.there, "any port, or what goes there is relayed at its daemon's"
    if way.seconds is None:
        do = f"Let the firewall of {peer} admit connections from here, to --ports of its daemon or to all: relays cost."
        yield Check(name, NOTE, f"{way.endpoint}: {way.refusal}", expected, do)
    else:
        yield Check(name, OK, f"{way.endpoint} in {seconds(way.seconds)}", expected)
    name, back = f"ports from {peer}", answer.back
    if back is not None and back.seconds is None:
        do = f"Let the firewall here admit connections from {peer}, to --ports of the daemon or to all: relays cost."
        yield Check(name, NOTE, f"{back.endpoint}: {back.refusal}", expected, do)
    elif back is not None:
        yield Check(name, OK, f"{back.endpoint} in {seconds(back.seconds)}", expected)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


class _CheckLine(NamedTuple):
    """A line of the text: what leads it, and what is folded behind."""

    lead: str
    text: str


def text_of(checks: Sequence[Check], width: int) -> str:
    """The checks as lines of at most `width` letters, words apart that are longer; what fails comes with what to do."""
    names = max((len(check.name) for check in checks), default=0)
    lines: list[str] = []
    for check in checks:
        parts = [_CheckLine(f"{check.state:<5}  {check.name:<{names}}  ", check.found)]
        if check.state != OK:
            blank = " " * len(parts[0].lead)
            parts += [_CheckLine(blank, f"expected {check.expected}"), _CheckLine(blank, check.do)]
        for part in parts:
            lines += textwrap.wrap(
                part.text,
                max(width, len(part.lead) + 20),
                initial_indent=part.lead,
                subsequent_indent=" " * len(part.lead),
                break_long_words=False,
                break_on_hyphens=False,
            )
    counts = {state: sum(check.state == state for check in checks) for state in (FAILS, NOTE, OK)}
    sums = f"{counts[FAILS]} fail{'s' if counts[FAILS] == 1 else ''}, {_counted(counts[NOTE], 'note')}, {counts[OK]} ok"
    return "\n".join([*lines, "", f"{_counted(len(checks), 'check')}: {sums}"])

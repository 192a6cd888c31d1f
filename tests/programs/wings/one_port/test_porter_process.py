"""The porter: who is led where, what waits, and hosts that reach each other through it."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import pytest

from isthmus.programs.engine.machine.socks_greeting import AskMore, SocksGreeting, ToDaemon, ToHost, TurnDown, Verdict
from isthmus.programs.wings.one_port import porter_process
from isthmus.programs.wings.one_port.porter_process import PorterProcess
from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.clock import seconds
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.wire import porter_relay
from isthmus.runtime.wire.porter_greeting import CONNECTED, FORBIDDEN, GREETED, UNACCEPTABLE, UNREACHABLE
from isthmus.runtime.wire.ways import Ways, WaySocket
from isthmus.runtime.wire.zmq_sockets import MARKS, ZmqSockets
from tests.hostile_porter import WAYS as HOSTILE
from tests.patience import PATIENCE
from tests.runtime.wire.cables import LEARNERS, MIB, PATIENT, SYNCER, End, World, floats
from tests.runtime.wire.key_rings import keyed

HELLO = b"\x05\x01\x00"
INSIDE = ("127.0.0.1", 4001)


def connect(host: str, port: int) -> bytes:
    """A request as libzmq makes it, for an address of IPv4."""
    return b"\x05\x01\x00\x01" + socket.inet_aton(host) + port.to_bytes(2, "big")


# -- the greeting ------------------------------------------------------------------------------------------------------


def judged(data: bytes, step: int) -> tuple[bytes, Verdict]:
    """(answers so far, the last verdict) where so many bytes come at a time."""
    greeting, answers = SocksGreeting(lambda *endpoint: endpoint in (INSIDE, ("::1", 4001), ("alpha", 4001))), b""
    for begin in range(0, len(data), step):
        verdict = greeting.receive(data[begin : begin + step])
        answers += getattr(verdict, "answer", b"")
        if not isinstance(verdict, AskMore):
            return answers, verdict
    return answers, AskMore(b"")


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_a_host_is_reached_however_the_bytes_come(step: int) -> None:
    v6 = b"\x05\x01\x00\x04" + socket.inet_pton(socket.AF_INET6, "::1") + b"\x0f\xa1"
    for request, host in (
        (connect(*INSIDE), "127.0.0.1"), (v6, "::1"), (b"\x05\x01\x00\x03\x05alpha\x0f\xa1", "alpha")
    ):  # fmt: skip
        answers, verdict = judged(HELLO + request, step)
        assert isinstance(verdict, ToHost)
        assert (answers, verdict.host, verdict.port) == (GREETED, host, 4001)
    assert judged(b"\x05\x02\x02\x00", step) == (GREETED, AskMore(b""))


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_any_other_endpoint_and_any_other_request_is_turned_down(step: int) -> None:
    for request in (
        connect("127.0.0.1", 4002), connect("10.0.0.1", 4001),  # No host of this machine.
        b"\x05\x02\x00\x01" + bytes(6), b"\x05\x03\x00\x01" + bytes(6), b"\x05\x01\x00\x05" + bytes(6),
        b"\x05\x01\x00\x03\x05alpha\x0f\xa2", b"\x05\x01\x00\x03\x09localhost\x0f\xa1",  # Nor by name.
        b"\x05\x01\x00\x03\x00" + bytes(6), b"\x04\x01\x00\x01" + bytes(6),
    ):  # fmt: skip
        answers, verdict = judged(HELLO + request, step)
        assert isinstance(verdict, TurnDown)
        assert answers == GREETED + FORBIDDEN
    answers, verdict = judged(b"\x05\x01\x02", step)  # A password is asked for.
    assert (answers, isinstance(verdict, TurnDown)) == (UNACCEPTABLE, True)


def test_whatever_is_no_socks_is_for_the_daemon() -> None:
    assert judged(b"\xff\x00rest", 1000) == (b"", ToDaemon(b"\xff\x00rest"))
    assert judged(b"GET /", 1) == (b"", ToDaemon(b"G"))


# -- the process, in a thread ------------------------------------------------------------------------------------------


class Served:
    """A porter in a thread; `daemon` listens where it takes the daemon to be, `line` is the daemon's end."""

    def __init__(self) -> None:
        self.daemon = socket.create_server(("127.0.0.1", 0))
        listener = socket.create_server(("127.0.0.1", 0))
        self.line, far = ProcessLine.pair()
        self.address = listener.getsockname()
        self.porter = PorterProcess(listener, ProcessLine(far), self.daemon.getsockname()[1])
        self._sockets = [self.daemon, listener, far]
        self._thread = threading.Thread(target=self.porter.serve)
        self._thread.start()

    def dial(self, data: bytes = b"") -> socket.socket:
        made = socket.create_connection(self.address, timeout=PATIENCE)
        self._sockets.append(made)
        made.sendall(data)
        return made

    def host(self, name: str = "127.0.0.1") -> socket.socket:
        """What listens as a host of this machine does; the daemon has told the porter of it."""
        made = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(made)
        endpoint = name, made.getsockname()[1]
        self.line.send({"open": [endpoint]})
        received(self.dial(b"\x05\x01\x02"), 2)  # Answered after the line was read, or in the same turn.
        while self.porter._open != {endpoint}:
            received(self.dial(b"\x05\x01\x02"), 2)
        return made

    def accepted(self, listener: socket.socket) -> tuple[socket.socket, str]:
        """(socket, address of the peer) of the next connection there."""
        listener.settimeout(PATIENCE)
        made, (address, _) = listener.accept()
        made.settimeout(PATIENCE)
        self._sockets.append(made)
        return made, address

    def close(self) -> None:
        for each in self._sockets[3:]:
            each.close()
        self.line.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        for each in self._sockets:
            each.close()


def told_full(served: Served) -> list[list[Any]]:
    """The bounds of which the daemon has been told."""
    return [message["full"] for message in served.line.hear() if "full" in message]


def received(there: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := there.recv(size - len(data))):
        data += piece
    return data


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_a_connection_of_zmtp_reaches_the_daemon_which_learns_where_it_comes_from(served: Served) -> None:
    dialler = served.dial(b"\xff early")
    there, source = served.accepted(served.daemon)
    assert served.line.hear() == [{"source": source, "peer": "127.0.0.1"}]
    assert source.startswith("127.1.")
    assert received(there, 7) == b"\xff early"
    there.sendall(b"answer")
    assert received(dialler, 6) == b"answer"
    there.close()
    assert received(dialler, 1) == b""


def test_a_host_is_reached_as_long_as_the_daemon_says_so(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unknown:
        assert received(served.dial(HELLO + connect(*unknown.getsockname())), 100) == GREETED + FORBIDDEN
    host = served.host()
    request = HELLO + connect(*host.getsockname())
    dialler = served.dial(request + b"more")
    there, _ = served.accepted(host)
    assert received(dialler, 12) == GREETED + CONNECTED
    assert received(there, 4) == b"more"
    dialler.close()
    assert received(there, 1) == b""
    host.close()
    assert received(served.dial(request), 100) == GREETED + UNREACHABLE


def test_a_host_whose_machine_has_a_name_is_reached_without_resolving_it(served: Served) -> None:
    host = served.host(name="alpha.invalid")
    port = host.getsockname()[1].to_bytes(2, "big")
    dialler = served.dial(HELLO + b"\x05\x01\x00\x03\x0dalpha.invalid" + port)
    served.accepted(host)
    assert received(dialler, 12) == GREETED + CONNECTED


def test_no_name_leads_to_a_port_of_loopback_at_which_no_host_listens(served: Served) -> None:
    served.host(name="alpha.invalid")
    with socket.create_server(("127.0.0.1", 0)) as private:
        private.setblocking(False)
        port = private.getsockname()[1].to_bytes(2, "big")
        for name in (b"localhost", b"alpha.invalid", b"127.0.0.1"):
            request = HELLO + b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port
            assert received(served.dial(request), 100) == GREETED + FORBIDDEN
        with pytest.raises(BlockingIOError):
            private.accept()


def test_who_does_not_read_holds_up_its_own_way_alone(served: Served) -> None:
    host = served.host()
    dialler = served.dial(HELLO + connect(*host.getsockname()))
    there, _ = served.accepted(host)
    received(dialler, 12)
    dialler.settimeout(0.1)
    sent = 0
    with suppress(TimeoutError):
        while sent < 64 * MIB:
            sent += dialler.send(bytes(MIB))
    assert sent < 64 * MIB  # TCP has stopped the sender.
    control = served.dial(b"\xff")
    served.accepted(served.daemon)[0].sendall(b"still here")
    assert received(control, 10) == b"still here"
    dialler.close()
    assert len(received(there, sent)) == sent  # What it has sent arrives, although it has gone.


def test_of_too_many_that_say_nothing_the_first_goes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "GREETING_SECONDS_MAX", 10 * PATIENCE)  # Time closes none of them.
    monkeypatch.setattr(porter_process, "GREETINGS_MAX", 2)
    first, second, newest = [served.dial() for _ in range(3)]
    assert received(first, 1) == b""
    for each in (second, newest):
        each.sendall(b"\x05\x01\x02")
        assert received(each, 2) == UNACCEPTABLE
    assert told_full(served) == [["greetings", 2, ""]]


def test_a_site_has_its_share_of_connections_that_say_nothing_and_of_ways(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites are told apart by the address that the kernel says; here by the port, for want of others than loopback."""
    sites: dict[str, str] = {}
    monkeypatch.setattr(porter_process, "site_of", lambda peer: sites.get(peer, "10.0.0.1"))
    monkeypatch.setattr(porter_process, "GREETING_SECONDS_MAX", 10 * PATIENCE)
    monkeypatch.setattr(porter_process, "GREETINGS_OF_SITE_MAX", 2)
    monkeypatch.setattr(porter_process, "WAYS_OF_SITE_MAX", 1)
    first, *_ = [served.dial() for _ in range(3)]
    assert received(first, 1) == b""
    daemon = served.dial(b"\xff1")
    there, _ = served.accepted(served.daemon)
    assert received(there, 2) == b"\xff1"
    refused = [served.dial(b"\xff2") for _ in range(3)]
    assert [received(each, 1) for each in refused] == [b"", b"", b""]
    sites["127.0.0.1"] = "10.0.0.2"  # Whoever comes from now on.
    served.dial(b"\xff3")
    other, _ = served.accepted(served.daemon)
    assert received(other, 2) == b"\xff3"
    sites.clear()
    daemon.close()
    assert received(there, 1) == b""
    there.close()
    assert told_full(served) == [["greetings", 2, "10.0.0.1"], ["ways", 1, "10.0.0.1"]]


def test_a_site_is_an_address_or_a_network_of_one_party() -> None:
    found = [porter_process.site_of(each) for each in (
        "127.0.0.1", "::1", "10.0.0.1", "2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "fe80::1%eth0",
    )]  # fmt: skip
    assert found == ["", "", "10.0.0.1", "2001:db8::/64", "2001:db8::/64", "2001:db8:0:1::/64", "fe80::/64"]


def test_what_waits_for_an_end_arrives_after_the_other_one_has_gone() -> None:
    selector = selectors.DefaultSelector()
    ended: list[WaySocket] = []
    ways = Ways(selector, ended.append)
    (near, dialler), (far, host) = socket.socketpair(), socket.socketpair()
    with dialler, host:
        for each in (near, far):
            each.setblocking(False)
        host.settimeout(PATIENCE)
        one, other = WaySocket(near), WaySocket(far)
        ways.join(one, other)
        other.held = memoryview(b"the rest")
        ways.close(one)
        assert not ended
        for key, ready in selector.select(PATIENCE):
            ways.turn(key.data, ready)
        assert received(host, 100) == b"the rest"
        assert ended == [other]
    selector.close()


def test_who_does_not_say_all_in_time_is_hung_up_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(porter_process, "GREETING_SECONDS_MAX", 0.05)
    assert received(served.dial(b"\x05"), 1) == b""


# -- hosts that reach each other through it ----------------------------------------------------------------------------


class Wall:
    """An endpoint that answers nothing, not even a SYN: its queue of connections is full."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(0)
        self.endpoint = "tcp://{}:{}".format(*self.socket.getsockname())
        self._queue = [socket.socket() for _ in range(2)]
        for each in self._queue:
            each.setblocking(False)
            each.connect_ex(self.socket.getsockname())

    def __enter__(self) -> Wall:
        return self

    def open(self, world: World, endpoint: str) -> None:
        """From now on it leads to an endpoint."""
        Carriers(world, lambda made: Carrier(made, port_of(endpoint)), sock=self.socket)

    def __exit__(self, *raised: object) -> None:
        for each in (self.socket, *self._queue):
            each.close()


class Carriers:
    """A server of connections that are carried on; it ends with the world."""

    def __init__(self, world: World, make: Callable[[list[Carrier]], Carrier], **where: Any) -> None:
        self._made: list[Carrier] = []
        coming = world.loop.create_server(lambda: make(self._made), **where)
        self._server = world.loop.run_until_complete(coming)
        self.address = "tcp://{}:{}".format(*self._server.sockets[0].getsockname())
        world.cables.append(self)  # type: ignore[arg-type]

    def close(self) -> None:
        self._server.close()
        for each in self._made:
            each.transport.abort()


class Carrier(asyncio.Protocol):
    """A connection that leads to a port of loopback (-1: the far end), or to that of `places` for which it asks."""

    def __init__(self, made: list[Carrier], port: int = 0, places: Mapping[int, int] = MappingProxyType({})) -> None:
        self._made, self._port, self._places = made, port, places
        self._greeting = SocksGreeting(lambda host, port: port in places)
        self._early = b""
        self.other: Carrier | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._made.append(self)
        if self._port > 0:
            asyncio.get_running_loop().create_task(self._lead())

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        elif self._port:
            self._early += data
        else:
            verdict = self._greeting.receive(data)
            self.transport.write(getattr(verdict, "answer", b""))
            if isinstance(verdict, ToHost):
                self._port = self._places[verdict.port]
                asyncio.get_running_loop().create_task(self._lead(CONNECTED))

    async def _lead(self, word: bytes = b"") -> None:
        far = Carrier(self._made, -1)
        await asyncio.get_running_loop().create_connection(lambda: far, "127.0.0.1", self._port)
        self.other, far.other = far, self
        self.transport.write(word + far._early)
        far.transport.write(self._early)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def behind(world: World, syncer: End, control: str, data: str) -> Endpoints:
    """Endpoints at which a syncer cannot be dialled, with a porter that leads to it."""
    actual = syncer.channel.bind("tcp://127.0.0.1:0")
    places = {port_of(control): port_of(actual.control), port_of(data): port_of(actual.data)}
    porter = Carriers(world, lambda made: Carrier(made, places=places), host="127.0.0.1", port=0)
    return Endpoints(control, data, actual.key, porter.address)


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def relayed(end: End) -> list[Any]:
    return end.channel.reachability().relayed


@pytest.mark.slow
@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_host_behind_a_wall_is_relayed_within_a_second(world: World, is_keyed: bool) -> None:
    pair = (SYNCER, LEARNERS[0])
    keys = {each: keyed(each, pair) if is_keyed else {} for each in pair}
    syncer, learner = (world.end(each, PATIENT, **keys[each]) for each in pair)
    with Wall() as control, Wall() as data:
        learner.channel.connect(SYNCER, behind(world, syncer, control.endpoint, data.endpoint))
        for i in range(8):
            learner.send(SYNCER, 1, floats(8, i))
        begun = world.clock.now()
        world.until(lambda: bool(learner.ups))
        assert world.clock.now() - begun < PATIENT.handshake_max // 2
        assert (relayed(learner), learner.losses) == ([SYNCER], [])
        world.until(lambda: len(syncer.items) == 8)
    assert [item[0] for item in syncer.got(1)] == list(range(8))


def test_a_port_that_refuses_is_gone_round_at_once(world: World) -> None:
    limits = PATIENT._replace(direct_max=seconds(60))
    syncer, learner = world.end(SYNCER, limits), world.end(LEARNERS[0], limits)
    with socket.socket() as control, socket.socket() as data:
        for closed in (control, data):
            closed.bind(("127.0.0.1", 0))
        endpoints = ("tcp://{}:{}".format(*closed.getsockname()) for closed in (control, data))
        learner.channel.connect(SYNCER, behind(world, syncer, *endpoints))
        begun = world.clock.now()
        world.until(lambda: bool(learner.ups))
        assert world.clock.now() - begun < limits.direct_max
        assert relayed(learner) == [SYNCER]


@pytest.mark.slow
def test_where_the_port_answers_after_all_the_session_moves_over_and_nothing_is_lost(world: World) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT)
    actual = syncer.channel.bind("tcp://127.0.0.1:0")
    with Wall() as control, Wall() as data:
        learner.channel.connect(SYNCER, behind(world, syncer, control.endpoint, data.endpoint))
        world.until(lambda: bool(learner.ups))
        for i in range(50):
            learner.send(SYNCER, 1, [i, floats(1, i)])
        control.open(world, actual.control)
        data.open(world, actual.data)
        world.until(lambda: len(learner.ups) == 2 and len(syncer.got(1)) == 50)
        assert learner.losses == [(SYNCER, "moved to a direct connection")]
        assert relayed(learner) == []
        assert [number for number, _ in syncer.got(1)] == list(range(50))


def test_a_host_that_is_inside_is_never_dialled_straight(world: World) -> None:
    syncer, learner = world.end(SYNCER, PATIENT), world.end(LEARNERS[0], PATIENT)
    with socket.create_server(("127.0.0.1", 0)) as other:  # What listens here has nothing to do with the syncer.
        other.setblocking(False)
        endpoint = "tcp://{}:{}".format(*other.getsockname())
        learner.channel.connect(SYNCER, behind(world, syncer, endpoint, "tcp://127.0.0.1:1")._replace(is_inside=True))
        world.until(lambda: bool(learner.ups))
        assert relayed(learner) == [SYNCER]
        with pytest.raises(BlockingIOError):
            other.accept()


def test_hosts_listen_within_a_range_of_ports(world: World) -> None:
    ends = [world.end(member, PATIENT) for member in LEARNERS[:2]]
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        found = [end.channel.bind(f"tcp://127.0.0.1:{port}-{port + 40}") for end in ends]
    ports = [port_of(endpoint) for each in found for endpoint in each[:2]]
    assert len(set(ports)) == 4
    assert all(port < each <= port + 40 for each in ports)


def test_as_many_messages_as_in_libzmq_wait_for_the_trial_of_a_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        loop = asyncio.new_event_loop()
        proxy = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        sockets = ZmqSockets(loop)
        dialled = sockets.dealer("control", lambda *message: None, lambda reason: None, porter=proxy)
        dialled.connect("tcp://127.0.0.1:4001", "")
        mark = MARKS["control"]
        assert [dialled.send([b"hello"]) for _ in range(mark + 1)] == [True] * mark + [False]
        dialled.close()
        sockets.close()
        loop.close()


class OneProxy:
    """A proxy that answers each connection alike: `greeted`, and after a request `answered`; then it hangs up.

    Where `pause` is more than 0, it sends a byte in so many seconds.
    """

    def __init__(self, greeted: bytes, answered: bytes, pause: float = 0.0) -> None:
        self._answers, self._pause = (greeted, answered), pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> OneProxy:
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                made, _ = self._listener.accept()
                with suppress(OSError), made:
                    made.settimeout(PATIENCE)
                    for answer in filter(None, self._answers):
                        made.recv(100)
                        for at in range(0, len(answer), 1 if self._pause else 1000):
                            made.sendall(answer[at : at + (1 if self._pause else 1000)])
                            self._is_over.wait(self._pause)


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.startswith("yes")])
def test_whatever_a_proxy_answers_a_dial_ends_with_an_error(name: str) -> None:
    with OneProxy(*HOSTILE[name]) as proxy, pytest.raises(OSError, match=r"hung up|SOCKS5|turns the endpoint down"):
        porter_relay.dial(proxy.address, "tcp://127.0.0.1:4001", PATIENCE)


@pytest.mark.slow
def test_a_proxy_has_one_time_for_all_of_its_answers() -> None:
    with OneProxy(GREETED, CONNECTED, 0.1) as proxy, pytest.raises(OSError, match=r"no answer within 0\.5 s"):
        porter_relay.dial(proxy.address, "tcp://127.0.0.1:4001", 0.5)


@pytest.mark.parametrize("end", [b"\x01" + bytes(6), b"\x04" + bytes(18), b"\x03\x05alpha\x0f\xa1"])
def test_of_an_answer_nothing_is_left_to_those_who_dial(end: bytes) -> None:
    with (
        OneProxy(GREETED, CONNECTED[:3] + end + b"next") as proxy,
        porter_relay.dial(proxy.address, "tcp://alpha:4001", PATIENCE) as way,
    ):
        assert received(way, 4) == b"next"


@pytest.mark.parametrize(
    "endpoint", ["tcp://:1", "tcp://alpha:x", "tcp://alpha:70000", f"tcp://{'a' * 300}:1", "\u20ac:1"]
)
def test_an_endpoint_that_cannot_be_asked_for_is_an_error(endpoint: str) -> None:
    with OneProxy(GREETED, CONNECTED) as proxy, pytest.raises(OSError, match="cannot be asked for"):
        porter_relay.dial(proxy.address, endpoint, PATIENCE)


@pytest.mark.process
def test_a_way_is_given_to_this_process_alone() -> None:
    name = f"\0isthmus-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as own:
        listener.bind(name)
        listener.listen(4)
        code = f"import socket; made = socket.socket(socket.AF_UNIX); made.connect({name!r}); print(made.recv(1))"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stranger:
            select.select([listener], [], [], PATIENCE)
            own.connect(name)
            with porter_relay._accepted(listener) as made:
                own.sendall(b"own")
                assert received(made, 3) == b"own"
            assert stranger.stdout is not None
            assert stranger.stdout.read() == b"b''\n"


@pytest.mark.parametrize("answers", [None, b"", b"\x05\x00", b"\x05\x00" + FORBIDDEN])
def test_a_proxy_that_leads_nowhere_ends_the_connection_and_not_the_process(answers: bytes | None) -> None:
    """libzmq aborts where SOCKS fails: a proxy that is away (None), hangs up, or refuses."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def answer(data: bytes) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(data[:2])
                    connection.recv(100)
                    connection.sendall(data[2:])

    if answers is None:
        listener.close()
    else:
        threading.Thread(target=answer, args=(answers,), daemon=True).start()
    loop = asyncio.new_event_loop()
    sockets, ends = ZmqSockets(loop), list[str]()

    def gone(reason: str) -> None:
        ends.append(reason)
        loop.stop()

    dialled = sockets.dealer("control", lambda *message: None, gone, porter=proxy)
    dialled.connect("tcp://127.0.0.1:4001", "")
    assert dialled.send([b"hello"])
    give_up = loop.call_later(PATIENCE, loop.stop)
    loop.run_forever()
    give_up.cancel()
    dialled.close()
    sockets.close()
    loop.close()
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    assert len(ends) == 1
    assert ends[0].startswith("no connection: the porter at ")

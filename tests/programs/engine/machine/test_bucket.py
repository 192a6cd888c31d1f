"""Connections through a bucket: what is carried, a store that goes away, and what somebody else does to objects."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.machine import bucket_passage, bucket_process, bucket_road
from isthmus.programs.engine.machine.bucket_keys import hello_of
from isthmus.programs.engine.machine.bucket_passage import SEALED_BYTES_MAX
from isthmus.programs.engine.machine.bucket_road import FolderRoad, RoadPlace, check, road_place
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.peers import FAR_LIMITS
from isthmus.runtime.wire.security_keys import KeyPair
from tests.patience import PATIENCE, wait_for
from tests.programs.engine.machine.bucket_place import EchoServer, Ways

pytestmark = pytest.mark.slow


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def ways(tmp_path: Path, echo: EchoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    monkeypatch.setattr(bucket_process, "REMOVE_SECONDS", 0.05)
    monkeypatch.setattr(bucket_process, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(bucket_process, "KEEP_SECONDS", 0.5)
    ways = Ways(tmp_path / "share", echo.port)
    yield ways
    ways.close()


def dialled(port: int, target: int = 0) -> socket.socket:
    """A connection to the daemon, or to a port of loopback at the home, through the bucket."""
    made = socket.create_connection(("127.0.0.1", port), PATIENCE)
    if target:
        made.sendall(b"\x05\x01\x00")
        assert made.recv(2) == b"\x05\x00"
        made.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + target.to_bytes(2, "big"))
        assert made.recv(10)[:2] == b"\x05\x00"
    return made


def echoed(made: socket.socket, data: bytes) -> bytes:
    """What comes back of some bytes."""
    threading.Thread(target=made.sendall, args=(data,), daemon=True).start()
    found = bytearray()
    while len(found) < len(data) and (more := made.recv(1 << 16)):
        found += more
    return bytes(found)


def test_bytes_go_to_the_daemon_and_to_hosts_and_back_and_nothing_stays(ways: Ways, echo: EchoServer) -> None:
    port, data = ways.island(), b"\xff" + os.urandom(9 << 20)  # As ZMTP begins.
    with dialled(port) as daemon, dialled(port, echo.port) as host:
        assert echoed(daemon, data) == data
        assert echoed(host, data[::-1]) == data[::-1]
    assert echo.accepted == 2
    wait_for(lambda: len(ways.objects()) < 8)  # What was written last, perhaps, and was not read yet.


def test_a_connection_that_says_nothing_is_not_carried(ways: Ways, echo: EchoServer) -> None:
    port = ways.island()
    dialled(port, echo.port).close()
    with dialled(port, echo.port) as host:
        assert echoed(host, b"\xffx") == b"\xffx"
    assert echo.accepted == 1


def test_either_end_closes_a_connection_and_one_that_leads_nowhere_is_closed(ways: Ways) -> None:
    port = ways.island()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        with dialled(port, server.getsockname()[1]) as near:
            near.sendall(b"x")
            with server.accept()[0] as far:
                far.settimeout(PATIENCE)
                assert far.recv(9) == b"x"
                far.sendall(b"last")
            assert (near.recv(9), near.recv(9)) == (b"last", b"")
        with dialled(port, server.getsockname()[1]) as near:
            near.sendall(b"x")
            far, _ = server.accept()
        with far:
            far.settimeout(PATIENCE)
            assert (far.recv(9), far.recv(9)) == (b"x", b"")
    with dialled(port, 1) as refused:  # The porter does not permit it.
        refused.sendall(b"x")
        assert refused.recv(9) == b""


def test_a_store_that_is_away_costs_time_and_no_byte(ways: Ways) -> None:
    port, data = ways.island(), b"\xff" + os.urandom(1 << 20)
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        ways.road.is_away = True
        calls = ways.road.calls
        sending = threading.Thread(target=daemon.sendall, args=(data,), daemon=True)
        sending.start()
        wait_for(lambda: ways.road.calls > calls + 20)
        ways.road.is_away = False
        found = bytearray()
        while len(found) < len(data):
            found += daemon.recv(1 << 16)
        assert bytes(found) == data
    told = [line for line in ways.lines if "cannot be reached" in line]
    assert len(told) == len([line for line in ways.lines if "is reached again" in line]) == 2  # Once for each end.


def test_a_machine_that_is_not_admitted_waits_until_it_is(ways: Ways) -> None:
    own = KeyPair.draw()
    port = ways.island(own, is_admitted=False)
    with dialled(port) as daemon:
        daemon.sendall(b"\xffx")
        wait_for(lambda: ways.home_end._hellos)
        assert not ways.home_end._runs
        ways.home_end.admitted = {own.public: 1}
        assert daemon.recv(9) == b"\xffx"


def end_of(made: socket.socket) -> None:
    """Wait until a connection is closed."""
    with suppress(ConnectionError):
        while echoed_once(made):
            pass


def echoed_once(made: socket.socket) -> bytes:
    made.sendall(b"\xff")
    return made.recv(99)


@pytest.mark.parametrize("what", ["changed", "exchanged", "empty", "huge", "link", "gone"])
def test_what_somebody_does_to_objects_costs_a_passage_and_the_next_one_works(
    ways: Ways, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_process, "LOST_SECONDS", 0.3)
    if what == "gone":  # Nothing else ends the passage within the patience of the test.
        for silence in ("HOME_SILENT_SECONDS", "ISLAND_SILENT_SECONDS"):
            monkeypatch.setattr(bucket_process, silence, 10 * PATIENCE)
    port = ways.island()
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        earlier: list[bytes] = []
        is_done = threading.Event()

        def tamper(name: str, data: bytes) -> bytes | None:
            earlier.append(data)
            if is_done.is_set() or "-up-" not in name or len(earlier) < 4:
                return data
            is_done.set()
            if what == "link":
                (ways.road.folder / name).symlink_to("/dev/zero")
            return {
                "changed": data[:-1] + bytes([data[-1] ^ 1]),
                "exchanged": earlier[0],
                "empty": b"",
                "huge": bytes(SEALED_BYTES_MAX + 1),
            }.get(what)

        ways.road.tamper = tamper
        end_of(daemon)
    assert is_done.is_set()
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff2") == b"\xff2"


def test_what_was_sent_arrives_after_its_sender_has_closed(ways: Ways) -> None:
    port = ways.island()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        data = os.urandom(24 << 20)  # More than the sockets in between hold.
        with dialled(port, server.getsockname()[1]) as near:
            near.sendall(data)
        far, _ = server.accept()
        with far:
            far.settimeout(PATIENCE)
            (run,) = ways.home_end._passages.values()
            # The close has come through the bucket before anything was read.
            wait_for(lambda: run.passage._opened == 1 and not run.passage.connections)
            received = bytearray()
            while more := far.recv(1 << 20):
                received += more
    assert bytes(received) == data


def test_what_was_put_there_by_others_is_removed_and_harms_nothing(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_process, "LEFT_SECONDS", 0.5)
    port = ways.island()
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        folder, stranger = ways.road.folder, KeyPair.draw()
        identity = os.urandom(16)
        forged = hello_of(identity, stranger, ways.home.public, stranger.public)
        names = ["hello-", "hello-xyz", f"hello-{os.urandom(16).hex()}", f"{os.urandom(16).hex()}-up-0000000000", "x"]
        for name in names:
            (folder / name).write_bytes(os.urandom(1000))
        (folder / f"hello-{identity.hex()}").write_bytes(forged)
        (folder / "hello-folder").mkdir()
        wait_for(lambda: not {*names, f"hello-{identity.hex()}"} & {*ways.objects()})
        assert len(ways.home_end._runs) == 1
        assert echoed(daemon, b"\xff2") == b"\xff2"


def test_a_hello_that_is_put_there_again_begins_nothing(ways: Ways) -> None:
    kept: dict[str, bytes] = {}

    def keep(name: str, data: bytes) -> bytes:
        kept[name] = data
        return data

    ways.road.tamper = keep
    with dialled(ways.island()) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        name = next(name for name in kept if name.startswith("hello-"))
        wait_for(lambda: name not in ways.objects())
        (ways.road.folder / name).write_bytes(kept[name])
        wait_for(lambda: name not in ways.objects())
        assert len(ways.home_end._runs) == 1
        assert echoed(daemon, b"\xff2") == b"\xff2"


def test_a_hello_that_comes_again_after_its_passage_begins_none(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}

    def keep(name: str, data: bytes) -> bytes:
        kept[name] = data
        return data

    ways.road.tamper = keep
    ways.island()
    wait_for(lambda: any(run.is_heard for run in list(ways.home_end._passages.values())))
    (identity,) = ways.home_end._passages
    name = f"hello-{identity.hex()}"
    for task in list(ways.home_end._runs.values()):
        ways.loop.call_soon_threadsafe(task.cancel)
    wait_for(lambda: identity not in ways.home_end._runs)
    # Nobody is about to remove it for its first time: the home has to see it.
    wait_for(lambda: name not in ways.objects() and not any(store._gone for store in ways.stores))
    begun: list[bytes] = []
    greeted = bucket_process.BucketPassage

    def note(own: bytes, *arguments: Any, **more: Any) -> Any:
        begun.append(own)
        return greeted(own, *arguments, **more)

    monkeypatch.setattr(bucket_process, "BucketPassage", note)
    (ways.road.folder / name).write_bytes(kept[name])
    wait_for(lambda: name not in ways.objects())
    assert identity not in begun
    assert identity not in ways.home_end._runs


def test_a_machine_has_few_passages_and_those_that_were_never_heard_make_way(ways: Ways) -> None:
    own = KeyPair.draw()
    ways.home_end.admitted = {own.public: 1}

    def hello() -> bytes:
        identity = os.urandom(16)
        data = hello_of(identity, own, ways.home.public, KeyPair.draw().public)
        (ways.road.folder / f"hello-{identity.hex()}").write_bytes(data)
        return identity

    with dialled(ways.island(own)) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        (heard,) = ways.home_end._passages
        for _ in range(2 * bucket_process.PASSAGES_OF_MACHINE_MAX):
            latest = hello()
            wait_for(lambda latest=latest: latest in ways.home_end._runs)
            assert len(ways.home_end._runs) <= bucket_process.PASSAGES_OF_MACHINE_MAX
        assert heard in ways.home_end._passages
        assert echoed(daemon, b"\xff2") == b"\xff2"
        assert len([line for line in ways.lines if "begins another one" in line]) == 1
        other = KeyPair.draw()
        with dialled(ways.island(other)) as second:
            assert echoed(second, b"\xff3") == b"\xff3"


def test_an_invitation_for_many_has_passages_for_each(ways: Ways) -> None:
    own = KeyPair.draw()
    ports = []
    for _ in range(bucket_process.PASSAGES_OF_MACHINE_MAX + 1):
        ports.append(ways.island(own, is_admitted=False))
    ways.home_end.admitted = {own.public: 2}
    for port in ports:
        with dialled(port) as daemon:
            assert echoed(daemon, b"\xff1") == b"\xff1"
    assert len(ways.home_end._runs) == len(ports)


def test_a_hello_that_cannot_be_read_holds_up_no_other(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    own, fetch = KeyPair.draw(), ways.road.fetch
    broken = f"hello-{bytes(16).hex()}"

    def unreadable(name: str, bytes_max: int) -> bytes | None:
        if name == broken:
            raise OSError(errno.EIO, "Input/output error")
        return fetch(name, bytes_max)

    def first(names: Callable[[], list[str]] = ways.road.names) -> list[str]:
        return [broken, *names()]

    monkeypatch.setattr(ways.road, "fetch", unreadable)
    monkeypatch.setattr(ways.road, "names", first)
    with dialled(ways.island(own)) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"


def test_an_object_that_this_account_may_not_read_is_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    road = FolderRoad(tmp_path / "share" / "part")
    road.put("a", b"12345")

    def refused(path: Any, flags: int) -> int:  # As for an account that is not root.
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert road.fetch("a", 5) == b""
    with pytest.raises(PermissionError):  # The folder itself may not be searched: the store is away.
        road.fetch("b", 5)


def test_a_home_that_knows_the_passage_no_more_is_reached_by_another_one(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    parting = bucket_process.PassageRun.part

    async def slow(run: bucket_process.PassageRun) -> None:  # As with a store that is far.
        await asyncio.sleep(0.5)
        await parting(run)

    monkeypatch.setattr(bucket_process, "HOME_SILENT_SECONDS", 2.0)
    monkeypatch.setattr(bucket_process.PassageRun, "part", slow)
    port = ways.island()
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff1") == b"\xff1"
        for task in list(ways.home_end._runs.values()):  # In the loop, a task that is cancelled leaves them.
            ways.loop.call_soon_threadsafe(task.cancel)
        end_of(daemon)
    with dialled(port) as daemon:
        assert echoed(daemon, b"\xff2") == b"\xff2"


def test_requests_are_bounded_by_the_interval(ways: Ways) -> None:
    port = ways.island()
    with dialled(port) as daemon:
        for _ in range(20):
            assert echoed(daemon, b"\xff") == b"\xff"
        for store in ways.stores:
            intervals = store.up_seconds / 0.02
            assert store.requests["put"] <= intervals + 2
            assert store.requests["list"] <= intervals / 4 + 2


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_folder_gives_whole_files_and_nothing_else(tmp_path: Path) -> None:
    road = FolderRoad(tmp_path / "share" / "part")
    road.put("a", b"12345")
    (tmp_path / "share" / "part" / "folder").mkdir()
    (tmp_path / "share" / "part" / "link").symlink_to("a")
    os.mkfifo(tmp_path / "share" / "part" / "pipe")
    assert [road.fetch(name, 5) for name in ("a", "b", "folder", "link", "pipe")] == [b"12345", None, b"", b"", b""]
    assert road.fetch("a", 4) == b""
    road.remove(["a", "b", "folder", "link", "pipe"])
    assert road.names() == ["folder"]


def test_an_object_of_a_url_that_is_too_large_is_none_and_not_its_beginning() -> None:
    pytest.importorskip("fsspec")
    road = bucket_road.UrlRoad(f"memory://bucket/{os.urandom(8).hex()}")
    road.put("a", b"12345")
    road.put("empty", b"")
    assert [road.fetch(name, 5) for name in ("a", "b", "empty")] == [b"12345", None, b""]
    assert road.fetch("a", 4) == b""


def test_nothing_is_written_through_a_link_that_a_stranger_has_laid(tmp_path: Path) -> None:
    share, mine = tmp_path / "share" / "part", tmp_path / "mine"
    road = FolderRoad(share)
    mine.write_bytes(b"mine")
    for name in (".aside-a", ".a", "a"):
        (share / name).symlink_to(mine)
    road.put("a", b"12345")
    assert (mine.read_bytes(), road.fetch("a", 5)) == (b"mine", b"12345")
    assert not (share / "a").is_symlink()


def test_what_is_written_aside_and_left_there_is_listed_and_so_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = FolderRoad(tmp_path / "share" / "part")

    def killed(self: Path, *target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        road.put("a", b"12345")
    monkeypatch.undo()
    (name,) = road.names()
    assert name.startswith(".aside-a")
    road.remove([name])
    assert road.names() == []


def test_a_share_that_is_gone_is_an_outage_and_is_not_made_anew(tmp_path: Path) -> None:
    road = FolderRoad(tmp_path / "share" / "part")
    (tmp_path / "share").rename(tmp_path / "elsewhere")
    for call in (lambda: road.put("a", b""), lambda: road.fetch("a", 1), road.names):
        with pytest.raises(OSError, match=r"No such file"):
            call()
    assert not (tmp_path / "share").exists()
    with pytest.raises(OSError, match="no folder"):
        FolderRoad(tmp_path / "no" / "such" / "part")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file:///proc/share", "a place that can be written, file:///proc/share"),
        ("file:///no/such/share", "no folder /no/such"),
        ("file://share", "expected a folder, or a URL"),
        ("s3://", "a path behind the scheme"),
        ("s4://bucket/path", "a URL whose scheme fsspec knows"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match="Reading --via") as caught:
        check(road_place(text, None))
    assert told in str(caught.value)


def test_a_place_that_can_be_is_left_as_it_was(tmp_path: Path) -> None:
    place = road_place(f"file://{tmp_path}/share", None)
    check(place)
    assert os.listdir(tmp_path / "share") == []
    assert (place.every, place.shown) == (bucket_road.FOLDER_SECONDS, f"file://{tmp_path}/share")
    assert road_place(str(tmp_path), 2.0) == RoadPlace(str(tmp_path), 2.0)
    with pytest.raises(ConfigError, match="via-every"):
        road_place(str(tmp_path), 0.001)


def test_constants_fit_each_other() -> None:
    # A passage's window holds what a session may send ahead, and a host's silence outlives the store's absence.
    assert FAR_LIMITS.window_bytes < bucket_passage.OBJECT_BYTES_MAX * bucket_passage.AHEAD_MAX
    # A lost object is noticed before the passage counts as silent, and after each store shows what was put.
    assert bucket_process.KEEP_SECONDS < bucket_process.LOST_SECONDS == 20.0 < bucket_process.HOME_SILENT_SECONDS
    assert bucket_process.ISLAND_SILENT_SECONDS > FAR_LIMITS.silence_max / 1e9 > bucket_process.HOME_SILENT_SECONDS

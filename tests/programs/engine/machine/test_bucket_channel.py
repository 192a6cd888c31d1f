"""The contract of every channel, where the one who dials has no way but a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.channels.conformance import ChannelConformance, MakeEnds, RecordingReceiver
from isthmus.runtime.channels.contract import Channel
from isthmus.runtime.clock import milliseconds
from isthmus.runtime.ids import Member
from isthmus.runtime.wire.peers import FAR_LIMITS
from tests.programs.engine.machine.bucket_place import Ways
from tests.runtime.wire.cables import World
from tests.runtime.wire.test_channel import WireEnds

pytestmark = pytest.mark.long


class BucketEnds(WireEnds):
    """Whoever joins later dials through the bucket, with keys."""

    def __init__(self, world: World, window_bytes: int, ways: Ways, port: int) -> None:
        super().__init__(world, window_bytes, "later", has_keys=True)
        self.limits = FAR_LIMITS._replace(window_bytes=window_bytes, relay_window_bytes=window_bytes)
        self._porter = f"tcp://127.0.0.1:{port}"

    def join(self, member: Member, receiver: RecordingReceiver | None) -> Channel:
        channel = super().join(member, receiver)
        made, where = self.ends[member]
        self.ends[member] = made, where._replace(porter=self._porter, is_inside=True)
        return channel

    def rest(self) -> None:
        before: list[dict[str, int]] = []
        while before != (now := [channel.statistics() for channel, _ in self.ends.values()]):
            before = now
            self.world.pass_time(milliseconds(600))


class TestBucketConformance(ChannelConformance):
    @pytest.fixture
    def ends(self, tmp_path: Path) -> Iterator[MakeEnds]:
        ways, world = Ways(tmp_path / "share"), World()
        port = ways.island()
        yield lambda window_bytes: BucketEnds(world, window_bytes, ways, port)
        world.close()
        assert all(store.requests["put"] for store in ways.stores)
        ways.close()

"""Many peers whose link to one host was away for all of them: how they greet it when it is back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from isthmus.runtime.channels.conformance import RecordingReceiver
from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import PEERS_MAX, Member
from isthmus.runtime.sim.network import Ether, EtherSockets
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.peers import Limits
from tests.runtime.cores.scheduler_stories import life
from tests.runtime.sim.test_sockets import Sky, at_once

PEERS = 64
HUB = "127.0.0.4"
LIMITS = Limits().for_peers(PEERS_MAX)
BIN_NS = 100_000_000


class Hub:
    """A host that listens, and its peers, each on a machine of its own. `ups` are the times at which a peer was met."""

    def __init__(self) -> None:
        self.clock, self.sky = VirtualClock(), Sky(latency_ms=10.0)
        self.ups: list[int] = []
        ether = Ether(self.clock, self.sky)

        def make(member: Member, machine: str) -> WireChannel:
            sockets = EtherSockets(ether, machine, at_once, random.Random(str(member)))
            names = {"run": "run-1", "fingerprint": "fingerprint-1"}
            made = WireChannel(
                member,
                clock=self.clock,
                sockets=sockets,
                limits=LIMITS,
                on_peer_up=lambda peer: self._met(member),
                **names,
            )
            made.open(RecordingReceiver())
            return made

        self.hub = life("syncer/0")
        hub = make(self.hub, HUB)
        endpoints = hub.bind(f"tcp://{HUB}:0")
        self.machines = [f"127.1.0.{slot}" for slot in range(PEERS)]
        for slot, machine in enumerate(self.machines):
            member = life(f"learner/{slot}")
            hub.expect(member)
            make(member, machine).connect(self.hub, endpoints)

    def _met(self, member: Member) -> None:
        if member == self.hub:
            self.ups.append(self.clock.now())

    def wait(self, duration: float) -> None:
        due: list[bool] = []
        at = Instant(self.clock.now() + seconds(duration))
        self.clock.call_at(at, lambda: due.append(True))
        self.clock.run(lambda: bool(due), at)

    def lose_link(self, duration: float) -> None:
        """Carry nothing to and from it for so long, and then until all are there again."""
        self.sky.cuts.update(way for machine in self.machines for way in ((machine, HUB), (HUB, machine)))
        self.wait(duration)
        self.sky.cuts.clear()
        self.ups.clear()
        while len(self.ups) < PEERS:
            self.wait(1.0)


@pytest.mark.parametrize("away", [7.0, 15.0])
def test_those_whose_link_was_away_do_not_all_greet_at_once(away: float) -> None:
    """Their sessions end at one moment, and attempts meanwhile last equally long for all: without back-offs that differ
    by as much as a second, all of them greet within a tenth."""
    hub = Hub()
    hub.wait(2.0)
    assert len(hub.ups) == PEERS
    hub.lose_link(away)
    most = max(Counter(at // BIN_NS for at in hub.ups).values())
    assert most < PEERS // 2
    assert max(hub.ups) - min(hub.ups) > 3 * BIN_NS


def test_a_link_that_was_away_for_a_moment_costs_no_session() -> None:
    hub = Hub()
    hub.wait(2.0)
    hub.ups.clear()
    hub.sky.cuts.update((machine, HUB) for machine in hub.machines)
    hub.wait(2.0)
    hub.sky.cuts.clear()
    hub.wait(2.0)
    assert hub.ups == []

"""The ZeroMQ channel with keys: who is heard, as whom, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Member
from isthmus.runtime.wire.security_keys import Keyring
from tests.runtime.wire.cables import LEARNERS, PATIENT, SYNCER, End, World
from tests.runtime.wire.key_rings import STRANGER, keyed, machine_of, pair_of, ring_of
from tests.runtime.wire.siege import Stranger

EVERYBODY = (SYNCER, *LEARNERS)
HERE = "tcp://127.0.0.1:0"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


class Keyed:
    """A syncer that listens, and the ring that it lives by."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ring = ring_of(SYNCER, *EVERYBODY)
        self.places = {member: machine_of(member) for member in LEARNERS}
        self.syncer = world.end(SYNCER, PATIENT, keys=self.ring, machine_of=self.places.get)
        self.where = self.syncer.channel.bind(HERE)

    def learner(self, number: int, **changes: Any) -> End:
        """A learner that dials the syncer."""
        member = LEARNERS[number]
        learner = self.world.end(member, PATIENT, **(keyed(member, EVERYBODY) | changes))
        learner.channel.connect(SYNCER, self.where)
        return learner

    def reasons(self, learner: End, told: str) -> bool:
        """Whether a learner was told so."""
        return any(told in reason for _, reason in learner.losses)


@pytest.fixture
def keyed_syncer(world: World) -> Keyed:
    return Keyed(world)


def test_endpoints_carry_the_key_of_their_machine(keyed_syncer: Keyed) -> None:
    assert keyed_syncer.where.key == pair_of(machine_of(SYNCER)).public


def test_what_is_sent_with_keys_cannot_be_read_on_the_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = bytearray()
    mark = b"what nobody else shall read " * 20

    def carried(with_keys: bool) -> bytes:
        from tests.runtime.wire.cables import Half

        heard = Half.data_received
        monkeypatch.setattr(Half, "data_received", lambda half, data: (seen.extend(data), heard(half, data))[1])
        seen.clear()
        given = [keyed(each, EVERYBODY) if with_keys else {} for each in (SYNCER, LEARNERS[0])]
        syncer, learner = world.end(SYNCER, PATIENT, **given[0]), world.end(LEARNERS[0], PATIENT, **given[1])
        learner.channel.connect(SYNCER, world.cable(syncer.channel.bind(HERE)).endpoints)
        learner.send(SYNCER, 1, np.frombuffer(mark, np.uint8))
        world.until(lambda: bool(syncer.items))
        return bytes(seen)

    assert mark in carried(with_keys=False)
    with_keys = carried(with_keys=True)
    assert len(with_keys) > len(mark)
    assert mark[:28] not in with_keys


def test_a_member_speaks_with_the_key_of_its_own_machine_only(world: World, keyed_syncer: Keyed) -> None:
    honest = keyed_syncer.learner(0)
    liar = keyed_syncer.learner(1, keys=ring_of(LEARNERS[2], SYNCER))
    honest.send(SYNCER, 1, "mine")
    liar.send(SYNCER, 1, "not mine")
    world.until(lambda: keyed_syncer.syncer.count("refused_machine") >= 2 and bool(keyed_syncer.syncer.items))
    told = "learner/1#1 lives on 'learner/1', and machine 'learner/2' speaks for it"
    world.until(lambda: keyed_syncer.reasons(liar, told))
    assert (keyed_syncer.syncer.got(1), keyed_syncer.syncer.ups, liar.ups) == (["mine"], [LEARNERS[0]], [])


def test_a_member_is_welcome_once_it_is_known_where_it_lives(world: World, keyed_syncer: Keyed) -> None:
    del keyed_syncer.places[LEARNERS[0]]
    learner = keyed_syncer.learner(0)
    learner.send(SYNCER, 1, "patient")
    world.until(lambda: keyed_syncer.reasons(learner, "is not known here yet"))
    assert keyed_syncer.syncer.ups == []
    keyed_syncer.places[LEARNERS[0]] = machine_of(LEARNERS[0])
    world.until(lambda: keyed_syncer.syncer.got(1) == ["patient"])


def test_another_machine_cannot_attach_to_a_connection(world: World, keyed_syncer: Keyed, context: Any) -> None:
    one, other = (
        Stranger(context, keyed_syncer.where, LEARNERS[0], ring_of(LEARNERS[number], SYNCER)) for number in (0, 1)
    )
    one.control.send(one.session.next_control(Instant(0)))
    attach = one.session.next_data(Instant(0))
    assert attach is not None
    world.until(lambda: bool(one.control.poll(0)))
    other.data.send_multipart(attach)
    world.until(lambda: keyed_syncer.syncer.count("refused_machine") == 1)
    assert keyed_syncer.syncer.ups == []
    one.session.receive_control([memoryview(one.control.recv())])
    one.control.send(one.session.next_control(Instant(0)))
    one.data.send_multipart(attach)
    world.until(lambda: keyed_syncer.syncer.ups == [LEARNERS[0]])
    for each in (one, other):
        each.close()


@pytest.mark.slow
def test_who_dials_is_told_what_is_wrong_with_keys(world: World, keyed_syncer: Keyed) -> None:
    unknown = keyed_syncer.learner(0, keys=Keyring(STRANGER))
    mistaken = world.end(LEARNERS[1], PATIENT, **keyed(LEARNERS[1], EVERYBODY))
    mistaken.channel.connect(SYNCER, keyed_syncer.where._replace(key=STRANGER.public))
    keyless = world.end(LEARNERS[2], PATIENT)
    keyless.channel.connect(SYNCER, keyed_syncer.where)
    for learner, told in (
        (unknown, "no connection: this machine's key is not admitted there"),
        (mistaken, "no connection: "),
        (keyless, "no connection: one side has keys, the other has none"),
    ):
        world.until(lambda learner=learner, told=told: keyed_syncer.reasons(learner, told))  # type: ignore[misc]
    assert keyed_syncer.syncer.count("refused_unadmitted") > 0
    assert keyed_syncer.syncer.count("refused_mistaken") > 0
    assert keyed_syncer.syncer.ups == []


def test_who_is_expelled_is_heard_no_more_and_nobody_else_notices(world: World, keyed_syncer: Keyed) -> None:
    syncer, learner, other = keyed_syncer.syncer, keyed_syncer.learner(0), keyed_syncer.learner(1)
    world.until(lambda: len(syncer.ups) == 2)
    keyed_syncer.ring.expel(machine_of(LEARNERS[0]))
    learner.send(SYNCER, 1, "too late")
    other.send(SYNCER, 1, "here")
    world.until(lambda: bool(syncer.losses))
    assert syncer.losses[0][1] == "refused (expelled: the machine of learner/0#1 is not admitted any more)"
    world.until(lambda: keyed_syncer.reasons(learner, "key is not admitted there") and syncer.got(1) == ["here"])
    assert keyed_syncer.reasons(learner, "refused by the peer (expelled")
    assert syncer.count("refused_expelled") > 0
    assert (other.losses, sorted(syncer.ups)) == ([], [LEARNERS[0], LEARNERS[1]])
    keyed_syncer.ring.admit(machine_of(LEARNERS[0]), pair_of(machine_of(LEARNERS[0])).public)
    world.until(lambda: syncer.got(1) == ["here", "too late"])


def test_another_key_under_the_same_name_does_not_revive_a_connection(world: World, keyed_syncer: Keyed) -> None:
    syncer, learner = keyed_syncer.syncer, keyed_syncer.learner(0)
    world.until(lambda: bool(syncer.ups))
    name = machine_of(LEARNERS[0])
    keyed_syncer.ring.expel(name)
    keyed_syncer.ring.admit(name, STRANGER.public)
    learner.send(SYNCER, 1, "nobody")
    world.until(lambda: syncer.count("refused_expelled") > 0)
    assert syncer.items == []


@pytest.mark.parametrize("member", [LEARNERS[0]])
def test_nothing_leaves_the_machine_without_keys(world: World, member: Member) -> None:
    plain, ring = world.end(member, PATIENT), world.end(LEARNERS[1], PATIENT, **keyed(LEARNERS[1], EVERYBODY))
    with pytest.raises(ConfigError, match="expected keys"):
        plain.channel.bind("tcp://0.0.0.0:0")
    away = "tcp://192.0.2.1:7401"
    with pytest.raises(ConfigError, match="expected keys"):
        plain.channel.connect(SYNCER, Endpoints(away, away))
    with pytest.raises(ConfigError, match="expected the public key of the machine that listens there, found none"):
        ring.channel.connect(SYNCER, Endpoints(away, away))

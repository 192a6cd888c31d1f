"""A host of its own process, for tests of keys between machines: `python -m tests.runtime.wire.away_host`.

`listen ADDRESS SECRET ADMITTED` answers every item with itself, tells where it is in a line of JSON, and ends with its
input. `dial WHERE SECRET` sends one item, and prints the answer, or why there is no connection.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.wire.security_keys import Keyring, read_pair
from tests.patience import PATIENCE
from tests.runtime.wire.cables import LEARNERS, PATIENT, SYNCER, World

MACHINES = {SYNCER: "hub", LEARNERS[0]: "leaf"}


def listen(world: World, address: str, secret: str, admitted: str) -> None:
    """Answer until the input ends."""
    ring = Keyring(read_pair(Path(secret)), {admitted: "leaf"}, "hub")
    syncer = world.end(SYNCER, PATIENT, keys=ring, machine_of=MACHINES.get)
    print(json.dumps(syncer.channel.bind(f"tcp://{address}:0")), flush=True)
    is_over = False

    def ended() -> None:
        nonlocal is_over
        is_over = True

    world.loop.add_reader(sys.stdin.fileno(), ended)
    answered = 0

    def answer() -> bool:
        nonlocal answered
        while answered < len(syncer.items):
            source, parcel = syncer.items[answered]
            syncer.send(source, 1, parcel.item)
            answered += 1
        return is_over

    world.until(answer, seconds_max=PATIENCE)
    world.loop.remove_reader(sys.stdin.fileno())


def dial(world: World, where: str, secret: str) -> None:
    """Send one item."""
    learner = world.end(LEARNERS[0], PATIENT, keys=Keyring(read_pair(Path(secret))))
    learner.channel.connect(SYNCER, Endpoints(*json.loads(where)))
    learner.send(SYNCER, 1, ["there and back", 1.5])
    world.until(lambda: bool(learner.items or learner.losses))
    print(learner.losses[0][1] if learner.losses else learner.got(1)[0], flush=True)


if __name__ == "__main__":
    here = World()
    {"listen": listen, "dial": dial}[sys.argv[1]](here, *sys.argv[2:])
    here.close()

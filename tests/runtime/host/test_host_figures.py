"""What a host tells of itself is what a home takes from another machine, also while it compiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.host.busy import Firings
from isthmus.runtime.host.contract import Traffic
from isthmus.runtime.host.own_process import HostRoster, message_of
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import Flows
from isthmus.runtime.supervision.messages import Formed, HostFigures, shown_of
from isthmus.runtime.supervision.rosters import Met

LIFE = Member(Replica("learner", 0), 1)


def told(published: dict[str, dict[str, Any]]) -> Any:
    firings = Firings(Duration(5), Duration(3), "inner-step")
    host = SimpleNamespace(
        traffic=Traffic(),
        published=published,
        member=LIFE,
        busy=SimpleNamespace(firings=lambda now: firings),
        refusals={},
        refused={},
        flows=Flows(),
    )
    missing = [SimpleNamespace(replica=Replica("syncer", 0), incarnation=2, silence_ns=7)]
    rows = [(each, each.silence_ns) for each in missing]
    reach = SimpleNamespace(peers=1, missing=rows, relayed=[Member(Replica("recorder", 0), 1)])
    channel = SimpleNamespace(reachability=lambda: reach)
    told = {
        "formed": Formed(),
        "roster": HostRoster((Met("syncer"),)),
        "cpu_seconds": 0.5,
        "places": [("a.py", 3, "f")],
    }
    return message_of(cast(Any, host), cast(Any, channel), Instant(9), **cast(Any, told))


def test_a_home_takes_what_a_host_tells_whatever_it_does() -> None:
    for published, now in (({}, None), ({"inner-step": {"step": 3}}, None), ({"inner-step": {"compiles_since": 4}}, 9)):
        figures = msgspec.json.decode(msgspec.json.encode(told(published)["figures"]))
        (shown,) = shown_of([[msgspec.to_builtins(LIFE), figures, published]])
        assert msgspec.json.decode(msgspec.json.encode(shown.figures)) == figures
        assert figures.get("now_ns") == now
        assert figures["missing"] == [["syncer/0", 2, 7]]
        assert figures.keys() <= set(HostFigures.__struct_fields__)

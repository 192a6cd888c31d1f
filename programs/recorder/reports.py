"""The completion of a body's reports for the token count: a body itself has to report nothing but `tokens`.

    {"tokens": 6400}                                        tokens that this life of this replica has trained in all
    {"tokens": 6400, "step": 100, "loss": 0.3, "phase": "stepping"}      and anything else that is worth showing

Everything else of a `Report` is for programs that merge fragments. `phase` is "final" once the body has come to its
end; `step` counts steps, `step_time` is nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from isthmus.ops.exchange.messages import Report
from isthmus.runtime.ids import Member, Replica

_UNTOLD: Final[Mapping[str, Any]] = {
    "phase": "stepping",
    "step_time": 0,
    "delay_steps": 0,
    "loss": math.nan,
    "metrics": [],
    "staleness": 0,
    "sick": False,
    "sick_step": 0,
    "bytes_sent": 0,
    "bytes_received": 0,
    "waited": 0,
    "device_kind": "",
}


class Reports:
    """Completes the reports that arrive at a recorder."""

    def __init__(self) -> None:
        self._began: dict[Member, int] = {}

    def whole(self, told: Mapping[Any, Mapping[str, Any]], live: Iterable[Member], now: int) -> list[Report]:
        """The reports in `told`, by (replica, key), of replicas on themselves, in their order."""
        lives = {member.replica: member for member in live}
        found = [self._whole(replica, each, lives, now) for (replica, _), each in sorted(told.items(), key=_place)]
        return [report for report in found if report is not None]

    def _whole(
        self, replica: Replica, told: Mapping[str, Any], lives: Mapping[Replica, Member], now: int
    ) -> Report | None:
        """One completed report; None if it is about another slot, or its life is unknown."""
        if told.get("slot", replica.slot) != replica.slot or not ("incarnation" in told or replica in lives):
            return None
        member = Member(replica, told["incarnation"] if "incarnation" in told else lives[replica].incarnation)
        began = self._began.setdefault(member, now)
        tokens = told["tokens"]
        untold = {
            **_UNTOLD,
            "slot": replica.slot,
            "incarnation": member.incarnation,
            "step": int(tokens > 0),
            "stepping": now - began,
            "totals": [[replica.slot, member.incarnation, tokens]],
        }
        lists: dict[str, list[Any]] = {"epochs": [], "accounts": [], "versions": []}
        return cast(Report, {**untold, **lists, **told})


def _place(entry: tuple[tuple[Replica, Any], Any]) -> tuple[Replica, str]:
    (replica, key), _ = entry
    return replica, str(key)

"""Orders and reports as control messages between a home and its outposts. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from isthmus.runtime.control.messages import Message, encode
from isthmus.runtime.daemon.host_endpoint import Shown
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.messages import Orders, Report, Stamp, orders_of, report_of

SHOWN_BYTES_MAX: Final = 64 << 10
"""Size of one host's status: four times that of a learner with 64 fragments, and a sixty-fourth of a message."""
REPORT: Final = "report"
ORDERS: Final = "orders"


def of_orders(orders: Orders, keys: Mapping[str, str]) -> Message:
    """A message with orders, and the public keys of the machines that take part."""
    return {"type": ORDERS, "orders": msgspec.to_builtins(orders), "keys": dict(keys)}


def read_orders(message: Mapping[str, Any]) -> tuple[Orders, dict[str, str]]:
    """The contents of such a message; KeyError, TypeError or ValueError for one that no home of ours sends."""
    return orders_of(message["orders"]), {str(name): str(key) for name, key in dict(message["keys"]).items()}


def of_report(report: Report, shown: Mapping[Member, Shown]) -> Message:
    """A message with a report, and the hosts' status for people."""
    rows = [[str(member.replica), member.incarnation, dict(each)] for member, each in shown.items()]
    return {"type": REPORT, "report": msgspec.to_builtins(report), "shown": rows}


def read_report(message: Mapping[str, Any]) -> tuple[Report, dict[Member, Shown]]:
    """The contents of such a message; KeyError, TypeError or ValueError for one that no outpost of ours sends."""
    shown: dict[Member, Shown] = {
        Member(Replica.parse(str(name)), int(incarnation)): {
            "published": dict(each["published"]),
            "figures": dict(each["figures"]),
        }
        for name, incarnation, each in message["shown"]
    }
    return report_of(message["report"]), shown


def bounded(shown: Shown) -> Shown:
    """The status of a host of another machine, or an empty one where it is too large."""
    size = len(encode({"type": "shown", **shown}))
    return shown if size <= SHOWN_BYTES_MAX else {"published": {}, "figures": {}}


def over(home: str, term: int) -> Message:
    """Orders of a home, in that term, that release a machine."""
    return of_orders(Orders(is_over=True, stamp=Stamp(term), home=home), {})

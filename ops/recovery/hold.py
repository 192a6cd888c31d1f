"""The hold node: keeps published updates, for shards that come back when no learner has them any more.

Decides when learners get a copy: when the shard that published a fragment is gone and its next life is there. A learner
that holds that version, or a newer one, ignores the copy; one that holds none adopts it, and the shard then asks it
like any learner that held it all along. So a merged model is never begun anew as long as one host of any role has it.
Once the shard has published under its new epoch, the copies are withdrawn, because learners that join later would get
them, too. Shards learn which fragments are held, so that they wait for the copies, with digests of them, to check
claims; so does the recorder, which reports a model as lost once no host holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

from isthmus.ops.exchange.copies import copied, withdrawn
from isthmus.ops.exchange.messages import Held, Update
from isthmus.ops.exchange.schemas import UPDATE
from isthmus.ops.recovery.belief import digest_of

HOLDERS: Final = ("evaluator", "recorder")
"""The roles that hold a model beside shards and learners."""


class Hold:
    """Updates in, copies of them out, on a timer. Fragment p belongs to the replica p mod `shards` of `role`."""

    outputs: ClassVar[tuple[str, ...]] = ("copy", "held")
    schemas: ClassVar[dict[str, Any]] = {"update": UPDATE}

    def __init__(self, *, role: str, shards: int) -> None:
        self._role, self._shards = role, shards
        self._held: dict[int, Update] = {}
        self._told: Held | None = None
        self._given: dict[int, tuple[int, list[Any]]] = {}
        """Fragment -> the life of its shard for which copies were sent, and its row in `Held.given`."""

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._context = context

    def __call__(self, update: Mapping[Any, Update] | None = None) -> list[tuple[str, Any]] | None:
        """Store new updates; emit the copies to send, those to withdraw, and the held versions, if they changed."""
        for item in (update or {}).values():
            known = self._held.get(item["fragment"])
            if known is None or item["version"] >= known["version"]:
                self._held[item["fragment"]] = item
        lives = {
            member.replica.slot: member.incarnation
            for member in self._context.members()
            if member.replica.role == self._role
        }
        emitted: list[tuple[str, Any]] = []
        merged = sorted(fragment for fragment, held in self._held.items() if held["version"][1])
        role = self._context.member.replica.role
        for fragment, held in sorted(self._held.items()):
            life, given = lives.get(fragment % self._shards, 0), self._given.get(fragment, (0,))[0]
            if held["version"][0] < life and given < life:
                lengths = cast(dict[str, Any], held).get("lengths", [])
                self._given[fragment] = life, [fragment, *held["version"], _digest(held), lengths]
                emitted += self._gifts(held)
            elif given and held["version"][0] >= given:
                del self._given[fragment]
                emitted.append(("copy", withdrawn(fragment)))
        own = {
            "holder": role,
            "fragments": sorted(self._held),
            "merged": merged,
            "lives": [[shard, life] for shard, life in sorted(lives.items())],
            "given": [row for _, (_, row) in sorted(self._given.items())],
        }
        told = cast(Held, {**own, **self._of_disk()})
        if told != self._told:
            self._told = told
            emitted.append(("held", told))
        return emitted or None

    def _gifts(self, held: Update) -> list[tuple[str, Any]]:
        """Items for a fragment whose shard has a new life."""
        return [("copy", copied(held))]

    def _of_disk(self) -> dict[str, Any]:
        """The fields of `Held` about a disk; here there is none."""
        return {"saved": [], "totals": [], "faults": [], "error": None, "store": None}


def _digest(held: Update) -> str:
    return digest_of(held["values"], held["clock"], held["positions"])

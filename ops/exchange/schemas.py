"""Schemas of the items that cross between hosts, as plain data, for the ports of the bodies here.

Decides nothing: bodies declare them (`schemas`), and the runtime refuses violations, by their sender
(`runtime.items.schemas`). So a body may rely on fields, types and sizes of its inputs, and on `slot` and `incarnation`
being those of the sender. Other contents of an item may still be wrong: accounts, norm histories and relayed totals
judge those. A vector that is not finite is such a case: a learner that has diverged sends one and then recovers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.token_accounts import FATES, AtMost, StepTokens

Rule: TypeAlias = Any

CODE_BLOCK: Final = 256
"""Values that share a scale: the largest of them costs the others the least precision, and a scale of 4 bytes is 3 % of
the codes."""
CODE_LEAST: Final = 1e-35
"""The least maximum of a block that is not coded as zeros: its scale is a normal float32, which no device flushes to
zero, and the levels divided by it are finite."""
BITS: Final = {"float32": 32.0, "bf16": 16.0, "int8": 8 + 32 / CODE_BLOCK, "int4": 4 + 32 / CODE_BLOCK}
"""Bits of a value as it travels, with its share of the scale, by the name of the format."""
COUNT: Final = ("integer", 0)
LIFE: Final = ("integer", 1)
VERSION: Final = ("row", COUNT, COUNT)
TRIPLES: Final = ("list", ("row", COUNT, LIFE, COUNT))
"""[slot, incarnation, tokens or position] of lives."""
POSITIONS: Final = ("list", ("row", COUNT, COUNT))
"""[slot, position in the slot's batches]."""
MEMBERS: Final = ("list", ("row", COUNT, LIFE))
METRICS: Final = ("list", ("row", "text", "float"))
"""[name, value] of scalars."""
LENGTHS: Final = ("list", ("number", 0))
"""Lengths of merged answers."""
OWN: Final = {"slot": ("sender", "slot"), "incarnation": ("sender", "incarnation")}
KINDS: Final = ("initial", "recover", "merge", "final")

CONTROL: Final = {
    "stop": "flag",
    "tokens": COUNT,
    "totals": TRIPLES,
    "published": ("list", ("row", COUNT, COUNT, COUNT)),
}
HELD: Final = {
    "holder": "text",
    "fragments": ("list", COUNT),
    "merged": ("list", COUNT),
    "saved": TRIPLES,
    "totals": TRIPLES,
    "lives": MEMBERS,
    "given": ("list", ("row", COUNT, COUNT, COUNT, "text", LENGTHS)),
    "faults": ("list", "text"),
    "error": ("optional", "text"),
    "store": ("optional", {"url": "text", "number": COUNT, "error": ("optional", "text")}),
}
UPDATE: Final = {
    "fragment": COUNT,
    "version": VERSION,
    "kind": ("text", *KINDS, "copy"),
    "values": ("array", "float32", (None,)),
    "clock": TRIPLES,
    "positions": POSITIONS,
    "totals": TRIPLES,
    "refused": MEMBERS,
}
TENSORS: Final = {"momentum?": ("array", "float32", (None,)), "theta?": ("array", "float32", (None,))}
"""A shard's state beside the values."""
STATE: Final = {**UPDATE, "tensors": TENSORS, "lengths": LENGTHS}
KEPT: Final = {"fragment": COUNT, "version": VERSION, "tensors": TENSORS}
WANTED: Final = {"fragment": COUNT, "counts": ("list", COUNT)}
FORMER: Final = ("list", ("row", LIFE, COUNT, COUNT, LIFE))
"""[incarnation, begin, end, steps] of earlier lives of a slot."""
LEAVES: Final = ("list", ("row", "text", ("list", COUNT), ("array", "uint8", (None,))))
STANDINGS: Final = ("list", ("row", COUNT, COUNT, ("optional", COUNT), FORMER))
KEPT_OWN: Final = {**OWN, "standings": STANDINGS, "totals": TRIPLES, "leaves": LEAVES}
"""A learner's own state, as it sends it."""
RESTORED: Final = {
    "slot": COUNT,
    "incarnation": LIFE,
    "own": ("optional", {**KEPT_OWN, "slot": COUNT, "incarnation": LIFE}),
}
NEED: Final = {"fragment": COUNT, "version": VERSION, "lacks": "flag"}
LINKS: Final = ("list", ("row", "text", COUNT, COUNT, COUNT))
"""[role, slot, bytes a second in the mean, and at best]."""
FORMAT: Final = ("text", *BITS)
ASKED: Final = {"push": ("list", ("row", COUNT, FORMAT)), "update": FORMAT, "interval": LIFE, "overlap": COUNT}
CHANGE: Final = {
    "shard": COUNT,
    "epoch": LIFE,
    "number": LIFE,
    "place": COUNT,
    "round": COUNT,
    "setting": ("text", "push", "update", "interval", "overlap"),
    "slot": ("optional", COUNT),
    "before": "text",
    "after": "text",
    "reason": ("text", "carries less", "carries more", "slow rounds", "quick rounds"),
    "link": ("optional", COUNT),
    "goodput": COUNT,
    "needed": COUNT,
    "round_trip": ("number", 0),
    "at": "integer",
}
ROUND: Final = {
    "round": COUNT,
    "fragment": COUNT,
    "attempt": COUNT,
    "kind": ("text", *KINDS),
    "members": MEMBERS,
    "count_min": COUNT,
    "grace": ("optional", COUNT),
    "required": ("list", COUNT),
    "deadline": ("optional", COUNT),
    "interval": COUNT,
    "totals": TRIPLES,
    "known": ("list", ("row", COUNT, COUNT, "text", LENGTHS)),
    "asked?": ASKED,
}
TURN: Final = {**ROUND, "steps": COUNT}


def tokens_of(steps: str, step_tokens: StepTokens, *start: str) -> Rule:
    """The rule for the tokens of so many steps: tokens are weights, so they must be those that the steps can have."""
    if isinstance(step_tokens, AtMost):
        return ("at most", steps, step_tokens.tokens, *start)
    return ("product", steps, step_tokens, *start)


def progress(fragments: int, step_tokens: StepTokens) -> Rule:
    """The schema of a learner's progress, in a program of `fragments` fragments."""
    return {
        **OWN,
        "phase": ("text", "ready", "stepping", "final"),
        "step": ("firings", COUNT),
        "tokens": tokens_of("step", step_tokens),
        "step_time": COUNT,
        "delay_steps": COUNT,
        "epochs": ("list", COUNT, fragments),
        "totals": TRIPLES,
        "links?": LINKS,
    }


REPORT: Final = {
    "slot?": OWN["slot"],
    "incarnation?": OWN["incarnation"],
    "tokens": COUNT,
    "phase?": ("text", "ready", "stepping", "final"),
    "step?": COUNT,
    "step_time?": ("number", 0),
    "stepping?": COUNT,
    "loss?": "float",
    "metrics?": METRICS,
    "staleness?": COUNT,
    "sick?": "flag",
    "sick_step?": COUNT,
    "accounts?": ("list", ("list", COUNT, len(FATES))),
    "versions?": ("list", VERSION),
    "totals?": TRIPLES,
    "bytes_sent?": COUNT,
    "bytes_received?": COUNT,
    "waited?": COUNT,
    "device_kind?": "text",
    "in_model?": ("list", ("row", COUNT, COUNT)),
    "links?": LINKS,
    "began?": ("optional", ("row", ("text", "copy", "snapshot", "anew", "peer"), COUNT, COUNT)),
}
"""The report of a learner to the recorder, in any program."""


def answer(fragments: Sequence[Fragment], step_tokens: StepTokens) -> Rule:
    """The schema of a learner's answer about one of these fragments."""
    units = ("of", "fragment", tuple(len(fragment.units) for fragment in fragments))
    return {
        **OWN,
        "fragment": ("integer", 0, len(fragments) - 1),
        "round": COUNT,
        "kind": ("text", *KINDS),
        "base": ("optional", VERSION),
        "begin": COUNT,
        "steps": COUNT,
        "end": tokens_of("steps", step_tokens, "begin"),
        "clock": TRIPLES,
        **vector("gradient", fragments),
        "norms": ("array", "float32", (units,)),
        "positions": POSITIONS,
        "state": ("optional", ("row", COUNT, ("array", "uint8", (None,)))),
        "former?": FORMER,
    }


def vote(whole: Sequence[Fragment], tokens_most: int) -> Rule:
    """The schema of a learner's vote with a gradient of the whole model, of at most so many tokens."""
    return {
        **OWN,
        "round": COUNT,
        "tokens": ("integer", 1, tokens_most),
        "values": ("array", "float32", (sum(fragment.size for fragment in whole),)),
        "positions": POSITIONS,
        "stream": ("optional", ("row", COUNT, ("array", "uint8", (None,)))),
    }


def vector(name: str, fragments: Sequence[Fragment]) -> dict[str, Rule]:
    """The fields of values of one of these fragments, as float32 or as codes of any format (`kernels.coding`)."""
    whole = ("of", "fragment", tuple(fragment.size for fragment in fragments))
    pairs = ("of", "fragment", tuple(sum(-(-unit.size // 2) for unit in fragment.units) for fragment in fragments))
    blocks = tuple(sum(-(-unit.size // CODE_BLOCK) for unit in fragment.units) for fragment in fragments)
    formats = (("float32", whole), ("bfloat16", whole), ("int8", whole), ("uint8", pairs))
    return {
        name: ("either", *(("array", dtype, (size,)) for dtype, size in formats)),
        "scales?": ("array", "float32", (("of", "fragment", blocks),)),
    }


def coded_state(fragments: Sequence[Fragment]) -> Rule:
    """The schema of a shard's state beside its coded updates."""
    whole = ("of", "fragment", tuple(fragment.size for fragment in fragments))
    counts = tuple(sum(-(-unit.size // CODE_BLOCK) for unit in fragment.units) for fragment in fragments)
    codes: Rule = ("array", "int8", (whole,))
    scales: Rule = ("array", "float32", (("of", "fragment", counts),))
    theirs = {"momentum?": codes, "momentum_scales?": scales, "theta": codes, "theta_scales": scales}
    return {"fragment": COUNT, "version": VERSION, **theirs, "lengths": LENGTHS}


def coded_update(fragments: Sequence[Fragment]) -> Rule:
    """The schema of a shard's updates where they may be coded."""
    rule = {**UPDATE, **vector("values", fragments), "base?": VERSION}
    # Empty, where a copy is withdrawn.
    rule["values"] = (*rule["values"], ("array", "float32", (0,)))
    return rule

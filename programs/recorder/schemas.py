"""The schemas of the recorder's inputs, as plain data: from any program, so no more is required than it reads."""

from __future__ import annotations

from typing import Any, Final

from isthmus.ops.exchange.schemas import ASKED, CHANGE, COUNT, HELD, KINDS, LIFE, METRICS, REPORT, TRIPLES, VERSION

MERGED: Final = {
    "shard": COUNT,
    "epoch": LIFE,
    "round": COUNT,
    "fragment": COUNT,
    "kind": ("text", *KINDS),
    "version": ("optional", VERSION),
    "origin": ("optional", VERSION),
    "momentum": ("optional", VERSION),
    "voters": ("list", COUNT),
    "weights": ("list", "number"),
    "left_out": ("list", COUNT),
    "refused": ("list", ("row", COUNT, "text")),
    "shortened": ("list", ("row", COUNT, "number")),
    "opposed": ("list", ("row", COUNT, COUNT)),
    "reason": "text",
    "opened_at": "integer",
    "quorum_at": "integer",
    "closed_at": "integer",
    "published_at": "integer",
    "merged_tokens": TRIPLES,
    "merges": COUNT,
    "votes": COUNT,
    "asked?": ASKED,
}
SCHEMAS: Final[dict[str, Any]] = {
    "progress": REPORT,
    "merged": MERGED,
    "evaluation": {
        "kind": ("text", "initial", "during", "final"),
        "loss": "float",
        "tokens": COUNT,
        "metrics?": METRICS,
    },
    "final": {"fragment": COUNT, "tensors": "any"},
    "held": HELD,
    "changed": CHANGE,
}

"""Whether the largest fragment fits into an item, in all that is made of it: before a run, not at its first send.

What is largest is the state that a shard gives to the home of the run: the published values, the momentum where there
is any, and what outer steps go on from where updates are coded.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.template import Graph
from isthmus.runtime.items.layout import ITEM_BYTES_MAX

VALUE_BYTES = 4


def item_faults(graph: Graph) -> Iterator[Fault]:
    """A fault for each outer step whose largest fragment does not fit."""
    for node in graph.nodes:
        if node.body is not OuterStep:
            continue
        (fragments,) = node.arguments
        vectors = 1 + bool(node.keywords["momentum"]) + (node.keywords.get("update", "float32") != "float32")
        largest = max(fragments, key=lambda fragment: fragment.size)
        size_bytes = vectors * VALUE_BYTES * largest.size
        if size_bytes > ITEM_BYTES_MAX:
            count = -(-len(fragments) * size_bytes // ITEM_BYTES_MAX)
            yield Fault(
                f"fragment {largest.index} ({largest.units[0].name}{' and more' if len(largest.units) > 1 else ''})",
                f"at most {ITEM_BYTES_MAX >> 30} GiB in one item, {ITEM_BYTES_MAX // (VALUE_BYTES * vectors)} values",
                f"{largest.size} values, whose state of {vectors} float32 vectors takes {size_bytes / 2**30:.1f} GiB",
                f"Cut the model into at least {count} fragments (program.fragments), stack layers so that each is cut "
                "for itself (task.stacked), or make the largest tensor smaller.",
            )

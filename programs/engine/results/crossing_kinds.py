"""What the items on an edge are for a border that they cross: by the message that the port at its end declares.

Decides the kinds. An edge whose port declares none of these messages is a user's own, and is called by its name: its
items are whatever that program makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args, get_origin

from isthmus.ops.data.positions import Place
from isthmus.ops.exchange import messages
from isthmus.ops.exchange.ring import RingPart
from isthmus.runtime.graph.body import schemas_of
from isthmus.runtime.graph.template import Edge

OUTER_GRADIENTS: Final = "outer gradients"
GRADIENTS: Final = "gradients"
VERSIONS: Final = "published versions"
STATE: Final = "state"
REPORTS: Final = "reports"
CONTROL: Final = "control"
FILES: Final = "files"
RELAYED: Final = "relayed"
FRAMING: Final = "framing"

MESSAGES: Final[Mapping[str, tuple[Any, ...]]] = {
    OUTER_GRADIENTS: (messages.Answer, messages.AnswerValues, messages.RegionAnswer),
    GRADIENTS: (messages.Vote, messages.Call, RingPart),
    VERSIONS: (messages.Update, messages.SentVersion, messages.FinalFragment, messages.EvaluatedModel),
    STATE: (
        messages.ShardState,
        messages.CodedState,
        messages.StatePart,
        messages.Kept,
        messages.Own,
        messages.Restored,
        messages.WholeState,
        messages.Moments,
        messages.Loan,
        messages.CopyPart,
        Place,
    ),
    REPORTS: (
        messages.Progress,
        messages.StepReport,
        messages.Merging,
        messages.Held,
        messages.NeighbourHeld,
        messages.NewVersion,
        messages.ToldVersion,
        messages.Change,
        messages.Evaluated,
    ),
    CONTROL: (
        messages.Round,
        messages.Turn,
        messages.Control,
        messages.Need,
        messages.WantedCut,
        messages.WantedPart,
        messages.WantedValues,
        messages.WantedState,
        messages.WantedVersion,
        messages.LockStepGreeting,
    ),
}
"""The messages of the shipped programs that travel between hosts, by their kinds."""
KINDS: Final = (*MESSAGES, FILES, RELAYED, FRAMING)
"""All kinds that have a name of their own, in the order in which they are shown."""
_OF: Final = {message.__qualname__: kind for kind, those in MESSAGES.items() for message in those}


def message_of(schema: Any) -> Any:
    """The message of a schema without the rules around it."""
    while get_origin(schema) is Annotated:
        schema = get_args(schema)[0]
    return schema


def kind_of(edge: Edge) -> str | None:
    """The kind of the items on an edge; None for one that is a user's own."""
    node = edge.target.node
    schema = message_of(schemas_of(node.body, node.arguments, node.keywords).get(edge.target.name))
    name = getattr(schema, "__qualname__", "")
    return _OF.get(name) if getattr(schema, "__module__", "").startswith("isthmus.") else None

"""All known facts of one merge, as data. Facts that the run folder does not hold are None.

Durations are milliseconds, times are seconds since the first inner step, as in merges.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from isthmus.programs.adapted.words import ChangeRecord

Fate: TypeAlias = Literal["merged", "refused", "without steps", "not needed", "late", "left out", "gone"]
"""What became of a learner in a round: its answer was merged; refused; held no step; was the same version as the one
taken (kinds 'initial' and 'recover', which take one); came after the close; had not come by the end of the run or the
tape; it was asked, and was not live any more when the round closed."""
ClosedBy: TypeAlias = Literal["everybody", "grace", "deadline"]
NOT_RECORDED: Final = ("norms of answers", "step times", "delays of publication and adoption")
"""What a shard knows in its memory, and no file of the run folder has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A learner in a round.

    `arrived_ms` counts from the opening of the round, `late_ms` from its close. `weight` is its share of the merge:
    tokens x (tokens / steps), over the sum. `refusal` is why it was not merged, `shortened_to` the share of its length
    that was, where it was too long; `opposed_merges` in how many merges in a row it has pulled against all others.
    `from_round` is the round that it was sent for, where it was late for that and counts in this one; `counted_in` the
    later round in which it counts, where it was late for this one, and `dropped` why it counts in none.
    """

    slot: int
    fate: Fate
    incarnation: int | None = None
    weight: float | None = None
    arrived_ms: float | None = None
    late_ms: float | None = None
    tokens: int | None = None
    steps: float | None = None
    size_bytes: int | None = None
    refusal: str | None = None
    shortened_to: float | None = None
    opposed_merges: int | None = None
    from_round: int | None = None
    counted_in: int | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms a round was open, those of its last attempt: `quorum` answers were needed, `grace_ms` granted
    after them (None: without end), `required` slots waited for, until `deadline_ms` after the opening. `members` are
    [slot, incarnation].

    grace = gamma x slack: `slack_ms` follows from the grace where it is above 0. `typical_quorum_ms` is the median,
    from opening to quorum, of the `typical_rounds` before it that a shard looks at.
    """

    attempts: int
    members: Sequence[Sequence[int]]
    quorum: int
    grace_ms: float | None
    required: Sequence[int]
    deadline_ms: float | None
    gamma: float | None = None
    slack_ms: float | None = None
    typical_quorum_ms: float | None = None
    typical_rounds: int = 0


@dataclass(frozen=True, slots=True)
class MergeFacts:
    """One merge. `version` is None where nothing was merged; `origin` is the version that this epoch of the shard began
    with; `undone_by` the next epoch, if that began with an older version than this one: it is not in the model then;
    `reason` is the quorum's sentence on why the round closed; `asked` are the settings that followed the links, None
    where none did, and `changes` the last of each that counted; `terms` and all that came when are of the shard's
    tape."""

    fragment: int
    version: Sequence[int] | None
    kind: str
    round: int
    shard: int
    epoch: int
    origin: Sequence[int] | None
    undone_by: int | None
    time: float
    opened: float | None
    quorum_ms: float | None
    grace_ms_used: float | None
    merge_ms: float | None
    closed_by: ClosedBy | None
    reason: str
    terms: Terms | None
    answers: Sequence[Answer]
    asked: Mapping[str, Any] | None = None
    changes: Sequence[ChangeRecord] = ()


@dataclass(frozen=True, slots=True)
class Away:
    """A host that was away while the round was open: what, from when, until when (None: to the end of the run)."""

    host: str
    story: str
    begun: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Why:
    """The merge that was asked for; where a later life of the shard took its version up again, also those rounds
    (`recoveries`); who was `away`; and what of the folder could not be read (`problems`)."""

    run: str
    merge: MergeFacts
    recoveries: Sequence[MergeFacts]
    away: Sequence[Away]
    problems: Sequence[str]


Line: TypeAlias = Mapping[str, Any]
"""A line of merges.jsonl."""

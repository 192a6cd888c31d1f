"""All known facts of one merge, as data. Facts that the run folder does not hold are None.

Durations are milliseconds, times are seconds since the first inner step, as in merges.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from isthmus.programs.adapted.words import ChangeRecord

Fate: TypeAlias = Literal["merged", "refused", "without steps", "not needed", "late", "left out", "gone"]
"""The fate of a learner in a round: its answer was merged; refused; held no step; was the same version as the one taken
(kinds 'initial' and 'recover', which take one); arrived after the close; had not arrived by the end of the run or the
tape; it was asked, and was no longer live when the round closed."""
ClosedBy: TypeAlias = Literal["everybody", "grace", "deadline"]
NOT_RECORDED: Final = ("norms of answers", "step times", "delays of publication and adoption")
"""Facts that a shard has in its memory, but no file of the run folder."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A learner in a round.

    `arrived_ms` counts from the opening of the round, `late_ms` from its close. `weight` is its share of the merge:
    tokens x (tokens / steps), over the sum. `refusal`: why it was not merged; `shortened_to`: the merged share of its
    length, if it was too long; `opposed_merges`: in how many merges in a row it has pulled against all others.
    `from_round`: the round that it was sent for, if it was late for that and counts in this one; `counted_in`: the
    later round in which it counts, if it was late for this one; `dropped`: why it counts in none.
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
    """The terms of a round's last attempt.

    `quorum` answers were needed, `grace_ms` granted after them (None: without end), `required` slots waited for, until
    `deadline_ms` after the opening. `members` are [slot, incarnation].

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
    """One merge.

    `version` is None if nothing was merged; `origin`: the version with which this epoch of the shard began;
    `undone_by`: the next epoch, if that began with an older version than this one, which is then not in the model;
    `reason`: the quorum's sentence on why the round closed; `asked`: the settings that followed the links, None if none
    did, and `changes`: the last of each that counted; `terms` and all arrivals are from the shard's tape.
    """

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
    """A host that was away while the round was open: the story, begin and end (None: the end of the run)."""

    host: str
    story: str
    begun: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Why:
    """The requested merge, and its context.

    `recoveries`: the rounds in which later lives of the shard took its version up again; `away`: absent hosts;
    `problems`: unreadable files of the folder.
    """

    run: str
    merge: MergeFacts
    recoveries: Sequence[MergeFacts]
    away: Sequence[Away]
    problems: Sequence[str]


Line: TypeAlias = Mapping[str, Any]
"""A line of merges.jsonl."""

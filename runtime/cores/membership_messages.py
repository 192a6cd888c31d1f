"""Phases and states of hosts, and the events, commands and findings of the membership core.

It decides nothing. A *phase* is what a host reports of itself, a *state* the core's judgement of it, a *finding* the
figures behind a decision. Findings are sent and stored as they are; they become sentences where people read them.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Record

Phase: TypeAlias = Literal[
    "starting", "compiling", "stepping", "away", "serving", "recovering", "leaving", "final", "gone"
]
Excuse: TypeAlias = Literal["stopped", "unheard", "away"]
"""Why a silence is not a host's own failure: its process was stopped (by a signal or a debugger), its machine does not
answer, or the user's own code holds its interpreter."""
State: TypeAlias = Literal["alive", "slow", "suspect", "stopped", "unheard", "away"]
Cause: TypeAlias = Literal["ended", "silent", "stuck"]
"""Why a member was removed: its process is known to be gone (or was replaced, or left); it was silent; it is alive and
makes no progress."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
SILENT: Final = frozenset({"suspect", "stopped", "unheard", "away"})
"""The states of a member that sends no heartbeats."""


# -- findings ----------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True, gc=False, tag_field="kind", forbid_unknown_fields=True):
    """Base of findings: records with a `kind` field as their tag. Durations are nanoseconds."""


class Silence(Finding, frozen=True, tag="silence"):
    """A host sent nothing."""

    silence_ns: int
    """For how long."""
    usual_ns: float
    """The mean of its intervals."""
    deviation_ns: float
    """Theirs."""
    phi: float
    """The suspicion that follows."""
    patience_times: int = 1
    """How many times the usual patience it had."""
    is_longest: bool = False
    """The silence reached the limit for all members."""


class LongExcuse(Finding, frozen=True, tag="long-excuse"):
    """A silence of `silence_ns` was excused for `excused_ns`, the longest allowed."""

    silence_ns: int
    excuse: Excuse
    excused_ns: int


class Stall(Finding, frozen=True, tag="stall"):
    """A host made no step for `stalled_ns`, in one firing of `node`; its usual steps take `usual_ns` +- `deviation_ns`.

    `is_of_role`: it has made no step, and the usual steps are those of its role.
    """

    node: str
    stalled_ns: int
    usual_ns: float
    deviation_ns: float
    phi: float
    is_of_role: bool = False
    patience_times: int = 1


class Pace(Finding, frozen=True, tag="pace"):
    """A step takes a host `own_ns`, and the median of `others` hosts of its role `usual_ns`."""

    own_ns: float
    usual_ns: float
    others: int


Refusal: TypeAlias = Literal["no slot", "gone", "older incarnation", "ended incarnation", "unannounced"]
"""Why a host is not a member: its role has no such slot; it announced itself in phase 'gone'; a newer incarnation of
its replica was seen; this one has ended; it sent a heartbeat and never announced itself."""

MemberVerdict: TypeAlias = Silence | LongExcuse | Stall
"""Why a member was removed that had not ended."""


class Suspected(Finding, frozen=True, tag="suspected"):
    """It is silent; without `silence`, the excuse for its silence has ended."""

    silence: Silence | None = None


class Excused(Finding, frozen=True, tag="excused"):
    """It has been silent for `silence_ns`, with an excuse: its process `pid` is stopped, or its machine unheard."""

    excuse: Excuse
    silence_ns: int
    pid: int = 0
    machine: str = ""


class HeardAgain(Finding, frozen=True, tag="heard-again"):
    """It sent a heartbeat again."""

    silence_ns: int


class SlowHost(Finding, frozen=True, tag="slow"):
    """It steps much more slowly than the others of its role."""

    pace: Pace


class KeepsUp(Finding, frozen=True, tag="keeps-up"):
    """It was slow, and keeps up again."""

    pace: Pace


class Refused(Finding, frozen=True, tag="refused"):
    """It is not admitted to the run."""

    refusal: Refusal


MemberIncident: TypeAlias = Suspected | Excused | HeardAgain | SlowHost | KeepsUp | Refused


# -- events ------------------------------------------------------------------------------------------------------------


class HostAnnounced(Record, frozen=True):
    """A host announced itself on a new connection."""

    member: Member
    phase: Phase


class HeartbeatArrived(Record, frozen=True):
    """A host is alive. Phase `gone` means that it ends deliberately.

    `steps` counts the steps of this incarnation; `busy` is the time in which it computed anything at all, and not only
    waited for others; `firing` is the age of the oldest firing under way, one of `node`; 0 without any.
    """

    member: Member
    phase: Phase
    steps: int = 0
    busy: Duration = Duration(0)
    firing: Duration = Duration(0)
    node: str = ""


class HostEnded(Record, frozen=True):
    """The process of a member is known to be gone."""

    member: Member


class SilenceExcused(Record, frozen=True):
    """From now on, the silence of a host has a known outside cause."""

    member: Member
    excuse: Excuse


class ExcuseEnded(Record, frozen=True):
    """The excuse for a host's silence ended: it must send heartbeats again."""

    member: Member


class MembershipTimerFired(Record, frozen=True):
    """The timer fired. A superfluous one does no harm."""


# -- commands ----------------------------------------------------------------------------------------------------------


class AdmitMember(Record, frozen=True):
    """A member is alive from now on."""

    member: Member


class NoteMember(Record, frozen=True):
    """Record an incident of a member, or of a host that is not admitted. No action follows."""

    member: Member
    incident: MemberIncident


class RemoveMember(Record, frozen=True):
    """A member is gone for good; its replica may return as a new incarnation. Any process left of it is to be killed.

    `finding` holds the reason, where the core found it itself.
    """

    member: Member
    cause: Cause = "ended"
    finding: MemberVerdict | None = None


class SetMembershipTimer(Record, frozen=True):
    """Send MembershipTimerFired at `at`, instead of at the time set before."""

    at: Instant


MembershipEvent: TypeAlias = (
    HostAnnounced | HeartbeatArrived | HostEnded | SilenceExcused | ExcuseEnded | MembershipTimerFired
)
MembershipCommand: TypeAlias = AdmitMember | NoteMember | RemoveMember | SetMembershipTimer

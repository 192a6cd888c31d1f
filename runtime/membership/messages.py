"""The words of the membership core: phases and states of hosts, its events and commands, and its findings.

It decides nothing. A *phase* is what a host says of itself, a *state* what the core thinks of it, a *finding* the
figures that a decision rests on. Findings travel, and are written down, as they are; sentences are made where people
read them.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.records import Record

Phase: TypeAlias = Literal["starting", "compiling", "stepping", "serving", "recovering", "final", "gone"]
Excuse: TypeAlias = Literal["stopped", "unheard"]
"""Why a silence says nothing of a host: its process was stopped (by a signal or a debugger), or its machine does not
answer."""
State: TypeAlias = Literal["alive", "slow", "suspect", "stopped", "unheard"]
Cause: TypeAlias = Literal["ended", "silent", "stuck"]
"""Why a member is one no more: its process is known to be gone (or replaced, or left); it was silent; it is alive, and
does not get on."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
SILENT: Final = frozenset({"suspect", "stopped", "unheard"})
"""The states of a member that says nothing."""


# -- findings ----------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True, gc=False, tag_field="kind", forbid_unknown_fields=True):
    """Base of findings: records whose `kind` says which they are. Durations are nanoseconds."""


class Silence(Finding, frozen=True, tag="silence"):
    """Nothing was heard of a host for `silence_ns`; intervals of `usual_ns` +- `deviation_ns` are usual, which makes
    the suspicion `phi`. It is given `patience_times` the usual patience; `is_longest`: nobody may be silent longer."""

    silence_ns: int
    usual_ns: float
    deviation_ns: float
    phi: float
    patience_times: int = 1
    is_longest: bool = False


class LongExcuse(Finding, frozen=True, tag="long-excuse"):
    """A silence of `silence_ns` was excused for `excused_ns`, which is as long as is allowed."""

    silence_ns: int
    excuse: Excuse
    excused_ns: int


class Stall(Finding, frozen=True, tag="stall"):
    """A host made no step for `stalled_ns`, in one firing of `node`; steps of `usual_ns` +- `deviation_ns` are usual,
    for this host or, where it has made none, in its role."""

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
"""Why a host is no member: its role has no such slot; it announced itself in phase 'gone'; a newer incarnation of its
replica was heard of; this one has ended; it sent a heartbeat and never announced itself."""


# -- events ------------------------------------------------------------------------------------------------------------


class HostAnnounced(Record, frozen=True):
    """A host said hello, on a new connection."""

    member: Member
    phase: Phase


class HeartbeatArrived(Record, frozen=True):
    """A host is alive. Phase `gone` says that it ends of its own will.

    `steps` counts what this life has come to; `busy` is the time in which it computed anything at all, and not only
    waited for others; `firing` how long the firing of `node` has lasted, the oldest one under way, 0 without any.
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
    """The silence of a host, from now on, is not its own doing."""

    member: Member
    excuse: Excuse


class ExcuseEnded(Record, frozen=True):
    """What excused the silence of a host is over: it has to speak again."""

    member: Member


class MembershipTimerFired(Record, frozen=True):
    """The timer came due. A superfluous one does no harm."""


# -- commands ----------------------------------------------------------------------------------------------------------


class AdmitMember(Record, frozen=True):
    """A member is alive from now on."""

    member: Member


class RefuseMember(Record, frozen=True):
    """A host is no member."""

    member: Member
    refusal: Refusal


class SuspectMember(Record, frozen=True):
    """A member has been silent for suspiciously long; it still is one. Without a finding, its silence was excused until
    now."""

    member: Member
    finding: Silence | None


class ExcuseMember(Record, frozen=True):
    """A member has been silent for `silence`, and is not to blame; it still is one."""

    member: Member
    excuse: Excuse
    silence: Duration


class ClearSuspicion(Record, frozen=True):
    """A member that was silent for `silence` was heard again."""

    member: Member
    silence: Duration


class NoteSlow(Record, frozen=True):
    """A member gets on much more slowly than the others of its role. Nothing is to be done about it."""

    member: Member
    pace: Pace


class ClearSlow(Record, frozen=True):
    """A member that was slow keeps up again."""

    member: Member
    pace: Pace


class RemoveMember(Record, frozen=True):
    """A member is gone for good; its replica may return as a new incarnation. What is left of it is to be killed. The
    finding says why, where the core found it out itself."""

    member: Member
    cause: Cause = "ended"
    finding: Silence | LongExcuse | Stall | None = None


class SetMembershipTimer(Record, frozen=True):
    """Send MembershipTimerFired at `at`, instead of when it was to be sent before."""

    at: Instant


MembershipEvent: TypeAlias = (
    HostAnnounced | HeartbeatArrived | HostEnded | SilenceExcused | ExcuseEnded | MembershipTimerFired
)
MembershipCommand: TypeAlias = (
    AdmitMember
    | RefuseMember
    | SuspectMember
    | ExcuseMember
    | ClearSuspicion
    | NoteSlow
    | ClearSlow
    | RemoveMember
    | SetMembershipTimer
)

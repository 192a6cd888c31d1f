"""The words of the membership core: phases and states of hosts, the events it is told, the commands it gives.

It decides nothing. A *phase* is what a host says of itself, a *state* what the core thinks of it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.events import Record
from isthmus.runtime.ids import Member

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
    """A supervisor knows that the process is gone; the reason is a sentence."""

    member: Member
    reason: str


class SilenceExcused(Record, frozen=True):
    """The silence of a host, from now on, is not its own doing; the reason follows the words 'it is'."""

    member: Member
    excuse: Excuse
    reason: str


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
    """Tell the host that it is no member, and why."""

    member: Member
    reason: str


class SuspectMember(Record, frozen=True):
    """A member has been silent for suspiciously long; it still is one."""

    member: Member
    reason: str


class ExcuseMember(Record, frozen=True):
    """A member is silent, and is not to blame; it still is one."""

    member: Member
    reason: str


class ClearSuspicion(Record, frozen=True):
    """A silent member was heard again."""

    member: Member
    reason: str


class NoteSlow(Record, frozen=True):
    """A member gets on much more slowly than the others of its role. Nothing is to be done about it."""

    member: Member
    reason: str


class ClearSlow(Record, frozen=True):
    """A member that was slow keeps up again."""

    member: Member
    reason: str


class RemoveMember(Record, frozen=True):
    """A member is gone for good; its replica may return as a new incarnation. What is left of it is to be killed."""

    member: Member
    reason: str
    cause: Cause = "ended"


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

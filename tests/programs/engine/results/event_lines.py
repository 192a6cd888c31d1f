"""Lines of events.jsonl, written as a daemon writes them, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.membership_messages import Silence, Suspected
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Ended, Exited, Happened, Incident, Starved, as_line, of_line

KILLED = Ended(Exited(signal="SIGKILL"))


def silent(seconds: float) -> Suspected:
    """Nothing was heard for so long."""
    return Suspected(Silence(round(seconds * 1e9), 259e6, 500e6, 3.0))


def line(at: int, host: str, life: int, incident: Incident) -> dict[str, Any]:
    """What happened to a life of `host` ('learner/2') at the instant `at`."""
    return as_line(Happened(Instant(at), Member(Replica.parse(host), life), incident))


def incidents_in(folder: Path, life: str = "") -> list[Incident]:
    """What happened to a life ('learner/1#2') of the run in `folder`, or to any, in order; that its data are slow is no
    more than the truth about small tasks on busy cores."""
    told = [of_line(json.loads(text)) for text in (folder / "events.jsonl").read_text().splitlines()]
    about = [each.incident for each in told if life in ("", str(each.member))]
    return [incident for incident in about if not isinstance(incident, Starved)]

"""`isthmus expel`: what a person types at home to take another machine away."""

from __future__ import annotations

from isthmus.programs import machine_keys, machine_registry
from isthmus.runtime.control import ask
from isthmus.runtime.errors import ConfigError

ANSWER_SECONDS = 5.0


def expel(name: str, machine: str | None) -> str:
    """Take the machine `name` away from the runs of a daemon on this computer; what to say about it. ConfigError if
    that daemon neither has it nor admits it."""
    doing = f"Expelling {name!r}"
    here = machine_keys.machine_here(machine, doing)
    entry = next((entry for entry in machine_registry.living() if entry.name == here), None)
    count = 0
    if entry is not None:
        # A daemon with keys hears only those that it admits; it sees the change of its file itself.
        answer = None
        if not machine_keys.has_keys(here):
            answer = ask(entry.endpoint, {"type": "expel", "name": name}, ANSWER_SECONDS)
            if answer is None:
                do = "Look at its log; `isthmus status --all` shows whether it is there."
                raise ConfigError(doing, f"an answer of the daemon {here!r}", "none", do)
        count = 0 if answer is None else int(answer["runs"])
        was_linked = answer is not None and bool(answer["was_linked"])
    else:
        was_linked = False
    was_admitted = machine_keys.expel(here, name)
    if not was_admitted and not was_linked:
        do = "`isthmus status` shows the machines of a run."
        raise ConfigError(doing, f"a machine that {here!r} admits or has in a run", repr(name), do)
    runs = f"; it took part in {count} run{'' if count == 1 else 's'}" if count else ""
    return f"{here} has expelled {name}{runs}."

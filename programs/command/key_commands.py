"""`isthmus keygen`, `admit` and `expel`: the commands that let one machine reach another, or no longer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus.programs.cluster import names as machine_name
from isthmus.programs.machine import admissions
from isthmus.programs.request.settings import collecting
from isthmus.programs.run import registry
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import DO_KEYS, KeyPair

ANSWER_SECONDS: Final = 5.0


def keygen(name: str) -> str:
    """Make NAME.key and NAME.pub in this folder; returns the text to print. ConfigError if they exist."""
    machine_name.checked(name, f"Making a key for {name!r}", "for example `isthmus keygen alpha`")
    pair = KeyPair.make()
    secret, public = pair.write(Path(), name)
    return (
        f'{secret}: the secret key. It stays on this machine; machine.toml names it: [keys] secret = "{secret}"\n'
        f"{public}: the public key, for everybody. Where {name} shall be let in, type:\n"
        f"    isthmus admit {name} {pair.public}"
    )


def admit(name: str, key: str, machine: str | None, *, is_operator: bool = False) -> str:
    """Let the daemon of a machine on this computer admit another machine, perhaps as an operator.

    Returns the text to print. ConfigError with all faults.
    """
    doing = f"Admitting {name!r}"
    faults: list[Fault] = []
    public = here = ""
    with collecting(faults):
        machine_name.checked(name, doing, "for example `isthmus admit beta KEY`")
    with collecting(faults):
        public = security_keys.read_public(key, Path(), doing)
    with collecting(faults):
        here = admissions.machine_here(machine, doing)
    if faults:
        raise ConfigError.of(faults)
    is_living = any(entry.name == here for entry in registry.living())
    if is_living and not admissions.has_keys(here):
        do = f"Start it again with a machine.toml: {DO_KEYS}"
        raise ConfigError(doing, f"a daemon {here!r} with keys", "one without", do)
    what = f"{name} as an operator" if is_operator else name
    if not admissions.admit(here, name, public, is_operator=is_operator):
        return f"{here} admits {what} already."
    return f"{here} admits {what} {'from now on' if is_living else 'from its next start'}."


def expel(name: str, machine: str | None) -> str:
    """Remove the machine `name` from the runs of a daemon on this computer; returns the text to print.

    ConfigError if that daemon neither has it in a run nor admits it.
    """
    doing = f"Expelling {name!r}"
    here = admissions.machine_here(machine, doing)
    entry = next((entry for entry in registry.living() if entry.name == here), None)
    count, was_linked = 0, False
    # A daemon with keys hears only those that it admits; it sees the change of its file itself.
    if entry is not None and not admissions.has_keys(here):
        answer = ask(entry.endpoint, {"type": "expel", "name": name}, ANSWER_SECONDS)
        if answer is None:
            do = "Look at its log; `isthmus status --all` shows whether it is there."
            raise ConfigError(doing, f"an answer of the daemon {here!r}", "none", do)
        count, was_linked = int(answer["runs"]), bool(answer["was_linked"])
    was_admitted = admissions.expel(here, name)
    if not was_admitted and not was_linked:
        do = "`isthmus status` shows the machines of a run."
        raise ConfigError(doing, f"a machine that {here!r} admits or has in a run", repr(name), do)
    runs = f"; it took part in {count} run{'' if count == 1 else 's'}" if count else ""
    return f"{here} has expelled {name}{runs}."

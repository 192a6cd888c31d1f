"""`isthmus keygen` and `isthmus admit`: what a person types to let one machine reach another."""

from __future__ import annotations

from pathlib import Path

from isthmus.programs import machine_keys, machine_name, machine_registry
from isthmus.programs.settings import collecting
from isthmus.runtime import keys
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.keys import DO_KEYS, KeyPair


def keygen(name: str) -> str:
    """Make NAME.key and NAME.pub in this folder; what to say about them. ConfigError if they are there already."""
    machine_name.checked(name, f"Making a key for {name!r}", "for example `isthmus keygen alpha`")
    pair = KeyPair.make()
    secret, public = pair.write(Path(), name)
    return (
        f'{secret}: the secret key. It stays on this machine; machine.toml names it: [keys] secret = "{secret}"\n'
        f"{public}: the public key, for everybody. Where {name} shall be let in, type:\n"
        f"    isthmus admit {name} {pair.public}"
    )


def admit(name: str, key: str, machine: str | None) -> str:
    """Let the daemon of a machine on this computer admit another machine; what to say about it. ConfigError with all
    that is wrong."""
    doing = f"Admitting {name!r}"
    faults: list[Fault] = []
    public = here = ""
    with collecting(faults):
        machine_name.checked(name, doing, "for example `isthmus admit beta KEY`")
    with collecting(faults):
        public = keys.read_public(key, Path(), doing)
    with collecting(faults):
        here = machine_keys.machine_here(machine, doing)
    if faults:
        raise ConfigError.of(faults)
    is_living = any(entry.name == here for entry in machine_registry.living())
    if is_living and not machine_keys.has_keys(here):
        do = f"Start it again with a machine.toml: {DO_KEYS}"
        raise ConfigError(doing, f"a daemon {here!r} with keys", "one without", do)
    if not machine_keys.admit(here, name, public):
        return f"{here} admits {name} already."
    return f"{here} admits {name} {'from now on' if is_living else 'from its next start'}."

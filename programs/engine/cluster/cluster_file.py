"""cluster.toml: the machines of a run, their devices and keys, and with them the sections of its configuration.

Every table is checked by itself, and all faults are reported together. `[run]`, `[program]` and `[task]` are passed on
to their readers; roles are names here. `placement` checks whether the graph of a run fits, and the caller whether the
machines answer. Names of machines, addresses of daemons and amounts with units ("2 Gbit/s", "80 GB") are read here for
everybody.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import msgspec

from isthmus.programs import settings
from isthmus.programs.engine.cluster import devices
from isthmus.programs.engine.cluster.devices import CATALOGUE, Device
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.request import reference
from isthmus.programs.settings import Schema, Setting, collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import is_machine_name
from isthmus.runtime.system import addresses
from isthmus.runtime.system.refusals import is_own
from isthmus.runtime.wire.security_keys import DO_KEYS, is_loopback, read_public

_ADDRESS: Final = re.compile(r"tcp://(?P<host>[^:/\[\]]+|\[[^\[\]]+\]):(?P<port>\d{1,5}|\*)")
_PORT_MAX: Final = 65535
ANSWER_SECONDS_MAX: Final = 2.0


def checked_address(text: str, doing: str, *, may_choose: bool = False, has_keys: bool = False) -> str:
    """The endpoint that `text` names; ConfigError if it is no address, or, without keys, one that others can reach.

    Port 0 or * is a free one, and host * all addresses, for a daemon that `may_choose`.
    """
    form = _ADDRESS.fullmatch(text)
    port = None if form is None else 0 if form["port"] == "*" else int(form["port"])
    is_sound = form is not None and _is_host(form["host"], may_choose=may_choose)
    if form is None or not is_sound or port is None or port > _PORT_MAX or not (port or may_choose):
        free = "; port 0 is any free one" if may_choose else ""
        raise ConfigError(
            doing,
            f"tcp://ADDRESS:PORT{free}",
            repr(text),
            "Write for example tcp://127.0.0.1:7400.",
        )
    host = "127.0.0.1" if form["host"] == "localhost" else form["host"]
    if not has_keys and not is_loopback(f"tcp://{host}:{port}"):
        expected = "an address that only this machine reaches, 127.0.0.1, because there are no keys"
        raise ConfigError(doing, expected, repr(form["host"]), f"Keys come first. {DO_KEYS}")
    return f"tcp://{host}:{port or '*'}"


def _is_host(text: str, *, may_choose: bool) -> bool:
    """Whether a host in an address is one: of IPv4, of IPv6 in brackets, or a name."""
    if text.startswith("["):
        return ":" in text and addresses.is_literal(text[1:-1])
    return addresses.is_literal(text) or addresses.is_name(text) or (text == "*" and may_choose)


def is_everywhere(endpoint: str) -> bool:
    """Whether a daemon that listens at `endpoint` does so at all addresses of its machine, so that it names none."""
    return addresses.host_and_port(endpoint)[0] in ("*", "0.0.0.0", "::")


PORTS_OF_HOST: Final = 2
"""A host that listens has one for control and one for data."""
HOSTS_OF_RUN: Final = 3
"""That listen, at least: syncer, evaluator, recorder."""
_PORTS: Final = re.compile(r"(?P<first>\d{1,5})-(?P<last>\d{1,5})")


def checked_ports(text: str, endpoint: str) -> str:
    """The range of ports that `text` names; ConfigError for none, and for one that no run fits in.

    Hosts of the machine whose daemon listens at `endpoint` listen there. One port, A-A: at none that others reach.
    """
    form = _PORTS.fullmatch(text)
    if form is None or not 0 < int(form["first"]) <= int(form["last"]) <= _PORT_MAX:
        raise ConfigError("Reading --ports", "A-B, from 1 to 65535", repr(text), "Write for example 7401-7406.")
    if form["first"] != form["last"]:
        check_room(text, endpoint, HOSTS_OF_RUN, 0, "Reading --ports")
    return text


def check_room(ports: str, endpoint: str, hosts: int, used: int, doing: str) -> None:
    """ConfigError if so many `hosts` cannot listen in a range of which `used` are taken."""
    first, last = map(int, ports.split("-"))
    own = int(endpoint.rpartition(":")[2].replace("*", "") or 0)
    free, needed = last - first + 1 - used - (first <= own <= last), PORTS_OF_HOST * hosts
    if free < needed:
        do = "Start the daemon with a larger range, or with --ports A-A: then its own port is enough."
        expected = f"{needed} free ports, {PORTS_OF_HOST} for each of {hosts} hosts that listen"
        raise ConfigError(doing, expected, f"{max(0, free)} in --ports {ports}", do)


def is_listening(endpoint: str) -> bool:
    """Whether a process accepts connections at a TCP `endpoint`; the kernel refuses an unused port at once."""
    try:
        addresses.connect(endpoint, ANSWER_SECONDS_MAX).close()
    except OSError as error:
        if is_own(error):
            raise
        return False
    return True


def checked_name(text: str, doing: str, example: str) -> str:
    """The name that `text` is, or ConfigError."""
    if not is_machine_name(text):
        raise ConfigError(doing, "letters, digits, '.', '_' and '-', 64 at most", repr(text), f"Write {example}.")
    return text


_DURATION: Final = re.compile(r"\s*(?P<number>\d{1,9})\s*(?P<unit>s|min|h|d)\s*")
_DURATION_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def duration_seconds(text: str, doing: str) -> int:
    """Seconds; ConfigError if `text` is no duration above 0."""
    form = _DURATION.fullmatch(text)
    if form is None or not int(form["number"]):
        raise ConfigError(
            doing, "a duration, such as 90 s, 30 min, 12h or 7d", repr(text), "Write a number and a unit."
        )
    return int(form["number"]) * _DURATION_SECONDS[form["unit"]]


_QUANTITY: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[kKMGTP]?i?)(?P<unit>bit|B)(?P<rate>/s)?\s*")
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def size_bytes(text: str, doing: str) -> int:
    """Bytes; ConfigError if `text` is no size."""
    return _read(text, doing, "B", "", "a size, such as 80 GB or 24 GiB")


def rate_bytes(text: str, doing: str) -> int:
    """Bytes a second; ConfigError if `text` is no rate of them. Bits are turned into bytes."""
    return _read(text, doing, "B", "/s", "bytes a second, such as 3.35 TB/s")


def rate_bits(text: str, doing: str) -> int:
    """Bits a second; ConfigError if `text` is no rate of them. Bytes are turned into bits."""
    return _read(text, doing, "bit", "/s", "bits a second, such as 2 Gbit/s")


def _read(text: str, doing: str, unit: str, rate: str, expected: str) -> int:
    form = _QUANTITY.fullmatch(text)
    if (
        form is None
        or (form["rate"] or "") != rate
        or form["prefix"] == "i"
        or (form["prefix"][1:] and form["unit"] != "B")
    ):
        raise ConfigError(doing, expected, repr(text), "Write a number and a unit.")
    base = 1024.0 if form["prefix"].endswith("i") else 1000.0
    amount = float(form["number"]) * base ** _POWERS[form["prefix"][:1]]
    factor = {("bit", "B"): 8.0, ("B", "bit"): 1 / 8}.get((unit, form["unit"]), 1.0)
    if round(amount * factor) < 1:
        raise ConfigError(doing, f"{expected}, and above 0", repr(text), "Write a larger number, or leave it out.")
    return round(amount * factor)


def read_machine(
    table: Mapping[str, Any], where: str, folder: Path, catalogue: Iterable[Device], *, has_keys: bool
) -> Machine:
    """The machine of a table, with a device of `catalogue`; ConfigError with all its faults.

    Paths are relative to `folder`.
    """
    faults: list[Fault] = []
    values = _values("machine", MachineTable, table, where, ("name", "alpha"), faults)
    address = public_key = device = bandwidth = memory = None
    with collecting(faults):
        if values["address"] is not None:
            doing = f"Reading the address of {where}"
            address = checked_address(values["address"], doing, has_keys=has_keys)
    with collecting(faults):
        if values["public_key"] is not None:
            public_key = read_public(values["public_key"], folder, f"Reading the public_key of {where}")
    with collecting(faults):
        if values["device"] is not None:
            device = devices.find(values["device"], f"Reading the device of {where}", catalogue)
    with collecting(faults):
        if values["bandwidth"] is not None:
            bandwidth = rate_bits(values["bandwidth"], f"Reading the bandwidth of {where}")
    with collecting(faults):
        if values["memory"] is not None:
            memory = size_bytes(values["memory"], f"Reading the memory of {where}")
    if values["task"] is not None and values["framework"] is not None:
        do = "Leave one of them out."
        faults.append(Fault(f"Reading the framework of {where}", "either a task, or a framework", "both", do))
    faults += _keys_faults(values, where, has_keys=has_keys)
    faults += Schema.of("machine", MachineTable).out_of_range(values, f"Reading the {{}} of {where}")
    if faults:
        raise ConfigError.of(faults)
    islands = values["islands"]
    if islands is None and device is not None and not device.is_cpu:
        islands = 1
    plain_values = {name: values[name] for name in AS_THEY_ARE}
    return Machine(
        **plain_values,
        islands=islands,
        address=address,
        public_key=public_key,
        device=device,
        bandwidth_bits=bandwidth,
        memory_bytes=memory,
    )


def read_device(table: Mapping[str, Any], where: str) -> Device:
    """The device of a table: a new kind, or a known one with the table's changes.

    ConfigError with all its faults.
    """
    faults: list[Fault] = []
    values = _values("device", DeviceTable, table, where, ("kind", "TPU v6e"), faults)
    base = next((device for device in CATALOGUE if device.kind == values["kind"]), None)
    changes: dict[str, Any] = {"names": values["names"] or None, "source": values["source"]}
    faults += Schema.of("device", DeviceTable).out_of_range(values, f"Reading the {{}} of {where}")
    changes["flops"] = None if values["teraflops"] is None else values["teraflops"] * 1e12
    changes["price_per_hour"] = values["price_per_hour"]
    for name, into, read in (
        ("memory", "memory_bytes", size_bytes),
        ("memory_bandwidth", "memory_bandwidth_bytes", rate_bytes),
        ("interconnect", "interconnect_bits", rate_bits),
    ):
        with collecting(faults):
            changes[into] = None if values[name] is None else read(values[name], f"Reading the {name} of {where}")
    if faults:
        raise ConfigError.of(faults)
    changed = {name: value for name, value in changes.items() if value is not None}
    if changed.keys() & {"flops", "memory_bytes", "memory_bandwidth_bytes", "interconnect_bits"}:
        changed.setdefault("source", "the cluster file")
    return dataclasses.replace(base or Device(values["kind"]), **changed)


def _values(
    section: str, keys: Any, table: Mapping[str, Any], where: str, required: tuple[str, str], faults: list[Fault]
) -> dict[str, Any]:
    """The values of a table; adds faults to `faults`, and replaces wrong values by the default, or the example."""
    name, example = required
    if name not in table:
        do = f'Write for example {name} = "{example}" below [[{section}]].'
        faults.append(Fault(f"Reading {where}", f"`{name}`", "nothing", do))
    completed = {name: example, **table}
    schema = Schema.of(section, keys)
    try:
        return schema.read(completed)
    except ConfigError as error:
        faults += [fault._replace(action=f"{fault.action} ({where})") for fault in error.faults]
        wrong = {fault.action for fault in error.faults}
    sound = {key: value for key, value in completed.items() if f"Reading {section}.{key}" not in wrong}
    return schema.read({name: example, **sound})


def _keys_faults(values: Mapping[str, Any], where: str, *, has_keys: bool) -> list[Fault]:
    """Faults unless a machine has a key exactly where the cluster has keys and the machine an address."""
    doing, has_key = f"Reading {where}", values["public_key"] is not None
    if has_key and not has_keys:
        do = 'Write [keys], and below it secret = "NAME.key": what a key is for is told by your own.'
        return [Fault(doing, "[keys] beside a public_key", "none", do)]
    if has_keys and values["address"] is not None and not has_key:
        do = "Give its NAME.pub, or the key itself: without it nobody can be sure to have reached this machine."
        return [Fault(doing, "a `public_key`, because there are [keys]", "none", do)]
    return []


AS_THEY_ARE: Final = ("name", "roles", "devices", "domain", "island", "region", "owner", "weight_share_max")
"""Keys of a [[machine]] whose values are those of the machine."""


class MachineTable(msgspec.Struct, kw_only=True):
    """The keys of a [[machine]]."""

    name: Annotated[str, Setting("Its name: letters, digits, '.', '_' and '-'.")]
    address: Annotated[
        str | None, Setting("tcp://HOST:PORT, where its daemon listens. Without one it only dials out.")
    ] = None
    public_key: Annotated[str | None, Setting("NAME.pub, or the key itself; required where there are [keys].")] = None
    roles: Annotated[tuple[str, ...], Setting("learner, syncer, region, evaluator. Default: all.")] = ()
    islands: Annotated[
        int | None,
        Setting(
            "Learners that it takes. Default: 1 with a device that is no CPU.",
            ge=1,
            expected="1 or more",
            remedy="Give at least one, or leave it out.",
        ),
    ] = None
    device: Annotated[str | None, Setting("The kind of its devices, as `TPU v6e`.")] = None
    devices: Annotated[
        int,
        Setting(
            "Devices of each island.",
            ge=1,
            expected="1 or more",
            remedy="Give the number of devices of each island, or leave it out for one.",
        ),
    ] = 1
    island: Annotated[str | None, Setting("The name of the island that it is a part of, with other machines.")] = None
    region: Annotated[
        str | None,
        Setting("Where it is, as a site with a thin link to the others: `regional-diloco` merges there first."),
    ] = None
    owner: Annotated[
        str, Setting("Whose it is, where somebody has several: what a merge takes of all of them is bounded together.")
    ] = ""
    weight_share_max: Annotated[
        float | None,
        Setting(
            "The largest share of a merge that its learners have together, or all of its owner's, in place of "
            "`program.weight_share_max`.",
            gt=0,
            le=1,
            expected="a share above 0 and at most 1",
            remedy="1 is no limit.",
        ),
    ] = None
    domain: Annotated[str | None, Setting("What fails together, as a rack or a site.")] = None
    bandwidth: Annotated[str | None, Setting("The bandwidth of its link to the others: `2 Gbit/s`.")] = None
    memory: Annotated[str | None, Setting("The memory of the host: `64 GB`.")] = None
    task: Annotated[
        str | None, Setting("FILE.py:NAME: the task of its learners, in place of `run.task`, with the same layout.")
    ] = None
    framework: Annotated[
        Literal["jax", "torch"] | None,
        Setting("The framework of its learners, where a model folder is trained, in place of `task.framework`."),
    ] = None


class DeviceTable(msgspec.Struct, kw_only=True):
    """The keys of a [[device]]: a new kind, or changes of a known one."""

    kind: Annotated[str, Setting("The name of the kind.")]
    names: Annotated[tuple[str, ...], Setting("What jax calls it.")] = ()
    teraflops: Annotated[
        float | None, Setting("In bfloat16.", gt=0, expected="a number above 0", remedy="Change it.")
    ] = None
    memory: Annotated[str | None, Setting("As `80 GB`.")] = None
    memory_bandwidth: Annotated[str | None, Setting("As `3.35 TB/s`.")] = None
    interconnect: Annotated[str | None, Setting("As `900 Gbit/s`.")] = None
    price_per_hour: Annotated[
        float | None, Setting("In any currency.", gt=0, expected="a number above 0", remedy="Change it.")
    ] = None
    source: Annotated[str | None, Setting("Where the figures are from.")] = None


class ClusterKeys(msgspec.Struct, kw_only=True):
    """The keys of [keys]."""

    secret: Annotated[str, Setting("The file of the secret key that a command here uses.")]


__all__ = ["Cluster", "Machine", "read"]

_ARRAYS: Final = ("machine", "device")
_OWN: Final = (*_ARRAYS, "keys")


@final
@dataclass(frozen=True, slots=True)
class Cluster:
    """Contents of a cluster file: machines in its order, configuration sections verbatim, and the secret key's file.

    `secret` is None without keys. `tasks`: the references of the tasks that learners on a machine train in place of the
    run's, or the frameworks of them, by the machine's name.
    """

    file: Path
    machines: tuple[Machine, ...]
    sections: Mapping[str, Any]
    secret: Path | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """The machines as `placement` takes them."""
        return Topology(self.machines)

    def without(self, names: Collection[str]) -> Cluster:
        """The same without some machines, of which others may join only; ConfigError if none would be left to be the
        home."""
        if self.machines and self.machines[0].name in names:
            do = "Leave it in: the syncer and the run's books are there."
            raise ConfigError("Reading run.leaves_out", "machines other than the home", self.machines[0].name, do)
        machines = tuple(each for each in self.machines if each.name not in names)
        return replace(self, machines=machines, tasks={n: t for n, t in self.tasks.items() if n not in names})


def read(file: Path) -> Cluster:
    """The contents of a cluster file; ConfigError with all faults of its machines, devices and keys."""
    document = settings.read_file(file, "the cluster", "Name a file with --cluster.")
    faults: list[Fault] = []
    secret = None
    with collecting(faults):
        secret = _secret(document, file)
    catalogue = list(CATALOGUE)
    for number, table in enumerate(_tables(document, "device", file, faults), 1):
        with collecting(faults):
            catalogue.insert(0, read_device(table, f"{file}, device {number}"))
    machines = []
    tables = _tables(document, "machine", file, faults)
    for number, table in enumerate(tables, 1):
        with collecting(faults):
            where, folder = f"{file}, machine {number}", file.absolute().parent
            machines.append(read_machine(table, where, folder, catalogue, has_keys="keys" in document))
    faults += _shared([table.get("name") for table in tables], machines, file)
    tasks = _tasks(tables, file)
    faults += _apart(machines, tasks, file)
    if "machine" not in document:
        do = 'Write [[machine]] with name = "..." and address = "tcp://127.0.0.1:PORT".'
        faults.append(Fault(f"Reading {file}", "at least one [[machine]]", "none", do))
    if faults:
        raise ConfigError.of(faults)
    sections = {name: value for name, value in document.items() if name not in _OWN}
    return Cluster(file, _joined(machines), sections, secret, tasks)


def _tasks(tables: Iterable[Mapping[str, Any]], file: Path) -> dict[str, str]:
    """The tasks of machines that have their own, or the frameworks, by name; relative paths start in the folder of the
    file."""
    folder = file.absolute().parent
    named = [(table.get("name"), table.get("task") or table.get("framework")) for table in tables]
    return {
        name: reference.absolute(task, folder)  # Which leaves a framework as it is.
        for name, task in named
        if isinstance(name, str) and isinstance(task, str)
    }


def _joined(machines: list[Machine]) -> tuple[Machine, ...]:
    """The same machines, each with the others of its island, in the order of the file."""
    names: dict[str, tuple[str, ...]] = {}
    for machine in machines:
        if machine.island is not None:
            names[machine.island] = (*names.get(machine.island, ()), machine.name)
    return tuple(
        machine if machine.island is None else replace(machine, together=names[machine.island], islands=1)
        for machine in machines
    )


def _apart(machines: list[Machine], tasks: Mapping[str, str], file: Path) -> Iterator[Fault]:
    """Faults of machines that are declared as one island."""
    for name in dict.fromkeys(machine.island for machine in machines if machine.island is not None):
        doing, them = f"Reading island {name!r} of {file}", [each for each in machines if each.island == name]
        devices = {f"{each.devices} x {None if each.device is None else each.device.kind}" for each in them}
        if len(them) == 1:
            do = f"Give the others the same island = {name!r}, or leave it out."
            yield Fault(doing, "two machines or more that are one island", f"{them[0].name!r} alone", do)
        if len(devices) > 1:
            do = "Give all of them the same `device` and `devices`: each is a part of one mesh."
            yield Fault(doing, "as many devices of one kind on each machine", ", ".join(sorted(devices)), do)
        if len({tasks.get(each.name) for each in them}) > 1:
            yield Fault(
                doing, "one task on all of its machines", "several", "Give all of them the same `task`, or `framework`."
            )
        if any(each.islands not in (None, 1) for each in them):
            yield Fault(doing, "islands = 1, or nothing, on each machine", "another number", "Leave `islands` out.")
        if them[0].address is None:
            do = 'Give it an address = "tcp://HOST:PORT": the others go to the first.'
            yield Fault(doing, f"an address of {them[0].name!r}, its first machine", "none", do)


def _tables(document: Mapping[str, Any], name: str, file: Path, faults: list[Fault]) -> list[Mapping[str, Any]]:
    """The tables [[name]]; adds a fault if that is something else."""
    tables = document.get(name, [])
    if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
        return tables
    faults.append(Fault(f"Reading {file}", f"[[{name}]]", f"another `{name}`", f"Write [[{name}]], in brackets."))
    return []


def _secret(document: Mapping[str, Any], file: Path) -> Path | None:
    """The file of the secret key, which relative paths in [keys] name from the cluster file's folder."""
    if "keys" not in document:
        return None
    table = document["keys"]
    do = 'Write [keys], and below it secret = "NAME.key", which `isthmus keygen NAME` makes.'
    if not isinstance(table, dict) or "secret" not in table:
        raise ConfigError(f"Reading [keys] of {file}", "the file of a secret key", repr(table), do)
    text = Schema.of("keys", ClusterKeys).read(table)["secret"]
    return Path(os.path.normpath(file.absolute().parent / os.path.expanduser(text)))


def _shared(names: list[Any], machines: list[Machine], file: Path) -> Iterator[Fault]:
    """Faults of names, addresses and keys that several machines share; `names` includes those of faulty machines."""
    values: Mapping[str, list[str | None]] = {
        "name": [name for name in names if isinstance(name, str)],
        "address": [machine.address for machine in machines],
        "public_key": [machine.public_key for machine in machines],
    }
    for what, column in values.items():
        for value, count in Counter(column).items():
            if value is None or count == 1:
                continue
            whose = ", ".join(repr(machine.name) for machine in machines if getattr(machine, what) == value)
            what_is_shared = f"{count} named {value!r}" if what == "name" else f"{value} for {whose}"
            do = "A machine has one daemon, which has one name, one address and one key: correct the others."
            yield Fault(f"Reading {file}", f"each {what} once", what_is_shared, do)

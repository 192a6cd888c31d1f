"""One `[[machine]]` and one `[[device]]` of a cluster file, as data.

Keys, types and forms are checked here, each table for itself, and all its faults are reported together. Roles are names
here: `placement` knows those of a graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.programs.cluster import addresses, quantities
from isthmus.programs.request.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph import devices
from isthmus.runtime.graph.devices import CATALOGUE, Device
from isthmus.runtime.graph.placement import Machine
from isthmus.runtime.wire.security_keys import read_public


def read_machine(
    table: Mapping[str, Any], where: str, folder: Path, catalogue: Iterable[Device], *, has_keys: bool
) -> Machine:
    """The machine of a table, with a device of `catalogue`; ConfigError with all its faults.

    Paths are relative to `folder`.
    """
    faults: list[Fault] = []
    values = _values("machine", _machine, table, where, ("name", "alpha"), faults)
    address = public_key = device = bandwidth = memory = None
    with collecting(faults):
        if values["address"] is not None:
            doing = f"Reading the address of {where}"
            address = addresses.checked(values["address"], doing, has_keys=has_keys)
    with collecting(faults):
        if values["public_key"] is not None:
            public_key = read_public(values["public_key"], folder, f"Reading the public_key of {where}")
    with collecting(faults):
        if values["device"] is not None:
            device = devices.find(values["device"], f"Reading the device of {where}", catalogue)
    with collecting(faults):
        if values["bandwidth"] is not None:
            bandwidth = quantities.rate_bits(values["bandwidth"], f"Reading the bandwidth of {where}")
    with collecting(faults):
        if values["memory"] is not None:
            memory = quantities.size_bytes(values["memory"], f"Reading the memory of {where}")
    faults += _keys_faults(values, where, has_keys=has_keys)
    for name, least, do in (
        ("islands", 1, "Give at least one, or leave it out."),
        ("devices", 1, "Give the number of devices of each island, or leave it out for one."),
    ):
        if values[name] is not None and values[name] < least:
            faults.append(Fault(f"Reading the {name} of {where}", f"{least} or more", str(values[name]), do))
    if faults:
        raise ConfigError.of(faults)
    islands = values["islands"]
    if islands is None and device is not None and not device.is_cpu:
        islands = 1
    given = {name: values[name] for name in ("name", "roles", "devices", "domain", "island")}
    return Machine(
        **given,
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
    values = _values("device", _device, table, where, ("kind", "TPU v6e"), faults)
    known = next((device for device in CATALOGUE if device.kind == values["kind"]), None)
    changes: dict[str, Any] = {"names": values["names"] or None, "source": values["source"]}
    for name, least in (("teraflops", 0), ("price_per_hour", 0)):
        if values[name] is not None and not values[name] > least:
            faults.append(Fault(f"Reading the {name} of {where}", "a number above 0", str(values[name]), "Change it."))
    changes["flops"] = None if values["teraflops"] is None else values["teraflops"] * 1e12
    changes["price_per_hour"] = values["price_per_hour"]
    for name, field, read in (
        ("memory", "memory_bytes", quantities.size_bytes),
        ("memory_bandwidth", "memory_bandwidth_bytes", quantities.rate_bytes),
        ("interconnect", "interconnect_bits", quantities.rate_bits),
    ):
        with collecting(faults):
            changes[field] = None if values[name] is None else read(values[name], f"Reading the {name} of {where}")
    if faults:
        raise ConfigError.of(faults)
    said = {name: value for name, value in changes.items() if value is not None}
    if said.keys() & {"flops", "memory_bytes", "memory_bandwidth_bytes", "interconnect_bits"}:
        said.setdefault("source", "the cluster file")
    return dataclasses.replace(known or Device(values["kind"]), **said)


def _values(
    section: str, keys: Any, table: Mapping[str, Any], where: str, required: tuple[str, str], faults: list[Fault]
) -> dict[str, Any]:
    """The values of a table; adds faults to `faults`, and replaces wrong values by the default, or the example."""
    name, example = required
    if name not in table:
        do = f'Write for example {name} = "{example}" below [[{section}]].'
        faults.append(Fault(f"Reading {where}", f"`{name}`", "nothing", do))
    given = {name: example, **table}
    schema = Schema.of(section, keys)
    try:
        return schema.read(given)
    except ConfigError as error:
        faults += [fault._replace(doing=f"{fault.doing} ({where})") for fault in error.faults]
        wrong = {fault.doing for fault in error.faults}
    sound = {key: value for key, value in given.items() if f"Reading {section}.{key}" not in wrong}
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


def _machine(
    *,
    name: str,
    address: str | None = None,
    public_key: str | None = None,
    roles: tuple[str, ...] = (),
    islands: int | None = None,
    device: str | None = None,
    devices: int = 1,
    island: str | None = None,
    domain: str | None = None,
    bandwidth: str | None = None,
    memory: str | None = None,
) -> None:
    """The keys of a [[machine]]."""


def _device(
    *,
    kind: str,
    names: tuple[str, ...] = (),
    teraflops: float | None = None,
    memory: str | None = None,
    memory_bandwidth: str | None = None,
    interconnect: str | None = None,
    price_per_hour: float | None = None,
    source: str | None = None,
) -> None:
    """The keys of a [[device]]."""

"""Whether faults name hosts and machines that there are: a slip in a test is told before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from isthmus.runtime import errors
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.faults import Cut, End, Fault, HostFault, Join, Stop


def check(
    faults: Iterable[Fault], roles: Collection[str], replicas: Collection[Replica], machines: Collection[str]
) -> None:
    """ConfigError, with everything that is wrong, if a fault names a host or a machine that there is not."""
    there, faults = list(map(str, replicas)), list(faults)
    hosts = [*there, *(fault.host for fault in faults if isinstance(fault, Join))]
    found = [
        wrong
        for fault in faults
        for wrong in _wrong(fault, roles, there if isinstance(fault, Join) else hosts, machines)
    ]
    if found:
        raise errors.ConfigError.of(found)


def _wrong(
    fault: Fault, roles: Collection[str], hosts: Collection[str], machines: Collection[str]
) -> Iterator[errors.Fault]:
    doing = f"preparing {fault}"
    if isinstance(fault, Join):
        if fault.host in hosts or fault.host.partition("/")[0] not in roles:
            expected = f"a host that is not there yet, of one of the roles {', '.join(roles)}"
            yield errors.Fault(doing, expected, repr(fault.host), "Name a slot beyond the others: 'learner/4'.")
    elif isinstance(fault, HostFault):
        if fault.host not in hosts:
            yield errors.Fault(doing, f"one of {', '.join(hosts)}", repr(fault.host), "Name a host by its replica.")
    elif not isinstance(fault, Stop | End):
        named = [fault.machine, *([fault.target] if isinstance(fault, Cut) and fault.target is not None else [])]
        for name in named:
            if name not in machines:
                do = "Name a machine: learners and syncers have their own, everything else is at home."
                yield errors.Fault(doing, f"one of {', '.join(machines)}", repr(name), do)

"""Can the processes meet: the coordinator's port, and what this machine's own name resolves to.

Owns: resolving names, trying the port.
Not here: firewalls between machines, which cannot be tried from one of them: said.
Imports no jax.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from paceline.base import launched
from paceline.base.errors import PacelineError
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.processes import starters
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding, error_finding
from paceline.launch.machine import is_port_free
from paceline.topology.membership import split_address

CHECK = "network"


def network_findings(system: System, asked: Asked, *, several: bool) -> list[Finding]:
    """What stands between processes, and a note where a run of one process needs none of it.

    Args:
      several: whether more than one process is expected.
    """
    found = [*_own_name(system, several=several), *_coordinator(system, asked)]
    if several:
        what = "whether a firewall lets machines reach each other cannot be tried from one of them: all TCP ports "
        found.append(Finding(CHECK, "ok", f"{what}between the machines of a run have to be open"))
    return found


def _own_name(system: System, *, several: bool) -> Iterator[Finding]:
    """Gloo binds to the address that the machine's own name resolves to. Seen with two processes in two network
    namespaces: each needs a host name of its own that resolves to the address of its link."""
    name = system.host_name
    addresses = system.addresses(name)
    if not addresses:
        what = f"this machine's own name, {name}, resolves to no address"
        yield _level(what, f"add a line with its address and {name} to /etc/hosts", several=several)
    elif all(_is_loopback(address) for address in addresses):
        what = f"this machine's own name, {name}, resolves to {addresses[0]}, which other machines cannot reach: "
        what += "processes on several machines would not find each other on CPU (Gloo binds to that address)"
        yield _level(what, f"in /etc/hosts, give {name} the address that the others use", several=several)
    else:
        yield Finding(CHECK, "ok", f"this machine's own name, {name}, resolves to {', '.join(addresses[:3])}")


def _level(what: str, fix: str, *, several: bool) -> Finding:
    """A warning where it matters, else a remark."""
    return (
        Finding(CHECK, "warning", what, fix)
        if several
        else Finding(CHECK, "ok", f"{what}; a run of one process is not concerned")
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _coordinator(system: System, asked: Asked) -> Iterator[Finding]:
    address = asked.coordinator or system.variable(launched.COORDINATOR)
    if not address:
        return
    try:
        host, port = split_address(address, "arguments" if asked.coordinator else "environment")
    except PacelineError as error:
        yield error_finding(CHECK, error)
        return
    places = system.addresses(host)
    if not places:
        fix = "check its spelling, or give its address in place of its name"
        yield Finding(CHECK, "error", f"the coordinator's machine {host!r} resolves to no address", fix)
        return
    is_here = any(map(system.owns, places))
    index = _index(system, asked)
    where = f"the coordinator's machine {host} is {places[0]}"
    if index == 0 and not is_here:
        what = f"{where}, which is no address of this machine, where process 0 is to listen"
        yield Finding(CHECK, "warning", what, "give --coordinator the address of process 0's machine, unless this one "
                      "is reached by that address from outside")  # fmt: skip
    if not (index == 0 or (index is None and is_here)):
        yield Finding(CHECK, "ok", f"{where}; port {port} there is for process 0 to listen on, and was not tried")
    elif not is_port_free(port):
        yield Finding(CHECK, "error", f"port {port}, where process 0 is to listen, is taken on this machine",
                      "use another port in --coordinator, or end the program that listens there")  # fmt: skip
    else:
        yield Finding(CHECK, "ok", f"the coordinator's port {port} is free on this machine")


def _index(system: System, asked: Asked) -> int | None:
    """Which process this one is; None if nothing says it."""
    told = [asked.process_index, system.number(launched.PROCESS_INDEX)]
    told += [starter.index for starter in starters(system) if starter.count > 1]
    return next((index for index in told if index is not None), None)

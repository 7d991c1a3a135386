"""The machine's own name and the coordinator's port."""

from __future__ import annotations

import socket

import pytest

from paceline.base import launched
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.network import network_findings
from paceline.doctor.environment.system import addresses_of, is_own_address
from tests.doctor.environment.machines import levels, machine, only


def findings(root, asked=None, *, several=True, **fields):
    return network_findings(machine(root, **fields), asked or Asked(), several=several)


@pytest.mark.parametrize(
    ("addresses", "what", "fix"),
    [
        (["127.0.1.1"], "resolves to 127.0.1.1, which other machines cannot reach", "in /etc/hosts, give node1"),
        (["127.0.0.1", "::1"], "resolves to 127.0.0.1", "in /etc/hosts"),
        ([], "resolves to no address", "add a line with its address and node1 to /etc/hosts"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_warning_for_several_processes(tmp_path, addresses, what, fix):
    """Debian writes 127.0.1.1; Gloo would bind to it. A run of one process is told all the same."""
    found = only(findings(tmp_path, addresses=lambda name: addresses), "warning")
    assert what in found.what and fix in (found.fix or "")
    alone = only(findings(tmp_path, addresses=lambda name: addresses, several=False), "ok")
    assert what in alone.what and "one process is not concerned" in alone.what


def test_what_cannot_be_tried_is_said(tmp_path):
    """Firewalls."""
    assert any("firewall" in finding.what for finding in findings(tmp_path))
    assert not any("firewall" in finding.what for finding in findings(tmp_path, several=False))


def test_a_port_that_is_taken_is_an_error_for_process_0_only(tmp_path):
    """Somebody listens there for real."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        found = only(findings(tmp_path, Asked(coordinator=address, process_index=0)))
        assert "is taken on this machine" in found.what and "use another port" in (found.fix or "")
        other = findings(tmp_path, Asked(coordinator=address, process_index=1))
        assert "error" not in levels(other) and not any("is free" in finding.what for finding in other)
        assert any("is for process 0 to listen on, and was not tried" in finding.what for finding in other)
    found = findings(tmp_path, environment={launched.COORDINATOR: address})
    assert any("is free on this machine" in finding.what for finding in found)


def test_a_coordinator_elsewhere_is_resolved(tmp_path):
    """By name; one that nobody knows is an error."""
    found = findings(tmp_path, Asked(coordinator="node2:29500"))
    assert any("node2 is 10.0.0.2" in finding.what for finding in found)
    found = only(findings(tmp_path, Asked(coordinator="nowhere:29500")))
    assert "'nowhere' resolves to no address" in found.what and "spelling" in (found.fix or "")
    assert "host:port" in only(findings(tmp_path, Asked(coordinator="node2"))).what


def test_process_0_tries_its_port_whatever_the_name_resolves_to(tmp_path):
    """node2 is no address of this machine: said, with what to give, and the port is tried all the same."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = findings(tmp_path, Asked(coordinator=f"node2:{port}", process_index=0))
        assert f"port {port}, where process 0 is to listen, is taken" in only(found).what
        assert "no address of this machine" in only(found, "warning").what
        assert "the address of process 0's machine" in (only(found, "warning").fix or "")
        elsewhere = findings(tmp_path, Asked(coordinator=f"node2:{port}"))
        assert any("node2 is 10.0.0.2; port" in f.what and "was not tried" in f.what for f in elsewhere)


def test_an_address_of_another_interface_is_this_machines_own(tmp_path):
    """The name of the machine resolves to one of its addresses only; the port is tried on any of them."""
    with socket.socket() as free:
        free.bind(("0.0.0.0", 0))
        address = f"10.1.1.1:{free.getsockname()[1]}"
    owns = lambda place: place == "10.1.1.1"  # noqa: E731 - a machine with one more interface
    found = findings(tmp_path, Asked(coordinator=address), addresses=lambda name: [name], owns=owns)
    assert any("is free on this machine" in finding.what for finding in found)
    slurm = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    found = findings(tmp_path, Asked(coordinator=address), addresses=lambda name: [name], owns=owns, environment=slurm)
    assert not any("is free" in finding.what for finding in found), "process 1 of the scheduler does not listen"


def test_own_addresses_are_told_for_real():
    """The loopback; an address for documentation (RFC 5737) is nobody's, and a name is none."""
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1") and not is_own_address("localhost") and not is_own_address("a" * 80)


def test_names_are_resolved_for_real():
    """An address is its own; a name that cannot be is none, and no error."""
    assert addresses_of("127.0.0.1") == ["127.0.0.1"]
    assert addresses_of("no-such-machine.invalid") == [] and addresses_of("a" * 80 + ".invalid") == []

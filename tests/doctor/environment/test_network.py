"""The machine's own name and the coordinator's port."""

from __future__ import annotations

import socket

import pytest

from paceline.base import launched
from paceline.doctor.environment.asked import Asked
from paceline.doctor.environment.network import network_findings
from paceline.doctor.environment.system import addresses_of
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
        assert "error" not in levels(findings(tmp_path, Asked(coordinator=address, process_index=1)))
    found = findings(tmp_path, environment={launched.COORDINATOR: address})
    assert any("is free on this machine" in finding.what for finding in found)


def test_a_coordinator_elsewhere_is_resolved(tmp_path):
    """By name; one that nobody knows is an error."""
    found = findings(tmp_path, Asked(coordinator="node2:29500"))
    assert any("node2 is 10.0.0.2" in finding.what for finding in found)
    found = only(findings(tmp_path, Asked(coordinator="nowhere:29500")))
    assert "'nowhere' resolves to no address" in found.what and "spelling" in (found.fix or "")
    assert "host:port" in only(findings(tmp_path, Asked(coordinator="node2"))).what


def test_names_are_resolved_for_real():
    """An address is its own; a name that cannot be is none, and no error."""
    assert addresses_of("127.0.0.1") == ["127.0.0.1"]
    assert addresses_of("no-such-machine.invalid") == [] and addresses_of("a" * 80 + ".invalid") == []

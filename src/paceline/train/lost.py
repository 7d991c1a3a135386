"""Telling the loss of a peer from an error of one's own.

Owns: what JAX raises in a process whose peer died in a collective, turned into words.
"""

from __future__ import annotations

import socket

import jax

from paceline.base.errors import PeerError
from paceline.topology.processes import Processes

# Gloo over TCP (a ValueError), NCCL, and the coordination service; none of them has an error class of its own.
_SIGNS = ("gloo", "nccl", "coordination service", "heartbeat", "unavailable:")


def lost_peer(error: BaseException, processes: Processes) -> PeerError | None:
    """The error as a lost peer, or None if it is another one."""
    if not processes.several or not isinstance(error, jax.errors.JaxRuntimeError | ValueError):
        return None
    text = str(error)
    if not any(sign in text.lower() for sign in _SIGNS):
        return None
    first_line = text.strip().splitlines()[0][:200]
    return PeerError(
        what=f"process {processes.index} on {socket.gethostname()} lost {_names(processes)} in the middle of a step "
        f"({first_line})",
        why="a step needs all of them; that process died or the network broke",
        fix="look at the output of the process that ended first; the run goes on from its last checkpoint with "
        "--resume (paceline "
        "launch --max-restarts does so by itself)",
    )


def _names(processes: Processes) -> str:
    """Who was lost, and its last words. Of several, those without a sign of life in the next second and a half."""
    missing: dict[int, str] = {}
    if processes.monitor is not None:
        missing = processes.monitor.missing(wait=processes.count > 2)
    if not missing and processes.count == 2:
        missing = {1 - processes.index: ""}
    named = [
        f"process {peer} ({processes.machine(peer)})" + (f", which ended with an error ({words})" if words else "")
        for peer, words in missing.items()
    ]
    return ", ".join(named) or "another process"

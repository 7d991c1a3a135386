"""Says in words what limits a step.

Owns: the sentence.
Not here: the numbers in it.
Invariant: names the largest loss; without a loss worth naming it names the compute.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.insight.hardware.machine import Machine
from paceline.insight.model.roofline import Roofline
from paceline.insight.timeline import Timeline, each_collective, total_work

# A loss below this share of the step is not what limits it.
_WORTH_NAMING = 0.02


_SAID = {
    "contention_s": "compute slowed by communication in flight",
    "jitter_s": "waiting for the slowest of {devices} devices",
    "input_s": "the input: rows come more slowly than the devices take them",
    "host_s": "the host: the devices wait for it to start the next step",
}


def binding_term(
    terms: Mapping[str, float], *, waits_s: Mapping[str, float], timeline: Timeline, machine: Machine, devices: int
) -> str:
    """What costs most, beside the compute that the step is for."""
    losses = {name: terms[name] for name in (*_SAID, "exposed_s")}
    name = max(losses, key=lambda key: losses[key])
    share = losses[name] / (terms["compute_s"] + sum(losses.values()))
    if share < _WORTH_NAMING:
        return f"compute, most of it bound by {_side(timeline, machine)}: no loss above {_WORTH_NAMING:.0%}"
    if name != "exposed_s":
        return f"{_SAID[name].format(devices=devices)}: {share:.1%} of the step"
    exposed = terms["exposed_s"] / (terms["exposed_s"] + terms["hidden_s"])
    what = _messages(timeline, waits_s)
    return (
        f"{what}{_over(machine, devices)}: {exposed:.0%} of the communication is not hidden behind compute, "
        f"{share:.1%} of the step"
    )


def _side(timeline: Timeline, machine: Machine) -> str:
    """Of the roof, for the program as a whole."""
    arithmetic, memory = Roofline(machine.device).sides(total_work(timeline))
    return "arithmetic" if arithmetic > memory else "memory bandwidth"


def _messages(timeline: Timeline, waits_s: Mapping[str, float]) -> str:
    """The kind of collective that is waited for longest in all, and its largest wait's leaves where they are known."""
    known = {c.name: c for c, _ in each_collective(timeline)}
    by_kind: dict[str, float] = {}
    for name, wait in waits_s.items():
        by_kind[known[name].kind] = by_kind.get(known[name].kind, 0.0) + wait
    kind = max(by_kind, key=lambda one: by_kind[one])
    longest = max((name for name in waits_s if known[name].kind == kind), key=lambda name: waits_s[name])
    leaves = known[longest].leaves
    count = sum(known[name].kind == kind for name in waits_s)
    if not leaves:
        return kind
    return f"{kind} of {leaves[0]}{' and more' if len(leaves) > 1 or count > 1 else ''}"


def _over(machine: Machine, devices: int) -> str:
    medium = machine.network if devices > machine.devices_per_node else machine.link
    return f" over {medium.name}" if medium is not None else ""

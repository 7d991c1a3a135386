"""Says in words what limits a step.

Owns: the sentence.
Not here: the numbers in it.
Invariant: names the largest loss; without a loss worth naming it names the compute.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.insight.hardware.machine import Machine
from paceline.insight.model.roofline import achieved, peak
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
    what = _message(timeline, max(waits_s, key=lambda waited: waits_s[waited]))
    return (
        f"{what}{_over(machine, devices)}: {exposed:.0%} of the communication is not hidden behind compute, "
        f"{share:.1%} of the step"
    )


def _side(timeline: Timeline, machine: Machine) -> str:
    """Of the roof, for the program as a whole."""
    work, device = total_work(timeline), machine.device
    fraction = achieved(device)
    arithmetic = sum(flops / peak(device, dtype)[0] for dtype, flops in work.flops.items()) / fraction.matrix
    memory = work.bytes / (device.memory_bytes_per_s * fraction.memory)
    return "arithmetic" if arithmetic > memory else "memory bandwidth"


def _message(timeline: Timeline, name: str) -> str:
    """What a collective does, and to which leaves where that is known."""
    collective = next(c for c, _ in each_collective(timeline) if c.name == name)
    if not collective.leaves:
        return collective.kind
    return f"{collective.kind} of {collective.leaves[0]}{' and more' if len(collective.leaves) > 1 else ''}"


def _over(machine: Machine, devices: int) -> str:
    medium = machine.network if devices > machine.devices_per_node else machine.link
    return f" over {medium.name}" if medium is not None else ""

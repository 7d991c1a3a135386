"""The parts of a step on one of K devices.

Owns: `Setting`, and its time split into terms.
Not here: efficiency and intervals (`model.predict`), the parts' own models.
Invariant: a step is compute + contention + exposed + jitter + input + host; one device has no contention, no exposed
communication and no jitter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.insight.hardware.machine import Machine
from paceline.insight.model.costs import CollectiveCost
from paceline.insight.model.order import interrupted_maximum, normal_maximum
from paceline.insight.model.parameters import Parameters
from paceline.insight.model.replay import Replay, replay
from paceline.insight.model.roofline import Roofline
from paceline.insight.timeline import Collective, Timeline, Work, each_collective

# Host work of a jitted call: measured on a busy 2 GHz x86 core with jax 0.10 and 0.12, a program that adds 1 to one of
# 200 donated arrays: on one device, and what each further device of the process adds.
HOST_STEP_S = 5.4e-4
HOST_DEVICE_S = 1.3e-4


@dataclass(frozen=True)
class Setting:
    """All that a step's time follows from.

    Args:
      timeline: what a device does in a step.
      machine: where; as large as K takes.
      devices: K.
      parameters: of the model.
      cost: seconds of a collective alone.
      compute_scale: factor on the roofline, where the compute's time is known better.
      input_s: the time in which the input of one node makes one device's rows; the node's devices share it.
      update_s: what the devices wait for at each update beside the program: an eager framework's host work.
      host_s: the shortest step that the host of one device can start.
      update: of a placement that splits it, the whole update's work, of which the compiled program has a part.
      synchronisations: how often in a step the devices wait for each other; an interruption hits one of them.
    """

    timeline: Timeline
    machine: Machine
    devices: int
    parameters: Parameters
    cost: CollectiveCost
    compute_scale: float = 1.0
    input_s: float = 0.0
    update_s: float = 0.0
    synchronisations: int = 1
    host_s: float = HOST_STEP_S
    update: Work | None = None

    @property
    def compiled(self) -> int:
        """Devices that the program was made for, as far as its collectives say."""
        return max((c.group for c, _ in each_collective(self.timeline)), default=1)


@dataclass(frozen=True)
class Terms:
    """Seconds of a step; see `predict.StepTime`."""

    compute_s: float
    contention_s: float
    exposed_s: float
    jitter_s: float
    input_s: float
    host_s: float
    hidden_s: float

    @property
    def step_s(self) -> float:
        """Of the whole step. Hidden communication takes no time of its own."""
        return sum((self.compute_s, self.contention_s, self.exposed_s, self.jitter_s, self.input_s, self.host_s))


class _Seconds:
    """What work and collectives of a setting take."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._roofline = Roofline(setting.machine.device)
        self._compiled = setting.compiled if setting.devices > 1 else 1

    def work(self, work: Work) -> float:
        return self._roofline(work) * self._setting.compute_scale

    def update_beyond(self) -> float:
        """What the update takes beyond the compiled program's part, if other than the compiled K devices share it.

        Below zero where more do; never more than the part that is there.
        """
        setting = self._setting
        if setting.update is None:
            return 0.0
        whole = self._roofline(replace(setting.update, kernels=0)) * setting.compute_scale
        return whole * (1 / setting.devices - 1 / max(setting.compiled, 1))

    def collective(self, collective: Collective) -> float:
        # A collective over all devices of the program spans all K; a smaller group stays what it is.
        devices = self._setting.devices
        group = devices if collective.group == self._compiled else min(collective.group, devices)
        return self._setting.parameters.slowdown * self._setting.cost(collective, group) if group > 1 else 0.0


def play(setting: Setting) -> Replay:
    """The schedule, on this machine."""
    seconds = _Seconds(setting)
    played = replay(
        setting.timeline,
        work_s=seconds.work,
        collective_s=seconds.collective,
        contention=setting.parameters.contention,
    )
    return replace(played, compute_s=played.compute_s + seconds.update_beyond())


def step_terms(setting: Setting) -> tuple[Terms, Replay]:
    """Where the time of a step goes, and the replay it was read from."""
    played = play(setting)
    local = min(setting.devices, setting.machine.devices_per_node)
    host = max(setting.host_s + HOST_DEVICE_S * (local - 1) - played.total_s, 0.0) + setting.update_s
    jitter = _jitter_s(setting, compute_s=played.compute_s)
    waiting = max(setting.input_s * local - played.total_s - host - jitter, 0.0)
    terms = Terms(
        compute_s=played.compute_s,
        contention_s=played.contention_s,
        exposed_s=played.exposed_s,
        jitter_s=jitter,
        input_s=waiting,
        host_s=host,
        hidden_s=played.hidden_s,
    )
    return terms, played


def _jitter_s(setting: Setting, *, compute_s: float) -> float:
    """How long the others wait for the slowest: chips differ in speed for good, interruptions come and go."""
    parameters = setting.parameters
    between_s = compute_s / setting.synchronisations
    chance = -math.expm1(-parameters.interruptions_per_s * between_s)
    interruptions = parameters.interruption_s * interrupted_maximum(setting.devices, chance=chance)
    chips = parameters.spread * compute_s * normal_maximum(setting.devices)
    return chips + setting.synchronisations * interruptions

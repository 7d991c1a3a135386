"""Predicted time of a step on K devices, its parts, and the scaling efficiency with an interval.

Owns: `predict`, `StepTime`, the curve over K.
Not here: the parts of a step (`model.step`), what limits it in words (`model.words`).
Invariant: one device has no communication and an efficiency of exactly 1; the terms sum to the step; more bandwidth is
never slower.

Weak scaling: every device keeps its rows, so E_K = S_K / (K S_1) is the step's time on one device over that on K. The
one-device step is the same program without its collectives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from paceline.insight.hardware.machine import Machine
from paceline.insight.model.costs import CollectiveCost, MachineCost
from paceline.insight.model.parameters import EIGHTY_PERCENT, FITTED, FITTED_LOG_SD, Parameters, interval
from paceline.insight.model.roofline import ROOFLINE_LOG_SD
from paceline.insight.model.step import Setting, play, step_terms
from paceline.insight.model.words import binding_term
from paceline.insight.network.curves import NetworkCurves
from paceline.insight.timeline import Timeline, Work

# How sure a measured step is, as standard deviation of its logarithm.
MEASURED_LOG_SD = 0.03
# Derivatives are taken over this change of the logarithm.
_LOG_STEP = 0.1


@dataclass(frozen=True)
class StepTime:
    """What a step takes on K devices, predicted.

    Args:
      devices: K.
      one_device_step_s: the step on one device, no communication.
      step_s: the step on K devices; the sum of `terms` without ``hidden_s``.
      terms: [s] ``compute_s`` alone on the device; ``contention_s`` by which communication in flight slows it;
        ``exposed_s`` communication that nothing hides; ``hidden_s`` communication behind compute, which costs no time
        of its own; ``jitter_s`` waiting for the slowest of K; ``input_s`` waiting for rows; ``host_s`` for the host.
      efficiency: S_K / (K S_1).
      efficiency_low, efficiency_high: its 80 % interval.
      binding: what limits the step, in words.
      waits_s: exposed time [s] by collective.
      one_device_log_sd: how sure the step of one device is, as standard deviation of its logarithm.
    """

    devices: int
    one_device_step_s: float
    step_s: float
    terms: Mapping[str, float]
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    binding: str
    waits_s: Mapping[str, float]
    one_device_log_sd: float

    @property
    def one_device_interval_s(self) -> tuple[float, float]:
        """80 % interval of the step on one device [s]."""
        factor = math.exp(EIGHTY_PERCENT * self.one_device_log_sd)
        return self.one_device_step_s / factor, self.one_device_step_s * factor


def predict(
    timeline: Timeline,
    machine: Machine,
    *,
    devices: int | None = None,
    measured_step_s: float | None = None,
    measured_log_sd: float = MEASURED_LOG_SD,
    input_s: float = 0.0,
    update: Work | None = None,
    parameters: Parameters = FITTED,
    log_sd: Mapping[str, float] = FITTED_LOG_SD,
    cost: CollectiveCost | None = None,
    curves: NetworkCurves | None = None,
) -> StepTime:
    """The step of one device among K.

    Args:
      timeline: what a device does; a collective over all devices of the program is taken to span all K.
      machine: what the devices are and what joins them; grown to as many nodes as K takes.
      devices: K; the machine's own number if not given.
      measured_step_s: a measured step on one device [s]; compute is scaled so that it takes as long.
      measured_log_sd: how sure it is, as standard deviation of its logarithm.
      input_s: how long the input of one node takes to make the rows of one device's step [s]. The node's devices share
        it; what is longer than the step is waited for.
      update: the whole work of the update where a placement splits it over the devices: the program has the part of the
        K that it was compiled for, one device alone has all of it.
      parameters, log_sd: of the model, and how sure each is (standard deviation of its logarithm).
      cost: seconds of a collective; by the machine's links (`insight.network`) if not given.
      curves: measured collectives, which come before the links' published rates.
    Raises: RateError: the device has no known peak for a dtype of the program.
      DeviceError: K devices take several nodes and no network between them is known.
    """
    count = machine.num_devices if devices is None else devices
    large = machine.with_devices(count)
    cost = cost or MachineCost(large, curves=curves)
    setting = Setting(timeline, large, count, parameters, cost, input_s=input_s, update=update)
    setting = _as_measured(setting, measured_step_s)
    compute_log_sd = ROOFLINE_LOG_SD if measured_step_s is None else measured_log_sd
    return _with_interval(setting, log_sd=log_sd, compute_log_sd=compute_log_sd)


def predicted_efficiency(
    timeline: Timeline, machine: Machine, *, measured_step_s: float | None = None, input_s: float = 0.0,
    update: Work | None = None, curves: NetworkCurves | None = None,
) -> float:  # fmt: skip
    """E_K of `predict` alone, which takes a tenth of the time: for searches."""
    count = machine.num_devices
    cost = MachineCost(machine, curves=curves)
    setting = Setting(timeline, machine, count, FITTED, cost, input_s=input_s, update=update)
    return _efficiency(_as_measured(setting, measured_step_s)) if machine.num_devices > 1 else 1.0


def _as_measured(setting: Setting, measured_step_s: float | None) -> Setting:
    """Compute scaled so that the step of one device takes as long as was measured, its host included."""
    if measured_step_s is None:
        return setting
    scale = measured_step_s / play(replace(setting, devices=1)).compute_s
    return replace(setting, compute_scale=scale, host_s=min(setting.host_s, measured_step_s))


def efficiency_curve(
    timeline: Timeline,
    machine: Machine,
    *,
    counts: Sequence[int],
    measured_step_s: float | None = None,
    measured_log_sd: float = MEASURED_LOG_SD,
    input_s: float = 0.0,
    update: Work | None = None,
    curves: NetworkCurves | None = None,
) -> list[StepTime]:
    """`predict` for each K."""
    return [
        predict(
            timeline, machine, devices=count, measured_step_s=measured_step_s, measured_log_sd=measured_log_sd,
            input_s=input_s, update=update, curves=curves,
        )
        for count in counts
    ]  # fmt: skip


def _with_interval(setting: Setting, *, log_sd: Mapping[str, float], compute_log_sd: float) -> StepTime:
    terms, played = step_terms(setting)
    one = _one_device(setting)
    efficiency = one / terms.step_s if setting.devices > 1 else 1.0
    low = high = 1.0
    if setting.devices > 1:
        slopes = _slopes(setting, efficiency=efficiency, names=tuple(log_sd))
        low, high = interval(efficiency, slopes=slopes, log_sd={**log_sd, "compute": compute_log_sd})
    split = asdict(terms)
    return StepTime(
        devices=setting.devices,
        one_device_step_s=one,
        step_s=terms.step_s,
        terms=split,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        binding=binding_term(
            split, waits_s=played.waits_s, timeline=setting.timeline, machine=setting.machine, devices=setting.devices
        ),
        waits_s=played.waits_s,
        one_device_log_sd=compute_log_sd,
    )


def _one_device(setting: Setting) -> float:
    return step_terms(replace(setting, devices=1))[0].step_s


def _efficiency(setting: Setting) -> float:
    return _one_device(setting) / step_terms(setting)[0].step_s


def _slopes(setting: Setting, *, efficiency: float, names: tuple[str, ...]) -> dict[str, float]:
    """Change of the efficiency with the logarithm of each parameter, and of the compute's time."""
    moved = {name: replace(setting, parameters=setting.parameters.moved(name, 1 + _LOG_STEP)) for name in names}
    moved["compute"] = replace(setting, compute_scale=setting.compute_scale * (1 + _LOG_STEP))
    return {name: (_efficiency(other) - efficiency) / _LOG_STEP for name, other in moved.items()}

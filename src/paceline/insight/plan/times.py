"""The time of a step for any number of rows and of devices, from two compiled ones.

Owns: what the model of time is asked with (the measured rate, the input, an update that a placement splits), the curve
over K, the fewest rows a device that are efficient.
Not here: the model itself (`insight.model.predict`), the line between two timelines (`plan.rows`).
Invariant: with a measured rate, one device with the rows of the first step takes the time that was measured.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from paceline.base.units import format_rate
from paceline.insight.hardware.machine import Machine
from paceline.insight.model.predict import (
    MEASURED_LOG_SD,
    StepTime,
    efficiency_curve,
    predict,
    predicted_efficiency,
)
from paceline.insight.model.roofline import ROOFLINE_LOG_SD, check_rate, shortest_step_s
from paceline.insight.network.curves import NetworkCurves
from paceline.insight.plan.notes import can_grow
from paceline.insight.plan.programs import StepProgram
from paceline.insight.plan.rows import timeline_at
from paceline.insight.timeline import Timeline, Work

MOST_DEVICES = 4096
GOOD_EFFICIENCY = 0.9


@dataclass(frozen=True)
class StepTimes:
    """What is known of the time of a step on a machine.

    Args:
      first, second: compiled steps with different rows; the first is the one that is planned.
      rate: measured samples/s of one device with the rows of the first; None to predict it.
      correction: measured over predicted seconds of one device, known from another way to run, where `rate` is None.
      input_rate: rows/s that the input of one node makes, which its devices share; None: it keeps up.
      curves: measured collectives; None: published rates alone.
    Raises, where the rate is first used: RateError: a rate that the device cannot reach.
    """

    machine: Machine
    first: StepProgram
    second: StepProgram
    rate: float | None = None
    correction: float | None = None
    input_rate: float | None = None
    curves: NetworkCurves | None = None

    def curve(self) -> tuple[StepTime, ...]:
        """1, 2, 4, ... `MOST_DEVICES` devices and the machine's own K, with the rows of the first step.

        Of a program that was compiled for one device, which sends nothing, that one alone.
        """
        timeline = self.first.timeline
        return tuple(
            efficiency_curve(
                timeline, self.machine, counts=self._counts(), measured_step_s=self._one_device_s(timeline),
                measured_log_sd=ROOFLINE_LOG_SD if self.rate is None else MEASURED_LOG_SD,
                input_s=self._input_s(self.first.rows), update=self._split_update, curves=self.curves,
            )
        )  # fmt: skip

    def efficiency(self, rows: int) -> float:
        """E_K of the machine's K with so many rows a device."""
        timeline = timeline_at(
            rows, first=(self.first.rows, self.first.timeline), second=(self.second.rows, self.second.timeline)
        )
        return predicted_efficiency(
            timeline, self.machine, measured_step_s=self._one_device_s(timeline), input_s=self._input_s(rows),
            update=self._split_update, curves=self.curves,
        )  # fmt: skip

    def efficient_rows(self, *, most: int) -> int | None:
        """The fewest rows a device with E_K of `GOOD_EFFICIENCY` or more, a multiple of n, by bisection: E_K grows
        with the rows. None if `most` rows have less."""
        unit = self.first.parallel.accumulation
        low, high = 0, max(most // unit, 1)
        if most < unit or self.efficiency(high * unit) < GOOD_EFFICIENCY:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.efficiency(middle * unit) >= GOOD_EFFICIENCY else (middle, high)
        return high * unit

    def _counts(self) -> list[int]:
        """As far as a network is known between nodes, and a program that communicates."""
        machine = self.machine
        if self.first.program.num_partitions == 1:
            return [machine.num_devices]
        most = MOST_DEVICES if can_grow(machine) else machine.devices_per_node * machine.nodes
        powers = [1 << power for power in range(MOST_DEVICES.bit_length()) if 1 << power <= most]
        return sorted({*powers, machine.num_devices})

    def _input_s(self, rows: int) -> float:
        return 0.0 if self.input_rate is None else rows / self.input_rate

    def _one_device_s(self, timeline: Timeline) -> float | None:
        """The seconds of a step on one device by the measured rate; None without one."""
        if self.measured_share is None:
            return None
        measured_s = self.measured_share * self._alone(timeline).step_s
        return measured_s if self.rate is not None else max(measured_s, shortest_step_s(timeline, self.machine.device))

    @cached_property
    def measured_share(self) -> float | None:
        """Measured over predicted seconds of the first step on one device; None if nothing was measured."""
        if self.rate is None:
            return self.correction
        timeline = self.first.timeline
        measured_s = check_rate(timeline, self.machine.device, rows=self.first.rows, rate=self.rate)
        return measured_s / self._alone(timeline).step_s

    def rate_notes(self) -> list[str]:
        """A measured rate outside of the 80 % interval of the predicted one: perhaps it is that of something else."""
        if self.rate is None:
            return []
        alone, rows = self._alone(self.first.timeline), self.first.rows
        fast_s, slow_s = alone.one_device_interval_s
        if fast_s <= rows / self.rate <= slow_s:
            return []
        predicted = rows / alone.step_s
        return [
            f"the measured rate is {self.rate / predicted:.2g} of the predicted {format_rate(predicted)}, outside of "
            "its 80 % interval: was it measured with this batch, precision and input, on one such device?"
        ]

    def _alone(self, timeline: Timeline) -> StepTime:
        """The step on one device, as predicted, its host included."""
        alone = dataclasses.replace(self.machine, devices_per_node=1, nodes=1)
        return predict(timeline, alone, devices=1, update=self._split_update)

    @cached_property
    def _split_update(self) -> Work | None:
        """The whole work of the update where a placement splits it.

        It reads gradients and reads and writes parameters, optimizer state and moving average, nothing else: memory
        binds.
        """
        expected, devices = self.first.memory.expected, self.machine.num_devices
        placement = self.first.parallel.placement
        if placement == "replicated" or devices == 1 or expected is None:
            return None
        params = expected.params * (devices if placement == "fsdp" else 1)
        state = (expected.opt_state + expected.ema) * devices
        return Work({}, 3.0 * params + 2.0 * state, 1, "update")

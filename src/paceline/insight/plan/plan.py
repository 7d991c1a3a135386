"""`make_plan`: the answer for one way to run a step.

Owns: which numbers a plan has and how they follow from compiled steps and the model of time.
Not here: the compilations (`plan.programs`), the words (`plan.words`), several ways side by side (`plan.compare`).
Invariant: a number that was not compiled but read off a line between compiled ones says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.base.errors import BatchSizeError, OptionError
from paceline.base.units import format_count
from paceline.engine.parallel import Parallel
from paceline.insight.hardware.machine import CPU_ALIASES, Machine
from paceline.insight.memory.advice import Advice
from paceline.insight.memory.largest import MemoryFitError, largest_batch
from paceline.insight.memory.limits import Limit, program_limit
from paceline.insight.memory.model import MemoryModel
from paceline.insight.model.predict import StepTime
from paceline.insight.model.roofline import peak_step_s
from paceline.insight.network.curves import NetworkCurves
from paceline.insight.noise import TwoNumbers, UsefulDevices, two_numbers, useful_devices
from paceline.insight.plan.notes import data_notes, rematerialised_work, time_notes, unread_notes
from paceline.insight.plan.programs import Programs, StepProgram
from paceline.insight.plan.times import StepTimes

_QUICK_S = 15.0
"""Where two compilations took no longer, the largest batch is compiled too without being asked for."""


@dataclass(frozen=True)
class Ask:
    """What is asked beside the machine and the way to run.

    Args:
      batch: rows B of the global batch.
      rate: measured samples/s of one device with B/K rows; None to predict it.
      input_rate: rows/s that the input of one node makes, which its devices share; None: it keeps up.
      samples: how many are to be trained on, for time and cost.
      price: of one device for an hour, in any currency.
      noise_scale: gradient noise scale [rows] of the task, from a run; None: unknown.
      confirm: compile the largest batch instead of reading it off a line.
      correction: measured over predicted seconds of one device, from another way to run (`Plan.measured_share`); taken
        where no `rate` is given.
      curves: measured collectives of such a machine; None: published rates alone.
    """

    batch: int
    rate: float | None = None
    input_rate: float | None = None
    samples: float | None = None
    price: float | None = None
    noise_scale: float | None = None
    confirm: bool = False
    correction: float | None = None
    curves: NetworkCurves | None = None

    def __post_init__(self) -> None:
        flags = {"noise_scale": "noise-scale-rows"}
        for name in ("rate", "input_rate", "samples", "price", "noise_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                flag = flags.get(name, name.replace("_", "-"))
                raise OptionError(
                    what=f"--{flag} {value:g}", why="it must be above 0", fix=f"leave --{flag} out, or give a number"
                )
        if self.price is not None and self.samples is None:
            raise OptionError(
                what=f"--price {self.price:g} without --samples",
                why="a cost is that of so many samples",
                fix="add --samples, as --samples 1e9, or leave --price out",
            )


@dataclass(frozen=True)
class LargestRows:
    """The most rows a device that fit.

    Args:
      rows: 0 if not even n rows fit.
      compiled: whether the compiler confirmed it; else it is read off the line through two compiled batches.
      is_bounded: whether more would not fit; else the search ended before it met its end, and more may fit.
      data_rows: what the data have for each device, which no batch can exceed; None if that is not known.
    """

    rows: int
    compiled: bool
    is_bounded: bool = True
    data_rows: int | None = None


@dataclass(frozen=True)
class Plan:
    """The answer for one way to run.

    Args:
      machine, ask: the question.
      notes: what stands in for what, and what was assumed.
      step_program: the compiled step.
      limit: of a program's memory on the device.
      time: of a step on K devices.
      curve: of a step on 1 to `MOST_DEVICES` devices with the same rows a device; one point if K is 1.
      largest: most rows a device that fit.
      efficient_rows: fewest rows a device at which E_K is `GOOD_EFFICIENCY`; None if no batch that fits reaches it.
      ways_out: what to change, where it does not fit.
      statistical: hardware and statistical efficiency; None without a noise scale.
      useful: how far more devices shorten the time to a loss; None without a noise scale, and if K is 1.
      measured_share: measured over predicted seconds of a step on one device; None if nothing was measured.
    """

    machine: Machine
    ask: Ask
    notes: tuple[str, ...]
    step_program: StepProgram
    limit: Limit
    time: StepTime
    curve: tuple[StepTime, ...]
    largest: LargestRows
    efficient_rows: int | None
    ways_out: tuple[Advice, ...] = ()
    statistical: TwoNumbers | None = None
    useful: UsefulDevices | None = None
    measured_share: float | None = None

    @property
    def rows(self) -> int:
        """Rows a device, B/K."""
        return self.step_program.rows

    @property
    def devices(self) -> int:
        """K."""
        return self.machine.num_devices

    @property
    def fits(self) -> bool:
        """Whether the step fits with the largest pool that leaves room for the runtime."""
        return self.step_program.memory.peak <= self.limit.most_bytes

    @property
    def single_rate_interval(self) -> tuple[float, float]:
        """80 % interval of S_1, samples/s."""
        fast, slow = self.time.one_device_interval_s
        return self.rows / slow, self.rows / fast

    @property
    def single_rate(self) -> float:
        """S_1, samples/s."""
        return self.rows / self.time.one_device_step_s

    def rate(self, time: StepTime) -> float:
        """S_K of a point of the curve, samples/s."""
        return self.rows * time.devices / time.step_s

    @property
    def flops_per_sample(self) -> float:
        """Floating-point operations of forward, backward and update for a row; what XLA computes again is left out."""
        program = self.step_program.program
        return (program.work.total_flops - rematerialised_work(program.timeline).total_flops) / self.rows

    @property
    def utilisation(self) -> float | None:
        """Share of the device's peak that the step's products reach on K devices; None if the step has none."""
        timeline, device = self.step_program.timeline, self.machine.device
        at_peak_s = peak_step_s(timeline, device) - peak_step_s((rematerialised_work(timeline),), device)
        return at_peak_s / self.time.step_s if at_peak_s else None


def make_plan(programs: Programs, machine: Machine, *, parallel: Parallel, ask: Ask, notes: tuple[str, ...]) -> Plan:
    """Compile the step for two batches and predict the rest.

    Raises: BatchSizeError: B does not split over K devices and n microbatches. RateError: a rate that the device cannot
      reach. CompileError, TaskError and their kin: no step can be made.
    """
    rows = rows_per_device(ask.batch, devices=machine.num_devices, accumulation=parallel.accumulation)
    first, second = programs.several([(parallel, rows), (parallel, 2 * rows)])
    times = StepTimes(
        machine, first, second, rate=ask.rate, correction=ask.correction, input_rate=ask.input_rate, curves=ask.curves
    )
    curve = times.curve()
    limit = _limit(machine)
    largest = _largest(programs, parallel, limit, known=[first, second], confirm=ask.confirm)
    statistical, useful = _statistical(ask, curve, rows=rows, devices=machine.num_devices)
    fits = first.memory.peak <= limit.most_bytes
    found = [
        *unread_notes(first.program), *time_notes(first.timeline, machine, fits=fits), *times.rate_notes(),
        *data_notes(ask.batch, programs.work.source_rows),
    ]  # fmt: skip
    return Plan(
        machine, ask, (*machine.notes, *notes, *found), first, limit,
        time=next(point for point in curve if point.devices == machine.num_devices), curve=curve, largest=largest,
        efficient_rows=times.efficient_rows(most=largest.rows),
        ways_out=() if fits else tuple(programs.ways_out(first, limit_bytes=limit.most_bytes)),
        statistical=statistical, useful=useful, measured_share=times.measured_share,
    )  # fmt: skip


def _limit(machine: Machine) -> Limit:
    """Of a program's memory: of a GPU what JAX's pool leaves, of a CPU all that its devices share."""
    size = round(machine.device.memory_bytes)
    return Limit(size, size, 1.0) if machine.device.aliases == CPU_ALIASES else program_limit(size)


def rows_per_device(batch: int, *, devices: int, accumulation: int) -> int:
    """B/K. Raises: BatchSizeError: B is no multiple of K n."""
    unit = devices * accumulation
    if batch % unit:
        below, above = batch // unit * unit, -(-batch // unit) * unit
        split = format_count(devices, "device") + (f" in {accumulation} microbatches" if accumulation > 1 else "")
        raise BatchSizeError(
            what=f"a batch of {format_count(batch, 'row')} does not split over {split}",
            why="every device must have the same number of rows",
            fix=f"use --batch {above}" + (f" or {below}" if below else ""),
        )
    return batch // devices


def _largest(
    programs: Programs, parallel: Parallel, limit: Limit, *, known: list[StepProgram], confirm: bool
) -> LargestRows:
    """By the memory alone: that the data are fewer is said beside it, so it does not change with them."""
    unit, there = parallel.accumulation, programs.work.source_rows
    data_rows = None if there is None else there // programs.devices
    line = MemoryModel({step.rows: step.memory.peak for step in known})
    fitting = line.rows_for(limit.most_bytes) // unit * unit
    quick = sum(step.compiled.compile_s for step in known) < _QUICK_S
    useful = data_rows is None or fitting <= data_rows  # nobody waits for the compilation of what no data can fill

    def peak_of(rows: int) -> int:
        return programs.one(parallel, rows).memory.peak

    if confirm or (quick and useful):
        try:
            found = largest_batch(peak_of, limit_bytes=limit.most_bytes, start_rows=known[0].rows, multiple=unit)
            return LargestRows(found.rows, True, found.is_bounded, data_rows)
        except MemoryFitError:
            return LargestRows(0, True, data_rows=data_rows)
    if line.peak(2 * max(fitting, 1)) <= limit.most_bytes:  # both compiled steps take the same memory
        return LargestRows(known[-1].rows, False, is_bounded=False, data_rows=data_rows)
    return LargestRows(fitting, False, data_rows=data_rows)


def _statistical(
    ask: Ask, curve: Sequence[StepTime], *, rows: int, devices: int
) -> tuple[TwoNumbers | None, UsefulDevices | None]:
    if ask.noise_scale is None:
        return None, None
    rates = {time.devices: rows * time.devices / time.step_s for time in curve}
    numbers = two_numbers(
        devices, throughput=rates[devices], single=rates[1], batch=rows * devices, single_batch=rows,
        noise_scale=ask.noise_scale,
    )  # fmt: skip
    if len(rates) == 1:  # no curve, so nothing is known of more devices
        return numbers, None
    useful = useful_devices(
        rates.__getitem__, sorted(rates), batch=lambda count: rows * count, noise_scale=ask.noise_scale
    )
    return numbers, useful

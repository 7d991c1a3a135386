"""Which measurements are made, how often and in which order.

Owns: the configurations of weak and strong scaling, the rounds, the time that they may take.
Not here: one measurement (`station`), what follows from them (`efficiency`).
Invariant: in a round every configuration is measured once in every stage, those of a stage one behind the other, in an
order that turns around from round to round; the first round counts for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.base.errors import BatchSizeError, OptionError
from paceline.base.units import format_count
from paceline.measure.scale.station import Station
from paceline.measure.scale.subject import STAGES, Mode, Sample, Stage
from paceline.measure.timing import WARM_STEPS, in_turn, steps_for

LEAST_ROUNDS = 3
_LEAST_STEPS = 4
_PILOT_S = 0.2
MOST_ROUNDS = 500
_MOST_STEPS = 3000
_UNCLAIMED_STAGES: tuple[Stage, ...] = ("feed", "fit")


@dataclass(frozen=True, order=True)
class Setting:
    """K devices that share a global batch of so many rows."""

    devices: int
    batch: int


Measurements = Mapping[Setting, Mapping[Stage, Sequence[Sample]]]
"""Samples by round."""


def settings_of(mode: Mode, devices: Iterable[int], *, batch: int, microbatches: int) -> list[Setting]:
    """What is measured: with K the most devices, ``batch`` is shared by these K in either mode.

    Weak scaling gives every number of devices ``batch / K`` rows a device, strong scaling the whole batch.

    Raises: BatchSizeError: rows that do not split evenly.
    """
    counts = sorted(set(devices))
    most = counts[-1]
    if mode == "weak":
        _check_splits(batch, most * microbatches, f"{most} devices", microbatches)
        return [Setting(count, batch // most * count) for count in counts]
    for count in counts:
        _check_splits(batch, count * microbatches, f"{count} devices", microbatches)
    return [Setting(count, batch) for count in counts]


def _check_splits(batch: int, parts: int, over: str, microbatches: int) -> None:
    if batch % parts == 0:
        return
    lower, upper = batch // parts * parts, (batch // parts + 1) * parts
    by = f" in {format_count(microbatches, 'microbatch')}" if microbatches > 1 else ""
    raise BatchSizeError(
        what=f"a batch of {format_count(batch, 'row')} does not split evenly over {over}{by}",
        why="unequal shares would make some devices wait for others, and that would be measured",
        fix=f"use --batch {upper}" + (f" or {lower}" if lower else ""),
    )


def check_numbers(*, repeats: int, seconds: int | float) -> None:
    """Raise OptionError for what cannot be measured with."""
    if repeats < LEAST_ROUNDS:
        raise OptionError(
            what=f"--repeats {repeats}",
            why="an interval needs several measurements",
            fix=f"use --repeats {LEAST_ROUNDS} or more (15 is the default)",
        )
    if repeats > MOST_ROUNDS:
        raise OptionError(
            what=f"--repeats {repeats}",
            why="each would be too short to be measured",
            fix=f"use --repeats {MOST_ROUNDS} or fewer (15 is the default), and more --seconds for a narrower interval",
        )
    if not 0 < seconds < math.inf:
        raise OptionError(
            what=f"--seconds {seconds:g}",
            why="it is the time that is shared by all measurements",
            fix="use --seconds 60, or another time above 0",
        )


@dataclass
class Rounds:
    """The measurements of some settings.

    Args:
      stations: by number of devices.
      settings: what is measured.
      unclaimed: numbers of devices of which only throughput is measured.
      say: what is happening, for people.
      clock: gives seconds.
    """

    stations: Mapping[int, Station]
    settings: Sequence[Setting]
    unclaimed: frozenset[int] = frozenset()
    say: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.perf_counter
    samples: dict[Setting, dict[Stage, list[Sample]]] = field(default_factory=dict)
    steps: dict[Setting, int] = field(default_factory=dict)
    rounds: int = 0
    compile_s: float = 0.0
    no_local: str = ""
    """Why the stages ``local`` and ``barrier`` are left out: where one setting lacks them, none is compared in them."""

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """The stages in which a setting is measured; one device waits for no other."""
        if setting.devices in self.unclaimed:
            return _UNCLAIMED_STAGES
        if self.no_local:
            return tuple(stage for stage in STAGES if stage not in ("local", "barrier"))
        return tuple(stage for stage in STAGES if stage != "barrier" or setting.devices > 1)

    def prepare(self) -> None:
        """Compile everything, before anything is measured."""
        for setting in self.settings:
            self.say(f"compiling for {format_count(setting.devices, 'device')}, {format_count(setting.batch, 'row')}")
            prepared = self.stations[setting.devices].prepare(setting.batch)
            self.compile_s += prepared.compile_s
            if prepared.no_local and setting.devices not in self.unclaimed and not self.no_local:
                self.no_local = f"{format_count(setting.devices, 'device')}: {prepared.no_local}"

    def measure(self, *, repeats: int, seconds: int | float) -> None:
        """So many rounds, or as many as the time allows, but `LEAST_ROUNDS`."""
        start_s = self.clock()
        calls = sum(len(self.stages(setting)) for setting in self.settings)
        each_s = seconds / (calls * (repeats + 1))
        for setting in self.settings:
            self.steps[setting] = self._steps_of(setting, seconds=each_s)
        for number in range(-1, repeats):
            if number >= LEAST_ROUNDS and self.clock() - start_s > seconds:
                break
            self.say(f"round {number + 1} of {repeats}")
            self._round(number)
        self.rounds = min(len(samples) for stages in self.samples.values() for samples in stages.values())

    def _steps_of(self, setting: Setting, *, seconds: float) -> int:
        """Steps that take so long with the warm-up; the first pilot is slow (caches, threads), so the second counts."""
        station = self.stations[setting.devices]
        first_s = station.measure(setting.batch, "fit", steps=_LEAST_STEPS).step_s
        steps = steps_for(first_s, seconds=min(seconds, _PILOT_S), at_least=_LEAST_STEPS)
        step_s = station.measure(setting.batch, "fit", steps=steps).step_s
        asked = steps_for(step_s, seconds=seconds, at_least=_LEAST_STEPS + WARM_STEPS)
        return min(_MOST_STEPS, asked - WARM_STEPS)

    def _round(self, number: int) -> None:
        for stage in STAGES:
            for setting in in_turn(self.settings, repeat=number):
                if stage not in self.stages(setting):
                    continue
                station = self.stations[setting.devices]
                sample = station.measure(setting.batch, stage, steps=self.steps[setting])
                if number >= 0:
                    self.samples.setdefault(setting, {}).setdefault(stage, []).append(sample)

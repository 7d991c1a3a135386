"""The gradient noise scale: how large a batch pays.

Owns: its estimate from the gradients of devices, with an error; what it says about batches and numbers of devices.
Not here: the norms that it reads (`engine.noise`), the loop that feeds it (`train.loop`).
Invariant: a number that too few steps have shown is "unknown" (None), never a guess. This module imports no jax.

Source of all formulas: McCandlish, Kaplan, Amodei and others, "An Empirical Model of Large-Batch Training", 2018
(arXiv:1812.06162). With G the true gradient and tr(S) the variance of the gradient of one row, summed over parameters,

    E|G_b|^2 = |G|^2 + tr(S) / b          for a mean over b rows     (its appendix A.1)
    B_noise = tr(S) / |G|^2               in rows                    (its section 2, the "simple" noise scale)

Units: everything is in rows, whatever the loss is divided by; of a loss that counts tokens, a row is a sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.base.units import format_count, format_percent

MEMORY_STEPS = 100
"""Steps over which averages reach back. The scale grows during a run, so old steps must fade; fewer would be noisy: a
decay of 0.99 a step."""

LEAST_STEPS = 20
"""Steps before an estimate is given at all: the error itself is estimated from them."""

MOST_ERROR = 0.5
"""An estimate whose standard error is a larger share of it is unknown."""

LEAST_GAIN = 0.05
"""A doubling of the devices that saves less of the time to a loss than this share is not worth it."""


@dataclass(frozen=True)
class Estimate:
    """A noise scale.

    Args:
      rows: B_noise.
      relative_error: standard error of `rows`, as a share of it.
      steps: seen so far.
      batch_rows: mean rows of their batches.
    """

    rows: float
    relative_error: float
    steps: int
    batch_rows: float

    def __str__(self) -> str:
        """For the report of a run."""
        at = format_percent(statistical_efficiency(self.batch_rows, self.rows))
        here, half = format_count(round(self.batch_rows), "row"), format_rows(self.rows)
        return (
            f"{half} (± {format_percent(self.relative_error)}): at a batch of {here} a row brings {at} of what it "
            f"would in a small one; beyond {half} less than half"
        )


class NoiseScale:
    """Averages the two estimates of each step, apart, and divides the averages.

    The ratio of one step would have no mean. Both averages weigh the steps alike, as a plain mean at first and fading
    over `memory_steps` later, so the start needs no correction. The error is that of a ratio of means, to first order
    (delta method); steps count as independent.

    Args:
      memory_steps: see `MEMORY_STEPS`; more than `LEAST_STEPS`.
    """

    def __init__(self, *, memory_steps: int = MEMORY_STEPS) -> None:
        assert memory_steps > LEAST_STEPS, "an error needs several steps"
        self._memory_steps = memory_steps
        self._steps = 0
        self._noise = self._signal = self._rows = 0.0
        self._squares = [0.0, 0.0, 0.0]  # weighted sums of squares: noise, signal, and their product
        self._evenness = 0.0  # sum of squared weights: one over the number of steps that the averages hold

    def update(self, small_square: float, big_square: float, *, small_rows: int | float, big_rows: int | float) -> None:
        """One step. What is not finite, or has batches of one size, is left out.

        Args:
          small_square: mean of ``|G_b|^2`` over the small batches.
          big_square: ``|G_B|^2`` of the whole batch.
          small_rows, big_rows: b and B; of small batches of several sizes, the size for which the expectation above
            holds (weighted by their rows: B over their number).
        """
        if not (0 < small_rows < big_rows and math.isfinite(small_square) and math.isfinite(big_square)):
            return
        noise = (small_square - big_square) / (1 / small_rows - 1 / big_rows)
        signal = (big_rows * big_square - small_rows * small_square) / (big_rows - small_rows)
        self._steps += 1
        rate = 1 / min(self._steps, self._memory_steps)
        self._evenness = (1 - rate) ** 2 * self._evenness + rate**2
        off_noise, off_signal = noise - self._noise, signal - self._signal
        self._noise += rate * off_noise
        self._signal += rate * off_signal
        self._rows += rate * (big_rows - self._rows)
        products = (off_noise**2, off_signal**2, off_noise * off_signal)
        self._squares = [
            (1 - rate) * (old + rate * new) for old, new in zip(self._squares, products, strict=True)
        ]  # West 1979: the variance of a weighted mean, updated

    @property
    def steps(self) -> int:
        """Steps that counted."""
        return self._steps

    @property
    def estimate(self) -> Estimate | None:
        """The noise scale now; None while it is unknown: too few steps, or an error as large as the number."""
        if self._steps < LEAST_STEPS or self._noise <= 0 or self._signal <= 0:
            return None
        noise, signal, both = self._squares
        relative = noise / self._noise**2 + signal / self._signal**2 - 2 * both / (self._noise * self._signal)
        error = math.sqrt(max(relative, 0.0) * self._evenness / (1 - self._evenness))
        if error > MOST_ERROR:
            return None
        return Estimate(self._noise / self._signal, error, self._steps, self._rows)

    @property
    def why_unknown(self) -> str:
        """Why there is no estimate."""
        if self._steps < LEAST_STEPS:
            return f"{format_count(self._steps, 'step')} seen, {LEAST_STEPS} are the least"
        if self._noise <= 0:
            return "the devices' gradients differ by no more than rounding"
        return "its error is as large as the number: it takes more steps, or more devices"


def statistical_efficiency(batch: int | float, noise_scale: int | float) -> float:
    """What a row brings in a batch of so many rows, as a share of what it brings in a small one: 1 / (1 + B/B_noise).

    To reach a loss takes ``S = S_min (1 + B_noise/B)`` steps and ``E = E_min (1 + B/B_noise)`` rows: the trade-off of
    section 2 there, with the noise scale in place of the critical batch.
    """
    return 1 / (1 + batch / noise_scale)


def critical_batch(noise_scale: int | float, *, efficiency: float = 0.5) -> float:
    """The largest batch [rows] at which a row still brings such a share; at one half it is the noise scale itself."""
    return noise_scale * (1 / efficiency - 1)


@dataclass(frozen=True)
class TwoNumbers:
    """How well K devices are used, and what their rows are worth.

    Args:
      devices: K.
      batch: rows B of the global batch.
      hardware: E_K, throughput over K times that of one device.
      statistical: what a row brings, against one in the batch of one device.
      speed_up: of the time to a loss, against one device.
    """

    devices: int
    batch: int | float
    hardware: float
    statistical: float
    speed_up: float

    @property
    def product(self) -> float:
        """The efficiency of the K devices at training: speed-up over K."""
        return self.hardware * self.statistical


def two_numbers(devices: int, *, throughput: int | float, single: int | float, batch: int | float,
                single_batch: int | float, noise_scale: int | float) -> TwoNumbers:  # fmt: skip
    """Hardware efficiency and statistical efficiency of K devices against one.

    Args:
      throughput, single: samples/s of K devices and of one.
      batch, single_batch: global batches of both; equal when the global batch is fixed, and then the second number
        is 1.
      noise_scale: B_noise [rows].
    """
    hardware = throughput / (devices * single)
    worth = statistical_efficiency(batch, noise_scale) / statistical_efficiency(single_batch, noise_scale)
    return TwoNumbers(devices, batch, hardware, worth, throughput / single * worth)


@dataclass(frozen=True)
class UsefulDevices:
    """How far more devices help.

    Args:
      devices: the last K before a doubling that saves too little.
      curve: each K with its two numbers.
      is_end: whether the curve ended before such a doubling: more devices may help still.
    """

    devices: int
    curve: tuple[TwoNumbers, ...]
    is_end: bool


def useful_devices(
    throughput: Callable[[int], int | float], devices: Iterable[int], *, batch: Callable[[int], int | float],
    noise_scale: int | float, least_gain: float = LEAST_GAIN,
) -> UsefulDevices:  # fmt: skip
    """The K beyond which the time to a loss improves by less than `least_gain` a doubling.

    Time to a loss with K devices is rows needed over throughput, ``E_min (1 + B_K/B_noise) / S_K``; E_min cancels. From
    K to K' it is rescaled to one doubling, ``(T_K'/T_K) ** (1 / log2(K'/K))``, and compared with ``1 - least_gain``.
    With a fixed batch a device and perfect hardware, T is proportional to ``1/K + b/B_noise``: doubling saves less than
    5 % from K of about 9 B_noise/b on.

    Args:
      throughput: samples/s of K devices, S_K.
      devices: the K to look at, in rising order.
      batch: rows of the global batch on K devices: ``lambda k: b * k`` (fixed a device) or ``lambda k: B`` (fixed).
      noise_scale: B_noise [rows].
    """
    counts = list(devices)
    first = counts[0]
    curve = tuple(
        two_numbers(
            count, throughput=throughput(count), single=throughput(first) / first, batch=batch(count),
            single_batch=batch(first), noise_scale=noise_scale,
        )
        for count in counts
    )  # fmt: skip
    return _last_useful(curve, least_gain)


def _last_useful(curve: Sequence[TwoNumbers], least_gain: float) -> UsefulDevices:
    for now, then in itertools.pairwise(curve):
        doublings = math.log2(then.devices / now.devices)
        if (now.speed_up / then.speed_up) ** (1 / doublings) > 1 - least_gain:
            return UsefulDevices(now.devices, tuple(curve), is_end=False)
    return UsefulDevices(curve[-1].devices, tuple(curve), is_end=True)


def format_rows(rows: int | float) -> str:
    """``1,240 rows``: three significant digits, an estimate has no more."""
    shown = float(f"{rows:.3g}")
    return format_count(round(shown) if shown >= 10 else shown, "row")

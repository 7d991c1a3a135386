"""How long a device takes for a piece of work that nothing disturbs.

Owns: the roofline, and the fractions of their peaks that devices reach.
Not here: the peaks (`hardware.catalog`), when the work runs (`model.replay`).
Invariant: never faster than the peaks allow; a dtype without a known peak is an error, not a guess.

A kernel takes as long as its slower side: arithmetic or memory (Williams, Waterman, Patterson 2009, "Roofline").
No kernel is shorter than the floor, in which a launch and the filling and draining of the device fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.base.errors import PacelineError
from paceline.insight.hardware.catalog import Device
from paceline.insight.timeline import FULL_FLOAT32, Timeline, Work, total_work


class RateError(PacelineError):
    """A speed that the device cannot have, or a number type it has no known speed for."""


@dataclass(frozen=True)
class Achieved:
    """Fractions of its peaks that a class of devices reaches in training steps.

    Args:
      devices: regular expression for the names of the class.
      matrix: for bfloat16, float16, tfloat32 and narrower, on matrix units.
      vector: for float32 and float64 where no matrix unit takes part.
      memory: of the memory bandwidth.
      kernel_s: shortest kernel [s].
      source: published rates that the fractions reproduce.
    """

    devices: str
    matrix: float
    vector: float
    memory: float
    kernel_s: float
    source: str


# How far a step really lies from the roofline so made, as standard deviation of the logarithm. Predicted against
# published rates of ResNet-50 (`ACHIEVED`'s sources): 360 for 367 on a V100, 224 for 219 on a P100, 2810 for 2470 on an
# A100 in 16 bits, and, the worst, 1520 for 938 on an A100 in tfloat32.
ROOFLINE_LOG_SD = 0.25

_DEEP_LEARNING_EXAMPLES = "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch: "
ACHIEVED: tuple[Achieved, ...] = (
    Achieved(r"P100", 0.60, 0.65, 0.75, 5e-6, "TensorFlow benchmarks 2017: ResNet-50, 219 images/s"),
    Achieved(r"V100", 0.55, 0.75, 0.80, 4e-6, _DEEP_LEARNING_EXAMPLES + "367 images/s in float32"),
    Achieved(
        r"A100", 0.70, 0.75, 0.70, 3e-6, _DEEP_LEARNING_EXAMPLES + "2470; llm-foundry: whole steps at 0.58 of peak"
    ),
    Achieved(
        r"H100|H200", 0.58, 0.75, 0.70, 2.5e-6, "llm-foundry: whole steps at 0.40 to 0.46 of peak; memory as A100"
    ),
    Achieved(r"B200|GB200", 0.58, 0.75, 0.70, 2.5e-6, "estimate: as H100"),
    Achieved(r"MI250X", 0.45, 0.60, 0.65, 5e-6, "estimate: below NVIDIA's, as published whole steps are"),
    Achieved(r"MI300X", 0.45, 0.60, 0.65, 5e-6, "estimate: as MI250X"),
    Achieved(r"L4|4090", 0.65, 0.70, 0.75, 4e-6, "estimate: as A100, whose matrix units they share"),
    # This CPU's peaks are measured with large matrix products and copies: they are reached, except for small shapes.
    Achieved(r"(?i)cpu", 0.80, 0.80, 0.80, 5e-6, "measured: MLP and CNN steps within 15 %; in the cache twice as fast"),
)
_OTHERS = Achieved(r"", 0.55, 0.70, 0.75, 5e-6, "median of the classes above")

_RATES_OF = {
    "float32": ("tfloat32", "float32"), FULL_FLOAT32: ("float32",), "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
}  # fmt: skip
_PRECISIONS = ("float32", "bfloat16", "float16")
"""That a step can be asked to compute in."""

_MATRIX = frozenset({"bfloat16", "float16", "tfloat32", "float8", "int8"})


def achieved(device: Device) -> Achieved:
    """The fractions of the class that a device belongs to."""
    return next((a for a in ACHIEVED if re.search(a.devices, device.name)), _OTHERS)


def peak(device: Device, dtype: str) -> tuple[float, str]:
    """Peak rate for operands of a dtype [flop/s], and the name it goes by in the device's table.

    float32 means tfloat32 where the device has it: JAX's default precision lets matrix units round the operands (and so
    does "high" on GPUs); `FULL_FLOAT32` is what its name says. Every float8 format has one rate. A device that has no
    unit for bfloat16 or float16 computes them in float32.
    Raises: RateError: the table knows no rate for it.
    """
    rates = device.peak_flops_per_s
    short = "float8" if dtype.startswith("float8") else dtype
    for name in _RATES_OF.get(short, (short,)):
        if name in rates:
            return rates[name], name
    known = [name for name in _PRECISIONS if name in rates]
    raise RateError(
        what=f"no peak rate for {dtype} is known for {device.name}",
        why="the time of its matrix products cannot be predicted, nor a measured one checked",
        fix=f"let the task compute in another type (--precision {' or '.join(known)}), or plan for a device that has a "
        f"rate for {dtype}",
    )


class Roofline:
    """Seconds for a piece of work on a device: the longest of its sides; call it with the work.

    Raises: RateError (when called): see `peak`.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._fraction = achieved(device)
        self._bytes_per_s = device.memory_bytes_per_s * self._fraction.memory
        self._rates: dict[str, float] = {}

    def __call__(self, work: Work) -> float:
        arithmetic, memory = self.sides(work)
        return max(arithmetic, memory, work.kernels * self._fraction.kernel_s)

    def sides(self, work: Work) -> tuple[float, float]:
        """Seconds of its arithmetic and of its memory traffic, each at the fraction of the peak that is reached."""
        arithmetic = 0.0
        for dtype, flops in work.flops.items():
            if dtype not in self._rates:
                self._rates[dtype] = self._rate(dtype)
            arithmetic += flops / self._rates[dtype]
        return arithmetic, work.bytes / self._bytes_per_s

    def _rate(self, dtype: str) -> float:
        flops_per_s, name = peak(self._device, dtype)
        return flops_per_s * (self._fraction.matrix if name in _MATRIX else self._fraction.vector)


# Winograd's convolutions multiply 2.25 times less than FLOPs count (Lavin, Gray: arXiv 1509.09308, F(2x2, 3x3)); VGG-16
# so ran at 1.35 of a P100's peak (TensorFlow benchmarks 2017). On matrix units nobody gains by it.
_WINOGRAD = 2.25


def peak_step_s(timeline: Timeline, device: Device) -> float:
    """All operations at peak [s]: over the time of a step it is the share of the peak that the step reaches."""
    return sum((count / peak(device, dtype)[0] for dtype, count in total_work(timeline).flops.items()), 0.0)


def shortest_step_s(timeline: Timeline, device: Device) -> float:
    """What no program can undercut [s]: all operations at peak, of convolutions outside of matrix units fewer.

    Memory is left out: caches can save traffic.
    """
    saved = 0.0
    for dtype, count in total_work(timeline).convolutions.items():
        rate, name = peak(device, dtype)
        saved += 0.0 if name in _MATRIX else (1 - 1 / _WINOGRAD) * count / rate
    return peak_step_s(timeline, device) - saved


def check_rate(timeline: Timeline, device: Device, *, rows: int, rate: float) -> float:
    """The step's seconds on one device at a measured rate.

    Args:
      rows: rows of the batch that a device sees in a step.
      rate: measured on one device [rows/s].
    Raises: RateError: not positive, or faster than the device's peak arithmetic allows (`shortest_step_s`).
    """
    if not rate > 0:
        raise RateError(
            what=f"--rate {rate:g} is not a speed",
            why="a step would never end",
            fix="give the measured rows/s of one device, above 0",
        )
    shortest = shortest_step_s(timeline, device)
    if rows / rate < shortest:
        most = rows / shortest
        raise RateError(
            what=f"--rate {rate:g} rows/s is faster than {device.name} can be",
            why=f"its peak of {_peaks(timeline, device)} allows {most:.4g} rows/s at {_per_row(timeline, rows)} a row",
            fix=f"give the rate of one device, not of all; at most {most:.4g}",
        )
    return rows / rate


def _peaks(timeline: Timeline, device: Device) -> str:
    rates = [peak(device, dtype) for dtype in total_work(timeline).flops]
    said = [f"{rate / 1e12:.4g} Tflop/s ({name})" for rate, name in rates]
    winograd = any(peak(device, dtype)[1] not in _MATRIX for dtype in total_work(timeline).convolutions)
    return ", ".join(said) + (f", {_WINOGRAD:g} times that in convolutions," if winograd else "")


def _per_row(timeline: Timeline, rows: int) -> str:
    return f"{total_work(timeline).total_flops / rows / 1e9:.3g} Gflop"

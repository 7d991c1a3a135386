"""How far more devices shorten the time to a loss, with what the measurement leaves open.

Owns: hardware efficiency as it was measured times what the noise scale says of rows; the verdict on each doubling.
Not here: the formulas (`insight.noise`), E_K (`efficiency`).
Invariant: a doubling pays, or does not, only if the whole interval of its gain says so, with the error of the noise
scale in it; else it is not decided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.base.units import format_count
from paceline.insight.noise import LEAST_GAIN, TwoNumbers, statistical_efficiency, useful_devices
from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Sample
from paceline.measure.timing import Interval, ratio_interval


@dataclass(frozen=True)
class TimeToLoss:
    """What K devices are worth for the time to a loss.

    Args:
      devices: the last K up to which each doubling is known to pay.
      decided: whether it is known that the next doubling does not; False: the measurement is not sharp enough.
      is_end: K is the most that was measured.
      curve: each K with its two numbers, hardware as E_K.
      saved: share of the time that a doubling saves, from each K to the next.
    """

    devices: int
    decided: bool
    is_end: bool
    curve: tuple[TwoNumbers, ...]
    saved: tuple[Interval, ...]


def time_to_loss(
    efficiency: Mapping[Setting, float], fits: Mapping[Setting, Sequence[Sample]], *, single: float, noise_rows: float,
    noise_error: float = 0.0,
) -> TimeToLoss:  # fmt: skip
    """Of settings in rising K, the first of them one device.

    Args:
      efficiency: E_K as a share.
      fits: the measurements behind it, by round.
      single: S_1 [samples/s].
      noise_rows: B_noise.
      noise_error: its standard error, as a share of it, below 1.
    """
    settings = sorted(efficiency)
    by_count = {setting.devices: setting for setting in settings}
    found = useful_devices(
        lambda count: efficiency[by_count[count]] * count * single,
        list(by_count),
        batch=lambda count: by_count[count].batch,
        noise_scale=noise_rows,
    )
    saved = tuple(
        _saved_with_error(now, then, fits, noise_rows, noise_error) for now, then in itertools.pairwise(settings)
    )
    known = list(itertools.takewhile(lambda gain: gain.low >= LEAST_GAIN, saved))
    if len(known) == len(saved):
        return TimeToLoss(settings[-1].devices, True, True, found.curve, saved)
    is_decided = saved[len(known)].high < LEAST_GAIN
    return TimeToLoss(settings[len(known)].devices, is_decided, False, found.curve, saved)


def _saved_with_error(
    now: Setting, then: Setting, fits: Mapping[Setting, Sequence[Sample]], noise_rows: float, noise_error: float
) -> Interval:  # fmt: skip
    """From the lower end at a noise scale one standard error too small to the upper end at one as much too large.

    With the same global batch (strong scaling) rows are worth the same, so the noise scale is no matter.
    """
    middle, *ends = (
        _saved(now, then, fits, noise_rows * factor) for factor in (1.0, 1.0 - noise_error, 1.0 + noise_error)
    )
    return middle._replace(low=min(end.low for end in ends), high=max(end.high for end in ends))


def _saved(now: Setting, then: Setting, fits: Mapping[Setting, Sequence[Sample]], noise_rows: float) -> Interval:
    """1 - T_K'/T_K, rescaled to a doubling; T is rows over throughput, over what a row is worth. Round by round."""
    worth = [statistical_efficiency(setting.batch, noise_rows) for setting in (now, then)]
    speeds = [
        [setting.batch / sample.step_s * own for sample in fits[setting]]
        for setting, own in zip((now, then), worth, strict=True)
    ]
    times = ratio_interval(speeds[0], speeds[1])
    power = 1 / math.log2(then.devices / now.devices)
    return Interval(1 - times.value**power, 1 - times.high**power, 1 - times.low**power, times.coverage)


def verdict(found: TimeToLoss) -> str:
    """``beyond 2 devices a doubling saves less than 5 % of the time``."""
    mark = f"{100 * LEAST_GAIN:g} %"
    count = format_count(found.devices, "device")
    if found.is_end:
        return f"up to {count}, the most measured, each doubling pays: it saves {mark} of the time or more"
    if found.decided:
        return f"beyond {count} a doubling saves less than {mark} of the time"
    gain = found.saved[[numbers.devices for numbers in found.curve].index(found.devices)]
    return (
        f"beyond {count}: not decided, a doubling saves {100 * gain.value:.1f} % of the time "
        f"({100 * gain.low:.1f} to {100 * gain.high:.1f}), and {mark} is the mark; more --seconds narrow it, as far as "
        "the noise scale is known"
    )

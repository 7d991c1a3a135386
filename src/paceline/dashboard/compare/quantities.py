"""The numbers that are compared: each with its unit, its meaning, which way is better and when that may be said.

Owns: the rows of a comparison, how their values are written.
Not here: where the values come from (`from_run` and its like), who is best (`judge`).
Invariant: a quantity means the same for every kind of subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paceline.base.units import format_bytes, format_duration, format_percent, format_rate, rate_digits, whole_digits
from paceline.dashboard.compare.words import say
from paceline.dashboard.words import Words
from paceline.telemetry.events import number_text
from paceline.telemetry.metrics import EVALUATE_LOSS, Better, describe

Form = Literal["rate", "duration", "bytes", "count", "share", "metric_share", "plain"]
Noise = Literal["interval", "exact", "seed", "model"]
Condition = Literal["task", "platform", "devices", "batch", "trained"]

_SPEED: tuple[Condition, ...] = ("task", "platform", "devices")
_STEP: tuple[Condition, ...] = ("task", "platform", "devices", "batch")
_LEARNED: tuple[Condition, ...] = ("task", "trained")


@dataclass(frozen=True)
class Quantity:
    """One row of the comparison.

    Args:
      needs: conditions that must agree before one value is called best.
      noise: ``interval``: only differences beyond the intervals count; ``exact``: every difference counts;
        ``seed``: nothing says how much another run would differ, ``model``: nor how far the model is off, so none is
        called best.
      form: how values are written.
    """

    key: str
    title_words: Words
    group: str
    description_words: Words
    better: Better
    needs: tuple[Condition, ...]
    noise: Noise
    form: Form
    unit: str

    @property
    def title(self) -> str:
        """In English."""
        return self.title_words.text

    @property
    def description(self) -> str:
        """In English."""
        return self.description_words.text

    def text(self, value: int | float) -> str:
        """The value as people read it."""
        words = self.words(value)
        return _FORMATS[self.form](value) if words is None else words.text

    def words(self, value: int | float) -> Words | None:
        """What is said of a value that is not finite; None: it is a number, with a unit that every language has."""
        return None if math.isfinite(value) else say(f"compare.{number_text(value)}")

    def interval(self, low: int | float | None, high: int | float | None) -> Words | None:
        """``12,301 to 12,389``, or ``± 0.08 %`` where both ends read the same; None without an interval."""
        if low is None or high is None:
            return None
        text = _ENDS.get(self.form, self.text)
        ends = text(low), text(high)
        if ends[0] == ends[1] and low < high:
            return say("compare.spread", percent=format_percent((high - low) / (high + low)))
        if self.form not in _ENDS:
            return say("compare.range", low=self.words(low) or ends[0], high=self.words(high) or ends[1])
        percent = " %" if self.form == "share" else ""
        return say("compare.range", low=self.words(low) or ends[0], high=self.words(high) or ends[1] + percent)


def _share(value: int | float) -> str:
    return f"{100 * value:.1f} %" if abs(value) < 1e6 else f"{100 * value:.3g} %"


_FORMATS = {
    "rate": format_rate,
    "duration": format_duration,
    "bytes": format_bytes,
    "count": whole_digits,
    "share": _share,
    "metric_share": lambda value: f"{100 * value:.2f} %" if abs(value) < 1e6 else _share(value),
    "plain": lambda value: f"{value:.4g}",
}
_ENDS: dict[Form, Callable[[int | float], str]] = {
    "rate": rate_digits,
    "share": lambda value: _share(value).removesuffix(" %"),
}
_UNITS: dict[Form, str] = {
    "rate": "samples/s",
    "duration": "s",
    "bytes": "bytes",
    "count": "",
    "share": "",
    "metric_share": "",
    "plain": "",
}
SHARES = ("accuracy", "share")
"""Last words of metrics that are a share of one, which the page shows in percent everywhere."""


def _quantity(
    key: str, title: str, description: str, *, group: str, form: Form, better: Better = "lower",
    needs: tuple[Condition, ...] = _STEP, noise: Noise = "interval",
) -> Quantity:  # fmt: skip
    words = Words(f"compare.row.{key}", {}, title), Words(f"compare.about.{key}", {}, description)
    return Quantity(key, words[0], group, words[1], better, needs, noise, form, _UNITS[form])


SAMPLES_PER_S = _quantity(
    "samples_per_s", "throughput", "Rows trained on each second, over the timed steps.",
    group="speed", form="rate", better="higher", needs=_SPEED,
)  # fmt: skip
STEP_P50_S = _quantity("step_p50_s", "median step latency", "Time of a step that half of them keep within.",
                       group="speed", form="duration")  # fmt: skip
STEP_P95_S = _quantity("step_p95_s", "95 % step latency", "Time of a step that 95 of 100 keep within.",
                       group="speed", form="duration")  # fmt: skip
EFFICIENCY = _quantity(
    "efficiency", "scaling efficiency E_K", "Throughput on K devices over K times that on one.",
    group="speed", form="share", better="higher",
)  # fmt: skip
INPUT_WAIT_SHARE = _quantity(
    "input_wait_share", "waiting for batches", "Share of the time in which the devices had no batch.",
    group="speed", form="share",
)  # fmt: skip
TIMED_STEPS = _quantity(
    "timed_steps", "timed steps",
    "Steps that speed and latency are over: the first of a start and those around an evaluation are not timed.",
    group="speed", form="count", noise="exact", needs=(), better="none",
)  # fmt: skip
MEMORY_MEASURED = _quantity(
    "memory_measured_bytes", "measured peak memory a device", "The most that was in use on a device of the run.",
    group="memory", form="bytes", noise="exact",
)  # fmt: skip
MEMORY_COMPILED = _quantity(
    "memory_compiled_bytes", "compiled peak memory a device",
    "What the compiler reckons that the step takes on a device.", group="memory", form="bytes", noise="exact",
)  # fmt: skip
SENT_BYTES = _quantity(
    "sent_bytes", "sent by a device (ring)",
    "Bytes that each device sends in a step, if every collective goes round the devices in a ring.",
    group="network", form="bytes", noise="exact", needs=("task", "devices"),
)  # fmt: skip
WIRE_BYTES = _quantity(
    "wire_bytes", "payload of the collectives",
    "Bytes of all values that the devices exchange in a step; how many of them are sent depends on how it is done.",
    group="network", form="bytes", noise="exact", needs=(), better="none",
)  # fmt: skip
COLLECTIVES = _quantity(
    "collectives", "collectives a step", "Exchanges between the devices in a step.",
    group="network", form="count", noise="exact", needs=("task", "devices"),
)  # fmt: skip
BLOCKING_COLLECTIVES = _quantity(
    "blocking_collectives", "of them blocking", "Collectives during which the device can compute nothing.",
    group="network", form="count", noise="exact", needs=("task", "devices"),
)  # fmt: skip
COMMUNICATION_S = _quantity(
    "communication_s", "communication not hidden", "Seconds of a step in which devices only exchange, by the model.",
    group="network", form="duration", noise="model",
)  # fmt: skip
LOSS_LAST = _quantity(
    "train_loss_last", "training loss at the end", "Mean loss over the last tenth of the steps.",
    group="learning", form="plain", needs=_LEARNED,
)  # fmt: skip
LOSS_BEST = _quantity(
    "train_loss_best", "best training loss of a step", "Lowest loss of one batch; a lucky batch lowers it too.",
    group="learning", form="plain", needs=_LEARNED, noise="seed",
)  # fmt: skip
STEPS = _quantity(
    "steps", "steps made", "The last step of the run; updates that were left out count too.",
    group="learning", form="count", noise="exact", needs=(), better="none",
)  # fmt: skip
SKIPPED_UPDATES = _quantity(
    "skipped_updates", "updates left out",
    "Updates that were not finite, so all devices left them out. A run that broke off has fewer, so none is best.",
    group="learning", form="count", noise="exact", needs=(), better="none",
)  # fmt: skip
DIFFERENCES = _quantity(
    "differences", "programs unlike one device",
    "Programs that do not compute what one device would, as paceline verify found.",
    group="fidelity", form="count", noise="exact", needs=(), better="none",
)  # fmt: skip
UNEQUAL_AUDITS = _quantity(
    "unequal_audits", "audits with unequal replicas",
    "Audits in which replicas were not equal to each other; that they are is no proof that they compute what one "
    "device would, and leaves that are split over the devices are not compared.",
    group="fidelity", form="count", noise="exact", needs=(), better="none",
)  # fmt: skip

DECLARED = (
    SAMPLES_PER_S, EFFICIENCY, STEP_P50_S, STEP_P95_S, INPUT_WAIT_SHARE, TIMED_STEPS, MEMORY_MEASURED,
    MEMORY_COMPILED, SENT_BYTES, WIRE_BYTES, COLLECTIVES, BLOCKING_COLLECTIVES, COMMUNICATION_S, LOSS_LAST, LOSS_BEST,
    STEPS, SKIPPED_UPDATES, DIFFERENCES, UNEQUAL_AUDITS,
)  # fmt: skip
EVALUATION = "evaluate/"


def evaluation_quantities(key: str) -> tuple[Quantity, ...]:
    """The last value of an evaluation metric, and the best if one way is better."""
    metric = describe(key)
    form: Form = "metric_share" if key.endswith(SHARES) else "plain"
    about = (
        Words("compare.about.evaluation_loss", {}, metric.description)
        if key == EVALUATE_LOSS.key
        else Words("compare.about.evaluation_own", {"name": repr(metric.name)}, metric.description)
    )
    return tuple(
        Quantity(f"{key}/{which}", say(f"compare.row.evaluation_{which}", name=metric.name), "learning", about,
                 metric.better, _LEARNED, "seed", form, "")
        for which in (("last",) if metric.better == "none" else ("last", "best"))
    )  # fmt: skip

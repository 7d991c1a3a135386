"""The known causes for which K devices compute something else than one, each with its name, its reason and its fix.

Owns: the words.
Not here: how a cause is recognised (`check.parity.probes` for a task, `check.parity.faults` for numbers).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Cause(NamedTuple):
    """A known mistake.

    Args:
      name: what the field calls it.
      why: what it does to the result.
      fix: the change to make.
    """

    name: str
    why: str
    fix: str


class Culprit(NamedTuple):
    """A cause found, with what points at it: a leaf, a line, a number."""

    cause: Cause
    evidence: str

    def lines(self) -> list[str]:
        """As people read it."""
        return [
            f"cause: {self.cause.name}" + (f" ({self.evidence})" if self.evidence else ""),
            f"  why: {self.cause.why}",
            f"  fix: {self.cause.fix}",
        ]

    def as_dict(self) -> dict[str, str]:
        """JSON-ready data."""
        return {"cause": self.cause.name, "evidence": self.evidence, "why": self.cause.why, "fix": self.cause.fix}


def merged(culprits: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """One entry a cause, with all that points at it."""
    evidence: dict[Cause, list[str]] = {}
    for culprit in culprits:
        evidence.setdefault(culprit.cause, []).append(culprit.evidence)
    return tuple(Culprit(cause, "; ".join(filter(None, dict.fromkeys(found)))) for cause, found in evidence.items())


GRADIENT_TIMES_K = Cause(
    "gradient K times too large",
    "it was summed over the devices where their mean was due; under shard_map's check_vma=True the gradient of "
    "replicated parameters is summed already, and a pmean behind it changes nothing",
    "reduce once: jax.lax.pmean of gradients of per-device means (after jax.lax.pcast(params, axis, to='varying') in "
    "a shard_map with check_vma=True), or pmean the loss inside the function that is differentiated",
)
GRADIENT_TIMES_K2 = Cause(
    "gradient K^2 times too large",
    "it was summed twice: once by the transpose of replicated parameters under shard_map's check_vma=True, and once "
    "by a psum behind it",
    "reduce once: jax.lax.pcast(params, axis, to='varying') first, then the gradient, then one jax.lax.pmean",
)
GRADIENT_OVER_K = Cause(
    "gradient K times too small",
    "the mean was taken twice, for example by dividing by the rows of the global batch and then by pmean",
    "divide once: use psum over losses that are divided by the global rows, or pmean over per-device means",
)
NEVER_REDUCED = Cause(
    "gradient never reduced",
    "every device follows the gradient of its own rows, and the replicas part at the first update",
    "take the mean over the axis before the optimizer: grads = jax.lax.pmean(grads, axis_name)",
)
MEAN_OF_MEANS = Cause(
    "mean of means",
    "devices (or microbatches) with fewer rows or tokens count as much as full ones",
    "reduce sums, and divide the sum of losses by the sum of weights once; in a task return "
    "paceline.Weighted(total, weight), or one loss a row; a scalar in which rows meet, as in a contrastive loss, is no "
    "mean at all: scheme='global_view' with accumulation 1",
)
SAME_MASK = Cause(
    "the same dropout mask everywhere",
    "every device draws from the same key, so that rows of different devices share their masks and the noise does not "
    "average out",
    "use the rng that the loss is given (Paceline makes it positional), or fold_in(key, jax.lax.axis_index(axis))",
)
MASK_CHANGES = Cause(
    "mask that changes with K",
    "the numbers drawn for a row depend on how many devices or microbatches share the batch, so a result cannot be "
    "reproduced on another number of devices",
    "draw with the rows as the leading dim, jax.random.bernoulli(rng, p, (rows, ...)), from the rng that the loss is "
    "given; in a step of your own draw the global mask and take the device's rows",
)
BATCH_NORM_DRIFTS = Cause(
    "BatchNorm statistics drifting",
    "every device keeps the running statistics of its own rows, and what is saved or evaluated is those of device 0",
    "reduce the model state too, with jax.lax.pmean for the mean, and for the variance the mean of the variances plus "
    "the variance of the means",
)
STATE_DRIFTS = Cause(
    "state that drifts between devices",
    "a leaf of the next state is computed from values that differ between the devices and was not reduced",
    "reduce it over the axis before it enters the state",
)
STATE_SUMMED = Cause(
    "state summed once a device",
    "every device adds up its own rows, and what becomes of the sums (their mean, or the largest of counts) is not the "
    "sum of all",
    "keep means in the model state, or sum over the devices in the loss with jax.lax.psum(value, 'data'); a count that "
    "a report needs is a metric",
)
VARIANCE_AVERAGED = Cause(
    "variance averaged wrongly",
    "the mean of the devices' variances leaves out the variance of their means, so it is too small",
    "declare paceline.RunningStatistics(mean, variance, momentum), or merge E[x^2] - E[x]^2 from pmean of both",
)
PADDING_COUNTED = Cause(
    "padded rows counted",
    "rows that only fill up the batch enter the loss and its gradient",
    "multiply the loss of each row by the mask, and divide by the sum of the mask over all devices",
)
METRIC_SUMMED = Cause(
    "metric summed once a device",
    "what is reported is K times the value, or a K-th of it, and changes with the number of devices",
    "use pmean for a mean and psum for a sum of per-device parts; in a task return one value a row, or "
    "paceline.Weighted(total, weight)",
)
CLIP_BEFORE_MEAN = Cause(
    "clip before the mean",
    "every device clips the gradient of its own rows, so the update is not the clipped mean gradient",
    "reduce first, then clip; in Paceline use Parallel(clip_norm=...)",
)
SCHEDULE_COUNTS_MICROBATCHES = Cause(
    "schedule that counts microbatches",
    "the learning rate runs through its schedule several times too fast",
    "call the optimizer once an update, on the accumulated gradient",
)
KEY_EVERY_STEP = Cause(
    "key reused every step",
    "the key depends neither on the step nor on the key given, so every update draws the same numbers",
    "draw from the rng that the loss is given, or fold the step into the key: jax.random.fold_in(key, step)",
)
KEY_SHARED = Cause(
    "key shared between data and noise",
    "two draws from one key are the same numbers, so what should be independent is fully correlated",
    "split it first: key_a, key_b = jax.random.split(key)",
)
NOT_A_MEAN = Cause(
    "loss that is not a mean over rows",
    "a scalar loss stands for the mean of the rows it was given; a sum grows with the rows and shrinks with K",
    "return one loss a row (shape [B]) and let Paceline take the mean, or use .mean() instead of .sum()",
)
ROWS_INTERACT = Cause(
    "rows that depend on each other",
    "the loss of a row changes with the other rows of the batch, and under per_device or accumulation those are fewer",
    "use scheme='global_view' with accumulation 1, or gather what rows need of each other with jax.lax.all_gather",
)
NOTHING_SHOWN = Cause(
    "every gradient is zero",
    "zero equals zero on any number of devices, whatever they do, so nothing is shown",
    "start from parameters and rows at which the loss has a slope: other data, or other initial parameters",
)
NONDETERMINISTIC = Cause(
    "non-determinism of the task itself",
    "two runs on one device differ already, so nothing can be proven about K",
    "take random numbers from the rng that the loss is given, not from numpy.random, time or the host",
)
NARROW_SUMS = Cause(
    "sums in a narrow type",
    "the programs agree in float64, but in the task's own precision they part by more than its rounding: a sum over "
    "rows in bfloat16 stops growing at 256, and depends on the order of its terms",
    "return per-row values and let Paceline sum them in float32, or cast to float32 before a sum",
)
UNKNOWN = Cause(
    "none of the known ones",
    "the numbers differ and match no known mistake",
    "look at the first leaf that differs; try --devices 2 --accumulation 1",
)

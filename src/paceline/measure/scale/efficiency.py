"""From times to what they mean: throughput, efficiency, the waterfall, Little's law.

Owns: the arithmetic, with intervals.
Not here: measuring (`rounds`), words and figures (`result`, `figure`).
Invariant: the terms of a waterfall add up to 100 - E_K exactly; the last one is what the others leave.

Source of S_K, E_K and of weak and strong scaling: Gustafson, "Reevaluating Amdahl's law", 1988 (weak); Amdahl 1967
(strong). With d_K the time of a step of the training loop on K devices, I_K the time that K perfect devices would take,
d_1 with the same rows a device and d_1 / K with the same rows in all,

    E_K = S_K / (K S_1) = I_K / d_K,      100 % - E_K = (d_K - I_K) / d_K.

Each stage of a run holds the one before it, so d_K - I_K is the sum of what each stage adds on K devices beyond what it
adds on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.measure.scale.rounds import Setting
from paceline.measure.scale.subject import Flow, Sample, Stage
from paceline.measure.timing import Interval, median_interval, ratio_interval

TERMS = {
    "compute": "compute that got slower",
    "stragglers": "waiting for the slowest device",
    "communication": "communication that is not hidden",
    "input": "waiting for batches",
    "host": "the loop in Python",
    "rest": "the rest",
    "step": "the step itself, not split further",
    "feed": "the feed, on cores that it shares with the compute",
}
"""Where throughput goes. ``step`` stands in place of the first three where the truncated step was not measured, and
``feed`` in place of ``input`` and ``rest`` on simulated devices: there a step that waits for a batch leaves the feed a
core, and one that does not is slower for it, so that the two would cancel."""

_REMAINDERS = ("rest", "feed")

LITTLE_TOLERANCE = 0.1
"""Share by which rows counted and L x T may differ. The feed's thread may lose the core between the stamp of a batch
and its place in the queue: with one core for all, 5.6 % of the rows were in between (image recipe, one device)."""

StageSamples = Mapping[Stage, Sequence[Sample]]


def throughput(samples: Sequence[Sample], *, batch: int) -> Interval:
    """Rows a second."""
    return median_interval([batch / sample.step_s for sample in samples])


def efficiency(single: StageSamples, several: StageSamples, *, one: Setting, many: Setting) -> Interval:
    """E_K = S_K / (K S_1) as a share; round by round, of measurements made next to each other."""
    rates = [many.batch / sample.step_s / many.devices for sample in several["fit"]]
    return ratio_interval(rates, [one.batch / sample.step_s for sample in single["fit"]])


@dataclass(frozen=True)
class Waterfall:
    """Where the throughput between 100 % and E_K went.

    Args:
      terms: some of the names of `TERMS`, in percent points of K S_1; negative where K devices did better.
      efficiency: E_K in percent: 100 less all terms.
    """

    terms: Mapping[str, Interval]
    efficiency: float

    @property
    def is_unexplained(self) -> bool:
        """Whether the rest is larger than every term that has a name."""
        named = [abs(term.value) for name, term in self.terms.items() if name not in _REMAINDERS]
        return "rest" in self.terms and abs(self.terms["rest"].value) > max(named)


def waterfall(
    single: StageSamples, several: StageSamples, *, one: Setting, many: Setting, shares_cores: bool = False
) -> Waterfall:
    """The terms, each the median over the rounds.

    Args:
      single: of one device; it has no stage ``barrier``, since it waits for no other.
      shares_cores: the feed runs on the cores that compute, so what it costs is one term.
    """
    share = many.batch / many.devices / one.batch  # of the rows of one device that each of K has
    by_round = [
        _joined(_terms(_round(single, number), _round(several, number), share), shares_cores)
        for number in range(_rounds(several))
    ]
    terms = {name: median_interval([terms[name] for terms in by_round]) for name in by_round[0]}
    percent = 100 * efficiency(single, several, one=one, many=many).value
    (last,) = (name for name in terms if name in _REMAINDERS)
    left = 100 - percent - sum(term.value for name, term in terms.items() if name != last)
    shift = left - terms[last].value  # medians of terms do not add up as the terms do
    terms[last] = Interval(left, terms[last].low + shift, terms[last].high + shift, terms[last].coverage)
    return Waterfall(terms, percent)


def _joined(terms: Mapping[str, float], shares_cores: bool) -> dict[str, float]:
    if not shares_cores:
        return dict(terms)
    apart = {name: value for name, value in terms.items() if name not in ("input", "rest")}
    return apart | {"feed": terms["input"] + terms["rest"]}


def _rounds(stages: StageSamples) -> int:
    return min(len(samples) for samples in stages.values())


def _round(stages: StageSamples, number: int) -> dict[str, float]:
    """Times by stage. Devices that wait for a batch cannot do so for longer than the feed adds to their step."""
    times = {str(stage): samples[number].step_s for stage, samples in stages.items()}
    if "local" in times:
        times.setdefault("barrier", times["local"])
    return {"wait": min(stages["feed"][number].wait_s, max(0.0, times["feed"] - times["step"]))} | times


def _terms(one: Mapping[str, float], many: Mapping[str, float], share: float) -> dict[str, float]:
    """Percent points of one round."""

    def added(outer: str, inner: str | None = None) -> float:
        parts = [times[outer] - (0.0 if inner is None else times[inner]) for times in (many, one)]
        return 100 * (parts[0] - share * parts[1]) / many["fit"]

    if "local" in many:
        terms = {
            "compute": added("local"),
            "stragglers": added("barrier", "local"),
            "communication": added("step", "barrier"),
        }
    else:
        terms = {"step": added("step")}
    terms |= {"input": added("wait"), "host": added("fit", "feed")}
    return terms | {"rest": added("feed", "step") - terms["input"]}


@dataclass(frozen=True)
class LittlesLaw:
    """P = L x T against what was counted. Source: Little, "A proof for the queuing formula L = λW", 1961.

    Args:
      latency_s: L, from a batch in the feed's queue to its result [s].
      samples_per_s: T.
      rows: P = L x T.
      counted_rows: in the queue and in steps in flight, mean over time.
      ratio: counted over P.
    """

    latency_s: float
    samples_per_s: float
    rows: float
    counted_rows: float
    ratio: Interval

    @property
    def agrees(self) -> bool:
        """Whether the two are the same but for noise."""
        return self.ratio.low <= 1 + LITTLE_TOLERANCE and self.ratio.high >= 1 - LITTLE_TOLERANCE


def littles_law(flows: Sequence[Flow], *, batch: int) -> LittlesLaw:
    """Medians over the rounds, of the loop that the feed drives."""
    latency_s = median_interval([flow.latency_s for flow in flows]).value
    rows = median_interval([flow.latency_s / flow.step_s * batch for flow in flows]).value
    return LittlesLaw(
        latency_s,
        median_interval([batch / flow.step_s for flow in flows]).value,
        rows,
        median_interval([flow.in_flight * batch for flow in flows]).value,
        ratio_interval([flow.in_flight for flow in flows], [flow.latency_s / flow.step_s for flow in flows]),
    )

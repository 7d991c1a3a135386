"""Sentences that `scale`, `plan`, `verify` and runs wrote into their files, known again by their form.

Owns: their forms, so that a page can say them in its own language.
Not here: what a comparison says itself (`words`).
Invariant: the text stays as it was written; a sentence that no form fits, such as one of a later version, is shown as
it is. The commands lie in other layers, so the forms stand here a second time; a test lays both side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from paceline.dashboard.compare.words import NOUNS, counted
from paceline.dashboard.words import Words

AS_WRITTEN = "compare.told"
"""Key of a sentence without a known form; its value ``text`` is the sentence."""

FORMS = MappingProxyType(
    {
        # why `scale` claims no efficiency, and how it measured
        "compare.told.no_holding": "{devices} simulated devices, and this system cannot hold a process to cores",
        "compare.told.share_time":
            "{devices} simulated devices share the time of {cores} (limit of the container)",
        "compare.told.share_cores": "{devices} simulated devices share {cores}",
        "compare.told.simulated": "simulated CPU devices, {cores}",
        "compare.told.busy":
            "THE MACHINE WAS BUSY: other programs used {share} of these cores meanwhile, so intervals are wide and "
            "efficiency may be off",
        "compare.told.repeats_span":
            "{repeats} in turn, of {low} to {high} steps; {duration}, of it compiling {compiling}",
        "compare.told.repeats": "{repeats} in turn, of {span} steps; {duration}, of it compiling {compiling}",
        "compare.told.core_each":
            "one core a device: each number of devices in a process of its own, held to as many cores",
        "compare.told.hyper_threads": "{devices} devices are on hyper-threads that share physical cores",
        "compare.told.one_added": "one device was added: efficiency is measured against it",
        "compare.told.one_term": "compute, waiting and communication are one term, {devices}: {reason}",
        "compare.told.fsdp": "with fsdp no device holds all parameters, which the truncated step needs",
        "compare.told.truncated":
            "the truncated step, whose devices hold a whole state each, does not fit the memory",
        "compare.told.how_microbatches": "{how}, {count} microbatches; jax {version}",
        "compare.told.how": "{how}; jax {version}",
        # what limits a planned step
        "compare.told.bound": "compute, most of it bound by {side}: no loss above {share}",
        "compare.told.arithmetic": "arithmetic",
        "compare.told.bandwidth": "memory bandwidth",
        "compare.told.contention": "compute slowed by communication in flight: {share} of the step",
        "compare.told.slowest": "waiting for the slowest of {devices} devices: {share} of the step",
        "compare.told.input": "the input: rows come more slowly than the devices take them: {share} of the step",
        "compare.told.host": "the host: the devices wait for it to start the next step: {share} of the step",
        "compare.told.exposed":
            "{collective}: {exposed} of the communication is not hidden behind compute, {share} of the step",
        "compare.told.group": "{kind} over {devices} of {nodes}",
        "compare.told.of_more_over": "{kind} of {leaf} and more over {link}",
        "compare.told.of_over": "{kind} of {leaf} over {link}",
        "compare.told.of_more": "{kind} of {leaf} and more",
        "compare.told.of": "{kind} of {leaf}",
        "compare.told.over": "{kind} over {link}",
        # what a plan assumed
        "compare.told.not_counted": "not counted, since its operations are unknown: {operations}",
        "compare.told.loop": "the program does not say how often a loop runs; it counts once: {loop}",
        "compare.told.branches": "{name}: of {count} branches the one with the most work, {branch}",
        "compare.told.passes": "products by {name} count as one pass; they take longer than is predicted",
        "compare.told.again_no_fit":
            "memory is so short that XLA computes {share} of the operations a second time; as work of a sample they "
            "are not counted, and the speed is that of a program that does not fit",
        "compare.told.again":
            "memory is so short that XLA computes {share} of the operations a second time; as work of a sample they "
            "are not counted",
        "compare.told.true_float32":
            'products at precision "highest" are timed in true float32, {factor} times slower at peak than in the '
            "tfloat32 of the default",
        "compare.told.no_unit": "{device} has no unit for {dtype}: its products are timed at the rate of {rate}",
        "compare.told.one_device":
            "compiled for one device, which sends nothing: plan for {machine}, say, to see how it scales",
        "compare.told.no_network":
            "no network beyond one node is known, so the curve ends there; --network gives one",
        "compare.told.large_batch": "the batch of {rows} is more than the data have: {data}",
        "compare.told.no_plugin":
            "the CUDA plugin of JAX is not installed, so the program compiled for CPU stands in for that of {device}: "
            "its fusions differ, its collectives all block, and its memory and time are only of the right size "
            "(pip install 'paceline[cuda13]'; no GPU is needed)",
        "compare.told.stand_in":
            "XLA has no description of {device} here: the program compiled for {other} stands in, timed with the "
            "rates of {same}",
        "compare.told.fewer":
            "compiled for {devices} with the same rows a device; what depends on K is calculated for {k}",
        "compare.told.rate":
            "the measured rate is {factor} of the predicted {rate}, outside of its 80 % interval: was it measured "
            "with this batch, precision and input, on one such device?",
        "compare.told.curves":
            "measured and used: {curves} ({library}); other sizes of group are extrapolated from them, other "
            "collectives and networks have published rates",
        "compare.told.large_node": "usual nodes hold at most {usual} x {device}; {count} are assumed here",
        "compare.told.no_link": "the link {link} joins nothing: a node has one device",
        "compare.told.network_taken": "the network {name} is taken for {network}; write 100GbE for Ethernet with TCP",
        "compare.told.cpu_shared": "{count} devices share the CPU: each has 1/{part} of its rates and of the memory",
        "compare.told.network_assumed": "no network was given: {network} is assumed ({source})",
        "compare.told.taken": "{name} is taken for {device}",
        "compare.told.form": "{name} is the one with {size}",
        "compare.told.card": "{name} is the card",
        "compare.told.one_cpu": "simulated devices share one CPU: these rates are of all of them together",
        "compare.told.half_k80": "one of the two GPUs of a K80 card, as JAX and cloud instances count them",
        "compare.told.half_die":
            "one of the two dies (GCDs) of a card: JAX shows each as a device, a node of 4 cards has 8",
        "compare.told.both_dies": "both dies of a card together; no program sees them as one device",
        # what `verify` compared, and what it found
        "compare.told.setting_uneven":
            "{task}: one device against {devices} ({platform}); {updates} updates of {rows} rows, one of them with "
            "{fewest}",
        "compare.told.setting": "{task}: one device against {devices} ({platform}); {updates} updates of {rows} rows",
        "compare.told.gradient_times_k": "gradient K times too large",
        "compare.told.gradient_times_k2": "gradient K^2 times too large",
        "compare.told.gradient_over_k": "gradient K times too small",
        "compare.told.never_reduced": "gradient never reduced",
        "compare.told.mean_of_means": "mean of means",
        "compare.told.same_mask": "the same dropout mask everywhere",
        "compare.told.mask_changes": "mask that changes with K",
        "compare.told.batch_norm_drifts": "BatchNorm statistics drifting",
        "compare.told.state_drifts": "state that drifts between devices",
        "compare.told.state_summed": "state summed once a device",
        "compare.told.variance_averaged": "variance averaged wrongly",
        "compare.told.padding_counted": "padded rows counted",
        "compare.told.metric_summed": "metric summed once a device",
        "compare.told.clip_before_mean": "clip before the mean",
        "compare.told.schedule_counts_microbatches": "schedule that counts microbatches",
        "compare.told.key_every_step": "key reused every step",
        "compare.told.key_shared": "key shared between data and noise",
        "compare.told.not_a_mean": "loss that is not a mean over rows",
        "compare.told.rows_interact": "rows that depend on each other",
        "compare.told.nothing_shown": "every gradient is zero",
        "compare.told.nondeterministic": "non-determinism of the task itself",
        "compare.told.narrow_sums": "sums in a narrow type",
        "compare.told.unknown": "none of the known ones",
        # why a run ended, why its program was not read
        "compare.told.callback": "callback",
        "compare.told.interrupted": "interrupted",
        "compare.told.terminated": "terminated",
        "compare.told.data_ended": "the data ended",
        "compare.told.too_long": "not read: its text is {size} long",
        # several in one
        "compare.told.two": "{first}; {second}",
    }
)  # fmt: skip
"""By key, each more special than those below it that fit it too."""

_PLAIN = ("name", "task", "leaf", "loop", "branch", "link", "library", "operations", "how")
"""Values that are names, and never a sentence."""
_LISTS = ("curves",)
_VALUES = {
    "kind": r"(?:all|reduce|collective|ragged)-[a-z-]+",
    "name": r"[^;]+?",
    "count": r"[\d,]+",
    "nodes": r"[\d,]+ nodes?",
}
_COUNT = re.compile(rf"([\d,.]+) ({'|'.join(NOUNS)})(?:s|es)?")


def told(text: str) -> Words:
    """A sentence as it was written, with the key of its form."""
    return _known(text) or Words(AS_WRITTEN, {"text": text}, text)


@lru_cache(maxsize=1024)  # /api/compare asks for the same files again and again
def _known(text: str) -> Words | None:
    count = _COUNT.fullmatch(text)
    if count is not None:
        return counted(count[1], count[2])
    for key, form in _patterns():
        found = form.fullmatch(text)
        if found is not None:
            return Words(key, {name: _value(name, part) for name, part in found.groupdict().items()}, text)
    return None


def _value(name: str, text: str) -> Any:
    """A part of a sentence: one itself if it has a form, else a name or a number."""
    if name in _LISTS:
        return [_known(part) or part for part in text.split(", ")]
    return text if name in _PLAIN else _known(text) or text


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((key, re.compile("".join(_pieces(form)), re.DOTALL)) for key, form in FORMS.items())


def _pieces(form: str) -> Iterator[str]:
    for place, piece in enumerate(re.split(r"\{(\w+)\}", form)):
        yield f"(?P<{piece}>{_VALUES.get(piece, '.+?')})" if place % 2 else re.escape(piece)

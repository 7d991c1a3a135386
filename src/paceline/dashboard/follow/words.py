"""What the reader has to say, so that a page can say it in its own language.

Owns: every sentence of `follow` and `views`, by key, in English.
Not here: the form of a sentence (`dashboard.words`), sentences of errors that a user must mend (`base.errors`), the
page's own words (`assets/words`).
Invariant: key and values say all that the text says.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from paceline.dashboard.words import Words, spoken

ENGLISH = MappingProxyType(
    {
        "problem.document_damaged": "{file} cannot be read: {reason}",
        "problem.run_missing": "run.json is missing: nothing says what ran",
        "problem.no_events": "no event was written yet",
        "problem.nothing": "the folder is empty",
        "problem.silent": "the run is silent: no event for longer than 30 s, 20 of its steps and twice its longest "
        "pause (before the first steps: 10 minutes); it hangs or was killed",
        "problem.crowded": "as many runs as can be kept at once ({most}) are being looked at: "
        "this one is read as soon as one of them is not",
        "problem.lines_damaged": "damaged lines passed over in the events of process {process}: {count}",
        "problem.kinds_unknown": "events of the kind {kind!r}, which this version does not know: {count}",
        "problem.file_gone": "the events file of process {process} was removed; what was read before is still shown",
        "problem.file_unreadable": "the events file of process {process} cannot be read: {reason}",
        "problem.events_folder": "{file} is a folder where the events of process {process} should be",
        "problem.events_pipe": "{file} is a named pipe where the events of process {process} should be: "
        "it is not opened",
        "problem.events_special": "{file} is no regular file where the events of process {process} should be",
        "problem.outside": "{file} is a link that leads out of the watched folder, so it is not read",
        "problem.outside_more": "links that lead out of the watched folder, so they are not read, besides: {count}",
        "problem.kinds_more": "events of further kinds that this version does not know: {count}",
        "problem.keys_left_out": "only the first {most} metrics of process {process} with names of usual length are "
        "shown; left out: {count} or more",
        "problem.marks_left_out": "of marks that come very often, only every second, fourth and so on is shown; "
        "left out: {count}",
        "problem.more": "further problems: {count}",
        "problem.clock": "the clock of process {process} went back by {seconds:.0f} s at step {step}",
        "problem.clock_often": "the clock of process {process} went back {count} times, by {seconds:.0f} s at most, "
        "the last time at step {step}",
        "problem.too_deep": "folders deeper than {depth} levels below {root} are not searched for runs",
        "problem.too_many": "more than {most} folders below {root}: the rest is not searched for runs",
        "problem.unreadable_folder": "{folder} cannot be read: {reason}",
        "problem.root_missing": "{root} is not there (yet): runs will show when it is",
        "bottleneck.input": "the devices idle {share:.0%} of each step, because no batch is ready in time",
        "bottleneck.input_process": "the devices of process {process} idle {share:.0%} of each step, because no batch "
        "is ready there in time, and all others wait for them",
        "bottleneck.rest.unexplained": "{first}; the model explains less than half of the rest, which is the host's, "
        "starting kernels, or the model's error: paceline scale measures which",
        "bottleneck.all_reduce": "exchanging gradients takes {share:.0%} of each step, "
        "in which the devices compute nothing",
        "bottleneck.update": "the optimizer's update takes {share:.0%} of each step",
        "bottleneck.forward_backward": "computing takes {share:.0%} of each step: "
        "the devices are busy, as they should be",
        "bottleneck.unexplained": "computing, and what the model does not explain (the host, starting kernels, or the "
        "model's error): {share:.0%} of each step; paceline scale measures which",
        "bottleneck.whole_step": "the compiled step takes {share:.0%} of each step; no model says how it divides",
        "bottleneck.rest.input": "{first}; the largest rest: waiting for input, {share:.0%}",
        "bottleneck.rest.all_reduce": "{first}; the largest rest: all-reduce, {share:.0%}",
        "bottleneck.rest.update": "{first}; the largest rest: update, {share:.0%}",
        "straggler.input_wait": "process {process} waits {own:.2g} s a step for input, the others {usual:.2g} s",
        "straggler.behind": "process {process} is at step {own}, the others are at {usual}",
    }
)


def say(key: str, **values: Any) -> Words:
    """The sentence ``key`` with its values."""
    return spoken(key, values, table=ENGLISH)


def presentable(text: str) -> str:
    """A text that every JSON writer takes: bytes of a file name that are no UTF-8 are written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")

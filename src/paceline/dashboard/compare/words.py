"""What a comparison has to say, so that a page can say it in its own language.

Owns: every sentence of `compare`, by key, in English.
Not here: sentences that another command wrote into its result (`told`), titles and meanings of numbers (`quantities`).
Invariant: key and values say all that the text says.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from paceline.base.units import format_count
from paceline.dashboard.words import Words, spoken

NOUNS = ("row", "device", "microbatch", "step", "audit", "time", "core", "repeat", "CPU device", "node", "timed step",
         "line")  # fmt: skip

_COUNTS = {
    f"compare.count.{noun.replace(' ', '_').lower()}.{form}": format_count(number, noun).replace(str(number), "{count}")
    for noun in NOUNS
    for form, number in (("one", 1), ("many", 2))
}

ENGLISH = MappingProxyType(
    {
        **_COUNTS,
        "compare.and": "{others} and {last}",
        "compare.both": "{first}; {second}",
        "compare.of": "{value} ({subjects})",
        "compare.nan": "not a number",
        "compare.inf": "infinite",
        "compare.-inf": "-infinite",
        "compare.range": "{low} to {high}",
        "compare.spread": "± {percent}",
        "compare.row.evaluation_last": "last evaluation {name}",
        "compare.row.evaluation_best": "best evaluation {name}",
        "compare.yes": "yes",
        "compare.no": "no",
        "compare.default": "default",
        "compare.nothing_told": "it does not say what",
        # what differs
        "compare.differs.task": "the task differs: {values}",
        "compare.differs.platform": "the devices are not of one kind: {values}",
        "compare.differs.devices": "the number of devices differs: {values}",
        "compare.differs.batch": "the batch differs: {values}",
        "compare.differs.precision": "the precision differs: {values}",
        "compare.differs.scheme": "the scheme differs: {values}",
        "compare.differs.placement": "the placement differs: {values}",
        "compare.differs.accumulation": "the accumulation differs: {values}",
        "compare.differs.trained": "the steps planned or made differ: {values}",
        "compare.trained.in": "{rows} in {steps}",
        "compare.trained.of": "{made} of {steps}",
        "compare.differs.option": "{name} differs: {values}",
        "compare.differs.task_option": "task option {name} differs: {values}",
        # who is best, and why none is
        "compare.verdict.among": "among {subjects}: {verdict}",
        "compare.verdict.apart": "not judged: other {conditions}",
        "compare.verdict.unknown_conditions": "not judged: of some the {conditions} are not known",
        "compare.verdict.not_a_number": "none is finite",
        "compare.verdict.equal": "equal",
        "compare.verdict.equal_digits": "equal in the digits shown",
        "compare.verdict.highest": "{subject} is highest; {doubt}",
        "compare.verdict.lowest": "{subject} is lowest; {doubt}",
        "compare.verdict.few_steps": "not judged: too few steps for an interval",
        "compare.verdict.level": "no difference beyond the noise",
        "compare.verdict.best": "{subjects} is best",
        "compare.verdict.best_of_several": "{subjects} are best",
        "compare.verdict.busy": "{verdict}; the machine was busy: {subjects}",
        "compare.doubt.seed": "another seed may turn that round",
        "compare.doubt.model": "a model's number, without an interval",
        "compare.apart.task": "tasks",
        "compare.apart.platform": "kinds of device",
        "compare.apart.devices": "numbers of devices",
        "compare.apart.batch": "batches",
        "compare.apart.trained": "numbers of steps made, counted in rows",
        "compare.apart.and": "{others} and {last}",
        # why a number is not known
        "compare.why.run_no_evaluation": "the run made no such evaluation",
        "compare.why.scale_no_evaluation": "paceline scale evaluates nothing",
        "compare.why.plan_no_evaluation": "a plan evaluates nothing",
        "compare.why.verify_no_evaluation": "paceline verify evaluates nothing",
        "compare.why.no_step": "no step is timed: the first of a start never is",
        "compare.why.no_step_at_all": "no step was made",
        "compare.why.no_program":
            "the folder has no program.json: the run made no step, or is of an older version",
        "compare.why.program_unread": "the compiled step could not be read: {error}",
        "compare.why.no_usable_number":
            "its file holds no number that can be used: it is text, negative, not finite or beyond 1.8e308",
        "compare.why.one_device": "it has one device: that is what others are measured against",
        "compare.why.no_baseline":
            "no run of it on one device, with as many rows a device or in all, is beside it",
        "compare.why.shared_cores": "simulated devices may share cores: paceline scale measures E_K",
        "compare.why.cpu_memory": "CPU devices do not tell it",
        "compare.why.not_recorded": "the run did not record it",
        "compare.why.no_number": "no value is finite",
        "compare.why.scale_not_recorded": "paceline scale does not record it",
        "compare.why.scale_no_fit": "it has no stage 'fit'",
        "compare.why.not_claimed": "not claimed: {reason}",
        "compare.why.not_planned": "a plan does not predict it",
        "compare.why.other_devices": "the plan compiled the step for another number of devices",
        "compare.why.unknown_collective": "the kind or the group of a collective is not known",
        "compare.why.file_silent": "the file does not say",
        "compare.why.file_silent_why": "the file does not say why",
        "compare.why.silent_why": "it does not say why",
        "compare.why.run_proves_nothing": "a run compares replicas, not with one device: paceline verify does",
        "compare.why.verify_audits_nothing": "paceline verify makes no audits",
        "compare.why.verify_times_nothing": "paceline verify times nothing and trains nothing",
        # how a number was found
        "compare.detail.steps": "over {steps}; {interval}",
        "compare.detail.few_steps": "over {steps}; too few for an interval",
        "compare.detail.blocks": "95 % interval from {blocks} blocks of its steps",
        "compare.detail.last_steps": "mean over the last {steps}",
        "compare.detail.last_steps_blocks": "mean over the last {steps}; {interval}",
        "compare.detail.at_step": "at step {step}",
        "compare.detail.largest": "largest over devices and steps",
        "compare.detail.compiled": "of the step that the run compiled",
        "compare.detail.compiled_for": "compiled for {machine}",
        "compare.detail.counted": "counted in the compiled step",
        "compare.detail.ring": "counted in the compiled step; each collective as a ring",
        "compare.detail.by_model": "by the model",
        "compare.detail.by_model_compiled": "by the model, of the step that the run compiled",
        "compare.detail.by_model_interval": "by the model, 80 % interval",
        "compare.detail.by_model_curve": "by the model, from its curve",
        "compare.detail.repeats": "{mode}, median of {repeats} repeats, {percent} % interval",
        "compare.detail.single": "one device is what others are measured against",
        "compare.detail.two_runs": "S_K / (K S_1) against {subject}, {mode}; the two did not run in turns",
        "compare.mode.weak": "weak scaling",
        "compare.mode.strong": "strong scaling",
        # of the measurement as a whole
        "compare.note.reading": "still being read, {share} so far: numbers are those of the steps read by now",
        "compare.note.torn": "the last line of its events is torn: {lines} left out",
        "compare.note.torn_or_written":
            "the last line of its events is torn, or still being written: {lines} left out",
        "compare.note.started": "it was started {times}",
        "compare.note.no_report": "it has no report: it goes on, or was killed; numbers are those so far",
        "compare.note.failed": "it failed: {reason}",
        "compare.note.ended_early": "it ended early: {reason}",
        "compare.note.does_not_fit": "the step does not fit the memory of the device",
        "compare.note.limited": "limited by {what}",
        "compare.note.single_measured": "throughput on one device was measured, the rest is predicted",
        "compare.note.other_ways": "the file holds {count} other ways to run too, which are not shown here",
        # does it compute what one device would
        "compare.audits.one_device": "one device has no replicas to compare",
        "compare.audits.none": "no audit was made",
        "compare.audits.differ": "{count} of {audits} found replicas that are not equal",
        "compare.audits.equal": "{audits}: replicas equal, bit for bit",
        "compare.audits.nothing": "{audits}: no leaf has replicas, so nothing was compared",
        "compare.audits.split": "leaves split over the devices, which no audit compares: {count}",
        "compare.audits.split_untold": "leaves split over the devices are not compared",
        "compare.audits.no_proof": "no proof that they compute what one device would: paceline verify",
        "compare.programs.scale": "paceline scale compares no values; paceline verify does",
        "compare.programs.plan": "a plan computes nothing; paceline verify does",
        "compare.programs.none": "nothing was run",
        "compare.programs.agree": "{count} of {all} programs compute what one device would",
        "compare.programs.not_verified": "not verified: {found}",
        "compare.programs.not_verified_cause": "not verified: {found}; cause: {causes}",
        "compare.programs.not_run": "{found}; {count} not run",
        # predicted against measured
        "compare.prediction.other_task": "{plan} is of another task than {measured}",
        "compare.prediction.other_shape": "{plan} predicts {predicted}, {measured} measured {found}",
        "compare.prediction.rows_on": "{rows} on {devices}",
        "compare.prediction.same": "{plan} says the same as {measured}",
        "compare.prediction.something": "{plan} says something, and nothing was found in {measured}",
        "compare.prediction.more": "{plan} says {percent} % more than {measured}",
        "compare.prediction.less": "{plan} says {percent} % less than {measured}",
        "compare.prediction.more_points": "{plan} says {points} percent points more than {measured}",
        "compare.prediction.less_points": "{plan} says {points} percent points less than {measured}",
        "compare.condition.platform": "another kind of device",
        "compare.condition.precision": "another precision",
        "compare.condition.scheme": "another scheme",
        "compare.condition.placement": "another placement",
        "compare.condition.accumulation": "another accumulation",
        # where the efficiency goes
        "compare.term.compute": "compute that got slower",
        "compare.term.stragglers": "waiting for the slowest device",
        "compare.term.communication": "communication that is not hidden",
        "compare.term.input": "waiting for batches",
        "compare.term.host": "the loop in Python",
        "compare.term.host_beyond": "the host, beyond what one device waits for it",
        "compare.term.rest": "the rest",
        "compare.term.step": "the step itself, not split further",
        "compare.term.feed": "the feed, on cores that it shares with the compute",
    }
)  # fmt: skip


def say(key: str, **values: Any) -> Words:
    """The sentence ``key`` with its values."""
    return spoken(key, values, table=ENGLISH)


def counted(count: int | float | str, noun: str) -> Words:
    """``1 row``, ``1,797 rows``: a number of one of `NOUNS`. Text is a number that is written out already."""
    written = count if isinstance(count, str) else f"{count:,}"
    form = "one" if written == "1" else "many"
    return say(f"compare.count.{noun.replace(' ', '_').lower()}.{form}", count=written)


def listed(parts: Sequence[Words | str]) -> Words | str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = parts
    return say("compare.and", others=others, last=last) if others else last


def joined(parts: Sequence[Words]) -> Words:
    """Sentences with semicolons between them; at least one."""
    first, *rest = parts
    for part in rest:
        first = say("compare.both", first=first, second=part)
    return first

"""What may be called best, and what not.

Owns: the conditions that differ between subjects, the verdict on a row.
Not here: the numbers (`document` chooses the cases).
Invariant: nothing is called best across a condition that decides it, nor for a difference within the noise.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.dashboard.compare.quantities import Quantity
from paceline.dashboard.compare.result_file import TASK_OPTION
from paceline.dashboard.compare.subject import Case, Number, Setting, Subject
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import counted, joined, listed, say
from paceline.dashboard.words import Words

SERIOUS = ("task", "platform", "devices", "batch")
_MODEL = re.compile(r"[A-Z]{1,2}\d{1,4}[A-Z]{0,2}")
_LISTED = 6
_BUSY = "THE MACHINE WAS BUSY"
"""Begin of the note of `paceline scale`."""
_AS_LONG = 1.01
"""Times the rows of a run up to which another was trained as long."""


@dataclass(frozen=True)
class Contender:
    """A subject in the comparison: its label, and the case that stands for it."""

    label: str
    subject: Subject
    case: Case


@dataclass(frozen=True)
class Difference:
    """A condition that differs, in words."""

    what: str
    serious: bool
    words: Words


@dataclass(frozen=True)
class Verdict:
    """Who is best in a row, as places, and the words for it; None where nothing is judged."""

    best: frozenset[int]
    words: Words | None


def condition(contender: Contender, what: str) -> Any:
    """The task, or what the setting says."""
    return contender.subject.task if what == "task" else getattr(contender.case.setting, what)


def differences(contenders: Sequence[Contender]) -> list[Difference]:
    """Every condition that is not the same for all that tell it; the serious ones first."""
    found = [_difference(contenders, what) for what in _NAMES]
    found.append(_trained_difference(contenders))
    found += _option_differences([one for one in contenders if one.subject.options])
    return sorted((one for one in found if one is not None), key=lambda one: not one.serious)


def differs(contenders: Sequence[Contender], what: str) -> bool:
    """Whether a condition is not the same for all that tell it."""
    return len({value for value in _comparable(contenders, what) if value is not None}) > 1


def _comparable(contenders: Sequence[Contender], what: str) -> list[Any]:
    """A condition of each, in words that mean the same for every kind of subject."""
    found = [condition(one, what) for one in contenders]
    if what == "platform" and len({one.subject.kind for one in contenders}) > 1:
        return [None if value is None else _device(value) for value in found]
    return _as_long(found) if what == "trained" else found


def _as_long(rows: Sequence[int | None]) -> list[int | None]:
    """For each the fewest rows of those that were trained as long."""
    fewest: dict[int, int] = {}
    least: int | None = None
    for count in sorted({count for count in rows if count is not None}):
        least = count if least is None or count > _AS_LONG * least else least
        fewest[count] = least
    return [None if count is None else fewest[count] for count in rows]


def _device(platform: str) -> str:
    if "cpu" in platform.lower():
        return "cpu"
    model = _MODEL.search(platform)
    return model[0] if model else platform


_NAMES: Mapping[str, Callable[[Any], Words | str]] = {
    "task": str,
    "platform": told,
    "devices": lambda value: counted(value, "device"),
    "batch": lambda value: counted(value, "row"),
    "precision": str,
    "scheme": str,
    "placement": str,
    "accumulation": lambda value: counted(value, "microbatch"),
}
"""Conditions, and how the value of each is said."""


def _difference(contenders: Sequence[Contender], what: str) -> Difference | None:
    kinds = dict.fromkeys(one.subject.kind for one in contenders)
    groups = (contenders, *([one for one in contenders if one.subject.kind == kind] for kind in kinds))
    found = next((group for group in groups if differs(group, what)), None)  # runs alone are judged more strictly
    if found is None:
        return None
    judged = zip(found, _comparable(found, what), strict=True)
    values = [(one.label, value) for one, value in judged if value is not None]
    return Difference(what, what in SERIOUS, say(f"compare.differs.{what}", values=_by_value(values, _NAMES[what])))


def _trained_difference(contenders: Sequence[Contender]) -> Difference | None:
    """Steps that were planned or made, with their rows, which say whether one was trained as long as another."""
    settings = [(one.label, one.case.setting) for one in contenders if one.case.setting.made is not None]
    if len({(setting.planned, setting.made, setting.trained) for _, setting in settings}) < 2:
        return None
    words = say("compare.differs.trained", values=_by_value(settings, _trained))
    return Difference("trained", differs(contenders, "trained"), words)


def _trained(setting: Setting) -> Words:
    """``5,888 rows in 23 of 400 steps``."""
    assert setting.made is not None, "chosen so"
    steps = counted(setting.made, "step")
    if setting.planned not in (None, setting.made):
        steps = say("compare.trained.of", made=f"{setting.made:,}", steps=counted(setting.planned, "step"))
    return steps if setting.trained is None else say(
        "compare.trained.in", rows=counted(setting.trained, "row"), steps=steps
    )  # fmt: skip


def _option_differences(contenders: Sequence[Contender]) -> list[Difference]:
    """Options that two configurations both have, with other values."""
    names = dict.fromkeys(name for one in contenders for name in one.subject.options)
    found = []
    for name in names:
        values = [(one.label, one.subject.options[name]) for one in contenders if name in one.subject.options]
        if any(value != values[0][1] for _, value in values):
            key = "compare.differs.task_option" if name.startswith(TASK_OPTION) else "compare.differs.option"
            said = name.removeprefix(TASK_OPTION).replace("_", " ")
            found.append(Difference(name, False, say(key, name=said, values=_by_value(values, _option))))
    return found


def _option(value: Any) -> Words | str:
    if isinstance(value, bool):
        return say("compare.yes" if value else "compare.no")
    return say("compare.default") if value is None else str(value)


def _by_value(values: Sequence[tuple[str, Any]], words: Callable[[Any], Words | str]) -> list[Words]:
    """``256 rows (a, b), 512 rows (c)``."""
    found: dict[str, tuple[Words | str, list[str]]] = {}
    for label, value in values:
        said = words(value)
        text = said.text if isinstance(said, Words) else said
        found.setdefault(text, (said, []))[1].append(label)
    return [say("compare.of", value=said, subjects=labels) for said, labels in list(found.values())[:_LISTED]]


def judge(quantity: Quantity, numbers: Sequence[Number], *, contenders: Sequence[Contender]) -> Verdict:
    """Who is best. Predictions are judged apart from what was measured: they never win against it."""
    if quantity.better == "none":
        return Verdict(frozenset(), None)
    verdicts: list[Verdict] = []
    for predicted in (False, True):
        places = [
            place
            for place, number in enumerate(numbers)
            if number.value is not None and (number.basis == "predicted") == predicted
        ]
        verdicts += _judge_alike(quantity, places, numbers, contenders)
    said = [one.words for one in verdicts if one.words is not None]
    best = frozenset[int]().union(*(one.best for one in verdicts))
    words = joined(said) if said else None
    busy = _busy(quantity, numbers, contenders=contenders)
    if words is not None and busy:
        words = say("compare.verdict.busy", verdict=words, subjects=_names(busy, contenders))
    return Verdict(best, words)


def _busy(quantity: Quantity, numbers: Sequence[Number], *, contenders: Sequence[Contender]) -> list[int]:
    """Those whose times were measured while other programs used their cores, as their own notes say."""
    if quantity.noise != "interval":
        return []
    return [
        place
        for place, (number, one) in enumerate(zip(numbers, contenders, strict=True))
        if number.value is not None and number.basis == "measured"
        and any(note.text.startswith(_BUSY) for note in one.subject.notes)
    ]  # fmt: skip


def _judge_alike(
    quantity: Quantity, places: Sequence[int], numbers: Sequence[Number], contenders: Sequence[Contender]
) -> list[Verdict]:
    """A verdict on each group of subjects under the same conditions."""
    if len(places) < 2:
        return []
    within = [contenders[place] for place in places]
    conditions = zip(*(_comparable(within, what) for what in quantity.needs), strict=True)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, key in zip(places, conditions, strict=True):
        groups.setdefault(key, []).append(place)
    if len(groups) == 1:
        return [_judge_group(quantity, places, numbers, contenders)]
    judged = [
        (group, _judge_group(quantity, group, numbers, contenders)) for group in groups.values() if len(group) > 1
    ]
    if judged:
        return [
            Verdict(one.best, say("compare.verdict.among", subjects=_names(group, contenders), verdict=one.words))
            for group, one in judged
        ]
    apart = [say(f"compare.apart.{what}") for what in quantity.needs if differs(within, what)]
    if not apart:  # they are apart because some do not say what the others do
        silent = [what for what in quantity.needs if None in _comparable(within, what)]
        unknown = functools.reduce(_and, [say(f"compare.apart.{what}") for what in silent])
        return [Verdict(frozenset(), say("compare.verdict.unknown_conditions", conditions=unknown))]
    return [Verdict(frozenset(), say("compare.verdict.apart", conditions=functools.reduce(_and, apart)))]


def _and(first: Words, last: Words) -> Words:
    return say("compare.apart.and", others=first, last=last)


_DOUBTS = ("seed", "model")


def _names(places: Sequence[int], contenders: Sequence[Contender]) -> Words | str:
    return listed([contenders[place].label for place in places])


def _judge_group(
    quantity: Quantity, places: Sequence[int], numbers: Sequence[Number], contenders: Sequence[Contender]
) -> Verdict:
    """A verdict on subjects under the same conditions."""
    values = {place: _value(numbers[place]) for place in places}
    finite = {place: value for place, value in values.items() if math.isfinite(value)}
    if not finite:
        return Verdict(frozenset(), say("compare.verdict.not_a_number"))
    choose = max if quantity.better == "higher" else min
    first = choose(finite, key=lambda place: finite[place])
    if len(set(values.values())) == 1:
        return Verdict(frozenset(), say("compare.verdict.equal"))
    if quantity.noise != "interval" and len({quantity.text(value) for value in values.values()}) == 1:
        return Verdict(frozenset(), say("compare.verdict.equal_digits"))
    if quantity.noise in _DOUBTS:
        word = "highest" if quantity.better == "higher" else "lowest"
        doubt = say(f"compare.doubt.{quantity.noise}")
        return Verdict(frozenset(), say(f"compare.verdict.{word}", subject=contenders[first].label, doubt=doubt))
    if quantity.noise == "interval" and any(numbers[place].low is None for place in finite):
        return Verdict(frozenset(), say("compare.verdict.few_steps"))
    level = [place for place in places if place == first or _is_level(quantity, numbers[first], numbers[place])]
    if len(level) == len(places):
        return Verdict(frozenset(), say("compare.verdict.level"))
    key = "compare.verdict.best" if len(level) == 1 else "compare.verdict.best_of_several"
    return Verdict(frozenset(level), say(key, subjects=_names(level, contenders)))


def _value(number: Number) -> int | float:
    assert number.value is not None, "chosen so"
    return number.value


def _is_level(quantity: Quantity, one: Number, other: Number) -> bool:
    """Whether nothing says that they differ: the intervals overlap, or the values of an exact quantity are equal."""
    return one.value == other.value if quantity.noise == "exact" else overlap(one, other) is True


def overlap(one: Number, other: Number) -> bool | None:
    """Whether two intervals have a value in common; None where one of them is missing."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high

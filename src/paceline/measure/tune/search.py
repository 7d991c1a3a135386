"""Coordinate descent: one option at a time from the user's setting, a change kept only if it gains beyond the noise.

Owns: the order of trials, what ends them, when a change is kept.
Not here: which settings there are (`options`), how two are compared on devices (`rig`).
Invariant: the result is the user's own setting, or one that beat its predecessor by an interval above 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline.measure.timing import Interval, ratio_interval
from paceline.measure.tune.options import AXES, Axis, Option, Room
from paceline.measure.tune.setting import Setting

ENOUGH_PAIRS, MOST_PAIRS = 6, 9
"""Runs of each side: six if the new setting wins all of them, nine if it loses one (a machine stumbles now and then).
The interval of their median then lies above 1: of six from the smallest to the largest, of nine from the second to the
second largest (`timing.median_interval`). Two equal settings pass by luck 2.7 times in 100: 1/64 + 6/64 x 1/8."""

LEAST_PAIRS = 3
"""After so many a change that has lost two is given up."""

LEAST_GAIN = 0.02
"""A smaller gain is not worth a flag, and with a dozen trials one of them may come out ahead by luck."""

PASSES = 2

Outcome = Literal["kept", "no gain", "slower", "does not fit", "failed", "left out", "not tried", "not decided"]


@dataclass(frozen=True)
class Pairs:
    """Two settings measured in turns.

    Args:
      before, after: samples/s of the current and of the new setting, pair by pair.
      compile_s: seconds that the new one took to compile.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    compile_s: float = 0.0

    @property
    def gain(self) -> Interval:
        """``after / before``, with its interval."""
        return ratio_interval(self.after, self.before)


@dataclass(frozen=True)
class Trial:
    """One change, and what came of it.

    Args:
      option: the name of the option.
      change: in words.
      outcome: what became of it.
      why: for one that was not measured.
      note: how it changes the training.
      pairs: what was measured; None if nothing was.
    """

    option: str
    change: str
    outcome: Outcome
    why: str = ""
    note: str = ""
    pairs: Pairs | None = None


class DoesNotFit(Exception):
    """A setting whose program is larger than the memory. Its text says by how much."""


class Failed(Exception):
    """A setting that does not compile, or does not run. Its text is the error's first line."""


class TimeUp(Exception):
    """No time was left to begin with a setting."""


Compare = Callable[[Setting, Setting], Pairs]
"""``(current, other)``; raises DoesNotFit, Failed, TimeUp. It ends when `is_settled`, or when the time is up."""


def search(
    start: Setting, room: Room, *, compare: Compare, axes: Sequence[Axis] = AXES, say: Callable[[Trial], None]
) -> tuple[Setting, list[Trial]]:
    """The last setting that was kept, and every trial.

    Args:
      compare: measures two settings in turns.
      say: told of each trial as it ends.
    """
    current, trials = start, []
    seen: set[tuple[Setting | None, str]] = set()
    for _ in range(PASSES):
        before = current
        for axis in axes:
            current = _climb(current, room, axis=axis, compare=compare, seen=seen, trials=trials, say=say)
        if current == before:
            break
    return current, trials


def _climb(
    current: Setting, room: Room, *, axis: Axis, compare: Compare, seen: set[tuple[Setting | None, str]],
    trials: list[Trial], say: Callable[[Trial], None],
) -> Setting:  # fmt: skip
    """Try the neighbours along one option until none is kept. Each setting is tried once in all."""
    while True:
        for option in axis(current, room):
            key = (option.setting, "" if option.setting else option.change)
            if key in seen or option.setting == current:
                continue
            seen |= {key, (current, "")}
            trial = _try(current, option, compare)
            trials.append(trial)
            say(trial)
            if trial.outcome == "kept":
                assert option.setting is not None, "only what can run is measured"
                current = option.setting
                break
        else:
            return current


def _try(current: Setting, option: Option, compare: Compare) -> Trial:
    trial = Trial(option.name, option.change, "left out", why=option.why_not, note=option.note)
    if option.setting is None:
        return trial
    try:
        pairs = compare(current, option.setting)
    except DoesNotFit as error:
        return replace(trial, outcome="does not fit", why=str(error))
    except Failed as error:
        return replace(trial, outcome="failed", why=str(error))
    except TimeUp as error:
        return replace(trial, outcome="not tried", why=str(error))
    outcome = judge(pairs)
    return replace(trial, outcome=outcome, why="the time was up" if outcome == "not decided" else "", pairs=pairs)


def is_settled(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether more pairs could not change what `judge` says, or are not worth their time."""
    size, lost = len(after), _lost(before, after)
    if lost >= 2:
        return size >= LEAST_PAIRS
    return size >= (MOST_PAIRS if lost else ENOUGH_PAIRS)


def judge(pairs: Pairs) -> Outcome:
    """Kept only if settled without a second loss, and if the median gain is one that is worth a flag."""
    size, lost = len(pairs.after), _lost(pairs.before, pairs.after)
    if size < LEAST_PAIRS or not is_settled(pairs.before, pairs.after):
        return "not decided"
    if lost == size and pairs.gain.high < 1:
        return "slower"
    return "kept" if lost < 2 and pairs.gain.value >= 1 + LEAST_GAIN else "no gain"


def _lost(before: Sequence[float], after: Sequence[float]) -> int:
    return sum(new <= old for old, new in zip(before, after, strict=True))

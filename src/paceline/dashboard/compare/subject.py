"""What a comparison knows of one subject: a run, or what `scale`, `plan` or `verify` wrote.

Owns: the form into which every kind of subject is brought.
Not here: reading each kind (`from_run`, `from_scale`, `from_plan`, `from_verify`), comparing them (`document`).
Invariant: a `Number` has a value or the reason why it has none, never both and never neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.dashboard.words import Words

Kind = Literal["run", "scale", "plan", "verify"]
Basis = Literal["measured", "predicted", "compiler", "proved"]


@dataclass(frozen=True)
class Number:
    """A value of one quantity.

    Args:
      value: in the base unit of the quantity; None when it is not known.
      low, high: its interval; None when there is none.
      basis: where it comes from; numbers of one basis are judged against each other.
      detail: how it was found.
      why: why there is no value.
    """

    value: int | float | None
    low: int | float | None = None
    high: int | float | None = None
    basis: Basis | None = None
    detail: Words | None = None
    why: Words | None = None

    def __post_init__(self) -> None:
        assert (self.value is None) != (self.why is None), "a value, or the reason why there is none"


def unknown(why: Words) -> Number:
    """A number that is not known."""
    return Number(None, why=why)


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval, if it has one."""

    value: int | float
    low: int | float | None = None
    high: int | float | None = None


@dataclass(frozen=True)
class Setting:
    """What a step was run with, and of a run how many of them. None: not known.

    Args:
      planned, made: steps.
    """

    scheme: str | None = None
    placement: str | None = None
    precision: str | None = None
    accumulation: int | None = None
    devices: int | None = None
    batch: int | None = None
    platform: str | None = None
    planned: int | None = None
    made: int | None = None

    @property
    def trained(self) -> int | None:
        """Rows that it was trained on."""
        return None if self.made is None or self.batch is None else self.made * self.batch


@dataclass(frozen=True)
class Case:
    """One setting of a subject with its numbers by key of `quantities`: a run has one, a scaling one for each K.

    Args:
      whole: whether it is what the subject is about; the other points of a plan's curve know less.
    """

    setting: Setting
    numbers: Mapping[str, Number]
    whole: bool = True


@dataclass(frozen=True)
class Point:
    """K devices of a scaling; `not_claimed` says why there is no efficiency."""

    devices: int
    batch: int
    samples_per_s: Interval
    efficiency: Interval | None
    not_claimed: Words | None = None


@dataclass(frozen=True)
class Term:
    """Percent points of K S_1 that are lost to one thing."""

    name: str
    title: Words
    percent: Interval


@dataclass(frozen=True)
class Waterfall:
    """From 100 % to E_K: 100 less the sum of the terms is ``efficiency_percent``."""

    devices: int
    efficiency_percent: int | float
    terms: Sequence[Term]


@dataclass(frozen=True)
class Scaling:
    """E_K over K in one mode, in rising K, the first is one device."""

    mode: Literal["weak", "strong"]
    basis: Basis
    points: Sequence[Point]
    waterfall: Waterfall | None = None


@dataclass(frozen=True)
class Curve:
    """A metric over the steps, downsampled; ``better`` as `telemetry.metrics` says."""

    steps: Sequence[int]
    values: Sequence[int | float]


@dataclass(frozen=True)
class Fidelity:
    """Whether devices do what one would, or at least hold the same.

    Args:
      of: ``programs`` were compared with one device, or ``audits`` compared the replicas with each other, which is no
        proof of the former.
      differing: how many of these differ; None when nothing was compared.
      words: what was found.
      rows: cases of `paceline verify`, worst first.
    """

    of: Literal["programs", "audits"]
    differing: int | None
    words: Words
    rows: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Subject:
    """One thing that is compared.

    Args:
      path: as it was asked for.
      name: by which it is called; None: the end of its path.
      task: name; None when it does not say.
      options: of the task and of the step beside `Setting`, by name, as the configuration says.
      state: of a run.
      notes: conditions of the measurement, and what could not be read.
      cases: at least one.
    """

    kind: Kind
    path: str
    task: str | None
    cases: Sequence[Case]
    fidelity: Fidelity
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None
    notes: Sequence[Words] = ()
    scalings: Sequence[Scaling] = ()
    curves: Mapping[str, Curve] = field(default_factory=dict)

    def case_for(self, devices: int | None) -> Case:
        """The case with so many devices; else, and for None, the last one that the subject is about."""
        found = [case for case in self.cases if devices is not None and case.setting.devices == devices]
        return found[-1] if found else [case for case in self.cases if case.whole][-1]

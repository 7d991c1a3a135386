"""`Timeline`: what one device does in a step, in the order in which it is scheduled.

Owns: the form that everything which predicts time reads, whether it was made from a compiled program (`insight.hlo`) or
from a table of layers (`insight.published`).
Not here: how long any of it takes (`insight.model`), what a collective costs (`insight.network`).
Invariant: every `Start` has one `Done` behind it in the same body; between the two the device computes while the
collective is in flight. A blocking collective is a `Start` with its `Done` directly behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast"
]  # fmt: skip

FULL_FLOAT32 = "full float32"
"""The type of products of float32 whose operands no unit may round (precision "highest"); ``float32`` lets it."""


@dataclass(frozen=True)
class Work:
    """What a device computes at one place of the schedule: one kernel, or several in a row.

    Args:
      flops: floating-point operations of dots and convolutions (a multiply-add is two), by the dtype of their operands
        as JAX names it (``bfloat16``), or `FULL_FLOAT32`; no other operation counts.
      bytes: read from and written to the device's memory.
      kernels: how many kernels that are.
      what: instruction or layer, for people.
      convolutions: those of `flops` that are of convolutions, which libraries may do with fewer; as far as known.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    kernels: int = 1
    what: str = ""
    convolutions: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_flops(self) -> float:
        """Over all dtypes."""
        return sum(self.flops.values(), 0.0)


@dataclass(frozen=True)
class Collective:
    """One message that devices exchange.

    Args:
      name: of the instruction, unique in its timeline.
      kind: what it computes.
      bytes: the whole value: of an all-reduce or a reduce-scatter its operand, of an all-gather its result.
      dtype: on the wire, as JAX names it; of several, the one with the most bytes.
      group: devices that exchange with each other.
      asynchronous: whether the compiler lets compute run while it is in flight.
      leaves: names of the leaves of the state that it carries, as far as the program says.
    """

    name: str
    kind: Kind
    bytes: int
    dtype: str
    group: int
    asynchronous: bool = False
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Start:
    """The collective begins."""

    collective: Collective


@dataclass(frozen=True)
class Done:
    """The device waits here until the collective of that name has ended."""

    name: str


@dataclass(frozen=True)
class Repeat:
    """A loop: its body so many times."""

    times: int
    body: Timeline


Event = Work | Start | Done | Repeat
Timeline = tuple[Event, ...]


def total_work(timeline: Timeline) -> Work:
    """All that a timeline computes, loops counted as often as they run."""
    flops: dict[str, float] = {}
    convolutions: dict[str, float] = {}
    size, kernels = 0.0, 0
    for work, times in each_work(timeline):
        for total, counts in ((flops, work.flops), (convolutions, work.convolutions)):
            for dtype, count in counts.items():
                total[dtype] = total.get(dtype, 0.0) + times * count
        size += times * work.bytes
        kernels += times * work.kernels
    return Work(flops, size, kernels, convolutions=convolutions)


def each_work(timeline: Timeline, *, times: int = 1) -> Iterator[tuple[Work, int]]:
    """Every piece of work and how often it runs."""
    for event in timeline:
        if isinstance(event, Work):
            yield event, times
        elif isinstance(event, Repeat):
            yield from each_work(event.body, times=times * event.times)


def each_collective(timeline: Timeline, *, times: int = 1) -> Iterator[tuple[Collective, int]]:
    """Every collective and how often it runs; more than once means inside a loop."""
    for event in timeline:
        if isinstance(event, Start):
            yield event.collective, times
        elif isinstance(event, Repeat):
            yield from each_collective(event.body, times=times * event.times)

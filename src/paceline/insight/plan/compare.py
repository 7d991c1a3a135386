"""Ways to run a step, side by side.

Owns: which ways are compared, and their table.
Invariant: a way that cannot be planned stands below the table with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from paceline.base.errors import PacelineError
from paceline.base.units import format_bytes, format_count, format_duration, rate_digits
from paceline.engine.parallel import Parallel
from paceline.insight.plan.plan import Ask, Plan

Dimension = Literal["scheme", "placement", "precision", "accumulation"]
DIMENSIONS: tuple[Dimension, ...] = ("scheme", "placement", "precision", "accumulation")

_VALUES: dict[Dimension, tuple[Any, ...]] = {
    "scheme": ("per_device", "global_view"),
    "placement": ("replicated", "zero1", "fsdp"),
    "precision": ("float32", "bfloat16"),
    "accumulation": (1, 2, 4),
}


@dataclass(frozen=True)
class Way:
    """One way to run, and its plan or why there is none.

    Args:
      change: what differs from the way asked for, as a flag; empty for that way itself.
      parallel: None where the options do not go together.
    """

    change: str
    parallel: Parallel | None
    plan: Plan | None
    why: str = ""


@dataclass(frozen=True)
class NoWay:
    """A change that there is not, and why."""

    why: str


def ways(
    parallel: Parallel, dimensions: Sequence[Dimension], *, rows: int
) -> Iterator[tuple[str, Parallel | NoWay]]:  # fmt: skip
    """The way asked for, then each with one option changed, by the change; or why there is none.

    Args:
      rows: a device; microbatches must divide them.
    """
    yield "", parallel
    for name in dimensions:
        for value in _VALUES[name]:
            if value != getattr(parallel, name):
                yield f"--{name} {value}", _changed(parallel, name, value, rows=rows)


def _changed(parallel: Parallel, name: Dimension, /, value: Any, *, rows: int) -> Parallel | NoWay:
    if name == "accumulation" and rows % value:
        return NoWay(f"{format_count(rows, 'row')} a device do not split into {value} microbatches")
    try:
        return dataclasses.replace(parallel, **_fitting(parallel, {name: value}))
    except PacelineError as error:
        return NoWay(f"{error.what}: {error.why}")


def _fitting(parallel: Parallel, change: dict[str, Any]) -> dict[str, Any]:
    """Options that the other scheme has not are left out with it."""
    if change.get("scheme") == "global_view":
        return {**change, "reduce_dtype": None, "bucket_bytes": None, "noise_scale": False, "batch_norm": None}
    return change


def other_ask(plan: Plan) -> Ask:
    """What the other ways are asked with.

    A measured rate is that of the way asked for. Another way gets it times the ratio of the two predictions, as if the
    prediction were off by one factor for all.
    """
    return dataclasses.replace(plan.ask, rate=None, correction=plan.measured_share)


def compare(planned: Callable[[Parallel], Plan], found: Sequence[tuple[str, Parallel | NoWay]]) -> list[Way]:
    """Plan each way; one that fails is listed with its reason."""
    compared = []
    for change, parallel in found:
        if isinstance(parallel, NoWay):
            compared.append(Way(change, None, None, parallel.why))
            continue
        try:
            compared.append(Way(change, parallel, planned(parallel)))
        except PacelineError as error:
            compared.append(Way(change, parallel, None, error.what))
    return compared


def compare_lines(compared: Sequence[Way]) -> list[str]:
    """The table as text."""
    table = Table(box=None, pad_edge=False)
    table.add_column("way")
    for name in (
        "memory",
        "fits",
        "S_1 [samples/s]",
        "S_K",
        "E_K",
        "80 % interval",
        "step",
        "exposed",
        "wire",
        "blocking",
    ):
        table.add_column(name, justify="right")
    for way in compared:
        if way.plan is not None:
            table.add_row(way.change or "as asked", *_cells(way.plan))
    console = Console(width=150, no_color=True, markup=False)  # a unit in brackets is no markup
    with console.capture() as capture:
        console.print(table)
    failed = [f"{way.change or 'as asked'}: {way.why}" for way in compared if way.plan is None]
    lines = [line.rstrip() for line in capture.get().splitlines()]
    if any(way.plan is not None and way.plan.ask.correction is not None for way in compared):
        lines.append("S_1 of the other ways: the measured rate times the ratio of their predictions to that as asked")
    return [*lines, *failed]


def _cells(plan: Plan) -> list[str]:
    time, program = plan.time, plan.step_program.program
    blocking = sum(use.times for use in program.collectives if use.blocking)
    return [
        format_bytes(plan.step_program.memory.peak),
        "yes" if plan.fits else "NO",
        rate_digits(plan.single_rate),
        rate_digits(plan.rate(time)),
        f"{time.efficiency:.1%}",
        f"{time.efficiency_low:.1%}-{time.efficiency_high:.1%}",
        format_duration(time.step_s),
        format_duration(time.terms["exposed_s"]),
        format_bytes(sum(program.wire_bytes_by_dtype.values())),
        str(blocking),
    ]

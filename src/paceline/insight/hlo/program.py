"""`read_program`: what a compiled program computes, moves and sends.

Owns: `Program`, and what it says in sums and in words.
Not here: how long any of it takes (`insight.model`).
Invariant: what could not be read is named in `unknown`, `unknown_loops` or `assumed`; nothing is guessed in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.base.units import format_bytes, format_count
from paceline.insight.hlo.carried import carried_by
from paceline.insight.hlo.groups import Groups
from paceline.insight.hlo.leaves import parameter_names
from paceline.insight.hlo.text import parse_module
from paceline.insight.hlo.timeline import FoundCollective, TimelineBuilder
from paceline.insight.timeline import (
    Collective,
    Done,
    Event,
    Repeat,
    Start,
    Timeline,
    Work,
    each_collective,
    total_work,
)
from paceline.tasks.tree import named_leaves

_NAMED_AT_MOST = 3


@dataclass(frozen=True)
class CollectiveUse:
    """A collective of a program.

    Args:
      collective: kind, bytes, type on the wire, size of a group, leaves.
      times: how often it runs a step; more than once means inside a loop.
      in_flight: what is scheduled between its start and its end; nothing if it blocks.
      leaf_bytes: bytes of each leaf that it carries. What is missing to `collective.bytes` are values that end in no
        leaf: totals of loss and metrics, norms, statistics.
      groups: numbers of the devices of each group; None if the program spells them in an unknown form.
      op_name: where the program made it, ``jit(step)/shard_map/psum``; empty if the compiler did.
    """

    collective: Collective
    times: int
    in_flight: Work
    leaf_bytes: Mapping[str, int] = field(default_factory=dict)
    groups: Groups | None = None
    op_name: str = ""

    @property
    def blocking(self) -> bool:
        """Whether the device computes nothing until it has ended, by the compiler's choice."""
        return not self.collective.asynchronous


@dataclass(frozen=True)
class Program:
    """A compiled step, as one device runs it.

    Args:
      platform: that it was compiled for.
      timeline: all work, collectives and loops in schedule order; one `Work` a kernel.
      num_partitions: devices that the program is for, replicas times partitions.
      collectives: in the order in which they begin.
      parameters: names of the inputs by number, as ``params.conv1.kernel``, ``batch.image``; those that the compiler
        dropped are missing.
      unknown: opcodes and library calls whose operations could not be counted, with how many of each.
      unknown_loops: loops whose trip count the program does not say; each counts once.
      assumed: choices that were made for the reader, as sentences: which branch of a conditional, products whose passes
        are not counted.
      scheduled: False for a program that is not compiled yet: every operation then is a kernel of its own, and `bytes`
        is far more than fusions will move.
    """

    platform: Literal["cpu", "cuda"]
    timeline: Timeline
    num_partitions: int
    collectives: tuple[CollectiveUse, ...]
    parameters: Mapping[int, str]
    unknown: Mapping[str, int] = field(default_factory=dict)
    unknown_loops: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    scheduled: bool = True

    @property
    def work(self) -> Work:
        """All work of a step, loops counted as often as they run."""
        return total_work(self.timeline)

    @property
    def flops(self) -> Mapping[str, float]:
        """Operations of dots and convolutions of a step, by type of their operands (`precision.product_type`)."""
        return self.work.flops

    @property
    def bytes(self) -> float:
        """Memory traffic of a step."""
        return self.work.bytes

    @property
    def wire_bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of all collectives of a step, by type on the wire."""
        total: dict[str, int] = {}
        for use in self.collectives:
            total[use.collective.dtype] = total.get(use.collective.dtype, 0) + use.times * use.collective.bytes
        return total

    @property
    def gradient_bytes(self) -> dict[str, int]:
        """Bytes of gradients that are reduced a step, by type on the wire."""
        total: dict[str, int] = {}
        for use in self.collectives:
            size = sum(size for name, size in use.leaf_bytes.items() if name.split(".")[0] == "params")
            if size and use.collective.kind in ("all-reduce", "reduce-scatter"):
                total[use.collective.dtype] = total.get(use.collective.dtype, 0) + use.times * size
        return total


def read_program(text: str, *, parameters: Sequence[str] = ()) -> Program:
    """Read the text of a compiled program, or of a lowered one.

    Args:
      text: of `jax.stages.Compiled.as_text()`, or of ``Lowered.as_text(dialect="hlo")``; jax 0.10 to 0.12, CPU or CUDA.
      parameters: names of all arguments in order (`step_parameters`), for programs that only number them: those of
        `jax.pmap`, and lowered ones.
    Raises: ProgramTextError: it is no program as XLA prints it.
    """
    module = parse_module(text)
    builder = TimelineBuilder(module)
    timeline = builder.build()
    names = parameter_names(module, parameters)
    leaves = carried_by(builder.collectives, module=module, parameters=names)
    timeline = _with_leaves(timeline, {name: tuple(sizes) for name, sizes in leaves.items()})
    return Program(
        platform="cuda" if '"operation_queue_id"' in text or 'scheduling_name="' in text else "cpu",
        timeline=timeline,
        num_partitions=module.header_number("num_partitions", 1) * module.header_number("replica_count", 1),
        collectives=_uses(timeline, builder.collectives, leaves),
        parameters=names,
        unknown=builder.counter.unknown | _unknown_groups(builder.collectives),
        unknown_loops=tuple(builder.unknown_loops),
        assumed=(*builder.branches, *_passes(builder.counter.passes)),
        scheduled=module.is_scheduled,
    )


def step_parameters(state: Any, batch: Any, valid: Any) -> list[str]:
    """Names of a step's arguments in order, for `read_program`: those of the state's leaves, ``batch.x``, ``valid``."""
    prefixed = [(prefix, named_leaves(tree)) for prefix, tree in (("", state), ("batch.", batch), ("valid", valid))]
    return [
        prefix + name.replace("(whole)", "") if prefix else name for prefix, leaves in prefixed for name, _ in leaves
    ]


def collective_lines(program: Program) -> list[str]:
    """One line a collective, largest first: kind, size, type, group, how it runs, what it carries."""
    uses = sorted(program.collectives, key=lambda use: -use.times * use.collective.bytes)
    return [_line(use) for use in uses]


def _line(use: CollectiveUse) -> str:
    one = use.collective
    if use.blocking:
        how = "blocks"
    else:
        work = use.in_flight
        how = f"asynchronous, {format_count(work.kernels, 'kernel')} ({work.total_flops / 1e9:.3g} GFLOP, "
        how += f"{format_bytes(int(work.bytes))}) in flight"
    often = "" if use.times == 1 else f", {use.times} times"
    group = f"over {format_count(one.group, 'device')}" if one.group else "over unknown groups"
    names = list(use.leaf_bytes)
    carried = ", ".join(names[:_NAMED_AT_MOST]) + (f", ... ({len(names)})" if len(names) > _NAMED_AT_MOST else "")
    text = f"{one.kind} {format_bytes(one.bytes)} {one.dtype} {group}{often}, {how}"
    return f"{text}: {carried}" if names else text


def _with_leaves(timeline: Timeline, leaves: Mapping[str, tuple[str, ...]]) -> Timeline:
    def named(event: Event) -> Event:
        if isinstance(event, Start):
            return Start(replace(event.collective, leaves=leaves.get(event.collective.name, ())))
        return Repeat(event.times, _with_leaves(event.body, leaves)) if isinstance(event, Repeat) else event

    return tuple(named(event) for event in timeline)


def _uses(
    timeline: Timeline, found: Mapping[str, FoundCollective], leaves: Mapping[str, Mapping[str, int]]
) -> tuple[CollectiveUse, ...]:
    flights = dict(_flights(timeline))
    return tuple(
        CollectiveUse(
            one, times, flights[one.name], leaf_bytes=leaves.get(one.name, {}), groups=found[one.name].groups,
            op_name=found[one.name].start.op_name,
        )
        for one, times in each_collective(timeline)
    )  # fmt: skip


def _flights(timeline: Timeline) -> list[tuple[str, Work]]:
    """For each collective what stands between its start and its end."""
    found = []
    ends = {event.name: place for place, event in enumerate(timeline) if isinstance(event, Done)}
    for place, event in enumerate(timeline):
        if isinstance(event, Start):
            name = event.collective.name
            found.append((name, total_work(timeline[place : ends[name]])))
        elif isinstance(event, Repeat):
            found.extend(_flights(event.body))
    return found


def _passes(algorithms: set[str]) -> list[str]:
    return [f"products by {name} count as one pass; they take longer than is predicted" for name in sorted(algorithms)]


def _unknown_groups(found: Mapping[str, FoundCollective]) -> dict[str, int]:
    count = sum(one.groups is None for one in found.values())
    return {"groups of a collective": count} if count else {}

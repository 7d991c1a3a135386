"""What to change when a step does not fit, in the order of what it costs, each with the memory that it would take.

Owns: the changes, their order, the numbers by arithmetic.
Not here: compiling a changed step, which the caller does if it can (`peak_of_variant`).
Invariant: a number is the compiler's, or says "about"; a change that cannot help is not offered.

The order: donation costs nothing; more microbatches cost some speed on small ones; `zero1` a little more communication;
computing activations again up to a third more compute (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
Cost"); `fsdp` half as much communication again (Rajbhandari et al. 2020, "ZeRO", section 7); a lower precision may
change the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.base.units import format_bytes
from paceline.engine.parallel import Parallel, Placement
from paceline.engine.state import TrainState
from paceline.insight.memory.accounting import Accounting, account_state
from paceline.insight.memory.rematerialise import CODE
from paceline.insight.memory.split import StepMemory

WARN = 0.9
"""Share of the limit above which a step is called tight: allocators lose some memory between blocks."""

_LEAST_SAVING = 0.01
"""Share of the peak that a change must save to be worth naming."""

_TRIES = 3
"""Numbers of microbatches that are compiled before the search for one that fits is given up."""

How = Literal["compiled", "about", "unknown"]


@dataclass(frozen=True)
class Variant:
    """The step with one thing changed.

    Args:
      parallel: how it runs.
      rematerialise: whether its task is `rematerialise.rematerialised`.
    """

    parallel: Parallel
    rematerialise: bool = False


PeakOf = Callable[[Variant], int | None]
"""Compiles a changed step and returns its peak bytes a device, batches waiting included; None if it does not."""


@dataclass(frozen=True)
class Case:
    """A run whose step may not fit.

    Args:
      parallel: how it would run.
      num_devices: K.
      rows: B of the global batch.
      state: as shapes, without device axis.
      memory: of the step; None if it could not be compiled.
    """

    parallel: Parallel
    num_devices: int
    rows: int
    state: TrainState
    memory: StepMemory | None

    def expected(self, **changes: object) -> Accounting:
        """The arithmetic of the state with fields of `parallel` changed."""
        parallel = dataclasses.replace(self.parallel, **changes)
        return account_state(self.state, parallel=parallel, num_devices=self.num_devices)


@dataclass(frozen=True)
class Advice:
    """One way out.

    Args:
      name: of the change: ``donation``, ``accumulation``, ``zero1``, ``rematerialisation``, ``fsdp``, ``bfloat16``.
      flags: what to type or write.
      note: what the change does, in a few words.
      bytes: peak of a device with it; None if only compiling could tell.
      how: where the number is from.
    """

    name: str
    flags: str
    note: str
    bytes: int | None
    how: How

    def text(self) -> str:
        """``--placement zero1 (optimizer state shared: about 1.2 GB a device)``."""
        about = "about " if self.how == "about" else ""
        takes = [] if self.bytes is None else [f"{about}{format_bytes(self.bytes)} a device"]
        inside = ": ".join([*filter(None, [self.note]), *takes])
        return f"{self.flags} ({inside})" if inside else self.flags


def least_arguments(case: Case) -> int | None:
    """Bytes that a device has to hold before a step whatever is changed, short of the model; None without numbers."""
    if case.memory is None:
        return None
    return case.memory.arguments - max(_savings(case).values(), default=0)


def advise(case: Case, limit_bytes: int | None, *, peak_of_variant: PeakOf = lambda _: None) -> list[Advice]:
    """The ways out, cheapest first; those that change nothing for this run, or cannot help, are left out.

    Args:
      limit_bytes: what a program may hold; None if not known.
      peak_of_variant: asked for each change that may help; the default compiles nothing.
    """
    changes = [_donation, _accumulation, _zero1, _rematerialisation, _fsdp, _bfloat16]
    found = [advice for change in changes for advice in change(case, limit_bytes, peak_of_variant)]
    return [advice for advice in found if advice.how != "compiled" or not _is_no_help(case, advice)]


def _is_no_help(case: Case, advice: Advice) -> bool:
    """Whether the compiler says that the change saves nothing to speak of."""
    return (
        case.memory is not None and advice.bytes is not None and advice.bytes > (1 - _LEAST_SAVING) * case.memory.peak
    )


def _donation(case: Case, _: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    if case.parallel.donate:
        return
    parallel = dataclasses.replace(case.parallel, donate=True)
    about = None
    if case.memory is not None:
        about = case.memory.peak - min(case.memory.outputs, case.expected().state)
    note = "the next state takes the place of the last"
    yield _advice("donation", "Parallel(donate=True)", note, about, peak_of(Variant(parallel)))


def _accumulation(case: Case, limit: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    """The least number of microbatches with which the step fits, if its temporaries shrink in proportion."""
    now, share = case.parallel.accumulation, case.rows // case.num_devices
    counts = [count for count in range(now + 1, share + 1) if share % count == 0]
    if not counts:
        return
    if case.memory is None or limit is None:
        flags = f"--accumulation {counts[0]} or more"
        yield Advice("accumulation", flags, "", None, "unknown")
        return
    fitting = [count for count in counts if _accumulated(case, case.memory, count) <= WARN * limit]
    for count in fitting[:_TRIES]:
        compiled = peak_of(Variant(dataclasses.replace(case.parallel, accumulation=count)))
        if compiled is None or compiled <= WARN * limit or count == fitting[-1]:
            about = _accumulated(case, case.memory, count)
            yield _advice("accumulation", f"--accumulation {count}", "", about, compiled)
            return


def _accumulated(case: Case, memory: StepMemory, count: int) -> int:
    """Beyond one microbatch come the sum of gradients so far and a copy of the batch in the microbatches' order."""
    shrunk = max(memory.temporaries * case.parallel.accumulation // count, memory.gradients)
    extra = 0 if case.parallel.accumulation > 1 or memory.expected is None else memory.expected.batch + memory.gradients
    return memory.peak - memory.temporaries + shrunk + extra


def _zero1(case: Case, limit: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    return _placement("zero1", "optimizer state shared", case, limit, peak_of)


def _fsdp(case: Case, limit: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    note = "parameters shared" if case.parallel.placement == "zero1" else "parameters too"
    return _placement("fsdp", note, case, limit, peak_of)


def _placement(
    name: Placement, note: str, case: Case, limit: int | None, peak_of: PeakOf
) -> Iterator[Advice]:  # fmt: skip
    """None if nothing is saved, or if what a device still holds before the step is more than its memory."""
    saved = _savings(case).get(name, 0)
    if not saved and case.memory is not None:
        return
    if name not in _savings(case) or (
        case.memory is not None and limit is not None and case.memory.arguments - saved > limit
    ):
        return
    moved = "" if case.parallel.scheme != "pmap" else " and --scheme per_device"
    scheme = "per_device" if moved else case.parallel.scheme
    variant = Variant(dataclasses.replace(case.parallel, placement=name, scheme=scheme))
    about = None if case.memory is None else case.memory.peak - saved
    yield _advice(name, f"--placement {name}{moved}", note, about, peak_of(variant))


def _rematerialisation(case: Case, _: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    note = "activations computed again"
    yield _advice("rematerialisation", CODE, note, None, peak_of(Variant(case.parallel, rematerialise=True)))


def _bfloat16(case: Case, _: int | None, peak_of: PeakOf) -> Iterator[Advice]:
    if case.parallel.precision != "float32":
        return
    parallel = dataclasses.replace(case.parallel, precision="bfloat16")
    yield _advice("bfloat16", "--precision bfloat16", "smaller activations", None, peak_of(Variant(parallel)))


def _advice(name: str, flags: str, note: str, about: int | None, compiled: int | None) -> Advice:
    if compiled is not None:
        return Advice(name, flags, note, compiled, "compiled")
    return Advice(name, flags, note, about, "unknown" if about is None else "about")


def _savings(case: Case) -> dict[Placement, int]:
    """Bytes of a device that each further placement would leave to the others, the cheaper placement first."""
    further: dict[Placement, tuple[Placement, ...]] = {"replicated": ("zero1", "fsdp"), "zero1": ("fsdp",), "fsdp": ()}
    if case.num_devices == 1:
        return {}
    scheme = "per_device" if case.parallel.scheme == "pmap" else case.parallel.scheme
    now = case.expected().state
    return {name: now - case.expected(placement=name, scheme=scheme).state for name in further[case.parallel.placement]}

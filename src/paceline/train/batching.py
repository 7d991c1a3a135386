"""From what the user passes as data to the host batches of a run.

Owns: the plan of a run: how many steps, how many rows a step, what is dropped or padded.
Invariant: the batches of steps a..b do not depend on where the run started or on the number of devices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paceline.base.errors import BatchSizeError, OptionError
from paceline.base.units import format_count
from paceline.data.batch import BatchPlan, HostBatch, Remainder, batches, plan_batches
from paceline.data.joined import StreamPeers
from paceline.data.order import EpochOrder
from paceline.data.share import Share
from paceline.data.source import BatchStream, Source, as_source
from paceline.data.stream import stream_batches
from paceline.tasks.tree import named_leaves


@dataclass(frozen=True)
class DataOptions:
    """How rows become batches.

    Args:
      batch: rows of the global batch; None for a stream of ready batches.
      steps: updates to make, or None.
      epochs: passes over the data to make, or None; exactly one of the two for rows.
      shuffle: a new order each epoch, from (seed, epoch); False keeps the stored order.
      seed: of the order.
      remainder: what happens to the rows that do not fill a batch.
      prefetch: batches made ahead.
    """

    batch: int | None = None
    steps: int | None = None
    epochs: int | None = None
    shuffle: bool = True
    seed: int = 0
    remainder: Remainder = "drop"
    prefetch: int = 2


@dataclass(frozen=True)
class RunPlan:
    """The batches of one run.

    Args:
      host_batches: in order; made lazily.
      num_steps: how many there will be; None when a stream decides.
      batches: sizes and counts of an epoch; None for a stream.
      stream: the stream, whose counts fill as it is read; None for rows.
    """

    host_batches: Iterator[HostBatch]
    num_steps: int | None
    batches: BatchPlan | None
    stream: BatchStream | None

    def dropped_rows(self, first_step: int, last_step: int) -> int:
        """Rows left out in the epochs that were completed between two steps."""
        if self.stream is not None:
            return self.stream.count.dropped_rows
        assert self.batches is not None, "rows without a plan"
        per_epoch = self.batches.steps_per_epoch
        return (last_step // per_epoch - first_step // per_epoch) * self.batches.dropped_per_epoch

    def epoch_at(self, step: int) -> float | None:
        """Passes over the data after so many steps; None for a stream."""
        return None if self.batches is None else step / self.batches.steps_per_epoch

    def refuse_padding(self, model_state: Any, *, maskable: Callable[[], bool]) -> None:
        """As `refuse_padding`, for all batches of an epoch; of a stream nothing is known yet."""
        if self.batches is not None and self.batches.padding_per_epoch:
            rows = f"{format_count(self.batches.padding_per_epoch, 'padding row')} an epoch"
            _refuse(rows, model_state, maskable=maskable)


def refuse_padding(host: HostBatch, model_state: Any, *, maskable: Callable[[], bool]) -> None:
    """Raise BatchSizeError for a training batch with padding that the task cannot leave out.

    Args:
      model_state: only its names are read; a model with state would take the padding into its statistics.
      maskable: whether the loss and all metrics have one entry a row; called only if there is padding.
    """
    if host.valid is not None:
        padding = format_count(len(host.valid) - host.rows, "padding row")
        _refuse(f"a batch of {format_count(host.rows, 'row')} and {padding}", model_state, maskable=maskable)


def _refuse(what: str, model_state: Any, *, maskable: Callable[[], bool]) -> None:
    fix = "use --remainder drop, or a batch that divides the rows and splits over the devices"
    state = named_leaves(model_state)
    if state:
        raise BatchSizeError(
            what=f"{what}, for a model with state (such as {state[0][0]!r})",
            why="padding is masked in the loss, but BatchNorm and its like would take it into their statistics",
            fix=fix,
        )
    if not maskable():
        raise BatchSizeError(
            what=f"{what}, for a loss or metric that is a scalar over its rows",
            why="padding cannot be left out of a mean that was taken already",
            fix=f"return one value a row, or {fix}",
        )


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Args:
      step: updates that the state has.
      done: of these, the updates that belong to this run: more than 0 if it was resumed. Its length includes them.
    """

    step: int
    done: int = 0


@dataclass(frozen=True)
class Reading:
    """How this process reads batches.

    Args:
      microbatches: n.
      share: the rows of each batch that it reads.
      peers: compares the ready batches of several processes; None in a run of one.
    """

    microbatches: int
    share: Share
    peers: StreamPeers | None = None


def plan_run(data: Any, options: DataOptions, *, reading: Reading, start: Start) -> RunPlan:
    """The batches of a run from its start on.

    Raises:
      OptionError: neither or both of steps and epochs, or one below 1; no batch size for rows; one of the three that is
        no whole number; more than one epoch of an iterator.
      DataError, BatchSizeError: data that cannot be cut so.
    """
    options = _with_whole_numbers(options)
    for name in ("steps", "epochs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(
                what=f"{name}={value}", why="a run makes at least one update", fix=f"use {name}=1 or more"
            )
    source = as_source(data)
    if isinstance(source, BatchStream):
        return _plan_stream(source, options, reading=reading, start=start)
    return _plan_rows(source, options, reading=reading, start=start)


def _with_whole_numbers(options: DataOptions) -> DataOptions:
    """The same with plain ints for what numpy counts; a float that happens to be whole is refused too."""
    whole: dict[str, int] = {}
    for name in ("batch", "steps", "epochs"):
        value = getattr(options, name)
        if value is None:
            continue
        number = _whole(value)
        if number is None:
            raise OptionError(
                what=f"{name}={value!r} is no whole number",
                why="rows, updates and passes are counted",
                fix=f"use an integer, such as {name}=32; int(...) or // where it is computed",
            )
        whole[name] = number
    return replace(options, **whole)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _plan_stream(stream: BatchStream, options: DataOptions, *, reading: Reading, start: Start) -> RunPlan:
    if options.steps is None and options.epochs is None and not stream.one_shot:
        raise _length_error("neither steps nor epochs given for batches that start again when they end")
    if stream.one_shot and (options.epochs or 1) > 1:
        raise OptionError(
            what=f"epochs={options.epochs} of a {type(stream.batches).__name__}, which is empty after one pass",
            why="the run would end after the first epoch without a word",
            fix="pass steps=, or an iterable that starts again, such as a loader or paceline.stream(list)",
        )
    stream = BatchStream(stream.batches)  # counts of its own: the user may train on the same stream twice
    steps = None if options.steps is None else max(0, options.steps - start.done)
    host_batches = stream_batches(
        stream,
        devices=len(reading.share.positions),
        microbatches=reading.microbatches,
        remainder=options.remainder,
        steps=steps,
        epochs=options.epochs,
        skip=start.done,
        peers=reading.peers,
    )
    return RunPlan(host_batches, steps, None, stream)


def _plan_rows(source: Source, options: DataOptions, *, reading: Reading, start: Start) -> RunPlan:
    if (options.steps is None) == (options.epochs is None):
        raise _length_error("both steps and epochs given" if options.steps else "neither steps nor epochs given")
    if options.batch is None:
        raise OptionError(
            what="no batch size given for data that is read by row",
            why="the global batch decides the learning rate that fits, so Paceline does not guess it",
            fix="pass batch=, the rows of one update over all devices",
        )
    plan = plan_batches(
        len(source),
        options.batch,
        devices=reading.share.num_devices,
        microbatches=reading.microbatches,
        remainder=options.remainder,
    )
    total = options.steps if options.steps is not None else (options.epochs or 0) * plan.steps_per_epoch
    num_steps = max(0, total - start.done)
    order = EpochOrder(len(source), options.seed, options.shuffle)
    host_batches = batches(
        source, plan, order=order, start_step=start.step, stop_step=start.step + num_steps, share=reading.share
    )
    return RunPlan(host_batches, num_steps, plan, None)


def _length_error(what: str) -> OptionError:
    return OptionError(
        what=what, why="the length of the run must be known in one way", fix="pass steps=, or epochs=, not both"
    )

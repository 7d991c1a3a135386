"""Evaluation: every row counted once, whatever the form of the loss and the number of devices.

Owns: the evaluation program, the treatment of the last uneven batch, exact sums over batches.
Invariant: the result is that of one device over all rows. Per-row forms are padded and masked, so one program serves
all batches; a scalar form cannot be masked, so its last uneven batch is computed whole on every device and counted
once.

One program serves all schemes: the whole batch is visible, as under `global_view`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from paceline.base.errors import BatchSizeError, DataError
from paceline.data.batch import HostBatch, eval_batches
from paceline.data.feed import Feed
from paceline.data.source import BatchStream, Source, as_source
from paceline.data.tree import count_rows, to_host
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.state import TrainState
from paceline.tasks.losses import Totals
from paceline.topology.processes import processes
from paceline.train.agreement import agree
from paceline.train.place import Placer

_IN_FLIGHT = 2


@dataclass
class Evaluation:
    """An evaluation that the devices may still be computing.

    Args:
      step: updates that the evaluated state had.
      totals: for each batch, totals and weights by name, on the devices.
      rows: rows evaluated.
    """

    step: int
    totals: list[dict[str, Totals]]
    rows: int

    def is_ready(self) -> bool:
        """Whether `result` would not wait."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.totals[-1]))

    def result(self) -> dict[str, float]:
        """Mean of the loss and of every metric over all rows, summed in float64 (counts in integers); waits."""
        fetched = jax.device_get(self.totals)
        result: dict[str, float] = {}
        for name in fetched[0]:
            total = sum(batch[name].total.item() for batch in fetched)
            weight = sum(batch[name].weight.item() for batch in fetched)
            result[name] = total / weight if weight else 0.0
        result["rows"] = self.rows
        return result


class Evaluator:
    """Runs evaluations of one task on one mesh."""

    def __init__(self, function: EvaluationFunction, placer: Placer, *, num_devices: int) -> None:
        self._function = function
        self._placer = placer
        self._num_devices = num_devices

    def start(
        self,
        state: TrainState,
        data: Any,
        *,
        batch: int | None,
        step: int,
        use_ema: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> Evaluation | None:
        """Dispatch an evaluation over all of `data`; returns once the last batch is dispatched.

        Args:
          state: without a device axis.
          batch: rows a batch; rounded up to a multiple of the devices. None for a stream of ready batches.
          stop: asked before each batch; once it says so the evaluation is given up and None returned.
        Raises: DataError: no rows.
        """
        params = state.ema if use_ema and state.ema is not None else state.params
        source = as_source(data)
        if isinstance(source, Source) and processes().several:
            agree(processes(), {"evaluation data.rows": len(source)}, name="evaluation")
        evaluation = Evaluation(step, [], 0)
        in_flight: deque[Any] = deque()
        with Feed(self._batches(source, batch, params, state), self._placer.evaluation_batch) as feed:
            for placed in feed:
                if stop():
                    return None
                totals = self._function(params, state.model_state, placed.data, placed.valid, state.rng)
                evaluation.totals.append(totals)
                evaluation.rows += placed.rows
                in_flight.append(totals)
                if len(in_flight) > _IN_FLIGHT:
                    jax.block_until_ready(in_flight.popleft())
        if not evaluation.totals:
            raise DataError(
                what="the evaluation data holds no batch",
                why="the mean of no rows is not defined",
                fix="pass an iterable that still holds batches: a generator that was used before is empty",
            )
        return evaluation

    def check(self, state: TrainState, data: Any, *, batch: int | None, repeated: bool) -> None:
        """Raise now what `start` would raise after hours of training; a stream is not read.

        Args:
          state: as `start` takes it.
          repeated: whether `data` will be evaluated more than once.
        """
        source = as_source(data)
        if not isinstance(source, BatchStream):
            self._maskable(state.params, state, source, _size(batch, source, self._num_devices))
        elif not self._placer.share.whole:
            raise _stream_error()
        elif source.one_shot and repeated:
            raise DataError(
                what=f"the evaluation data is a {type(source.batches).__name__}, which is empty after one evaluation",
                why="it would be evaluated more than once",
                fix="pass batches that start again (a loader, paceline.stream), rows, or leave evaluate_every out",
            )

    def _maskable(self, params: Any, state: TrainState, source: Source, size: int) -> bool:
        """Whether padding can be left out; decided from the shapes of the first rows."""
        share = self._placer.share
        host = next(iter(eval_batches(source, size, devices=self._num_devices, pad=True, share=share)))
        placed = self._placer.evaluation_batch(host)
        return self._function.is_maskable(params, state.model_state, placed.data, state.rng)

    def _batches(
        self, source: Source | BatchStream, batch: int | None, params: Any, state: TrainState
    ) -> Iterator[HostBatch]:
        if isinstance(source, BatchStream):
            if not self._placer.share.whole:
                raise _stream_error()
            return _own_sizes(source)
        size = _size(batch, source, self._num_devices)
        pad = self._maskable(params, state, source, size)
        return eval_batches(source, size, devices=self._num_devices, pad=pad, share=self._placer.share)


def _stream_error() -> DataError:
    return DataError(
        what="the evaluation data is a stream of ready batches, in a run of several processes",
        why="nothing says which process counts which row, so some could be counted twice",
        fix="pass rows (paceline.rows) or a data set with len() and [i]: each process then reads its share, and "
        "every row counts "
        "once",
    )


def _own_sizes(stream: BatchStream) -> Iterator[HostBatch]:
    """Ready batches as they come: another size compiles the evaluation again, but counts every row once."""
    position = 0
    for batch in stream:
        data = to_host(batch, noun="batch")
        rows = count_rows(data, noun="batch")
        yield HostBatch(data, None, rows=rows, epoch=0, position=position, indices=None)
        position += rows


def _size(batch: int | None, source: Source, num_devices: int) -> int:
    """The batch asked for (or 256), not above the rows there are, rounded up to a multiple of the devices."""
    if batch is not None and batch < 1:
        raise BatchSizeError(
            what=f"an evaluation batch of {batch} rows",
            why="the mean of no rows is not defined",
            fix="use 1 or more, or leave batch out",
        )
    wanted = min(batch or 256, len(source))
    return -(-wanted // num_devices) * num_devices

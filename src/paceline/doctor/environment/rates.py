"""Does the input keep up: rows a second that the data can give, against those that the step takes.

Owns: the two measurements, each alone and limited in time, and what to do about slow input.
Not here: whether the step fits (`doctor.memory`): it must, since it is run here.
Invariant: a source that never yields costs the limit and no more; its thread is left behind.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.base.units import format_duration, format_percent, format_rate
from paceline.data.source import BatchStream, as_source
from paceline.doctor.finding import Finding
from paceline.doctor.subject import Subject
from paceline.engine.abstract import abstract_state
from paceline.train.place import PlacedBatch

CHECK = "input"

INPUT_S = 2.0
"""Seconds of reading batches, after the first ones."""
STEP_S = 2.0
"""Seconds of steps, after two that warm up; a step that takes longer is taken alone."""
_STEPS = 50
_BATCHES = 200
_MARGIN = 1.1
"""Input that is less than a tenth faster than the step leaves no room for a slow batch."""


@dataclass(frozen=True)
class Rate:
    """Something measured.

    Args:
      rows: in all.
      time_s: that they took.
      batches: how many.
    """

    rows: int
    time_s: float
    batches: int

    @property
    def rows_per_s(self) -> float:
        """0 if nothing came."""
        return self.rows / self.time_s if self.time_s > 0 else 0.0


def rate_findings(subject: Subject, *, input_s: float = INPUT_S, steps_s: float = STEP_S) -> list[Finding]:
    """Reads batches for two seconds, then runs steps for two. Allocates the parameters.

    Raises: what the user's data raises.
    """
    trainer = subject.trainer
    with _feed(subject) as feed:
        kept = next(feed, None)
        if kept is None:
            return [Finding(CHECK, "warning", "not run: the data yields no batch")]
        reading = read_rate(feed, prefetch=subject.prefetch, limit_s=input_s)
    step = step_rate(subject.step, zero_state(subject), batch=kept, limit_s=steps_s)
    if reading is None:
        text = f"the step takes {format_rate(step.rows_per_s, 'rows')}; the data is too short to measure its rate"
        return [Finding(CHECK, "ok", text)]
    simulated = trainer.mesh.devices.flat[0].platform == "cpu"
    is_stream = isinstance(as_source(subject.data), BatchStream)
    return [judge(reading, step, simulated=simulated and trainer.num_devices > 1, is_stream=is_stream)]


def zero_state(subject: Subject) -> Any:
    """A state of zeros where the scheme keeps it: it takes as long to update as a real one, and no program makes it.

    Compiling the init of the shipped image recipe took 9 s of CPU time, its step 6 s.
    """

    def zeros(leaf: jax.ShapeDtypeStruct) -> Any:
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            key = jax.random.key(0)
            return jax.device_put(jax.random.split(key, leaf.shape) if leaf.shape else key, leaf.sharding)
        assert leaf.sharding is not None, "abstract states are placed"
        whole = np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: np.array(whole[index]))

    return jax.tree.map(zeros, abstract_state(subject.step.spec))


def _feed(subject: Subject) -> Any:
    """The batches of the run, without end where the source can begin again."""
    steps = None if _is_one_shot(subject.data) else subject.prefetch + _BATCHES
    return subject.trainer.feed(
        subject.data, batch=subject.batch, steps=steps, remainder=subject.remainder, prefetch=subject.prefetch
    )


def _is_one_shot(data: Any) -> bool:
    source = as_source(data)
    return isinstance(source, BatchStream) and source.one_shot


def read_rate(
    feed: Iterator[PlacedBatch], *, prefetch: int, limit_s: float = INPUT_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate | None:  # fmt: skip
    """Rows a second of a feed that nothing else waits for; None if it ends at once.

    The batches that were made ahead are passed over: they are there at once, and nothing follows from it.
    """
    for _ in itertools.islice(feed, prefetch):
        pass
    start = now = clock()
    rows = batches = 0
    for batch in itertools.islice(feed, _BATCHES):
        jax.block_until_ready(batch.data)
        rows, batches, now = rows + batch.rows, batches + 1, clock()
        if now - start >= limit_s:
            break
    return Rate(rows, now - start, batches) if batches else None


def step_rate(step: Any, state: Any, *, batch: PlacedBatch, limit_s: float = STEP_S) -> Rate:
    """Rows a second of the compiled step on one batch again and again. Uses the state up."""
    once_s = 0.0
    for _ in range(2):  # the first may still load the program
        state, once_s = _steps(step, state, batch, count=1)
        if once_s > limit_s:
            return Rate(batch.rows, once_s, 1)
    count = max(1, min(_STEPS, int(limit_s / once_s)))
    _, time_s = _steps(step, state, batch, count=count)
    return Rate(batch.rows * count, time_s, count)


def _steps(step: Any, state: Any, batch: PlacedBatch, *, count: int) -> tuple[Any, float]:
    """The state after so many steps, and the seconds until the devices have finished the last."""
    start = time.perf_counter()
    for left in reversed(range(count)):
        state, metrics = step(state, batch.data, batch.valid)
        if not left:
            metrics.wait()
    return state, time.perf_counter() - start


def judge(reading: Rate, step: Rate, *, simulated: bool, is_stream: bool) -> Finding:
    """Ok if the input is faster, by a tenth at least; else a warning with the share of time that devices would wait.

    Args:
      simulated: the devices are simulated, and the real ones may be faster than this step.
      is_stream: the data makes ready batches.
    """
    took, gave = step.rows_per_s, reading.rows_per_s
    rates = f"{format_rate(gave, 'rows')} against {format_rate(took, 'rows')}"
    step_text = f"; a step takes {format_duration(step.time_s / step.batches)}, each measured alone"
    step_text += ", on simulated devices: real ones may be faster" if simulated else ""
    if gave >= _MARGIN * took:
        return Finding(CHECK, "ok", f"input keeps up: {rates}{step_text}")
    if gave >= took:
        what = f"input hardly keeps up: {rates}{step_text}"
    else:
        what = f"input is too slow: {rates}, so the devices would wait {format_percent(1 - gave / took)} of the time"
        what += step_text
    each = reading.time_s / reading.batches
    fix = f"a batch takes {format_duration(each)} to make, in one thread: "
    fix += (
        "let the loader use worker processes (they have to spawn, not fork), or write decoded rows to disk once"
        if is_stream
        else "decode and resize rows once and keep them as arrays (paceline.rows, or memory-mapped files), or "
        "pass a loader with worker processes as paceline.stream(loader)"
    )
    return Finding(CHECK, "warning", what, fix)

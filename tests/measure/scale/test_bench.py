"""The stages of a run, measured on two simulated devices of this process; the counters of what is on its way."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import DataError
from paceline.engine.parallel import Parallel
from paceline.measure.scale import bench as benches
from paceline.measure.scale.bench import Bench, FitMarks, FlowCounter
from paceline.measure.scale.subject import STAGES, Subject
from paceline.measure.scale.trace import find_trace, read_trace
from tests.measure.scale.tasks import subject
from tests.train.compilations import counted


@pytest.fixture(scope="module")
def bench():
    """32 rows on two devices, compiled; every stage was run once, so that nothing is left to compile."""
    made = Bench(lambda batch: subject(scheme="per_device", noise_scale=True), jax.devices()[:2], batch=32)
    for stage in STAGES:
        made.measure(stage, steps=2)
    return made


@pytest.mark.clock(reason="a step takes less than a second")
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_timed_and_compiles_nothing(bench, stage):
    """A step takes some time, less than a second; the feed counts what is on its way: more than nothing, and no more
    than queue (2), hand (1) and steps in flight (2, and one more before it waits)."""
    with counted() as compiled:
        sample = bench.measure(stage, steps=6)
    assert compiled == []
    assert 0 < sample.step_s < 1
    assert 0 <= sample.wait_s < 1
    assert (sample.flow is not None) == (stage == "feed")
    if sample.flow is not None:
        assert sample.flow.step_s == sample.step_s
        assert 0 < sample.flow.in_flight <= 6


@pytest.mark.parametrize("stage", STAGES)
def test_every_measurement_begins_with_the_first_state_and_keeps_nothing_on_the_devices(bench, stage):
    """After six steps of any stage the parameters on the host are those of a new state, and no array is left over."""
    first = jax.device_get(bench._trainer.init(seed=0).params)
    gc.collect()
    before = len(jax.live_arrays())
    bench.measure(stage, steps=6)
    gc.collect()
    assert len(jax.live_arrays()) == before
    again = bench._first_state().params
    for name in ("in", "out"):
        np.testing.assert_array_equal(first[name], again[name])


def drawn(count: int):
    """A mean of normal numbers around 1 with variance 1: B_noise of ``(w - x)^2 / 2`` is 1 row where w is 0."""
    x = np.random.default_rng(0).normal(1.0, 1.0, size=count).astype("float32")
    task = paceline.task(
        lambda params, batch: (params["w"] - batch["x"]) ** 2 / 2, init=lambda rng: {"w": jnp.zeros(())}
    )
    return Subject(task, optax.sgd(1e-4), paceline.rows({"x": x}), parallel=Parallel("per_device", noise_scale=True))


def test_the_noise_scale_is_that_of_a_new_state_whatever_was_measured_before():
    """tr(S) = 1, |G|^2 = 1 at w = 0: 1 row, by pencil; the same number bit for bit before and after 2000 timed steps,
    which move w to about 0.2 of its way. `train` sees the same steps."""
    made = Bench(lambda batch: drawn(4096), jax.devices()[:2], batch=8)
    before = made.noise()
    assert before.steps == benches.NOISE_STEPS
    assert before.rows == pytest.approx(1.0, rel=0.35) and before.why_unknown == ""
    made.measure("step", steps=2000)
    made.measure("fit", steps=20)
    assert made.noise() == before
    seen = []
    trainer = paceline.Trainer(made.subject.task, made.subject.optimizer, devices=2, parallel=made.subject.parallel)
    trainer.fit(trainer.init(seed=0), made.subject.data, batch=8, steps=benches.NOISE_STEPS, callbacks=[
        lambda step, values: seen.append(values.get("train/noise_scale_rows"))
    ])  # fmt: skip
    assert seen[-1] == pytest.approx(before.rows, rel=1e-6)


def test_without_noise_measured_by_the_step_the_scale_is_unknown():
    """No step says anything: 0 seen."""
    assert (
        Bench(lambda batch: subject(), jax.devices()[:1], batch=32)
        .noise(steps=3)
        .why_unknown.startswith("0 steps seen")
    )


def test_a_truncated_step_that_does_not_fit_is_left_out_and_the_rest_is_measured(monkeypatch):
    """The runtime refuses its memory: the reason, and a real step that runs. With fsdp it is not even tried."""

    def refuses(*arguments, **named):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(benches.LocalStep, "compile", refuses)
    made = Bench(lambda batch: subject(), jax.devices()[:2], batch=32)
    assert "does not fit" in made.no_local
    assert made.measure("step", steps=2).step_s > 0
    monkeypatch.setattr(benches, "LocalStep", None)
    made = Bench(lambda batch: subject(placement="fsdp"), jax.devices()[:2], batch=32)
    assert "fsdp" in made.no_local and made.measure("feed", steps=2).step_s > 0


def test_a_trace_names_the_operations_of_both_devices(bench, tmp_path):
    """Of some real steps: each device computes, communicates, and its exposed communication is part of that."""
    bench.trace(str(tmp_path), steps=6)
    times = read_trace(find_trace(tmp_path), steps=6)
    assert [one.device for one in times] == [0, 1]
    for one in times:
        assert one.compute_s > 0
        assert 0 < one.exposed_s <= one.communication_s


def test_ready_batches_are_refused():
    """Their size is fixed, so other numbers of devices cannot share them otherwise."""
    made = subject()
    with pytest.raises(DataError) as error:
        Bench(lambda batch: dataclasses.replace(made, data=iter([])), jax.devices()[:1], batch=8)
    assert "paceline.rows" in error.value.fix


class _Time:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_latency_and_count_follow_the_batches():
    """A batch enters each second and leaves four seconds later, so L is 4 s, a step takes 1 s, four are on their way;
    what was on its way before the window counts from its opening, on both sides of Little's law alike."""
    clock, on_way = _Time(), [0]
    counter = FlowCounter(lambda: on_way[0], clock=clock)
    for second in range(40):
        clock.now_s = float(second)
        if second >= 4:
            on_way[0] -= 1
            counter.finished()
        if second < 36:
            counter.enters()
            on_way[0] += 1
    flow = counter.flow()
    assert flow.step_s == pytest.approx(1.0)
    # The window of 33 steps opens at second 6, with batches on their way that entered 3, 2 and 1 seconds before it.
    assert flow.latency_s == pytest.approx((33 * 4 - (3 + 2 + 1)) / 33)
    assert flow.in_flight == pytest.approx(flow.latency_s / flow.step_s)


def test_a_count_that_misses_a_batch_contradicts_the_latency():
    """The same, but one batch always waits where the count does not see it: one less of four."""
    clock, on_way = _Time(), [0]
    counter = FlowCounter(lambda: max(0, on_way[0] - 1), clock=clock)
    for second in range(400):
        clock.now_s = float(second)
        if second >= 4:
            on_way[0] -= 1
            counter.finished()
        counter.enters()
        on_way[0] += 1
    flow = counter.flow()
    assert flow.in_flight * flow.step_s / flow.latency_s == pytest.approx(0.75, abs=0.01)


def test_the_loop_is_timed_from_the_end_of_its_warm_up(monkeypatch):
    """Three steps of a minute, then two of two seconds that waited 0.5 s each."""
    now_s = iter([60.0, 120.0, 180.0, 182.0, 184.0])
    monkeypatch.setattr("paceline.measure.scale.bench.time.perf_counter", lambda: next(now_s))
    marks = FitMarks()
    for step, wait_s in enumerate([9.0, 9.0, 9.0, 0.5, 0.5]):
        marks(step, {"input/wait_s": wait_s})
    assert marks.sample().step_s == pytest.approx(2.0)
    assert marks.sample().wait_s == pytest.approx(0.5)


def operation(name, start, end, *, device):
    """An event of a trace, in microseconds."""
    return {
        "ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": end - start, "name": name,
        "args": {"hlo_op": name, "device_ordinal": str(device)},
    }  # fmt: skip


def test_an_instant_of_a_trace_counts_once(tmp_path):
    """Device 0, two steps: compute 0-40 and 30-60, a reduction 50-90 (30 of it alone), a branch around all that is no
    operation itself. Device 1 only computes."""
    events = [
        operation("fusion.1", 0, 40, device=0), operation("dot.2", 30, 60, device=0),
        operation("all-reduce.4", 50, 90, device=0), operation("conditional", 0, 100, device=0),
        operation("fusion.1", 0, 10, device=1), {"ph": "X", "pid": 1, "tid": 2, "ts": 0, "dur": 9, "name": "python"},
    ]  # fmt: skip
    path = tmp_path / "vm.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    first, second = read_trace(path, steps=2)
    assert (first.compute_s, first.communication_s, first.exposed_s) == pytest.approx((30e-6, 20e-6, 15e-6))
    assert (second.compute_s, second.communication_s, second.exposed_s) == pytest.approx((5e-6, 0, 0))


def test_operations_of_a_gpu_are_known_by_the_process_of_the_trace(tmp_path):
    """`/device:GPU:3`; a kernel of NCCL that carries the name of its operation is communication."""
    events = [
        {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/device:GPU:3"}},
        {"ph": "X", "pid": 7, "tid": 1, "ts": 0, "dur": 8, "name": "ncclDevKernel",
         "args": {"hlo_op": "all-reduce-start.1"}},
    ]  # fmt: skip
    path = tmp_path / "vm.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    (found,) = read_trace(path, steps=1)
    assert (found.device, found.compute_s) == (3, 0)
    assert found.exposed_s == pytest.approx(8e-6)


def test_no_trace_is_none(tmp_path):
    """A folder in which nothing was written."""
    assert find_trace(tmp_path) is None

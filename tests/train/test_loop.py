"""The order of things in the loop: what it waits for, what it fetches, what callbacks see, what is timed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from paceline.data.feed import Feed, Taken
from paceline.engine.metrics import StepMetrics
from paceline.engine.step import StepFunction
from paceline.train import loop
from paceline.train.evaluate import Evaluator
from paceline.train.loop import AHEAD
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros

STEPS = 8


class Devices:
    """Devices that finish a step only when they are waited for, and note each dispatch, wait and fetch by step.

    Args:
      instant: they finish each step at once.
    """

    def __init__(self, monkeypatch, *, instant=False):
        self.log: list[tuple[str, int]] = []
        self._order: list[int] = []
        self._kept: list[StepMetrics] = []  # a metrics object that was freed could lend its id to a later one
        self._finished: set[int] = set()
        self._instant = instant
        compiled, fetch = StepFunction.compiled, StepMetrics.fetch

        def compile_spied(function, state, batch, valid):
            program = compiled(function, state, batch, valid)

            def call(state, batch, valid):
                state, metrics = program.call(state, batch, valid)
                self._dispatched(metrics)
                return state, metrics

            return dataclasses.replace(program, call=call)

        monkeypatch.setattr(StepFunction, "compiled", compile_spied)
        monkeypatch.setattr(StepMetrics, "is_ready", lambda metrics: self.is_ready(metrics))
        monkeypatch.setattr(StepMetrics, "wait", lambda metrics: self.wait(metrics))
        monkeypatch.setattr(StepMetrics, "fetch", lambda metrics: self.fetch(metrics, fetch))

    def _dispatched(self, metrics):
        self._order.append(id(metrics))
        self._kept.append(metrics)
        self.log.append(("dispatch", self.step(metrics)))

    def step(self, metrics):
        return self._order.index(id(metrics)) + 1

    def is_ready(self, metrics):
        return self._instant or self.step(metrics) in self._finished

    def wait(self, metrics):
        if not self.is_ready(metrics):
            self.log.append(("wait", self.step(metrics)))
            self._finished.update(range(1, self.step(metrics) + 1))

    def fetch(self, metrics, real):
        assert self.is_ready(metrics), f"step {self.step(metrics)} was fetched while the devices still computed it"
        self.log.append(("fetch", self.step(metrics)))
        return real(metrics)


def expected_log(steps):
    """Dispatch 1, 2, 3, wait for and fetch 1, dispatch 4, wait for 2, ...; at the end the last two."""
    log = []
    for step in range(1, steps + 1):
        log.append(("dispatch", step))
        if step > AHEAD:
            log += [("wait", step - AHEAD), ("fetch", step - AHEAD)]
    for step in range(max(1, steps - AHEAD + 1), steps + 1):
        log += [("wait", step), ("fetch", step)]
    return log


@pytest.fixture
def train(monkeypatch):
    """`train(steps=..., instant=..., ...)` fits on spied devices and returns (log, report)."""

    def run(*, steps=STEPS, instant=False, **options):
        trainer = trainer_of(devices=2)
        state = trainer.init(zeros())
        with monkeypatch.context() as patch:
            devices = Devices(patch, instant=instant)
            _, report = trainer.fit(state, line(), batch=16, steps=steps, **options)
        return devices.log, report

    return run


def test_the_newest_steps_are_not_waited_for_until_the_end(train):
    """With devices that never finish on their own: when step n is waited for, n+1 and n+2 are dispatched already."""
    assert AHEAD == 2
    log, _ = train()
    assert log == expected_log(STEPS)


def test_nothing_is_waited_for_when_the_devices_are_fast(train):
    """Each step that is finished is fetched after its dispatch, and none is waited for."""
    log, _ = train(instant=True)
    assert log == [(what, step) for step in range(1, STEPS + 1) for what in ("dispatch", "fetch")]


def test_a_run_shorter_than_the_queue_waits_at_its_end_only(train):
    """2 steps: both are dispatched before the first is waited for."""
    log, _ = train(steps=2)
    assert [what for what, _ in log] == ["dispatch", "dispatch", "wait", "fetch", "wait", "fetch"]


def test_an_evaluation_adds_no_wait_for_a_step(train):
    """evaluate_every=2: waits, fetches and dispatches of steps are those of a run without."""
    log, report = train(evaluation=line(8), evaluate_every=2)
    assert log == expected_log(STEPS)
    assert report.evaluation["evaluate/rows"] == 8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_callback_gets_each_step_in_order(scheme):
    """Steps 1 to 6 with their own values: numpy's loss of w = b = 0 first, and all that an event holds."""
    trainer = trainer_of(scheme=scheme)
    seen = []
    trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=6, shuffle=False,
        callbacks=[lambda step, values: seen.append((step, values))],
    )  # fmt: skip
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    first = seen[0][1]
    assert first["train/loss"] == pytest.approx(float(np.mean(line()["y"][:16] ** 2)), rel=1e-5)
    assert first["train/rows"] == 16 and first["train/skipped_updates"] == 0
    assert {"train/gradient_norm", "input/wait_s", "input/queued_batches"} <= first.keys()
    assert "speed/step_s" not in first  # nothing before it to time from
    for _, values in seen[1 + AHEAD :]:
        assert values["speed/samples_per_s"] == pytest.approx(16 / values["speed/step_s"])
        assert values["speed/step_s"] > 0
    losses = [values["train/loss"] for _, values in seen]
    assert losses[-1] < losses[0]


def test_steps_go_on_counting_in_a_second_fit():
    """3 and 2 more: the callback sees 1, 2, 3 and then 4, 5."""
    trainer = trainer_of()
    seen = []
    state = trainer.init(zeros())
    for steps in (3, 2):
        state, _ = trainer.fit(
            state, line(), batch=16, steps=steps, callbacks=[lambda step, values: seen.append(step) and None]
        )
    assert seen == [1, 2, 3, 4, 5]


def test_a_callback_that_returns_true_ends_the_run():
    """True at step 3: at most the two steps in flight follow, all whole; the report says why, and counts them."""
    trainer = trainer_of()
    state, report = trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=100, callbacks=[lambda step, values: step == 3]
    )
    assert report.stopped == "callback"
    assert 3 <= report.steps <= 3 + AHEAD
    assert report.last_step == int(state.step) == report.steps
    assert report.rows_seen == 16 * report.steps
    again, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=report.steps)
    assert params_of(trainer, again) == params_of(trainer, state)


def test_a_callback_that_returns_something_else_ends_nothing():
    """None and False."""
    trainer = trainer_of()
    _, report = trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=4, callbacks=[lambda *_: None, lambda *_: False]
    )
    assert (report.steps, report.stopped) == (4, None)


def test_a_callback_that_raises_ends_the_run_with_its_own_error(tmp_path):
    """The exception as it is; the run folder says how the run ended, and no thread is left."""

    def broken(step, values):
        if step == 2:
            raise ZeroDivisionError("in step 2")

    trainer = trainer_of()
    with pytest.raises(ZeroDivisionError, match="in step 2") as caught:
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=50, callbacks=[broken], run=tmp_path / "run")
    assert "broken" in [entry.name for entry in caught.traceback]
    assert "ZeroDivisionError: in step 2" in (tmp_path / "run" / "report.json").read_text()


def test_a_wait_for_input_counts_as_far_as_the_devices_idle(monkeypatch, train):
    """The feed asks whether the newest step still runs: never-ending devices do, and instant ones do not. What it then
    tells is the step's own wait: 0.25 s for each batch but the first."""
    busy, waits = [], []

    def watched(feed, is_busy):
        for item in feed:
            busy.append(is_busy())
            yield Taken(item, idle_s=0.25, begun_s=0.0, make_s=0.0, place_s=0.0)

    monkeypatch.setattr(Feed, "watched", watched)
    train(steps=4, callbacks=[lambda step, values: waits.append(values["input/wait_s"]) and None])
    assert busy == [True] * 3 and waits == [0.0, 0.25, 0.25, 0.25]
    busy.clear()
    train(steps=4, instant=True)
    assert busy == [False] * 3


class Clock:
    """Stands in for the module `time`: each reading is told in advance."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s


@pytest.mark.parametrize("instant", [False, True])
def test_the_time_of_an_evaluation_is_no_step_time(monkeypatch, train, instant):
    """Steps of 1 s, evaluations of 100 s after 4 and 8: median, p95 and rate hold steps only, so 16 rows/s exactly.

    A step takes its second when it is waited for, or when it is dispatched if the devices are instant.
    """
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    name = "_dispatched" if instant else "wait"
    step, start = getattr(Devices, name), Evaluator.start

    def step_takes_a_second(devices, metrics):
        clock.now_s += 1.0 if instant or not devices.is_ready(metrics) else 0.0
        step(devices, metrics)

    def evaluation_takes_long(evaluator, *args, **options):
        clock.now_s += 100.0
        return start(evaluator, *args, **options)

    monkeypatch.setattr(Devices, name, step_takes_a_second)
    monkeypatch.setattr(Evaluator, "start", evaluation_takes_long)
    _, report = train(evaluation=line(8), evaluate_every=4, instant=instant)
    assert report.step_p95_s == report.step_p50_s == 1.0
    assert report.samples_per_s == 16.0


def test_a_step_that_began_unseen_is_not_timed(monkeypatch, train):
    """CPU devices hold up the dispatch of step 3 until 1 and 2 are done: from the end of 1 to that of 2, as they were
    noticed, no time passes. From there on each step takes a second, so the rate is 16 rows/s exactly."""
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    dispatched, wait = Devices._dispatched, Devices.wait

    def finishes_two_at_the_third(devices, metrics):
        dispatched(devices, metrics)
        if devices.step(metrics) == AHEAD + 1:
            devices._finished.update(range(1, AHEAD + 1))

    def step_takes_a_second(devices, metrics):
        clock.now_s += 0.0 if devices.is_ready(metrics) else 1.0
        wait(devices, metrics)

    monkeypatch.setattr(Devices, "_dispatched", finishes_two_at_the_third)
    monkeypatch.setattr(Devices, "wait", step_takes_a_second)
    seen = {}
    _, report = train(callbacks=[lambda step, values: seen.update({step: values.get("speed/step_s")})])
    assert seen == {1: None, 2: None} | dict.fromkeys(range(3, STEPS + 1), 1.0)
    assert report.samples_per_s == 16.0 and report.step_p50_s == 1.0

"""Ctrl-C: the step is finished and the report written; the second one stops at once."""

from __future__ import annotations

import json
import signal
import threading

import pytest

import paceline
from paceline.telemetry.reader import read_run
from paceline.train.interrupt import InterruptGuard
from paceline.train.loop import AHEAD
from tests.train.linear import line, params_of, trainer_of, zeros


def press_at(*steps):
    """A callback that sends SIGINT to this process once for each number that equals the step."""

    def press(step, values):
        for _ in range(steps.count(step)):
            signal.raise_signal(signal.SIGINT)

    return press


def test_ctrl_c_finishes_the_step_and_hands_over_the_state(tmp_path):
    """SIGINT at step 3: Interrupted, after at most the two steps in flight, with the state of a run of that length."""
    trainer = trainer_of()
    with pytest.raises(paceline.Interrupted) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=100, callbacks=[press_at(3)], run=tmp_path / "run",
            evaluation=line(8),
        )  # fmt: skip
    report, state = caught.value.report, caught.value.state
    assert isinstance(caught.value, KeyboardInterrupt)
    assert report.stopped == "interrupted"
    assert 3 <= report.steps == int(state.step) <= 3 + AHEAD
    assert str(report.steps) in str(caught.value)
    whole, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=report.steps)
    assert params_of(trainer, state) == params_of(trainer, whole)
    state, _ = trainer.fit(state, line(), batch=16, steps=1)  # alive: it can go on


def test_an_interrupted_run_leaves_its_report(tmp_path):
    """report.json says interrupted, the events hold every step and end with the reason; nothing was evaluated."""
    trainer = trainer_of()
    with pytest.raises(paceline.Interrupted) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=100, callbacks=[press_at(3)], run=tmp_path / "run",
            evaluation=line(8),
        )  # fmt: skip
    record = read_run(tmp_path / "run")
    report = json.dumps(caught.value.report.as_dict())
    assert record.report == json.loads(report, parse_constant=lambda _: None)  # NaN where no step was timed
    assert record.report["stopped"] == "interrupted"
    events = record.events_by_process[0]
    assert [event.step for event in events if event.kind == "step"] == list(range(1, caught.value.report.steps + 1))
    assert [event.kind for event in events if event.kind not in ("step", "audit")] == ["start", "end"]
    assert events[-1].text == "interrupted"


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    """Two SIGINTs at step 3: a plain KeyboardInterrupt out of the callback; the run folder still says so."""
    trainer = trainer_of()
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=100, callbacks=[press_at(3, 3)], run=tmp_path / "run"
        )
    assert not isinstance(caught.value, paceline.Interrupted)
    assert "press" in [entry.name for entry in caught.traceback]
    record = read_run(tmp_path / "run")
    assert record.report["stopped"] == "KeyboardInterrupt"
    assert record.events_by_process[0][-1].text == "KeyboardInterrupt"


@pytest.mark.parametrize("end", ["whole", "interrupted"])
def test_the_handler_before_is_put_back(end):
    """A handler of the caller's own is there again after fit, and was not called."""
    calls = []

    def own(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        trainer = trainer_of()
        presses = [press_at(2)] if end == "interrupted" else []
        try:
            trainer.fit(trainer.init(zeros()), line(), batch=16, steps=4, callbacks=presses)
        except paceline.Interrupted:
            assert end == "interrupted"
        assert signal.getsignal(signal.SIGINT) is own
        assert calls == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_fit_runs_outside_the_main_thread():
    """Where no handler can be set: it trains, and leaves the handler alone."""
    reports = []

    def train():
        trainer = trainer_of()
        reports.append(trainer.fit(trainer.init(zeros()), line(), batch=16, steps=2)[1])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert reports[0].steps == 2


def test_the_guard_asks_first_and_raises_second():
    """SIGINT once: `asked`. Twice: KeyboardInterrupt."""
    with InterruptGuard() as guard:
        assert not guard.asked
        signal.raise_signal(signal.SIGINT)
        assert guard.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


class PressingRows:
    """Rows of the line; reading one of them presses Ctrl-C."""

    def __init__(self, rows, press):
        self.data, self.press = line(rows), press

    def __len__(self):
        return len(self.data["x"])

    def __getitem__(self, row):
        if row == self.press:
            signal.raise_signal(signal.SIGINT)
        return {name: leaf[row] for name, leaf in self.data.items()}


@pytest.mark.parametrize("every", [None, 2])
def test_ctrl_c_during_an_evaluation_gives_it_up(every):
    """In the last one or in one between: Interrupted, all steps made so far kept, no half evaluation reported."""
    trainer = trainer_of()
    with pytest.raises(paceline.Interrupted) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=4, evaluation=PressingRows(64, 20), evaluate_every=every
        )
    assert caught.value.report.stopped == "interrupted"
    assert caught.value.report.steps == (4 if every is None else 2)
    assert caught.value.report.evaluation == {}

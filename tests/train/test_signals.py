"""SIGTERM, and SIGUSR1 under Slurm: the step is finished, the state saved, the code is 143, and the run goes on later.

Owns: signals that end a run with a checkpoint. Not here: Ctrl-C without one (`test_interrupt`).
"""

from __future__ import annotations

import signal
import threading

import pytest

import paceline
from paceline.checkpoint.files import steps
from paceline.cli.main import main
from paceline.telemetry.reader import read_run
from paceline.train.checkpoints import Checkpoints
from paceline.train.interrupt import InterruptGuard
from paceline.train.loop import AHEAD
from paceline.train.votes import Stop
from tests.train import saving
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros
from tests.train.saving import command, write_task

SAVING = Checkpoints(every=100)
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


@pytest.fixture(autouse=True)
def handlers_are_put_back(monkeypatch):
    """Whatever a run sets; and a task of a scheduler around the tests must not change what they see."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = {number: signal.getsignal(number) for number in (TERM, INT, USR1)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


def sends(*numbers, at=3):
    """A callback that sends signals to this process behind a step."""

    def send(step, values):
        if step == at:
            for number in numbers:
                signal.raise_signal(number)

    return send


def stopped(run, *numbers, kind=paceline.Terminated, trainer=None, **options):
    """What `fit` raises after the signals, at step 3 of 100."""
    trainer = trainer or trainer_of()
    with pytest.raises(kind) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=100, run=run, callbacks=[sends(*numbers)],
            checkpoints=SAVING, evaluation=line(16), **options,
        )  # fmt: skip
    return caught.value


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sigterm_finishes_the_step_saves_and_goes_on_bit_for_bit(scheme, tmp_path):
    """At step 3: at most the steps in flight follow, the checkpoint is of the last one, nothing is evaluated; resumed
    to 12, parameters equal an unbroken run's."""
    trainer = trainer_of(scheme=scheme)
    error = stopped(tmp_path / "run", TERM, trainer=trainer)
    assert isinstance(error, SystemExit) and error.code == 143
    last = error.report.last_step
    assert 3 <= last == int(trainer.single(error.state).step) <= 3 + AHEAD
    assert error.report.stopped == "terminated" and error.report.evaluation == {}
    assert steps(tmp_path / "run") == [last] and error.report.checkpoints == 1
    record = read_run(tmp_path / "run")
    assert record.report["stopped"] == "terminated" and record.events[-1].text == "terminated"
    state, report = trainer.fit(
        trainer.init(zeros(), seed=1), line(), batch=16, steps=12, run=tmp_path / "run", checkpoints=SAVING, resume=True
    )
    assert (report.resumed_at, report.steps, report.stopped) == (last, 12 - last, None)
    whole, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=12)
    assert params_of(trainer, state) == params_of(trainer, whole)


def test_a_second_sigterm_changes_nothing(tmp_path):
    """Three of them while the first is served: saved and reported once, as after one."""
    error = stopped(tmp_path / "run", TERM, TERM, TERM)
    assert steps(tmp_path / "run") == [error.report.last_step]


def test_sigterm_behind_ctrl_c_is_what_counts_and_ctrl_c_behind_it_ends_nothing_early(tmp_path):
    """Both in either order: terminated, saved. Only Ctrl-C twice stops at once."""
    for number, order in enumerate([(INT, TERM), (TERM, INT)]):
        error = stopped(tmp_path / str(number), *order)
        assert error.report.stopped == "terminated" and steps(tmp_path / str(number)) == [error.report.last_step]
    with pytest.raises(KeyboardInterrupt) as caught, InterruptGuard() as guard:
        signal.raise_signal(INT)
        assert guard.stop is Stop.INTERRUPT
        signal.raise_signal(INT)
    assert not isinstance(caught.value, paceline.Interrupted)


def test_ctrl_c_saves_too(tmp_path):
    """Interrupted, with the checkpoint of the last step."""
    error = stopped(tmp_path / "run", INT, kind=paceline.Interrupted)
    assert error.report.stopped == "interrupted" and steps(tmp_path / "run") == [error.report.last_step]


def test_sigusr1_counts_under_slurm_alone(tmp_path, monkeypatch):
    """With SLURM_JOB_ID it is SIGTERM; without it the handler of the caller's is called and the run goes on."""
    calls = []
    before = signal.signal(USR1, lambda number, frame: calls.append(number))
    try:
        trainer = trainer_of()
        _, report = trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=6, run=tmp_path / "alone", callbacks=[sends(USR1)]
        )
        assert (report.steps, report.stopped, calls) == (6, None, [USR1])
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        error = stopped(tmp_path / "slurm", USR1)
        assert error.code == 143 and steps(tmp_path / "slurm") == [error.report.last_step] and calls == [USR1]
    finally:
        signal.signal(USR1, before)


class SignalledRows:
    """Rows of the line; reading one of them sends a signal."""

    def __init__(self, number, row):
        self.data, self.number, self.row = line(64), number, row

    def __len__(self):
        return 64

    def __getitem__(self, row):
        if row == self.row:
            signal.raise_signal(self.number)
        return {name: leaf[row] for name, leaf in self.data.items()}


def test_sigterm_during_an_evaluation_gives_it_up_and_saves(tmp_path):
    """All steps made so far are kept; no half evaluation is reported."""
    trainer = trainer_of()
    with pytest.raises(paceline.Terminated) as caught:
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=8, run=tmp_path / "run", checkpoints=SAVING,
            evaluation=SignalledRows(TERM, 20), evaluate_every=4,
        )  # fmt: skip
    assert caught.value.report.steps == 4 and caught.value.report.evaluation == {}
    assert steps(tmp_path / "run") == [4]


def test_a_script_that_catches_nothing_exits_with_143():
    """Terminated is a SystemExit: Python itself makes it the exit code."""
    with pytest.raises(SystemExit) as caught:
        raise paceline.Terminated(None, type("Report", (), {"last_step": 3})())  # pyright: ignore[reportArgumentType] - only printed
    assert caught.value.code == 143 and str(caught.value) == "terminated after step 3"


@pytest.mark.parametrize(("number", "code", "word"), [(TERM, 143, "terminated"), (INT, 130, "interrupted")])
def test_the_command_line_ends_with_the_code_and_goes_on_with_resume(number, code, word, tmp_path, monkeypatch, capfd):
    """Report printed, no traceback; --resume makes the rest of the 150 steps and exits 0, with the parameters of an
    untouched run."""
    monkeypatch.chdir(tmp_path)
    task = write_task(tmp_path)
    train = ["train", task, "--devices", 2, "--steps", 150, "--progress", "none"]

    def send(reads):
        if reads == 30:  # the feed reads, in a thread of its own
            signal.pthread_kill(threading.main_thread().ident, number)

    monkeypatch.setattr(saving, "at_read", send)
    ran = command(capfd, *train, "--run", "run")
    assert ran.code == code and f"ended early: {word}" in ran.out and "Traceback" not in ran.err
    (last,) = steps(tmp_path / "run")
    assert 25 <= last <= 60
    monkeypatch.setattr(saving, "at_read", lambda reads: None)
    ran = command(capfd, *train, "--run", "run", "--resume")
    assert ran.code == 0 and f"resumed from step {last}" in ran.out and f"steps       {150 - last}" in ran.out
    assert command(capfd, *train, "--run", "whole").code == 0
    for run in ("run", "whole"):
        assert main(["export", run, f"{run}.safetensors"]) == 0
    assert (tmp_path / "run.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()

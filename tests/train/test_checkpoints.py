"""When a run saves, what stays, and what follows when a save fails."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import DataError, OptionError, SaveError
from paceline.checkpoint.files import steps
from paceline.telemetry.progress import SilentProgress
from paceline.telemetry.reader import read_run
from paceline.telemetry.recorder import NullRecorder
from paceline.train.checkpoints import Checkpoints, RunCheckpoints
from tests.train import saving
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros
from tests.train.saving import command, fill, small_disk, until_saved, write_task


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"every": 0}, "above 0 for every"),
        ({"every": 2.5}, "whole for every"),
        ({"minutes": -1.0}, "above 0 for minutes"),
        ({"keep": 0}, "above 0 for keep"),
        ({"on_failure": "ignore"}, "use one of fail, warn"),
    ],
)
def test_options_without_sense_are_refused(options, fix):
    """At once, with the field named."""
    with pytest.raises(OptionError, match=fix):
        Checkpoints(**options)


class NotedStore:
    """What a run asks of its store, in order."""

    def __init__(self):
        self.calls = []
        self.failure = None

    def save(self, state, step, *, meta):
        self.calls.append(("save", step))

    def forget_after(self, step):
        self.calls.append(("forget", step))


def policy(options, *, now=lambda: 0.0, resumed_at=None):
    store = NotedStore()
    return store, RunCheckpoints(
        options, store, single=lambda state: state, meta={}, recorder=NullRecorder(), progress=SilentProgress(),
        resumed_at=resumed_at, clock=now,
    )  # fmt: skip


def test_updates_are_counted_from_the_beginning_of_the_state():
    """every=3: due at 3, 6, 9, also for a run resumed at 4; without `every` or without a store never."""
    _, every = policy(Checkpoints(every=3), resumed_at=4)
    assert [step for step in range(5, 12) if every.is_due(step)] == [6, 9]
    assert not any(policy(Checkpoints())[1].is_due(step) for step in range(1, 12))
    none = RunCheckpoints(Checkpoints(every=1), None, single=None, meta={}, recorder=None, progress=None)
    assert not none.is_due(1) and not none.is_time() and none.notices() == [] and none.failure is None


@pytest.fixture(scope="module")
def state():
    return trainer_of().init(zeros())


def test_minutes_are_counted_from_the_last_save(state):
    """10 minutes: time at 600 s, and again 600 s after a save, whatever it was made for."""
    clock = [0.0]
    _, timed = policy(Checkpoints(minutes=10), now=lambda: clock[0])
    times = []
    for second in range(0, 2000, 100):
        clock[0] = float(second)
        if timed.is_time() or second == 900:
            times.append(second)
            timed.save(state, step=second)
    assert times == [600, 900, 1500]


def test_a_step_is_saved_once_and_that_of_the_resumed_checkpoint_not_again(state):
    """The first save of a resumed run takes the later checkpoints of its other past away first."""
    store, own = policy(Checkpoints(every=1), resumed_at=4)
    for step in (4, 5, 5, 6):
        own.save(state, step)
    assert store.calls == [("forget", 4), ("save", 5), ("save", 6)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [12]),
        ({"every": 5, "keep": 9}, [5, 10, 12]),
        ({"every": 5, "keep": 2}, [10, 12]),
        ({"every": 6, "keep": 9}, [6, 12]),
        ({"minutes": 1e-9, "keep": 99}, list(range(1, 13))),
    ],
)
def test_a_run_leaves_these_checkpoints(options, expected, tmp_path):
    """12 steps: at each fifth and the last; the last alone; the newest two; every step where any time is too long."""
    trainer = trainer_of()
    _, report = trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=12, run=tmp_path / "run", checkpoints=Checkpoints(**options)
    )
    assert steps(tmp_path / "run") == expected
    saved = 3 if options == {"every": 5, "keep": 2} else len(expected)
    assert report.checkpoints == saved and 0 < report.checkpoint_s < report.total_s
    told = [event for event in read_run(tmp_path / "run").events if event.kind == "checkpoint"]
    assert len(told) == saved
    assert (told[-1].step, told[-1].text) == (12, "checkpoint of step 12 saved")


def test_without_checkpoints_nothing_is_saved(tmp_path):
    """No folder, no word of it in the report; nor with checkpoints but without a run folder."""
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=2, run=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists() and not any(
        entry.startswith("checkpoints") for entry in report.lines()
    )
    _, report = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=2, checkpoints=Checkpoints(every=1))
    assert report.checkpoints == 0


def test_the_best_by_an_evaluation_stays_and_each_evaluated_state_is_saved(tmp_path):
    """A rate that grows until it diverges: the lowest loss of evaluation is at step 2 or 4, kept beside the last 1."""
    trainer = trainer_of(optimizer=optax.sgd(lambda count: 0.2 * (count + 1)))
    losses = {}

    def note(step, values):
        if "evaluate/loss" in values:
            losses[step] = values["evaluate/loss"]

    trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=10, run=tmp_path / "run", evaluation=line(16), evaluate_every=2,
        checkpoints=Checkpoints(keep=1, best="evaluate/loss"), callbacks=[note],
    )  # fmt: skip
    best = min(losses, key=losses.get)
    assert sorted(losses) == [2, 4, 6, 8, 10] and best != 10
    assert steps(tmp_path / "run") == [best, 10]
    restored = paceline.restore(tmp_path / "run", trainer.init(zeros()), step=best)
    assert trainer.evaluate(restored, line(16))["loss"] == losses[best]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_saving_every_step_beside_evaluations_and_an_average_reads_no_deleted_array(scheme, tmp_path):
    """jax#7144, orbax#626, donation on: each checkpoint holds the parameters and the average of its step, which numpy
    computes from the parameters of the steps before (float32, rtol 1e-6)."""
    trainer = trainer_of(scheme=scheme, ema_decay=0.5)
    assert trainer.parallel.donate
    _, report = trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=6, run=tmp_path / "run", evaluation=line(16), evaluate_every=1,
        checkpoints=Checkpoints(every=1, keep=99), audit_every=1,
    )  # fmt: skip
    assert report.checkpoints == 6 and steps(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    other, ema, like = trainer_of(scheme=scheme), zeros(), trainer.init(zeros(), seed=3)
    state = other.init(zeros())
    for step in range(1, 7):
        state, _ = other.fit(state, line(), batch=16, steps=1)
        saved = trainer.single(paceline.restore(tmp_path / "run", like, step=step))
        for name, leaf in params_of(other, state).items():
            ema[name] = 0.5 * ema[name] + 0.5 * leaf
            assert np.asarray(saved.params[name]).tobytes() == leaf.tobytes(), (step, name)
            np.testing.assert_allclose(saved.ema[name], ema[name], rtol=1e-6)


def test_a_run_that_ends_with_a_bad_number_keeps_no_checkpoint_behind_the_last_good_step(tmp_path):
    """Not finite from step 4 on: the newest checkpoint is that of step 3, so that a resumed run is not lost too."""

    def loss(params, batch):
        return (batch["x"] * params["w"] - batch["y"]) ** 2 * batch["scale"]

    trainer = trainer_of(loss)
    data = {**line(), "scale": np.where(np.arange(64) < 48, 1.0, np.nan).astype(np.float32)}
    with pytest.raises(DataError) as caught:
        trainer.fit(
            trainer.init({"w": np.zeros((), np.float32)}), data, batch=16, steps=12, shuffle=False,
            run=tmp_path / "run", checkpoints=Checkpoints(every=1, keep=9),
        )  # fmt: skip
    assert steps(tmp_path / "run") == [1, 2, 3]
    restored = paceline.restore(tmp_path / "run", trainer.init({"w": np.ones((), np.float32)}))
    assert float(restored.params["w"]) == float(caught.value.state.params["w"]) != 0


def test_fit_trains_to_the_end_and_raises_with_the_state_when_a_save_failed(tmp_path):
    """The folder of checkpoints is replaced by a file: SaveError after step 12 with the last state; or a notice."""
    trainer = trainer_of()

    def run(name, on_failure):
        def block(step, values):
            folder = tmp_path / name / "checkpoints"
            if step == 6 and folder.is_dir():
                until_saved(tmp_path / name, 3)
                shutil.rmtree(folder)
                folder.write_text("in the way")

        return trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=12, run=tmp_path / name, callbacks=[block],
            checkpoints=Checkpoints(every=3, on_failure=on_failure),
        )  # fmt: skip

    with pytest.raises(SaveError, match="could not be saved") as caught:
        run("fail", "fail")
    assert int(caught.value.state.step) == 12
    state, report = run("warn", "warn")
    assert params_of(trainer, state) == params_of(trainer, caught.value.state)
    assert any("could not be saved" in notice for notice in report.notices)
    saved = json.loads((tmp_path / "fail" / "report.json").read_text())
    assert saved["steps"] == 12 and any("could not be saved" in notice for notice in saved["notices"])


@pytest.fixture
def task(tmp_path, monkeypatch):
    """The task file, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    jax.devices()
    return write_task(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's threads end after its loop
@pytest.mark.parametrize(("follows", "code"), [("fail", 1), ("warn", 0)])
def test_a_full_disk_is_said_at_once_and_the_checkpoint_before_is_gone_on_from(
    follows, code, task, tmp_path, monkeypatch, capfd
):
    """8 MB are filled behind step 4 of 30: said before the next lines of progress, trained to the end, exit 1 (0 if so
    asked); with room again, --resume goes on from what was there and ends as an undisturbed run does."""
    disk = tmp_path / "disk"
    train = ["train", task, "--devices", 2, "--steps", 30, "--large", 100_000, "--checkpoint-every", 2]

    def fill_behind_4(number):
        if number == 10:
            until_saved(disk / "run", 4)
            fill(disk)

    with small_disk(disk, megabytes=8):
        monkeypatch.setattr(saving, "at_read", fill_behind_4)
        ran = command(capfd, *train, "--run", disk / "run", "--progress", "plain", "--on-save-failure", follows)
        assert ran.code == code, ran.err
        said = ran.err.index("the disk is full")
        assert said < ran.err.index("step 30/30") and "could not be saved" in ran.err[:said]
        assert "Traceback" not in ran.err and ("steps       30" in ran.out) is (code == 0)
        left = steps(disk / "run")
        assert left and 4 <= max(left) < 30
        monkeypatch.undo()
        (disk / "filler").unlink()
        monkeypatch.chdir(tmp_path)
        again = command(capfd, *train, "--run", disk / "run", "--resume", "--progress", "none")
        assert again.code == 0, again.err
        assert f"resumed from step {max(left)}" in again.out and max(steps(disk / "run")) == 30
        assert command(capfd, *train, "--run", "whole", "--progress", "none").code == 0
        one, other = (paceline.restore(run, _like()) for run in (disk / "run", "whole"))
        assert jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), one) == jax.tree.map(
            lambda leaf: np.asarray(leaf).tobytes(), other
        )


def _like():
    leaf = jax.ShapeDtypeStruct((), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    return {"w": leaf, "b": leaf, "large": jax.ShapeDtypeStruct((100_000,), np.float32, sharding=leaf.sharding)}


def test_a_folder_that_is_removed_during_the_run_is_said_at_once(task, tmp_path, monkeypatch, capfd):
    """Exit 1 after all 30 steps, with the folder named; the report on the terminal is whole."""

    def remove(number):
        if number == 10:
            until_saved(tmp_path / "run", 6)  # no save is under way: the next one waits for this read
            (tmp_path / "run").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(saving, "at_read", remove)
    ran = command(
        capfd, "train", task, "--devices", 2, "--steps", 30, "--checkpoint-every", 6, "--run", "run", "--progress",
        "plain",
    )  # fmt: skip
    assert ran.code == 1
    assert ran.err.index("the folder is gone") < ran.err.index("step 30/30")
    assert str(tmp_path / "run") in ran.err and "Traceback" not in ran.err
    assert steps(tmp_path / "elsewhere") == [6]

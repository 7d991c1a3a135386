"""What a run owes to the one that it goes on from: its folder, its evaluations, its report, a word where nothing was
saved."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading

import numpy as np
import pytest

from paceline.base.errors import OptionError, RunFolderError
from paceline.cli.options import apply_config
from paceline.cli.run_options import RunOptions
from paceline.data.source import rows
from paceline.telemetry.folder import RunFolder
from paceline.telemetry.reader import read_run
from paceline.train.checkpoints import Checkpoints
from paceline.train.facts import _sample
from paceline.train.interrupt import Terminated
from tests.train.linear import line, trainer_of, zeros


def evaluated(run) -> list[int]:
    return [event.step for event in read_run(run).events if event.kind == "evaluation"]


def train(run, *, steps=16, evaluation=None, **options):
    trainer = trainer_of()
    options = {"checkpoints": Checkpoints(every=4), **options}
    return trainer.fit(
        trainer.init(zeros()), line(64), batch=16, steps=steps, evaluation=evaluation or line(32), evaluate_every=4,
        run=run, **options,
    )  # fmt: skip


def test_a_folder_in_which_a_run_trains_is_refused_to_another(tmp_path):
    """While the first lasts; afterwards it may be resumed."""
    run, refused = tmp_path / "run", []

    def try_it(step, values):
        if step == 2:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    def second():
        try:
            train(run, steps=20, resume="auto")
        except RunFolderError as error:
            refused.append(error)

    train(run, callbacks=[try_it])
    assert len(refused) == 1 and "another run trains" in refused[0].what and "stop it" in refused[0].fix
    assert train(run, steps=20, resume=True)[1].last_step == 20


def test_a_folder_is_free_again_after_its_process(tmp_path):
    """The lock is the kernel's: it goes with the descriptor, whatever happens to the process."""
    folder = RunFolder.create(tmp_path / "run")
    with folder.taken(), pytest.raises(RunFolderError), folder.taken():
        pass
    with folder.taken():
        pass


class Held:
    """Rows to evaluate on; the first read after `armed` sends SIGTERM to this process."""

    def __init__(self) -> None:
        self.rows, self.armed = rows(line(32)), False

    def __len__(self) -> int:
        return 32

    def read(self, indices):
        if self.armed:
            self.armed = False
            os.kill(os.getpid(), signal.SIGTERM)
        return self.rows.read(indices)


def test_an_evaluation_that_a_signal_cut_off_is_made_up_for(tmp_path):
    """SIGTERM while the state of step 8, which is saved, is evaluated: the resumed run has the evaluations of an
    unbroken one, with their values."""
    run, whole, held = tmp_path / "run", tmp_path / "whole", Held()

    def arm(step, values):
        held.armed = held.armed or (step == 4 and "evaluate/loss" in values)

    with pytest.raises(Terminated) as ended:
        train(run, callbacks=[arm], evaluation=held)
    assert ended.value.report.last_step == 8 and evaluated(run) == [4]
    resumed = train(run, resume=True)[1]
    unbroken = train(whole)[1]
    assert evaluated(run) == evaluated(whole) == [4, 8, 12, 16]
    assert resumed.resumed_at == 8 and resumed.evaluation == unbroken.evaluation


def test_a_state_is_evaluated_again_only_where_it_was_to_be_evaluated(tmp_path):
    """Gone on from step 6: no evaluation of 6."""
    run = tmp_path / "run"
    train(run, steps=6, checkpoints=Checkpoints(every=6))
    assert evaluated(run) == [4, 6]  # the last step of a run is evaluated
    train(run, steps=8, resume=True)
    assert evaluated(run) == [4, 6, 8]


def test_a_finished_run_keeps_its_report_and_says_that_nothing_was_left(tmp_path):
    """`report.json` and `run.json` are those of the run that trained."""
    run = tmp_path / "run"
    train(run)
    before = [(run / name).read_bytes() for name in ("report.json", "run.json")]
    _, report = train(run, resume=True)
    assert report.steps == 0 and any("nothing was left to train" in notice for notice in report.notices)
    assert [(run / name).read_bytes() for name in ("report.json", "run.json")] == before
    assert json.loads(before[0])["steps"] == 16


def test_auto_says_when_a_run_that_was_there_has_no_checkpoint(tmp_path):
    """Its checkpoints were taken away, or it was killed before the first."""
    run = tmp_path / "run"
    train(run, checkpoints=Checkpoints())
    for file in sorted((run / "checkpoints").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    _, report = train(run, resume="auto")
    assert report.resumed_at is None and any("begins anew" in notice for notice in report.notices)


def test_a_metric_for_the_best_that_no_evaluation_gives_is_said(tmp_path):
    """With those that there are."""
    _, report = train(tmp_path / "run", checkpoints=Checkpoints(best="max:evaluate/nosuch"))
    told = [notice for notice in report.notices if "nosuch" in notice]
    assert len(told) == 1 and "evaluate/loss" in told[0]


def test_a_best_checkpoint_without_checkpoints_is_refused():
    """`--keep-best` with `--checkpoint-every off`."""
    with pytest.raises(OptionError, match="keep-best") as caught:
        RunOptions(checkpoint_every="off", keep_best="evaluate/loss").checkpoints()
    assert "--checkpoint-every end" in caught.value.fix


@pytest.mark.parametrize(
    ("entries", "every", "resumes"),
    [({"checkpoint_every": 5, "resume": True}, 5, True), ({"checkpoint_every": "7", "resume": 400}, 7, 400),
     ({"checkpoint_every": 5, "resume": "auto"}, 5, "auto"), ({"checkpoint_every": 5, "resume": False}, 5, False)],
)  # fmt: skip
def test_a_configuration_file_may_hold_numbers_and_truth_values(entries, every, resumes):
    """As TOML has them: ``checkpoint_every = 5``, ``resume = true``."""
    options = apply_config(entries, "run.toml", defaults=[RunOptions()])[0]
    assert options.checkpoints().every == every
    assert options.resumes() == resumes and type(options.resumes()) is type(resumes)


def test_arrays_are_compared_whole():
    """One value of row 37 is enough; of a large array, so many rows spread over it."""
    x = np.arange(200, dtype=np.float32)
    other = x.copy()
    other[37] += 1
    assert _sample(rows({"x": x}), "data") != _sample(rows({"x": other}), "data")
    assert _sample(rows({"x": x}), "data") == _sample(rows({"x": x.copy()}), "data")


def test_every_option_of_a_run_is_still_a_plain_value():
    """A document of a run holds them as JSON."""
    assert json.loads(json.dumps(dataclasses.asdict(RunOptions())))["checkpoint_every"] == "10min"

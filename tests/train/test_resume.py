"""What `--resume` goes on from, and what it refuses; options of saving, weights alone.

Not here: that a resumed run is the unbroken one (`tests/properties/test_resume.py`).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import CheckpointError, OptionError
from paceline.checkpoint.files import steps
from paceline.checkpoint.store import Store
from paceline.cli.options import with_value
from paceline.cli.run_options import RunOptions
from paceline.telemetry.reader import read_run
from paceline.train.checkpoints import Checkpoints
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros
from tests.train.saving import command, small_disk, write_task

QUIET = ("--devices", 2, "--progress", "none")


@pytest.fixture
def task(tmp_path, monkeypatch):
    """The task file, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    jax.devices()
    return write_task(tmp_path)


@pytest.fixture
def trained(task, capfd):
    """Steps 1 to 8 of a run in ``run``, saved at 2, 4, 6 and 8; gives the arguments of its command."""
    arguments = ["train", task, *QUIET, "--checkpoint-every", 2, "--keep", 9, "--run", "run"]
    assert command(capfd, *arguments, "--steps", 8).code == 0
    assert steps("run") == [2, 4, 6, 8]
    return arguments


def refused(capfd, *arguments):
    """Exit code 2 with what, why and fix and nothing else; returns them."""
    ran = command(capfd, *arguments)
    assert ran.code == 2, (ran.out, ran.err)
    assert ran.err.startswith("error: ") and ran.err.count("\n  why: ") == ran.err.count("\n  fix: ") == 1, ran.err
    assert ran.out == ""
    return ran.err


def events(run):
    """Steps in the order in which they were written."""
    return [event.step for event in read_run(run).events if event.kind == "step"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--batch", 8], "batch was 16 and is 8"),
        (["--seed", 1], "seed was 0 and is 1"),
        (["--rows", 48], "rows was 64 and is 48"),
        (["--remainder", "pad"], "remainder was 'drop' and is 'pad'"),
        (["--no-shuffle"], "shuffle was True and is False"),
    ],
)
def test_other_rows_or_another_order_are_refused(change, named, trained, capfd):
    """Field by field, both values told; nothing in the folder changes."""
    said = refused(capfd, *trained, "--steps", 12, "--resume", *change)
    assert f"the checkpoint of step 8 is of another run: {named}" in said and "--weights" in said
    assert steps("run") == [2, 4, 6, 8] and events("run") == list(range(1, 9))


@pytest.mark.parametrize(
    ("change", "leaves"),
    [
        (["--large", 3], ["params.large", "opt_state.0.trace.large", "is (1,) there and (3,) here"]),
        (["--ema-decay", 0.9], ["ema.w"]),
        (["--precision", "float16"], ["loss_scale.scale"]),
    ],
)
def test_another_model_is_refused_with_its_leaves(change, leaves, trained, capfd):
    """Shapes, and parts of a state that the other options have."""
    said = refused(capfd, *trained, "--steps", 12, "--resume", *change)
    assert all(leaf in said for leaf in leaves), said


def test_another_task_is_refused_by_its_name(trained, task, tmp_path, capfd):
    """Same shapes, same rows, another loss."""
    (tmp_path / "other.py").write_text((tmp_path / "saved.py").read_text().replace('"saved"', '"other"'))
    arguments = [str(tmp_path / "other.py") if argument == task else argument for argument in trained]
    assert "task was 'saved' and is 'other'" in refused(capfd, *arguments, "--steps", 12, "--resume")


def test_a_finished_run_trains_nothing_twice(trained, capfd):
    """Exit 0, 0 steps, the state of step 8; the checkpoints and the events are as they were."""
    before = events("run")
    ran = command(capfd, *trained, "--steps", 8, "--resume", "--json", "out.json")
    assert ran.code == 0, ran.err
    report = json.loads(Path("out.json").read_text())["report"]
    assert (report["steps"], report["last_step"], report["resumed_at"], report["rows_seen"]) == (0, 8, 8, 0)
    assert "resumed from step 8" in ran.out
    assert steps("run") == [2, 4, 6, 8] and events("run") == before
    assert command(capfd, *trained, "--steps", 5, "--resume").code == 0 and events("run") == before


def test_resume_at_a_step_takes_that_of_it_and_forgets_the_later_past(trained, capfd):
    """--resume 4: steps 5 to 9 follow; the checkpoints of 6 and 8 are of another past and go with the first save."""
    ran = command(capfd, *trained, "--steps", 9, "--resume", 4)
    assert ran.code == 0 and "resumed from step 4" in ran.out
    assert events("run") == [*range(1, 9), *range(5, 10)] and steps("run") == [2, 4, 6, 8, 9]
    assert "no checkpoint of step 5" in (said := refused(capfd, *trained, "--steps", 12, "--resume", 5))
    assert "choose one that is there: 2, 4, 6, 8, 9" in said


def test_resume_alone_goes_on_with_the_newest_run_of_the_task(task, capfd):
    """Without --run: the folder in runs/; without a run there it is said."""
    assert "no run of 'saved' in 'runs'" in refused(capfd, "train", task, *QUIET, "--steps", 3, "--resume")
    assert command(capfd, "train", task, *QUIET, "--steps", 3).code == 0
    ran = command(capfd, "train", task, *QUIET, "--steps", 5, "--resume")
    assert ran.code == 0 and "resumed from step 3" in ran.out


def test_auto_begins_anew_goes_on_and_begins_anew_where_nothing_was_saved(task, tmp_path, capfd):
    """A new folder; a run with a checkpoint; a run that was killed before or in its first save."""
    arguments = ["train", task, *QUIET, "--run", "run", "--resume", "auto"]
    ran = command(capfd, *arguments, "--steps", 3)
    assert ran.code == 0 and "resumed" not in ran.out
    assert "resumed from step 3" in command(capfd, *arguments, "--steps", 5).out
    for left in (None, "2.saving"):
        shutil.rmtree(tmp_path / "run" / "checkpoints")
        if left:
            (tmp_path / "run" / "checkpoints" / left / "default").mkdir(parents=True)
        ran = command(capfd, *arguments, "--steps", 4)
        assert ran.code == 0 and "resumed" not in ran.out and steps("run") == [4], ran.err
    assert "--resume auto without --run" in refused(capfd, "train", task, *QUIET, "--steps", 3, "--resume", "auto")


def test_a_damaged_checkpoint_is_skipped_with_a_word_and_the_one_before_gone_on_from(trained, capfd):
    """One byte of step 8: said on the terminal and in the report; steps 7 to 10 end as those of an untouched run."""
    spoil(8)
    plain = ["plain" if argument == "none" else argument for argument in trained]
    ran = command(capfd, *plain, "--steps", 10, "--resume")
    assert ran.code == 0
    assert "the checkpoint of step 8 is damaged and was skipped" in ran.err
    assert "note        the checkpoint of step 8 is damaged" in ran.out and "resumed from step 6" in ran.out
    whole = [{"run": "whole"}.get(argument, argument) for argument in trained]
    assert command(capfd, *whole, "--steps", 10).code == 0
    for run in ("run", "whole"):
        assert command(capfd, "export", run, f"{run}.safetensors").code == 0
    assert Path("run.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()


def test_no_sound_checkpoint_is_an_error_that_names_each(trained, capfd):
    """All four damaged: exit 2, all four named; a damaged one that was asked for by its step is not replaced."""
    spoil(8)
    assert "step 8" in refused(capfd, *trained, "--steps", 10, "--resume", 8)
    for step in (2, 4, 6):
        spoil(step)
    said = refused(capfd, *trained, "--steps", 10, "--resume")
    assert all(f"step {step}" in said for step in (2, 4, 6, 8)) and "begin the run anew" in said


def spoil(step):
    """Change one byte in the middle of the largest file of a checkpoint."""
    files = [file for file in Path("run", "checkpoints", str(step)).rglob("*") if file.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_wrong_folder_is_named_with_what_is_there_instead(trained, tmp_path, capfd):
    """Nothing there; a file; a folder without a checkpoint; the folder above the run."""
    arguments = trained[:-1]
    assert "no checkpoint at" in refused(capfd, *arguments, "nowhere", "--steps", 9, "--resume")
    assert "is a file" in refused(capfd, *arguments, "saved.py", "--steps", 9, "--resume")
    (tmp_path / "empty").mkdir()
    assert "no checkpoint in" in refused(capfd, *arguments, "empty", "--steps", 9, "--resume")
    said = refused(capfd, *arguments, tmp_path, "--steps", 9, "--resume")
    assert "holds runs, not checkpoints" in said and str(tmp_path / "run") in said


def test_a_folder_of_another_run_is_refused_without_resume(trained, capfd):
    """As ever: a run does not write over another one."""
    assert "exists and is not empty" in refused(capfd, *trained, "--steps", 9)


def test_a_read_only_disk_is_an_error_before_the_first_step(task, tmp_path, capfd):
    """For a new run and for one that would go on: exit 2, the reason and the folder named."""
    disk = tmp_path / "disk"
    train = ["train", task, *QUIET, "--run"]
    with small_disk(disk, megabytes=8) as remount:
        assert command(capfd, *train, disk / "run", "--steps", 3).code == 0
        remount("ro")
        for run, more in ((disk / "run", ["--resume"]), (disk / "new", [])):
            said = refused(capfd, *train, run, "--steps", 5, *more)
            assert "read-only" in said and str(run) in said
        remount("rw")
        assert command(capfd, *train, disk / "run", "--steps", 5, "--resume").code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", (5, None)), ("90s", (None, 1.5)), ("10min", (None, 10.0)), ("2h", (None, 120.0)), ("0.5 h", (None, 30.0)),
        ("off", (None, None)), ("end", (None, None)),
    ],
)  # fmt: skip
def test_how_often_to_save(text, expected):
    """Updates, or a time; off and end save at none of these moments."""
    options = RunOptions(checkpoint_every=text).checkpoints()
    if text == "off":
        assert options is None
    else:
        assert (options.every, options.minutes) == expected


@pytest.mark.parametrize("text", ["nonsense", "0", "-5", "2.5", "5 steps", "0min", "", "1d"])
def test_how_often_to_save_without_sense_is_refused(text):
    """With the forms that are known."""
    with pytest.raises(OptionError, match="such as 500, a time such as 90s, 10min or 2h, end, or off"):
        RunOptions(checkpoint_every=text).checkpoints()


def test_off_saves_nothing_and_end_only_the_last(task, capfd):
    """8 steps: no folder of checkpoints; that of step 8."""
    for every, expected in (("off", []), ("end", [8])):
        ran = command(capfd, "train", task, *QUIET, "--steps", 8, "--checkpoint-every", every, "--run", every)
        assert ran.code == 0 and steps(every) == expected, ran.err
    assert "no checkpoint in" in refused(
        capfd, "train", task, *QUIET, "--steps", 9, "--checkpoint-every", "off", "--run", "off", "--resume"
    )
    assert "such as 500" in refused(capfd, "train", task, *QUIET, "--checkpoint-every", "nonsense")


def test_keep_and_keep_best(task, capfd):
    """The last two; the best by its evaluation beside the last one."""
    arguments = ["train", task, *QUIET, "--steps", 8, "--checkpoint-every", 2]
    assert command(capfd, *arguments, "--keep", 2, "--run", "two").code == 0 and steps("two") == [6, 8]
    best = [*arguments, "--keep", 1, "--keep-best", "evaluate/loss", "--evaluate-every", 2, "--run", "best"]
    assert command(capfd, *best).code == 0
    evaluations = [event for event in read_run("best").events if event.kind == "evaluation"]
    losses = {event.step: event.values["evaluate/loss"] for event in evaluations}
    lowest = min(losses, key=losses.get)
    assert lowest != 8 and steps("best") == [lowest, 8]
    assert "keep=0" in refused(capfd, *arguments, "--keep", 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x", "--resume"], ["x", "--resume", "latest"]),
        (["x", "--resume", "--batch", "4"], ["x", "--resume", "latest", "--batch", "4"]),
        (["x", "--resume", "400"], ["x", "--resume", "400"]),
        (["x", "--resume=auto"], ["x", "--resume=auto"]),
    ],
)
def test_resume_may_stand_alone(arguments, expected):
    """At the end and before another flag."""
    assert with_value(arguments, "resume", alone="latest") == expected


@pytest.mark.parametrize(("text", "expected"), [(None, False), ("latest", True), ("auto", "auto"), ("400", 400)])
def test_what_resume_means(text, expected):
    assert RunOptions(resume=text).resumes() == expected


@pytest.mark.parametrize("text", ["yes", "-1", "4.5", "last"])
def test_another_word_for_resume_is_refused(text):
    """With the three that are known."""
    with pytest.raises(OptionError, match=r"--resume 400 for that of step 400, or --resume auto"):
        RunOptions(resume=text).resumes()


def test_weights_alone_begin_a_new_run(trained, capfd):
    """Exported at step 6 and begun with: parameters of step 6, step 0, a fresh optimizer, also in the average."""
    assert command(capfd, "export", "run", "six.safetensors", "--step", 6).code == 0
    ran = command(
        capfd, *trained[:-1], "new", "--steps", 1, "--weights", "six.safetensors", "--ema-decay", 0.5, "--seed", 3
    )
    assert ran.code == 0, ran.err
    first = next(event for event in read_run("new").events if event.kind == "step")
    assert first.step == 1
    seventh = next(event for event in read_run("run").events if event.kind == "step" and event.step == 7)
    assert first.values["train/loss"] != seventh.values["train/loss"]  # of other rows
    assert first.values["train/loss"] < 0.5 * read_run("run").events[1].values["train/loss"]
    assert "no weights at" in refused(capfd, *trained[:-1], "x", "--weights", "missing.safetensors")
    said = refused(capfd, *trained[:-1], "x", "--weights", "six.safetensors", "--large", 4)
    assert "large is (1,) there and (4,) here" in said


def test_export_says_of_which_step_and_refuses_what_is_not_there(trained, capfd):
    """The latest by default; a moving average that no run kept, a step, a folder and a place too few are named."""
    ran = command(capfd, "export", "run", "w.safetensors", "--json", "e.json")
    assert ran.code == 0 and "the parameters after step 8" in ran.out
    assert json.loads(Path("e.json").read_text()) == {"file": "w.safetensors", "step": 8, "ema": False}
    assert "has no ema" in refused(capfd, "export", "run", "w.safetensors", "--ema")
    assert "no checkpoint of step 7" in refused(capfd, "export", "run", "w.safetensors", "--step", 7)
    assert "no checkpoint at" in refused(capfd, "export", "nowhere", "w.safetensors")
    assert "use paceline export RUN_FOLDER FILE.safetensors" in refused(capfd, "export", "run")


@pytest.mark.parametrize(
    ("how", "run", "fix"), [(True, None, "pass run="), ("auto", None, "pass run="), (-1, "run", "the number of a step")]
)
def test_fit_refuses_another_resume(how, run, fix, tmp_path):
    """Without a run folder, and words that it does not know."""
    trainer = trainer_of()
    with pytest.raises(OptionError, match=fix):
        trainer.fit(
            trainer.init(zeros()), line(), batch=16, steps=2, resume=how, run=None if run is None else tmp_path / run
        )


def test_a_state_saved_without_a_run_is_no_run(tmp_path):
    """It does not say which rows were seen: refused, with `paceline.restore` as the way."""
    trainer = trainer_of()
    with Store(tmp_path / "run" / "checkpoints", say=print) as store:
        store.save(trainer.init(zeros()), 3, meta={})
    with pytest.raises(CheckpointError, match=r"was not saved by a run(.|\n)*paceline\.restore"):
        trainer.fit(trainer.init(zeros()), line(), batch=16, steps=5, resume=True, run=tmp_path / "run")


def test_a_run_begun_from_a_trained_state_counts_its_own_steps(tmp_path):
    """A state of step 5 trained for 6 more, broken behind 3 of them: `steps` counts from where the run began."""
    trainer, saved = trainer_of(), Checkpoints()
    state, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=5)
    trainer.fit(state, line(), batch=16, steps=3, run=tmp_path / "run", checkpoints=saved)
    state, report = trainer.fit(
        trainer.init(zeros()), line(), batch=16, steps=6, run=tmp_path / "run", checkpoints=saved, resume=True
    )
    assert (report.resumed_at, report.steps, report.last_step) == (8, 3, 11)
    whole, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, steps=11)
    assert params_of(trainer, state) == params_of(trainer, whole)


def test_the_classic_form_is_recognised_and_its_replicas_compared(tmp_path):
    """brax PR#669: a checkpoint of other code with a leading axis of 8, read on 4 devices; one replica off: refused."""
    import orbax.checkpoint as ocp

    def classic(name, spoiled):
        w, b = np.full((8,), 2.5, np.float32), np.full((8,), -1.0, np.float32)
        w[5] += spoiled
        with ocp.StandardCheckpointer() as writer:
            writer.save(tmp_path / name, {"params": {"w": w, "b": b}})
        return tmp_path / name

    trainer = trainer_of()
    like = trainer.init(zeros())
    params = paceline.restore(classic("sound", 0), like.params)
    assert {name: float(leaf) for name, leaf in params.items()} == {"w": 2.5, "b": -1.0}
    state, _ = trainer.fit(trainer.place(_with(trainer.single(like), params)), line(), batch=16, steps=1)
    assert int(state.step) == 1
    with pytest.raises(CheckpointError, match=r"w"):
        paceline.restore(classic("spoiled", 1), like.params)


SLOPE = """\
import jax.numpy as jnp
import numpy as np
import optax

import paceline


def task():
    init = lambda rng: {"p": jnp.zeros(())}
    loss = lambda params, batch: params["p"] * batch["one"]
    return paceline.Job(
        paceline.task(loss, init=init), optax.sgd(optax.linear_schedule(1.0, 0.0, 10)),
        {"one": np.ones(16, np.float32)}, outcome=lambda state: {"p": float(state.params["p"])},
    )
"""


def test_a_schedule_goes_on_where_it_was_on_the_command_line(tmp_path, monkeypatch, capfd):
    """optax#1036, brax#655: rates 1.0, 0.9, ... 0.1 on unit gradients in two runs of 5: -5.5; a lost count gives -8."""
    monkeypatch.chdir(tmp_path)
    Path("slope.py").write_text(SLOPE)
    train = ["train", "slope.py", *QUIET, "--batch", 4, "--run", "run", "--steps"]
    assert "p -4" in command(capfd, *train, 5).out
    ran = command(capfd, *train, 10, "--resume")
    assert ran.code == 0 and "outcome     p -5.5" in ran.out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_schedule_goes_on_where_it_was(scheme, tmp_path):
    """The same through `Trainer.fit`: -5.5 in every scheme (float32, rtol 1e-6)."""

    def loss(params, batch):
        return params["p"] * batch["one"]

    def part(steps, resume):
        optimizer = optax.sgd(optax.linear_schedule(1.0, 0.0, 10))
        trainer = trainer_of(loss, optimizer=optimizer, scheme=scheme)
        state = trainer.init({"p": np.zeros((), np.float32)})
        data = {"one": np.ones(16, np.float32)}
        saved = Checkpoints(every=5)
        state, _ = trainer.fit(
            state, data, batch=4, steps=steps, run=tmp_path / "run", checkpoints=saved, resume=resume
        )
        return params_of(trainer, state)["p"]

    assert part(5, False) == pytest.approx(-4.0, rel=1e-6)
    assert part(10, True) == pytest.approx(-5.5, rel=1e-6)


def _with(state, params):
    return dataclasses.replace(state, params=params)

"""Numbers that are not finite: the run stops and names the culprit, or that update is left out and counted."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import DataError, NonFiniteError
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.precision import MINIMUM_SCALE
from paceline.telemetry.reader import read_run
from paceline.train.nonfinite import left_out, must_stop
from tests.train.linear import SCHEMES, assert_close, line, numpy_sgd, params_of, trainer_of, zeros


def with_nan(row, leaf="x", rows=64):
    data = line(rows)
    data[leaf][row] = np.nan
    return data


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_nan_in_the_data_is_named_with_its_row(scheme, tmp_path):
    """Row 37 is in the third batch of 16: DataError with step, leaf, row and the last good state; exit code 2."""
    trainer = trainer_of(scheme=scheme)
    with pytest.raises(DataError) as caught:
        trainer.fit(
            trainer.init(zeros()), with_nan(37), batch=16, steps=50, shuffle=False, run=tmp_path / "run",
        )  # fmt: skip
    assert caught.value.what == "step 3: batch leaf 'x' is not finite in row 37 of the data"
    assert "--nonfinite skip" in caught.value.fix
    assert caught.value.exit_code == 2
    first_two = numpy_sgd(line(), [range(16), range(16, 32)])
    assert_close(params_of(trainer, caught.value.state), first_two)
    record = read_run(tmp_path / "run")
    assert record.report["stopped"] == f"DataError: {caught.value.what}"
    assert record.events_by_process[0][-1].text == record.report["stopped"]


def test_the_report_of_a_stopped_run_counts_up_to_the_bad_step(tmp_path):
    """Steps 4 and 5 were in flight when step 3 was found bad: 3 steps, 48 rows, 1 left out, and no event of theirs."""
    trainer = trainer_of()
    seen = []
    with pytest.raises(DataError):
        trainer.fit(
            trainer.init(zeros()), with_nan(37), batch=16, steps=50, shuffle=False, run=tmp_path / "run",
            callbacks=[lambda step, values: seen.append(step) and None], evaluation=line(8),
        )  # fmt: skip
    record = read_run(tmp_path / "run")
    keys = ("steps", "last_step", "rows_seen", "skipped_updates", "evaluation")
    assert [record.report[key] for key in keys] == [3, 3, 48, 1, {}]
    assert [event.step for event in record.events_by_process[0] if event.kind == "step"] == seen == [1, 2, 3]


def test_a_shuffled_row_has_its_number_in_the_data():
    """Whatever the batch that row 37 lands in."""
    trainer = trainer_of()
    with pytest.raises(DataError, match="'y' is not finite in row 37 of the data"):
        trainer.fit(trainer.init(zeros()), with_nan(37, "y"), batch=16, epochs=1)


def test_a_row_of_a_stream_has_its_place_in_the_batch():
    """A stream has no row numbers: row 5 of the batch of step 2."""
    trainer = trainer_of()
    batches = iter([line(16), with_nan(5, rows=16), line(16)])
    with pytest.raises(DataError, match="step 2: batch leaf 'x' is not finite in row 5 of the batch"):
        trainer.fit(trainer.init(zeros()), batches)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bad_update_changes_nothing_and_neither_do_those_behind_it(scheme):
    """Policy stop: parameters after 3 good steps, a bad one and 2 good ones are numpy's after 3 (rtol 1e-5)."""
    trainer = trainer_of(scheme=scheme)
    state = trainer.init(zeros())
    good = line(16)
    for batch in (good, good, good, with_nan(5, rows=16), good, good):
        state, metrics = trainer.step(state, batch)
    assert_close(params_of(trainer, state), numpy_sgd(good, [slice(16)] * 3))
    assert metrics.fetch()["skipped_updates"] == 1
    assert int(np.asarray(trainer.single(state).step)) == 6


def root_error(params, batch):
    """The gradient of sqrt at 0 is infinite, and infinity times 0 is NaN; the loss is finite."""
    return jnp.sqrt(params["deep"]["root"] * jnp.zeros_like(batch["x"])) + params["b"] ** 2


def test_a_gradient_that_is_not_finite_is_named():
    """NonFiniteError with the step, the leaf `deep.root` and not `b`; exit code 1: no mistake of the command line."""
    trainer = trainer_of(root_error)
    params = {"deep": {"root": np.float32(0)}, "b": np.float32(1)}
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(trainer.init(params), line(), batch=16, steps=5)
    assert caught.value.what == "step 1: the gradient of deep.root is not finite (loss 1)"
    assert "--clip-norm" in caught.value.fix and "--nonfinite skip" in caught.value.fix
    assert caught.value.exit_code == 1


def test_a_run_that_diverges_names_the_step():
    """(w x)^2 at a rate of 1e6: w grows by some 2e6 a step, so its square leaves float32 (3e38) in step 5.

    The gradient itself is still in range; whether its norm is depends on how XLA computes the root of a square.
    """
    trainer = trainer_of(lambda params, batch: (params["w"] * batch["x"]) ** 2, optimizer=optax.sgd(1e6))
    with pytest.raises(NonFiniteError, match=r"step 5: the (loss|gradient of w) is not finite \(loss inf\)"):
        trainer.fit(trainer.init({"w": np.float32(1)}), line(), batch=16, steps=9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_skipping_leaves_the_bad_update_out_and_counts_it(scheme):
    """Row 37 of 64 in the third of four batches: numpy's SGD without it (rtol 1e-5); 1 left out, in the text too."""
    data = with_nan(37)
    trainer = trainer_of(scheme=scheme, nonfinite="skip")
    state, report = trainer.fit(trainer.init(zeros()), data, batch=16, epochs=1, shuffle=False)
    assert (report.steps, report.skipped_updates, report.stopped) == (4, 1, None)
    assert_close(params_of(trainer, state), numpy_sgd(data, [slice(0, 16), slice(16, 32), slice(48, 64)]))
    assert "1 update left out" in "\n".join(report.lines())
    _, again = trainer.fit(state, data, batch=16, epochs=1, shuffle=False)
    assert again.skipped_updates == 1  # of this call, not of both


def test_an_update_that_was_left_out_is_an_event(tmp_path):
    """Row 37 again: one, of step 3, that names the leaves; a run that ends for it says so in its end alone."""
    trainer = trainer_of(nonfinite="skip")
    trainer.fit(trainer.init(zeros()), with_nan(37), batch=16, epochs=1, shuffle=False, run=tmp_path / "run")
    (left_out,) = [event for event in read_run(tmp_path / "run").events if event.kind == "skip"]
    assert left_out.step == 3
    assert left_out.text == "update left out: the gradient of b, w is not finite (loss nan)"
    trainer = trainer_of()
    with pytest.raises(DataError):
        trainer.fit(trainer.init(zeros()), with_nan(37), batch=16, epochs=1, shuffle=False, run=tmp_path / "stopped")
    assert "skip" not in {event.kind for event in read_run(tmp_path / "stopped").events}


def test_an_overflow_of_float16_is_an_event_that_names_the_scale():
    """Nothing is wrong with a leaf: the scale of 2^16 was too large."""
    values = {"loss": 1.0, "loss_scale": 65536.0, "skipped_updates": 1.0}
    metrics = StepMetrics(jnp.zeros(0), jnp.full(1, jnp.inf), (), ("w",))
    assert left_out(values, metrics=metrics) == (
        "update left out: its gradients overflowed float16 under a loss scale of 65536"
    )


def test_a_last_loss_that_is_not_finite_is_noticed():
    """Under skip the run ends well, but the reader should know."""
    trainer = trainer_of(nonfinite="skip")
    _, report = trainer.fit(trainer.init(zeros()), with_nan(60), batch=16, epochs=1, shuffle=False)
    assert report.notices == ("the last loss is not finite",)


def test_float16_stops_only_when_no_smaller_scale_could_help():
    """An overflow at scale 1024 is left out and the scale falls; at the smallest it ends the run; skip goes on."""
    values = {"skipped_updates": 3.0, "loss_scale": 1024.0}
    lowest = values | {"loss_scale": float(MINIMUM_SCALE)}
    half = Parallel(precision="float16")
    assert not must_stop(half, values, skipped_before=2)
    assert must_stop(half, lowest, skipped_before=2)
    assert not must_stop(half, lowest, skipped_before=3)
    assert not must_stop(Parallel(precision="float16", nonfinite="skip"), lowest, skipped_before=2)
    assert must_stop(Parallel(), values, skipped_before=2)

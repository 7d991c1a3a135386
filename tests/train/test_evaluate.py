"""Evaluation counts every row once, for every form of a loss, any batch and any number of devices.

Case 24: 11 rows in batches of 4, of which 4, 2 and 1 are right: 7/11 = 0.6364. The mean of the batches' means is
0.6111, padding that counts as wrong gives 0.5833, as right 0.6667, and a dropped tail 0.75.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import paceline
from paceline.base.errors import DataError, LossError, StateError
from paceline.tasks.losses import Weighted
from paceline.tasks.task import task
from tests.train.compilations import counted
from tests.train.linear import SCHEMES, line, numpy_sgd, trainer_of, zeros

RIGHT = np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1], np.float32)
WEIGHT = np.arange(1, 12, dtype=np.float32)
ROWS = {"right": RIGHT, "weight": WEIGHT}


def rowwise(params, batch):
    """Loss and metrics with one entry a row, in each dtype that a count may have."""
    right = batch["right"] > 0.5
    weighted = Weighted(batch["right"] * batch["weight"], batch["weight"])
    return 1 - batch["right"], {"accuracy": right, "count": right.astype(jnp.int32), "weighted": weighted}


def scalar(params, batch):
    """The same numbers as means and sums over the rows at hand, which cannot be masked."""
    weighted = Weighted(jnp.sum(batch["right"] * batch["weight"]), jnp.sum(batch["weight"]))
    return 1 - jnp.mean(batch["right"]), {"accuracy": jnp.mean(batch["right"]), "weighted": weighted}


WEIGHTED = float(RIGHT @ WEIGHT) / 66  # (1 + 2 + 3 + 4 + 5 + 7 + 11) / 66 = 33 / 66


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_24_accuracy_is_7_of_11(scheme, devices):
    """Exactly 7/11 as a Python float for booleans, integers and floats; the weighted mean is exactly 33/66."""
    trainer = trainer_of(rowwise, devices=devices, scheme=scheme)
    result = trainer.evaluate(trainer.init(zeros()), paceline.rows(ROWS), batch=4)
    assert result["accuracy"] == result["count"] == 7 / 11
    assert result["loss"] == 4 / 11
    assert result["weighted"] == WEIGHTED == 0.5
    assert result["rows"] == 11


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("batch", [3, 4, 11, 64])
def test_means_over_the_rows_at_hand_are_exact_too(devices, batch):
    """Scalar loss, scalar metric and weighted sum over 11 rows, whatever the batch and its tail (rtol 1e-6)."""
    trainer = trainer_of(scalar, devices=devices)
    result = trainer.evaluate(trainer.init(zeros()), paceline.rows(ROWS), batch=batch)
    assert result["accuracy"] == pytest.approx(7 / 11, rel=1e-6)
    assert result["loss"] == pytest.approx(4 / 11, rel=1e-6)
    assert result["weighted"] == pytest.approx(0.5, rel=1e-6)
    assert result["rows"] == 11


def test_one_scalar_metric_beside_rows_is_exact():
    """A scalar metric makes the whole evaluation unmaskable: the rows beside it must not count the padding either."""

    def mixed(params, batch):
        return 1 - batch["right"], {"accuracy": jnp.mean(batch["right"])}

    trainer = trainer_of(mixed)
    result = trainer.evaluate(trainer.init(zeros()), ROWS, batch=4)
    assert result["accuracy"] == pytest.approx(7 / 11, rel=1e-6)
    assert result["loss"] == 4 / 11


@pytest.mark.parametrize("loss", [rowwise, scalar])
@pytest.mark.parametrize("devices", [1, 4])
def test_a_stream_is_counted_whatever_the_sizes_of_its_batches(loss, devices):
    """Batches of 4, 4 and 3 from a generator, on 4 devices that do not divide 3: 7/11 (rtol 1e-6)."""
    batches = ({name: leaf[at : at + 4] for name, leaf in ROWS.items()} for at in (0, 4, 8))
    trainer = trainer_of(loss, devices=devices)
    result = trainer.evaluate(trainer.init(zeros()), batches)
    assert result["accuracy"] == pytest.approx(7 / 11, rel=1e-6)
    assert result["rows"] == 11


def test_rows_of_a_map_style_data_set_are_counted():
    """Read one by one: exactly 7/11."""

    class Rows:
        def __len__(self):
            return 11

        def __getitem__(self, index):
            return {name: leaf[index] for name, leaf in ROWS.items()}

    trainer = trainer_of(rowwise)
    assert trainer.evaluate(trainer.init(zeros()), Rows(), batch=4)["accuracy"] == 7 / 11


def test_counts_of_many_batches_are_added_exactly():
    """30,000 right of 40,000 in 40 batches: exactly 0.75."""
    right = np.repeat(np.array([1, 1, 1, 0], np.float32), 10_000)
    trainer = trainer_of(lambda params, batch: (1 - batch, {"accuracy": batch > 0.5}))
    assert trainer.evaluate(trainer.init(zeros()), right, batch=1000)["accuracy"] == 0.75


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_program_serves_every_evaluation(scheme):
    """The padded tail, a second evaluation and a further state compile nothing."""
    trainer = trainer_of(scheme=scheme)
    state = trainer.init(zeros())
    trainer.evaluate(state, line(11), batch=4)
    state, _ = trainer.step(state, line(16))
    with counted() as compiled:
        trainer.evaluate(state, line(11), batch=4)
    assert compiled == []


def test_evaluation_uses_the_tasks_own_evaluate():
    """Loss 1 in training, 5 in evaluation."""

    def five(params, batch):
        return jnp.full(batch["x"].shape, 5.0)

    def one(params, batch):
        return params["w"] * batch["x"] + 1

    trainer = paceline.Trainer(task(one, evaluate=five), trainer_of().spec.optimizer, devices=2)
    assert trainer.evaluate(trainer.init(zeros()), line(11))["loss"] == 5.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_evaluation_between_steps_leaves_the_state_alive(scheme):
    """Case 14: donation and a moving average on, evaluated after every step: the state goes on, and its loss falls."""
    trainer = trainer_of(scheme=scheme, ema_decay=0.5)
    state = trainer.init(zeros())
    losses = []
    for _ in range(3):
        state, _ = trainer.step(state, line(16))
        losses.append(trainer.evaluate(state, line(16))["loss"])
        trainer.evaluate(state, line(16), use_ema=True)
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_moving_average_can_be_evaluated(scheme):
    """Decay 0.5, two steps from 0: average = 0.5 (0.5 * p1) + 0.5 p2; its loss in numpy (rtol 1e-5)."""
    data = line(16)
    one, two = (numpy_sgd(data, [slice(16)] * steps) for steps in (1, 2))
    average = {name: 0.25 * one[name] + 0.5 * two[name] for name in one}
    expected = np.mean((average["w"] * data["x"] + average["b"] - data["y"]) ** 2)
    trainer = trainer_of(scheme=scheme, ema_decay=0.5)
    state, _ = trainer.fit(trainer.init(zeros()), data, batch=16, steps=2)
    assert trainer.evaluate(state, data, use_ema=True)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_moving_average_that_is_not_there_is_refused():
    """The fix names the option that keeps one."""
    trainer = trainer_of()
    with pytest.raises(StateError, match="no moving average") as caught:
        trainer.evaluate(trainer.init(zeros()), line(11), use_ema=True)
    assert "ema_decay" in caught.value.fix


def test_an_evaluation_of_nothing_is_refused():
    """An empty stream and an empty array: the mean of no rows is not defined."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    with pytest.raises(DataError, match="no batch"):
        trainer.evaluate(state, iter([]))
    with pytest.raises(DataError, match="0 rows"):
        trainer.evaluate(state, {"x": np.zeros(0), "y": np.zeros(0)})


def test_a_metric_of_no_known_form_is_refused():
    """Its name and shape."""
    trainer = trainer_of(lambda params, batch: (batch["x"], {"both": jnp.zeros((4, 2))}))
    with pytest.raises(LossError, match=r"metric 'both' has shape \(4, 2\)"):
        trainer.evaluate(trainer.init(zeros()), line(4))


def test_fit_evaluates_when_asked_and_after_the_last_step():
    """evaluate_every=3 over 7 steps: after 3, 6 and 7, each the evaluation of the state at that step, bitwise."""
    data = line(16)
    trainer = trainer_of()
    seen = {}

    def keep(step, values):
        if "evaluate/loss" in values:
            seen[step] = values["evaluate/loss"]

    _, report = trainer.fit(
        trainer.init(zeros()), line(64), batch=16, steps=7, evaluation=data, evaluate_every=3, callbacks=[keep]
    )
    assert list(seen) == [3, 6, 7]
    assert report.evaluation["evaluate/loss"] == seen[7]
    for step, loss in seen.items():
        state, _ = trainer.fit(trainer.init(zeros()), line(64), batch=16, steps=step)
        assert trainer.evaluate(state, data, batch=16)["loss"] == loss


def test_an_evaluation_at_the_last_step_is_made_once():
    """evaluate_every=3 over 6 steps: after 3 and 6."""
    trainer = trainer_of()
    steps = []

    def keep(step, values):
        if "evaluate/loss" in values:
            steps.append(step)

    trainer.fit(
        trainer.init(zeros()), line(64), batch=16, steps=6, evaluation=line(8), evaluate_every=3, callbacks=[keep]
    )
    assert steps == [3, 6]


def test_whether_padding_is_masked_is_asked_for_each_structure_of_data():
    """11 rows on 4 devices: first row metrics only, then a scalar one, which padding would bias; both exact."""

    def loss(params, batch):
        metrics = {"mean_y": jnp.mean(batch["y"])} if "extra" in batch else {}
        return (batch["x"] * params["w"] + params["b"] - batch["y"]) ** 2, metrics

    trainer, data = trainer_of(loss), line(11)
    state = trainer.init(zeros())
    assert trainer.evaluate(state, data, batch=8)["loss"] == pytest.approx(np.mean(data["y"] ** 2), rel=1e-6)
    got = trainer.evaluate(state, {**data, "extra": data["x"]}, batch=8)
    assert got["mean_y"] == pytest.approx(np.mean(data["y"]), rel=1e-6)

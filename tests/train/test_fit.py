"""What `fit` computes: the numbers of one device in numpy, for every scheme and any number of devices."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.data.order import EpochOrder
from tests.train.compilations import counted
from tests.train.linear import SCHEMES, assert_close, line, numpy_sgd, params_of, trainer_of, zeros

ROWS, BATCH = 64, 16


def shuffled(rows=ROWS, batch=BATCH, *, steps, seed=7):
    """Row numbers of each batch of the order that `seed` gives."""
    order = EpochOrder(rows, seed)
    per_epoch = rows // batch
    starts = [divmod(step, per_epoch) for step in range(steps)]
    return [order.indices(epoch, start=at * batch, stop=at * batch + batch) for epoch, at in starts]


def test_the_example_of_the_readme_finds_the_line():
    """y = 3x + 1, 20 steps of SGD at 0.1 on 4 devices: w and b within 0.1 of 3 and 1, as 0.8^20 = 0.01 says."""
    data = line(128)

    def loss(params, batch):
        prediction = batch["x"] * params["w"] + params["b"]
        return (prediction - batch["y"]) ** 2

    trainer = paceline.Trainer(paceline.task(loss), optax.sgd(0.1), devices=4)
    state = trainer.init({"w": jnp.zeros(1), "b": jnp.zeros(())}, seed=42)
    state, report = trainer.fit(state, paceline.rows(data), batch=32, steps=20)
    assert abs(float(state.params["w"][0]) - 3) < 0.1
    assert abs(float(state.params["b"]) - 1) < 0.1
    assert (report.steps, report.devices, report.global_batch, report.per_device_batch) == (20, 4, 32, 8)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_any_number_of_devices_gives_the_parameters_of_numpy(scheme, devices):
    """6 shuffled steps of 16 rows over 1.5 epochs: SGD in float64 numpy, rtol 1e-5."""
    trainer = trainer_of(devices=devices, scheme=scheme)
    state, _ = trainer.fit(trainer.init(zeros()), line(ROWS), batch=BATCH, steps=6, seed=7)
    assert_close(params_of(trainer, state), numpy_sgd(line(ROWS), shuffled(steps=6)))


def test_unshuffled_rows_come_as_they_are_stored():
    """shuffle=False: the batches are 0..15, 16..31, ..., and the parameters those of numpy (rtol 1e-5)."""
    trainer = trainer_of()
    state, _ = trainer.fit(trainer.init(zeros()), line(ROWS), batch=BATCH, epochs=1, shuffle=False)
    assert_close(params_of(trainer, state), numpy_sgd(line(ROWS), [slice(i, i + 16) for i in range(0, 64, 16)]))


def test_epochs_and_steps_measure_the_same_run():
    """64 rows in batches of 16: 2 epochs are 8 steps, bit for bit."""
    trainer = trainer_of()
    by_epochs, report = trainer.fit(trainer.init(zeros()), line(ROWS), batch=BATCH, epochs=2)
    by_steps, same = trainer.fit(trainer.init(zeros()), line(ROWS), batch=BATCH, steps=8)
    assert (report.steps, report.epochs, report.rows_seen) == (same.steps, same.epochs, same.rows_seen) == (8, 2.0, 128)
    assert params_of(trainer, by_epochs) == params_of(trainer, by_steps)
    assert (report.stopped, report.notices) == (None, ())


def noisy_error(params, batch, rng):
    """Depends on the rows, their order and the key of the step."""
    noise = jax.random.normal(rng, batch["y"].shape)
    return (batch["x"] * params["w"] + params["b"] - batch["y"] - noise) ** 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_halves_are_the_whole(scheme):
    """fit(steps=5) twice is fit(steps=10), bitwise, 4 steps an epoch: parameters, momentum, row order, random keys."""
    momentum = optax.sgd(optax.linear_schedule(0.1, 0.0, 10), momentum=0.9)
    trainer = trainer_of(noisy_error, optimizer=momentum, scheme=scheme)

    def run(*parts):
        state = trainer.init(zeros(), seed=3)
        for steps in parts:
            state, report = trainer.fit(state, line(ROWS), batch=BATCH, steps=steps, seed=5)
        assert (report.steps, report.last_step) == (parts[-1], 10)
        return jax.tree.leaves(jax.device_get(dataclasses.replace(state, rng=jax.random.key_data(state.rng))))

    for half, whole in zip(run(5, 5), run(10), strict=True):
        np.testing.assert_array_equal(half, whole)


def test_a_schedule_goes_on_where_it_stopped():
    """Rate 1 to 0 over 10 steps, gradients of 1: after 5 and 5 more w = -(1 + 0.9 + ... + 0.1) = -5.5 (rtol 1e-6)."""
    trainer = trainer_of(
        lambda params, batch: params["w"] * batch, optimizer=optax.sgd(optax.linear_schedule(1, 0, 10))
    )
    state = trainer.init({"w": np.float32(0)})
    for _ in range(2):
        state, _ = trainer.fit(state, np.ones(8, np.float32), batch=8, steps=5)
    np.testing.assert_allclose(state.params["w"], -5.5, rtol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_second_fit_compiles_nothing(scheme):
    """By our count and by JAX's own: no step, no evaluation, no helper, in the first pass of the loop or later."""
    trainer = trainer_of(scheme=scheme)
    arguments = {"batch": BATCH, "epochs": 2, "evaluation": line(24), "evaluate_every": 3}
    state, first = trainer.fit(trainer.init(zeros()), line(ROWS), **arguments)
    with counted() as compiled:
        state, second = trainer.fit(state, line(ROWS), **arguments)
    assert compiled == []
    assert trainer.compilations == 1
    assert first.compile_s > 0 and second.compile_s == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_the_step_is_compiled_in_a_first_fit(scheme):
    """JAX compiles one program over 12 steps of two epochs with padding: nothing is computed op by op beside it."""
    trainer = trainer_of(scheme=scheme)
    state = trainer.init(zeros())
    with counted() as compiled:
        trainer.fit(state, line(90), batch=BATCH, epochs=2, remainder="pad")
    assert len(compiled) == trainer.compilations == 1


def test_a_batch_of_another_size_compiles_once_more():
    """16 rows, 8 rows, 16 rows: two programs."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    for batch in (16, 8, 16):
        state, _ = trainer.fit(state, line(ROWS), batch=batch, steps=2)
    assert trainer.compilations == 2


def test_accumulation_changes_no_number():
    """4 microbatches of 4 rows are one batch of 16: numpy's SGD (rtol 1e-5), and the report says so."""
    trainer = trainer_of(devices=2, accumulation=4)
    state, report = trainer.fit(trainer.init(zeros()), line(ROWS), batch=BATCH, steps=4, seed=7)
    assert_close(params_of(trainer, state), numpy_sgd(line(ROWS), shuffled(steps=4)))
    assert report.accumulation == 4 and report.steps == 4
    assert "16 rows = 2 x 8, in 4 microbatches" in "\n".join(report.lines())


def test_the_report_holds_the_last_step_and_the_evaluation():
    """Step 4 and the final state: the loss of numpy before the last update, and after it (rtol 1e-4)."""
    data = line(ROWS)
    trainer = trainer_of()
    _, report = trainer.fit(
        trainer.init(zeros()), data, batch=BATCH, epochs=1, shuffle=False, evaluation=paceline.rows(data)
    )
    batches = [slice(i, i + 16) for i in range(0, 64, 16)]

    def loss_of(params, rows):
        return np.mean((params["w"] * data["x"][rows] + params["b"] - data["y"][rows]) ** 2)

    assert report.final["train/loss"] == pytest.approx(loss_of(numpy_sgd(data, batches[:3]), batches[3]), rel=1e-4)
    assert report.evaluation["evaluate/loss"] == pytest.approx(loss_of(numpy_sgd(data, batches), slice(None)), rel=1e-4)
    assert report.evaluation["evaluate/rows"] == 64
    assert report.total_s > report.compile_s > 0
    assert report.samples_per_s > 0 and report.step_p95_s >= report.step_p50_s > 0
    assert 0 <= report.input_wait_share <= 1


def test_the_report_reads_as_text():
    """Per-device and global batch, rows, speed, wait and compile time each have a line."""
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), line(70), batch=BATCH, epochs=1)
    text = "\n".join(report.lines())
    for words in ("scheme global_view on 4 devices", "16 rows = 4 x 4", "4 (1 epoch)", "64 seen, 6 dropped"):
        assert words in text
    for label in ("speed", "input wait", "time", "compiling", "samples/s", "p95", "loss"):
        assert label in text
    assert "run folder" not in text and "notice" not in text


def test_a_stream_that_ends_early_is_told():
    """A generator of 3 batches, 10 steps asked for: 3 made, and the report says that the data ended."""
    trainer = trainer_of()
    batches = (line(16) for _ in range(3))
    _, report = trainer.fit(trainer.init(zeros()), batches, steps=10)
    assert (report.steps, report.stopped, report.epochs) == (3, "the data ended", None)


def test_a_stream_without_a_length_runs_until_it_ends():
    """Neither steps nor epochs: all 5 batches of a generator, and nothing ended early."""
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), (line(16) for _ in range(5)))
    assert (report.steps, report.rows_seen, report.stopped) == (5, 80, None)


def test_a_loader_that_starts_again_gives_as_many_epochs_as_asked():
    """An iterable of 2 batches, 3 epochs: 6 steps."""

    class Loader:
        def __iter__(self):
            return iter([line(16), line(16)])

    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), Loader(), epochs=3)
    assert (report.steps, report.rows_seen) == (6, 96)


def test_a_map_style_data_set_trains_like_its_arrays():
    """Rows read one by one: the parameters of the arrays, bitwise."""
    data = line(ROWS)

    class Points:
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            return {name: leaf[index] for name, leaf in data.items()}

    trainer = trainer_of()
    of_arrays, _ = trainer.fit(trainer.init(zeros()), data, batch=BATCH, epochs=1)
    of_points, _ = trainer.fit(trainer.init(zeros()), Points(), batch=BATCH, epochs=1)
    assert params_of(trainer, of_arrays) == params_of(trainer, of_points)

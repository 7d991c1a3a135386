"""Every row of an epoch is trained on or counted as dropped, and a batch that does not split is named before step 1.

The numbered cases are public reports of other projects, in `cases.md`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import BatchSizeError, DataError, OptionError
from paceline.data.source import stream
from paceline.tasks.losses import Outcome
from paceline.tasks.task import Initial, task
from paceline.train.trainer import Trainer
from tests.train.linear import SCHEMES, assert_close, line, numpy_sgd, params_of, squared_error, trainer_of, zeros


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_3_padding_trains_on_all_103_rows(scheme):
    """N=103, B=16, K=8: 7 steps an epoch, the last of 7 rows; numpy's SGD over slices of 16 and 7 (rtol 1e-5)."""
    data = line(103)
    trainer = trainer_of(devices=8, scheme=scheme)
    state, report = trainer.fit(trainer.init(zeros()), data, batch=16, epochs=2, remainder="pad", shuffle=False)
    assert (report.steps, report.rows_seen, report.rows_dropped) == (14, 206, 0)
    assert_close(params_of(trainer, state), numpy_sgd(data, 2 * [slice(i, i + 16) for i in range(0, 103, 16)]))
    assert trainer.compilations == 1


def test_case_3_dropping_tells_of_7_rows_an_epoch():
    """N=103, B=16, K=8: 6 steps an epoch; 96 rows seen and 7 dropped in each of 2 epochs, in the text too."""
    trainer = trainer_of(devices=8)
    _, report = trainer.fit(trainer.init(zeros()), line(103), batch=16, epochs=2)
    assert (report.steps, report.rows_seen, report.rows_dropped) == (12, 192, 14)
    assert "192 seen, 14 dropped" in "\n".join(report.lines())


def test_rows_are_dropped_at_the_end_of_an_epoch_only():
    """103 rows, 6 steps an epoch: after 5 steps none are dropped, after 7 those of the first epoch."""
    trainer = trainer_of(devices=8)
    for steps, dropped in ((5, 0), (6, 7), (7, 7)):
        _, report = trainer.fit(trainer.init(zeros()), line(103), batch=16, steps=steps)
        assert report.rows_dropped == dropped


def test_rows_left_over_can_be_refused():
    """103 rows in batches of 16 leave 7 over; the fix names the way out."""
    trainer = trainer_of(devices=8)
    with pytest.raises(BatchSizeError, match="7 over") as caught:
        trainer.fit(trainer.init(zeros()), line(103), batch=16, epochs=1, remainder="refuse")
    assert "--remainder pad" in caught.value.fix


IMAGES = np.random.default_rng(1).normal(size=(19, 10, 32)).astype(np.float32)


def mean_image_error(params, batch):
    """Gradient with respect to ``params`` at zero: minus the mean of the images."""
    return 0.5 * jnp.sum((params - batch["image"]) ** 2, axis=(1, 2))


def test_case_1_a_step_names_the_leaf_and_the_sizes_that_split():
    """Leaf (19, 10, 32) on 4 devices: `image`, 19 rows, 4 devices, 16 or 20; nothing of JAX's own wording."""
    trainer = trainer_of(mean_image_error)
    state = trainer.init(np.zeros((10, 32), np.float32))
    with pytest.raises(BatchSizeError) as caught:
        trainer.step(state, {"image": IMAGES})
    assert caught.value.what == "batch leaf 'image' has 19 rows, which do not split over 4 devices"
    assert "16 or 20" in caught.value.fix and "pad" in caught.value.fix
    assert trainer.compilations == 0


def test_case_1_padding_gives_the_mean_of_the_19_rows():
    """batch=19, remainder='pad' on 4 devices: a step of rate 1 ends at numpy's mean of the 19 images (rtol 1e-5)."""
    trainer = trainer_of(mean_image_error, optimizer=optax.sgd(1.0))
    state = trainer.init(np.zeros((10, 32), np.float32))
    state, report = trainer.fit(state, {"image": IMAGES}, batch=19, epochs=1, remainder="pad")
    np.testing.assert_allclose(state.params, IMAGES.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
    assert (report.rows_seen, report.global_batch, report.per_device_batch) == (19, 20, 5)


def test_case_2_fewer_rows_than_devices_is_said():
    """4 rows on 8 devices: both numbers and the fix, in `step` and in `fit`."""
    trainer = trainer_of(devices=8)
    state = trainer.init(zeros())
    with pytest.raises(BatchSizeError, match="4 rows for 8 devices") as by_step:
        trainer.step(state, line(4))
    with pytest.raises(BatchSizeError, match="4 rows for 8 devices") as by_fit:
        trainer.fit(state, line(4), batch=4, epochs=1)
    assert "a batch of 8" in by_step.value.fix
    assert "--batch 8" in by_fit.value.fix and "--remainder pad" in by_fit.value.fix


def test_case_11_an_epoch_of_60000_rows_has_117_updates():
    """64 rows a device on 8: 117 updates of 512, 96 rows dropped; a schedule over 117 leaves 1/117 to the last."""
    schedule = optax.linear_schedule(1.0, 0.0, 117)
    trainer = Trainer(
        task(lambda params, batch: params["w"] * batch), optax.sgd(schedule), devices=8, schedule=schedule
    )
    state = trainer.init({"w": np.float32(0)})
    _, report = trainer.fit(state, np.zeros(60_000, np.float32), batch=512, epochs=1)
    assert (report.steps, report.rows_seen, report.rows_dropped) == (117, 59_904, 96)
    assert report.final["train/learning_rate"] == pytest.approx(1 / 117, rel=1e-4)


def batches_of(sizes):
    data, start = line(sum(sizes)), 0
    for size in sizes:
        yield {name: leaf[start : start + size] for name, leaf in data.items()}
        start += size


UNEVEN = [128] * 7 + [107]


def test_case_19_an_uneven_last_batch_is_padded_into_the_same_program():
    """7 batches of 128 and one of 107 from an iterator: 8 steps, one compilation, and numpy's SGD (rtol 1e-5)."""
    trainer = trainer_of()
    state, report = trainer.fit(trainer.init(zeros()), batches_of(UNEVEN), remainder="pad")
    assert (report.steps, report.rows_seen, report.rows_dropped, report.notices) == (8, 1003, 0, ())
    assert trainer.compilations == 1
    assert_close(params_of(trainer, state), numpy_sgd(line(1003), [slice(i, i + 128) for i in range(0, 1003, 128)]))


def test_case_19_an_uneven_last_batch_is_dropped_with_a_notice():
    """7 steps, 107 rows dropped, and a sentence that says so and names the remedy."""
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), batches_of(UNEVEN))
    assert (report.steps, report.rows_seen, report.rows_dropped) == (7, 896, 107)
    (notice,) = report.notices
    assert "1 batch" in notice and "107 rows" in notice and "remainder='pad'" in notice
    assert notice in "\n".join(report.lines())


def normed(params, model_state, batch, rng):
    """A norm whose mean is taken over all rows that it is given, as BatchNorm's is."""
    mean = jnp.mean(batch["x"])
    loss = (params["w"] * (batch["x"] - mean) - batch["y"]) ** 2
    return Outcome(loss, model_state={"norm": {"mean": 0.9 * model_state["norm"]["mean"] + 0.1 * mean}})


def normed_trainer(devices=4):
    init = Initial({"w": jnp.zeros(())}, {"norm": {"mean": jnp.zeros(())}})
    return Trainer(task(normed, init=lambda rng: init), optax.sgd(0.1), devices=devices)


@pytest.mark.parametrize(
    ("rows", "batch", "what"), [(21, 8, "3 padding rows an epoch"), (19, 19, "1 padding row, for a model")]
)
def test_padding_is_refused_for_a_model_with_state(rows, batch, what):
    """It would enter the statistics of BatchNorm: refused before step 1, with the leaf, the count and the fix."""
    trainer = normed_trainer()
    with pytest.raises(BatchSizeError, match=what) as caught:
        trainer.fit(trainer.init(), line(rows), batch=batch, steps=1, remainder="pad")
    assert "'norm.mean'" in caught.value.what and "BatchNorm" in caught.value.why
    assert "--remainder drop" in caught.value.fix
    assert trainer.compilations == 0


def test_a_model_with_state_may_ask_for_padding_that_is_not_needed():
    """24 rows in batches of 8: no padding, no error, 3 steps."""
    trainer = normed_trainer()
    _, report = trainer.fit(trainer.init(), line(24), batch=8, epochs=1, remainder="pad")
    assert report.steps == 3


def test_padding_of_a_stream_is_refused_for_a_model_with_state():
    """Batches of 8, 8 and 5: known only when the third is read, and named then."""
    trainer = normed_trainer()
    with pytest.raises(BatchSizeError, match="a batch of 5 rows and 3 padding rows"):
        trainer.fit(trainer.init(), batches_of([8, 8, 5]), remainder="pad")


def test_padding_is_refused_in_the_users_own_loop_too():
    """feed and step: the batch of 5 rows and 3 of padding is refused, the two before it are trained on."""
    trainer = normed_trainer()
    state, steps = trainer.init(), 0
    with (
        trainer.feed(line(21), batch=8, epochs=1, remainder="pad") as feed,
        pytest.raises(BatchSizeError, match="a batch of 5 rows and 3 padding rows"),
    ):
        for batch in feed:
            state, _ = trainer.step(state, batch)
            steps += 1
    assert steps == 2


def test_evaluation_pads_for_a_model_with_state():
    """An evaluation changes no statistics: 21 rows in batches of 8 are evaluated, each once."""

    def fixed(params, model_state, batch, rng):
        return Outcome(squared_error(params, batch), model_state=model_state)

    trainer = Trainer(task(normed, evaluate=fixed), optax.sgd(0.1), devices=4)
    state = trainer.init(zeros(), model_state={"norm": {"mean": np.float32(0)}})
    result = trainer.evaluate(state, line(21), batch=8)
    assert result["rows"] == 21
    assert result["loss"] == pytest.approx(np.mean(line(21)["y"].astype(np.float64) ** 2), rel=1e-5)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_the_order_of_rows_does_not_depend_on_the_number_of_devices(devices):
    """The rows of each step, in order, are those of one device."""

    def rows_of(count):
        with trainer_of(devices=count).feed(line(50), batch=16, epochs=3, seed=11) as feed:
            return [batch.host.indices.tolist() for batch in feed]

    assert rows_of(devices) == rows_of(1)
    assert len(rows_of(devices)) == 9


def test_rows_may_be_given_by_paceline_rows_or_as_arrays():
    """A dict of arrays and `paceline.rows` of it train alike, bitwise."""
    trainer = trainer_of()
    a, _ = trainer.fit(trainer.init(zeros()), line(), batch=16, epochs=1)
    b, _ = trainer.fit(trainer.init(zeros()), paceline.rows(line()), batch=16, epochs=1)
    assert params_of(trainer, a) == params_of(trainer, b)


def refilled(steps):
    """Batches in one buffer, filled with 1.0, then 2.0, ...; aligned, so that JAX could use its memory as it is."""
    memory = np.zeros(4096 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    buffer = memory[start : start + 4096 * 4].view(np.float32)
    for step in range(1, steps + 1):
        buffer[:] = step
        yield buffer


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("devices", [1, 4])
def test_a_loader_may_fill_its_buffer_anew(scheme, devices):
    """Read ahead by fit, or in a loop of one's own: the losses of steps 1 to 8 are 1.0 to 8.0, exactly."""
    trainer = trainer_of(lambda params, batch: batch + 0 * params["w"], devices=devices, scheme=scheme)
    expected = [float(step) for step in range(1, 9)]
    losses = []
    trainer.fit(
        trainer.init(zeros()), refilled(8), callbacks=[lambda step, values: losses.append(values["train/loss"])]
    )
    assert losses == expected
    state, metrics = trainer.init(zeros()), []
    for batch in refilled(8):
        state, values = trainer.step(state, batch)
        metrics.append(values)
    assert [values.fetch()["loss"] for values in metrics] == expected
    assert trainer.evaluate(state, refilled(8))["loss"] == 4.5


def test_a_list_of_ready_batches_needs_to_be_called_a_stream():
    """As a list it is refused by fit; as a stream, 2 epochs of 4 batches are numpy's SGD (rtol 1e-5)."""
    trainer, given = trainer_of(), list(batches_of([16] * 4))
    with pytest.raises(DataError, match=r"a list of 4 items.*rows or ready batches"):
        trainer.fit(trainer.init(zeros()), given, batch=4, epochs=1)
    state, report = trainer.fit(trainer.init(zeros()), stream(given), epochs=2)
    assert (report.steps, report.rows_seen) == (8, 128)
    assert_close(params_of(trainer, state), numpy_sgd(line(64), 2 * [slice(i, i + 16) for i in range(0, 64, 16)]))


def test_a_stream_that_is_trained_on_twice_is_counted_anew():
    """Batches of 16 and 8: 8 rows dropped in each of two runs, not 16 in the second."""
    trainer, given = trainer_of(), stream(list(batches_of([16, 8])))
    for _ in range(2):
        _, report = trainer.fit(trainer.init(zeros()), given, epochs=1)
        assert (report.rows_seen, report.rows_dropped) == (16, 8)


def identifier_error(params, batch):
    return params["w"] * (batch["id"] % 7).astype(jnp.float32)


def test_integers_beyond_32_bits_are_refused_wherever_a_batch_is_placed():
    """2**31 + 3 in row 9: by fit from rows and a stream, by step and by evaluate, with the leaf and the value."""
    trainer = trainer_of(identifier_error)
    data = {"id": np.where(np.arange(16) == 9, 2**31 + 3, 5)}
    state = trainer.init(zeros())
    for attempt in (
        lambda: trainer.fit(state, data, batch=16, epochs=1),
        lambda: trainer.fit(state, stream([data]), epochs=1),
        lambda: trainer.step(state, data),
        lambda: trainer.evaluate(state, data),
        lambda: trainer.evaluate(state, stream([data])),
    ):
        with pytest.raises(DataError, match="batch leaf 'id' is int64 and holds 2147483651") as caught:
            attempt()
        assert "enable x64" in caught.value.fix


def test_integers_beyond_32_bits_are_whole_under_x64():
    """The feed's thread too: the loss of a step is the mean of id % 7, in numpy's int64 (exact)."""
    ids = 2**40 + np.arange(16)
    with jax.enable_x64(True):
        trainer = trainer_of(identifier_error)
        state = trainer.init({"w": np.float32(1)})
        _, report = trainer.fit(state, {"id": ids}, batch=16, epochs=1)
    assert report.final["train/loss"] == np.mean(ids % 7)


def test_more_than_one_epoch_of_a_generator_is_refused():
    """It is empty after one pass: named before step 1 with the ways out; one epoch, or steps, still work."""
    trainer = trainer_of()
    with pytest.raises(OptionError, match="epochs=2 of a generator") as caught:
        trainer.fit(trainer.init(zeros()), batches_of([16, 16]), epochs=2)
    assert "steps=" in caught.value.fix and "loader" in caught.value.fix
    for length in ({"epochs": 1}, {"steps": 2}):
        _, report = trainer.fit(trainer.init(zeros()), batches_of([16, 16]), **length)
        assert report.steps == 2


@pytest.fixture
def unchecked(monkeypatch):
    """Calls without the type check that tests add, as a user's calls are."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["batch", "steps", "epochs"])
@pytest.mark.parametrize("value", ["32", 32.0, 1.5, True, np.float32(32), np.True_, np.array(1.5)], ids=repr)
def test_what_is_no_whole_number_is_refused(name, value):
    """Text, floats and booleans: the option and the value are named."""
    trainer = trainer_of()
    with pytest.raises(OptionError, match="no whole number") as caught:
        trainer.fit(trainer.init(zeros()), line(), **{"batch": 16, "steps": 1, name: value})
    assert caught.value.what.startswith(f"{name}={value!r}") and f"{name}=32" in caught.value.fix


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_of_numpy_are_accepted():
    """int64 and uint8 count as ints do."""
    trainer = trainer_of()
    _, report = trainer.fit(trainer.init(zeros()), line(), batch=np.int64(16), epochs=np.uint8(2))
    assert (report.steps, report.rows_seen) == (8, 128)


def scalar_loss(params, batch):
    return jnp.mean(squared_error(params, batch))


def scalar_weighted(params, batch):
    rows = squared_error(params, batch)
    return paceline.Weighted(rows.sum(), jnp.asarray(rows.size))


def scalar_metric(params, batch):
    return squared_error(params, batch), {"mean_y": jnp.mean(batch["y"])}


@pytest.mark.parametrize("loss", [scalar_loss, scalar_weighted, scalar_metric])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_is_refused_where_it_cannot_be_masked(loss, scheme):
    """A mean that was taken already would hold the padding: refused before a step, from rows, streams and own loops."""
    trainer = trainer_of(loss, scheme=scheme)
    state = trainer.init(zeros())
    for data, options in ((line(21), {"batch": 8, "epochs": 1}), (batches_of([8, 8, 5]), {})):
        with pytest.raises(BatchSizeError, match="scalar over its rows") as caught:
            trainer.fit(state, data, remainder="pad", **options)
        state = caught.value.state or state
    assert "one value a row" in caught.value.fix
    with trainer.feed(line(5), batch=8, steps=1, remainder="pad") as feed, pytest.raises(BatchSizeError):
        trainer.step(state, next(feed))


def test_scalar_losses_train_where_nothing_is_padded():
    """16 rows in batches of 8, asked to pad: no padding, so w and b are those of numpy."""
    trainer = trainer_of(scalar_loss)
    state, _ = trainer.fit(trainer.init(zeros()), line(16), batch=8, epochs=1, remainder="pad", shuffle=False)
    assert_close(params_of(trainer, state), numpy_sgd(line(16), [slice(0, 8), slice(8, 16)]))

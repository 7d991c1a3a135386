"""The parts of a trainer that a loop of one's own uses: init, step, feed, place and single."""

from __future__ import annotations

import functools
import gc
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import StateError
from paceline.data.feed import THREAD_NAME
from paceline.engine.parallel import Parallel
from paceline.tasks.task import Initial, task
from paceline.train.fit import _carry
from paceline.train.trainer import Trainer
from tests.train.linear import RATE, SCHEMES, assert_close, line, numpy_sgd, params_of, squared_error, trainer_of, zeros


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_parameters_given_to_init_stay_the_callers(scheme, kind):
    """Numpy or JAX, on the device already: after 3 donating steps they hold what they held."""
    given = {name: kind(leaf) + 2 for name, leaf in zeros().items()}
    trainer = trainer_of(scheme=scheme)
    trainer.fit(trainer.init(given), line(), batch=16, steps=3)
    assert {name: float(leaf) for name, leaf in given.items()} == {"w": 2.0, "b": 2.0}


def test_a_state_is_born_on_every_device():
    """Each leaf is replicated over the 4 devices of the mesh, and on no other."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding.is_fully_replicated and leaf.devices() == set(trainer.mesh.devices.flat)


@pytest.mark.parametrize("placement", ["zero1", "fsdp"])
def test_a_state_is_born_split(placement):
    """Of 8 values on 4 devices each holds 2 of a moment, under fsdp of the parameters too, given or made."""
    made = task(squared_error, init=lambda rng: {"w": jnp.arange(8.0)})
    trainer = Trainer(made, optax.adam(RATE), devices=4, parallel=Parallel(placement=placement))
    for state in (trainer.init(), trainer.init({"w": np.arange(8.0)})):
        assert {shard.data.shape for shard in state.opt_state[0].mu["w"].addressable_shards} == {(2,)}
        held = {shard.data.shape for shard in state.params["w"].addressable_shards}
        assert held == ({(2,)} if placement == "fsdp" else {(8,)})
        single = trainer.single(state)
        assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(single))
        np.testing.assert_array_equal(single.params["w"], np.arange(8.0))


def wide(params, batch):
    return (batch["x"][:, None] * params["w"] - batch["y"][:, None]).sum(-1) ** 2


def wide_trainer(placement, **parallel):
    return trainer_of(wide, optimizer=optax.adam(RATE), placement=placement, **parallel)


@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
@pytest.mark.parametrize("placement", ["zero1", "fsdp"])
def test_a_run_with_split_states_ends_as_one_without(scheme, placement):
    """5 updates of adam on 8 parameters, 4 devices: parameters, their average and evaluations equal (float32, 1e-5)."""
    ended = []
    for kind in ("replicated", placement):
        trainer = wide_trainer(kind, scheme=scheme, ema_decay=0.5)
        state = trainer.init({"w": np.linspace(-1, 1, 8, dtype=np.float32)})
        state, report = trainer.fit(state, line(), batch=16, steps=5, evaluation=line(11), evaluate_every=2)
        evaluated = [trainer.evaluate(state, line(), use_ema=use_ema) for use_ema in (False, True)]
        ended.append((params_of(trainer, state)["w"], evaluated, report.evaluation))
    (left, *values), (right, *expected) = ended
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    for got, wanted in zip(jax.tree.leaves(values), jax.tree.leaves(expected), strict=True):
        assert got == pytest.approx(wanted, rel=1e-5)


def test_an_evaluation_reads_no_optimizer_state():
    """With the moments deleted, and the average too unless it is asked for, it still gives the loss."""
    trainer = wide_trainer("fsdp", ema_decay=0.5)
    state = trainer.init({"w": np.ones(8, np.float32)})
    for leaf in jax.tree.leaves((state.opt_state, state.ema)):
        leaf.delete()
    x, y = line(16).values()
    wanted = np.mean((8 * (x - y)) ** 2)
    assert trainer.evaluate(state, line(16))["loss"] == pytest.approx(wanted, rel=1e-5)


def test_a_run_says_what_is_split(tmp_path):
    """Adam on 8 parameters: 2 of 3 leaves split, the count whole (4 B), in the report, its text and `run.json`."""
    trainer = wide_trainer("zero1")
    state = trainer.init({"w": np.ones(8, np.float32)})
    _, report = trainer.fit(state, line(), batch=16, steps=1, run=tmp_path / "run")
    said = "zero1: 2 of 3 leaves of the optimizer state split over 4 devices, 1 replicated (4 B): 0.count"
    assert report.placement == said and f"placement   {said}" in report.lines()
    written = json.loads((tmp_path / "run" / "run.json").read_text())["placement"]
    assert written["summary"] == said
    assert written["fields"] == [
        {"field": "opt_state", "leaves": 3, "replicated": ["0.count"], "replicated_bytes": 4, "device_bytes": 20}
    ]


@pytest.mark.parametrize("theirs, ours", [("replicated", "zero1"), ("zero1", "fsdp"), ("fsdp", "replicated")])
def test_a_state_of_another_placement_is_refused_with_the_way_to_copy_it(theirs, ours):
    """By step and by fit, also once compiled; the leaf is named, and the copy that the fix names works."""
    other, trainer = wide_trainer(theirs), wide_trainer(ours)
    for _ in range(2):
        state = other.init({"w": np.ones(8, np.float32)})
        for use in (trainer.step, functools.partial(trainer.fit, batch=16, steps=1)):
            with pytest.raises(StateError, match=r"(params|opt_state.0.mu).w' of shape \(8,\)") as caught:
                use(state, line(16))
            assert "trainer.place(other_trainer.single(state))" in caught.value.fix
        trainer.step(trainer.place(other.single(state)), line(16))


def test_a_state_of_pmap_has_a_device_axis_and_single_drops_it():
    """Shapes (4,) and ()."""
    trainer = trainer_of(scheme="pmap")
    state = trainer.init(zeros())
    assert state.params["w"].shape == (4,)
    assert trainer.single(state).params["w"].shape == ()
    assert trainer.place(trainer.single(state)).params["w"].shape == (4,)


def test_the_task_makes_parameters_and_model_state_from_the_seed():
    """Same seed, same bits on any number of devices; another seed, other parameters."""

    def init(rng):
        return Initial({"w": jax.random.normal(rng, (3,))}, {"mean": jnp.zeros(3)})

    def made(devices, seed):
        trainer = Trainer(task(squared_error, init=init), optax.sgd(0.1), devices=devices)
        state = trainer.init(seed=seed)
        assert state.model_state["mean"].shape == (3,)
        return np.asarray(state.params["w"]).tolist()

    assert made(1, 5) == made(8, 5) != made(1, 6)


def test_the_seed_reaches_the_loss():
    """The first key of a run is another one for another seed, and the same for the same."""

    def loss(params, batch, rng):
        return params["w"] * batch["x"] + jax.random.normal(rng, ())

    trainer = trainer_of(loss)

    def first_loss(seed):
        _, metrics = trainer.step(trainer.init(zeros(), seed=seed), line(16))
        return metrics.fetch()["loss"]

    assert first_loss(0) == first_loss(0) != first_loss(1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_gives_its_numbers(scheme):
    """From w = b = 0: loss = mean of y^2, and a gradient of -2 mean(xy) and -2 mean(y), in numpy (rtol 1e-5)."""
    data = line(16)
    trainer = trainer_of(scheme=scheme)
    state, metrics = trainer.step(trainer.init(zeros()), data)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    values = metrics.fetch()
    assert values["loss"] == pytest.approx(np.mean(y**2), rel=1e-5)
    assert values["gradient_norm"] == pytest.approx(np.hypot(2 * np.mean(x * y), 2 * np.mean(y)), rel=1e-5)
    assert float(metrics["loss"]) == values["loss"]
    assert trainer.single(state).step == 1


def test_a_step_takes_lists_and_arrays_of_any_kind():
    """Lists of numbers, float64 and JAX arrays give the step of float32 arrays, bitwise, and one program serves all."""
    data = line(8)
    trainer = trainer_of()
    results = []
    for convert in (np.asarray, np.float64, jnp.asarray, np.ndarray.tolist):
        state, _ = trainer.step(trainer.init(zeros()), {name: convert(leaf) for name, leaf in data.items()})
        results.append(params_of(trainer, state))
    assert all(result == results[0] for result in results)
    assert trainer.compilations == 1


def test_steps_of_ones_own_are_those_of_fit():
    """feed and step in a loop end where fit ends, bitwise, over two epochs with padding."""
    arguments = {"batch": 16, "epochs": 2, "seed": 9, "remainder": "pad"}
    trainer = trainer_of()
    fitted, _ = trainer.fit(trainer.init(zeros()), line(90), **arguments)
    state = trainer.init(zeros())
    with trainer.feed(line(90), **arguments) as feed:
        for batch in feed:
            state, _ = trainer.step(state, batch)
    assert params_of(trainer, state) == params_of(trainer, fitted)


def test_a_feed_can_begin_at_any_step():
    """first_step=5 gives the batches of steps 5 and 6 of the run from 0, which lie in the second epoch."""
    trainer = trainer_of()

    def batches(steps, first_step):
        with trainer.feed(line(64), batch=16, steps=steps, first_step=first_step) as feed:
            return [batch.host.indices.tolist() for batch in feed]

    assert batches(2, 5) == batches(7, 0)[5:]


def feed_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def test_a_feed_that_is_left_early_leaves_no_thread():
    """Out of the block after 1 of 100 batches, by break and by an exception of the loop."""
    trainer = trainer_of()
    with trainer.feed(line(), batch=16, steps=100) as feed:
        next(feed)
        assert len(feed_threads()) == 1
    assert feed_threads() == []
    with pytest.raises(ZeroDivisionError), trainer.feed(line(), batch=16, steps=100) as feed:
        1 / len(next(feed).host.data.keys() - {"x", "y"})
    assert feed_threads() == []


class Broken(Exception):
    pass


class BrokenRows:
    """Row 30 cannot be read."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 30:
            raise Broken("row 30")
        return {name: leaf[index] for name, leaf in line().items()}


@pytest.mark.parametrize("use", ["feed", "fit"])
def test_an_exception_of_the_data_surfaces_with_its_traceback(use):
    """The same type and words, the line of the user's code in the traceback, and no thread left."""
    trainer = trainer_of()
    seen = []
    with pytest.raises(Broken, match="row 30") as caught:
        if use == "fit":
            trainer.fit(
                trainer.init(zeros()), BrokenRows(), batch=16, steps=9, shuffle=False,
                callbacks=[lambda step, values: seen.append(step)],
            )  # fmt: skip
        else:
            with trainer.feed(BrokenRows(), batch=16, steps=9, shuffle=False) as feed:
                for batch in feed:
                    seen.append(batch.rows)
    assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert len(seen) <= 1
    assert feed_threads() == []


def test_a_donated_state_is_reused_and_a_kept_one_is_not():
    """donate=True (the default) frees the state that a step is given; donate=False keeps it, with the same result."""
    results = []
    for donate in (True, False):
        trainer = trainer_of(donate=donate)
        before = trainer.init(zeros())
        after, _ = trainer.fit(before, line(), batch=16, steps=2)
        assert before.params["w"].is_deleted() == donate
        results.append(params_of(trainer, after))
    assert results[0] == results[1]


def test_the_compiled_program_can_be_read():
    """Text of the program with its all-reduce, and its memory; compiled once, then used by step."""
    trainer = trainer_of(scheme="per_device")
    state = trainer.init(zeros())
    program = trainer.compiled(state, line(16))
    assert "all-reduce" in program.as_text()
    assert program.memory_analysis() is not None
    trainer.step(state, line(16))
    assert trainer.compilations == 1


def test_devices_can_be_chosen():
    """The last two of eight: the state lives there, and nowhere else."""
    chosen = jax.devices()[-2:]
    trainer = Trainer(task(squared_error), optax.sgd(0.1), devices=chosen)
    assert trainer.num_devices == 2
    assert trainer.init(zeros()).params["w"].devices() == set(chosen)


def test_an_abandoned_feed_leaves_no_thread():
    """Neither exhausted nor closed nor in a block: collected with its last reference."""
    feed = trainer_of().feed(line(), batch=16, steps=100)
    next(feed)
    (thread,) = feed_threads()
    del feed
    gc.collect()
    thread.join(5.0)
    assert not thread.is_alive()


def breaking_rows():
    for start in range(0, 64, 16):
        if start == 48:
            raise OSError("the disk is gone")
        yield {name: leaf[start : start + 16] for name, leaf in line().items()}


def breaking_callback(step, values):
    if step == 3:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("data", "callbacks", "error"), [(breaking_rows, [], OSError), (line, [breaking_callback], ZeroDivisionError)]
)
def test_whatever_ends_a_run_carries_the_state(data, callbacks, error):
    """The state that fit was given has been donated: the exception has the one after the last step, as numpy says."""
    trainer = trainer_of()
    data = data()
    options = {"batch": 16, "epochs": 1, "shuffle": False} if isinstance(data, dict) else {}
    with pytest.raises(error) as caught:
        trainer.fit(trainer.init(zeros()), data, callbacks=callbacks, **options)
    steps = int(caught.value.state.step)
    assert steps in (3, 4)
    assert f"the state after step {steps}" in caught.value.__notes__[0]
    expected = numpy_sgd(line(), [slice(start, start + 16) for start in range(0, 16 * steps, 16)])
    assert_close(params_of(trainer, caught.value.state), expected)


def test_a_state_of_another_trainer_is_refused_with_the_way_to_copy_it():
    """Other devices, another scheme, other options: named before XLA says it; the copy that the fix names works."""
    ours = trainer_of()
    for other in (trainer_of(devices=2), trainer_of(scheme="pmap")):
        state = other.init(zeros())
        with pytest.raises(StateError) as caught:
            ours.fit(state, line(), batch=16, steps=1)
        assert "trainer.place(other_trainer.single(state))" in caught.value.fix
        ours.fit(ours.place(other.single(state)), line(), batch=16, steps=1)
    for options, field in (({"ema_decay": 0.9}, "ema"), ({"precision": "float16"}, "loss_scale")):
        with pytest.raises(StateError, match=f"the state has no {field}"):
            trainer_of(**options).step(ours.init(zeros()), {name: leaf[:16] for name, leaf in line().items()})


def test_a_step_that_fails_on_the_devices_keeps_its_own_error():
    """It took the state with it: nothing is hung on the error, and asking the lost state does not replace it."""
    trainer = trainer_of()
    state = trainer.init(zeros())
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    error = ZeroDivisionError()
    _carry(error, state, step=3)
    assert not hasattr(error, "state") and not hasattr(error, "__notes__")

"""The contract that every adapter passes, on the same small network.

Expected values come from numpy, from pencil, or by another route (one device, a formula without the library).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.base.errors import AxisNameError, TaskError
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.parallel import Parallel
from paceline.tasks.task import RunningStatistics
from paceline.tasks.tree import map_named, named_leaves
from tests.tasks.adapters.models import LIBRARIES, Net, Ran, take_steps

# As many hidden units as four devices have rows each: a row's own draw must not be taken for one over rows.
HIDDEN = 4
NET = Net(3, (("first", HIDDEN), ("bn", "norm"), ("relu", "relu"), ("dropout", "dropout"), ("last", 1)))
WITHOUT_NORM = Net(3, (("first", HIDDEN), ("relu", "relu"), ("dropout", "dropout"), ("last", 1)))
QUIET = Net(3, NET.layers, rate=0.1)
EXACT = Net(3, NET.layers, rate=0.0)
NORM = Net(1, (("bn", "norm"), ("last", 1)))
MASK = Net(16, (("first", 16), ("dropout", "dropout")))
GLOBAL_VIEW = Parallel()

library = pytest.mark.parametrize("name", sorted(LIBRARIES))


def square_error(model, batch):
    return (model(batch["x"])[:, 0] - batch["y"]) ** 2


def masks(model, batch):
    """A metric for each of 8 rows: which of its 16 outputs are left, as a number of 16 bits."""
    output = model(batch["x"])
    code = jnp.sum((output != 0) * 2 ** jnp.arange(16), axis=1)
    return jnp.mean(output**2, axis=1), {f"row{i}": jnp.where(batch["y"] == i, code, 0) for i in range(8)}


@functools.cache
def task_of(name, net, loss=square_error):
    example = {"x": jax.ShapeDtypeStruct((2, net.inputs), jnp.float32), "y": jax.ShapeDtypeStruct((2,), jnp.float32)}
    return LIBRARIES[name].task(net, loss, example)


def linear_rows(dtype):
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(dtype)
    return {"x": x, "y": (x @ np.array([1.0, -2.0, 0.5])).astype(dtype)}


def counted_rows(dtype):
    """Case 7: of four devices, device d sees two rows of value d."""
    x = np.repeat(np.arange(4.0), 2).astype(dtype)
    return {"x": x[:, None], "y": x}


def equal_rows(dtype):
    """Case 6: ones for four devices, two rows of 16 each."""
    return {"x": np.ones((8, 16), dtype), "y": np.arange(8, dtype=np.int32)}


@functools.cache
def ran(name, net, parallel, devices, *, rows=linear_rows, loss=square_error, steps=1, dtype="float32") -> Ran:
    return take_steps(task_of(name, net, loss), parallel, rows(dtype), devices=devices, steps=steps, dtype=dtype)


def assert_same(got, wanted, *, tolerance):
    for (leaf, a), (_, b) in zip(named_leaves(got), named_leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=leaf)


@library
@pytest.mark.parametrize(
    "parallel",
    [GLOBAL_VIEW, Parallel("per_device"), Parallel("pmap"), Parallel("per_device", precision="bfloat16")],
    ids=["global_view", "per_device", "pmap", "bfloat16"],
)
def test_every_scheme_trains_the_model(name, parallel):
    """20 steps of SGD on 4 devices, BatchNorm and dropout 0.1 on: the last 5 losses average below 0.6 of the first."""
    losses = [step["loss"] for step in ran(name, QUIET, parallel, 4, steps=20).metrics]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


@library
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_an_update_does_not_depend_on_the_number_of_devices(name, devices, x64):
    """Float64, BatchNorm and dropout: parameters, model state and loss are those of one device (1e-10)."""
    one = ran(name, NET, GLOBAL_VIEW, 1, dtype="float64")
    assert_same(ran(name, NET, GLOBAL_VIEW, devices, dtype="float64"), one, tolerance=1e-10)


@library
@pytest.mark.parametrize("scheme", ["per_device", "pmap"])
def test_synced_batch_norm_is_that_of_one_device(name, scheme, x64):
    """Float64, global dropout stream, synced BatchNorm, 4 devices: one update is that of one device (1e-10)."""
    synced = Parallel(scheme, batch_norm="synced")
    one = ran(name, NET, GLOBAL_VIEW, 1, dtype="float64")
    assert_same(ran(name, NET, synced, 4, dtype="float64"), one, tolerance=1e-10)


@library
@pytest.mark.parametrize("parallel", [Parallel(accumulation=4), Parallel("per_device", accumulation=4)])
def test_an_update_does_not_depend_on_the_number_of_microbatches(name, parallel, x64):
    """Float64, dropout, no BatchNorm: 4 microbatches on 4 devices, one row each: the update of one device (1e-10)."""
    one = ran(name, WITHOUT_NORM, GLOBAL_VIEW, 1, dtype="float64")
    assert_same(ran(name, WITHOUT_NORM, parallel, 4, dtype="float64"), one, tolerance=1e-10)


@library
def test_an_update_is_that_of_the_formula(name, x64):
    """Float64, no dropout: gradients and running statistics are those of the network written down in jnp (1e-10)."""
    lib, batch = LIBRARIES[name], linear_rows("float64")
    before = ran(name, EXACT, GLOBAL_VIEW, 1, steps=0, dtype="float64").params
    after, state, metrics = ran(name, EXACT, GLOBAL_VIEW, 1, dtype="float64")

    def formula(weights):
        (first, bias), (scale, shift), (last, offset) = weights
        hidden = batch["x"] @ first + bias
        mean, variance = hidden.mean(0), hidden.var(0)
        hidden = jax.nn.relu((hidden - mean) / jnp.sqrt(variance + 1e-5) * scale + shift)
        return jnp.mean(((hidden @ last + offset)[:, 0] - batch["y"]) ** 2), (mean, variance)

    def weights_of(params):
        return lib.linear(params, "first"), lib.affine(params), lib.linear(params, "last")

    (loss, (mean, variance)), gradient = jax.value_and_grad(formula, has_aux=True)(weights_of(before))
    assert metrics[0]["loss"] == pytest.approx(float(loss), rel=1e-10)
    wanted = jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights_of(before), gradient)
    assert_same(weights_of(after), wanted, tolerance=1e-10)
    assert_same(lib.statistics(state), (0.1 * mean, 0.9 + 0.1 * variance), tolerance=1e-10)


@library
@pytest.mark.parametrize("scheme", ["per_device", "pmap"])
def test_local_running_statistics_are_those_of_all_rows(name, scheme):
    """Case 7: mean 0.15 and variance 1.025 (float32, 1e-6). The mean of the local variances would give 0.9."""
    state = ran(name, NORM, Parallel(scheme), 4, rows=counted_rows).model_state
    assert_same(LIBRARIES[name].statistics(state), ([0.15], [1.025]), tolerance=1e-6)


@library
@pytest.mark.parametrize(("scheme", "devices"), [("global_view", 4), ("per_device", 4), ("pmap", 4), ("per_device", 1)])
def test_a_model_that_names_the_data_axis_runs_everywhere(name, scheme, devices):
    """Case 5: with axis_name="data" in the model the statistics are those of all 8 rows (float32, 1e-6)."""
    net = Net(1, NORM.layers, axis_name="data")
    state = ran(name, net, Parallel(scheme), devices, rows=counted_rows).model_state
    assert_same(LIBRARIES[name].statistics(state), ([0.15], [1.025]), tolerance=1e-6)


@library
@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_a_model_that_names_another_axis_is_refused(name, scheme):
    """Case 5: the error names the axis, and the fix the one to use."""
    with pytest.raises(AxisNameError, match="'devices'") as caught:
        ran(name, Net(1, NORM.layers, axis_name="devices"), Parallel(scheme), 4, rows=counted_rows)
    assert "axis_name='data'" in caught.value.fix


@library
@pytest.mark.parametrize(
    ("parallel", "distinct"),
    [
        (GLOBAL_VIEW, 4),
        (Parallel("per_device", dropout="global"), 4),
        (Parallel("per_device", dropout="per_device"), 4),
        (Parallel("per_device", dropout="shared"), 1),
    ],
    ids=["global_view", "global", "per_device", "shared"],
)
def test_devices_draw_their_own_masks_unless_told_to_share(name, parallel, distinct):
    """Case 6: ones(4, 2, 16), dropout 0.5: 4 distinct masks, or 1 with `shared`; the two rows of a device differ."""
    codes = mask_codes(name, parallel).reshape(4, 2)
    assert len(np.unique(codes, axis=0)) == distinct
    assert (codes[:, 0] != codes[:, 1]).all()


@library
def test_the_global_stream_draws_the_masks_of_one_device(name):
    """The masks of `per_device` with dropout="global" are those of one device, bit for bit."""
    codes = mask_codes(name, Parallel("per_device", dropout="global"))
    np.testing.assert_array_equal(codes, mask_codes(name, GLOBAL_VIEW))


def mask_codes(name, parallel):
    metrics = ran(name, MASK, parallel, 4, rows=equal_rows, loss=masks).metrics[0]
    return np.array([8 * metrics[f"row{i}"] for i in range(8)]).astype(int)


@library
def test_evaluation_uses_running_statistics_and_no_dropout(name):
    """Loss of 16 rows with running mean 0.3 and variance 2: as in numpy (float32, 1e-5), whatever the key."""
    lib, batch = LIBRARIES[name], linear_rows("float32")
    params, state = jax.device_get(jax.jit(task_of(name, NET).init)(jax.random.key(1)))
    state = map_named(lambda leaf, value: np.full_like(value, 0.3) if leaf.endswith("mean") else value, state)
    state = map_named(lambda leaf, value: np.full_like(value, 2) if leaf.endswith(lib.variance) else value, state)
    (first, bias), (last, offset) = lib.linear(params, "first"), lib.linear(params, "last")
    hidden = np.maximum((batch["x"] @ first + bias - 0.3) / np.sqrt(2 + 1e-5), 0)
    wanted = np.mean(((hidden @ last + offset)[:, 0] - batch["y"]) ** 2)

    evaluate = EvaluationFunction(task_of(name, NET), GLOBAL_VIEW)
    for seed in (0, 1):
        totals = evaluate(params, state, batch, jnp.ones(16, bool), jax.random.key(seed))
        assert float(totals["loss"].mean()) == pytest.approx(wanted, rel=1e-5)


@library
def test_evaluation_leaves_the_model_state_alone(name):
    """The state that evaluation returns is the state it was given, leaf by leaf."""
    task = task_of(name, NET)
    params, state = jax.jit(task.init)(jax.random.key(1))
    assert task.evaluate is not None
    outcome = task.evaluate(params, state, linear_rows("float32"), jax.random.key(0))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: a is b, outcome.model_state, state)))


@library
def test_leaves_have_readable_names_and_are_float32(name):
    """Parameters and statistics are named by their layers; masters are float32, also when they train in bfloat16."""
    lib = LIBRARIES[name]
    params, state, _ = ran(name, QUIET, Parallel("per_device", precision="bfloat16"), 4, steps=20)
    linear = [f"{layer}.{leaf}" for layer in ("first", "last") for leaf in (lib.kernel, "bias")]
    norm = ["bn.mean", f"bn.{lib.variance}", *(["bn.count"] if lib.counts else [])]
    wanted = {lib.params + leaf for leaf in [*linear, f"bn.{lib.scale}", "bn.bias"]}
    assert {leaf for leaf, _ in named_leaves(params)} == wanted
    assert {leaf for leaf, _ in named_leaves(state)} == {lib.state + leaf for leaf in norm}
    floats = [value for leaf, value in named_leaves((params, state)) if not leaf.endswith("count")]
    assert {value.dtype for value in floats} == {np.dtype("float32")}


@library
def test_running_statistics_are_declared(name):
    """One entry for the BatchNorm, with its momentum."""
    prefix = f"{LIBRARIES[name].state}bn."
    wanted = RunningStatistics(f"{prefix}mean", f"{prefix}{LIBRARIES[name].variance}", 0.9)
    assert task_of(name, NET).statistics == (wanted,)


@library
def test_bfloat16_reaches_the_end_of_the_model(name):
    """The output is bfloat16 behind a BatchNorm with float32 statistics, in training and in evaluation."""
    seen = []
    task = task_of(name, NET, loss=lambda model, batch: seen.append(model(batch["x"]).dtype) or jnp.zeros(16))
    initial = jax.eval_shape(task.init, jax.random.key(0))
    low = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), initial.params)
    batch = {"x": jax.ShapeDtypeStruct((16, 3), jnp.bfloat16), "y": jax.ShapeDtypeStruct((16,), jnp.bfloat16)}
    seen.clear()
    for run in (task.loss, task.evaluate):
        jax.eval_shape(run, low, initial.model_state, batch, jax.random.key(0))
    assert seen == [jnp.bfloat16, jnp.bfloat16]


@library
def test_bfloat16_does_not_round_the_running_statistics(name):
    """512 rows of 1.0 in bfloat16: the running mean is 0.1 and the variance 0.9 (1e-6; in bfloat16 0.1 is 0.10010)."""
    task = task_of(name, NORM)
    params, state = jax.jit(task.init)(jax.random.key(0))
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    batch = {"x": jnp.ones((512, 1), jnp.bfloat16), "y": jnp.ones(512, jnp.bfloat16)}
    outcome = jax.jit(task.loss)(low, state, batch, jax.random.key(0))
    assert_same(LIBRARIES[name].statistics(outcome.model_state), ([0.1], [0.9]), tolerance=1e-6)


@library
def test_initialisation_is_a_function_of_the_seed(name):
    """Under jit: same key, same bits; another key, another kernel."""
    init = jax.jit(task_of(name, NET).init)
    first, again, other = (init(jax.random.key(seed)) for seed in (3, 3, 4))
    assert_same(first, again, tolerance=0)
    lib = LIBRARIES[name]
    assert (lib.linear(first.params, "first")[0] != lib.linear(other.params, "first")[0]).any()


@library
def test_no_leaf_is_a_random_key(name):
    """Keys come from the seed and the step, so that neither parameters nor model state hold one; no type is weak."""
    leaves = jax.tree.leaves(jax.eval_shape(task_of(name, NET).init, jax.random.key(0)))
    assert not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or leaf.weak_type for leaf in leaves)


@library
def test_a_loss_may_take_a_key_and_return_metrics(name):
    """``f(model, batch, rng)`` gets a new key at every step; metrics are averaged over the rows (float32, 1e-6)."""

    def loss(model, batch, rng):
        return square_error(model, batch), {"y": batch["y"], "draw": jax.random.uniform(rng, (16,))}

    metrics = ran(name, WITHOUT_NORM, GLOBAL_VIEW, 1, loss=loss, steps=2).metrics
    assert metrics[0]["y"] == pytest.approx(np.mean(linear_rows("float32")["y"]), rel=1e-6)
    assert metrics[0]["draw"] != metrics[1]["draw"]


@library
def test_a_loss_of_another_number_of_arguments_is_refused(name):
    """The fix shows both signatures."""
    with pytest.raises(TaskError, match="4 positional arguments") as caught:
        task_of(name, NET, loss=lambda params, model_state, batch, rng: 0.0)
    assert "f(model, batch)" in caught.value.fix and "f(model, batch, rng)" in caught.value.fix


@library
def test_a_model_without_parameters_is_refused(name):
    """There is nothing to train; the fix says where layers are made."""
    with pytest.raises(TaskError, match="no parameters") as caught:
        task_of(name, Net(1, (("relu", "relu"),)))
    assert "layer" in caught.value.fix

"""Half precision computes, float32 keeps: masters, sums, the wire and the loss scale."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.base.errors import StateError
from paceline.engine import precision
from paceline.engine.parallel import Parallel
from paceline.engine.precision import LossScale, cast_floats, initial_loss_scale, master_params, next_loss_scale
from tests.engine.helpers import LOCAL_SCHEMES, SCHEMES, lowered_text, run, shard_bytes, start, step_of

OPTIMIZER = optax.sgd(1.0, momentum=0.5)
HALVES = ("bfloat16", "float16")

half = pytest.mark.parametrize("kind", HALVES)


def squares(params, batch):
    """Nothing cancels, so rounding errors stay relative. The metric tells in how many bits the model computed."""
    rows = (batch["x"] * params["w"]) ** 2
    bits = jnp.finfo(rows.dtype).bits
    assert batch["label"].dtype == jnp.int32, "integers are not cast"
    return rows, {"bits": jnp.full(rows.shape, bits, jnp.int32)}


def products(params, batch):
    return params["w"] * batch["x"]


def squared_rows() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).uniform(0.2, 0.8, size=16).astype(np.float32)
    return {"x": x, "label": np.zeros(16, np.int32)}


@half
@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_half_precision_computes_near_float32_and_keeps_float32(kind, scheme):
    """One update in half precision: within 4 eps of float32 by numpy (seven roundings of eps/2, none cancels)."""
    batch = squared_rows()
    got = run(
        step_of(squares, OPTIMIZER, Parallel(scheme, precision=kind), devices=4), [batch], params={"w": np.float32(1.1)}
    )
    tolerance = 4 * float(jnp.finfo(kind).eps)
    slope = (2 * 1.1 * batch["x"] ** 2).mean()
    assert got.metrics[0]["bits"] == 16
    assert got.metrics[0]["loss"] == pytest.approx(((1.1 * batch["x"]) ** 2).mean(), rel=tolerance)
    assert 1.1 - got.state["params"]["w"] == pytest.approx(slope, rel=tolerance)
    floats = [leaf.dtype for leaf in jax.tree.leaves((got.state["params"], got.state["opt_state"]))]
    assert floats == [np.float32] * 2


def test_float32_computes_in_float32():
    step = step_of(squares, OPTIMIZER, Parallel("per_device"), devices=4)
    assert run(step, [squared_rows()], params={"w": np.float32(1.1)}).metrics[0]["bits"] == 32


@half
def test_small_updates_are_not_lost_in_the_masters(kind):
    """A hundred updates of 2**-13 from 1, each below half an eps of 1 in half precision: 1 + 100 * 2**-13, exactly."""
    step = step_of(products, OPTIMIZER_OF_SMALL_STEPS, Parallel("per_device", precision=kind), devices=2)
    got = run(step, [{"x": -np.ones(2, np.float32)}] * 100, params={"w": np.float32(1)})
    assert got.state["params"]["w"] == 1 + 100 * 2.0**-13


OPTIMIZER_OF_SMALL_STEPS = optax.sgd(2.0**-13)


def test_gradients_below_the_range_of_float16_survive():
    """64 rows of gradient 2**-20, each 2**-26 of the mean, less than float16's least 2**-24: exactly 2**-20 arrives."""
    step = step_of(products, optax.sgd(2.0**20), Parallel("per_device", precision="float16"), devices=4)
    got = run(step, [{"x": np.full(64, 2.0**-20, np.float32)}], params={"w": np.float32(0)})
    assert got.state["params"]["w"] == -1


def test_a_part_of_the_batch_scales_its_part_of_the_gradient():
    """Gradient 8 under the scale 2**15 is beyond float16 whole, not in 16 parts of 2**14: applied, exactly."""
    batch = {"x": np.full(16, 8, np.float32)}
    for parallel, skipped in (
        (Parallel("per_device", precision="float16", accumulation=4), 0),
        (Parallel(precision="float16"), 1),
    ):
        got = run(step_of(products, optax.sgd(0.25), parallel, devices=4), [batch], params={"w": np.float32(0)})
        assert got.state["skipped"] == skipped
        assert got.state["params"]["w"] == (-2 if skipped == 0 else 0)


WIRE = re.compile(r'"stablehlo\.all_reduce".*?\}\) : \((.*?)\) ->', re.DOTALL)


def wire_types(text: str) -> list[str]:
    """Tensor types of the all-reduces of a program, for example ``tensor<3x5xf32>``, sorted."""
    return sorted(kind for operands in WIRE.findall(text) for kind in operands.split(", "))


@pytest.mark.parametrize("asked, wire", [(None, "f32"), ("float32", "f32"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_gradients_cross_the_wire_in_the_type_asked_for(asked, wire, kind):
    """Read from the program of `per_device`: a gradient leaf is reduced once, in float32 unless bfloat16 was asked."""

    def loss(params, batch):
        return jnp.tanh(batch["x"] @ params["w"]).sum(axis=1)

    parallel = Parallel("per_device", reduce_dtype=asked, precision=kind)
    text = lowered_text(
        step_of(loss, OPTIMIZER, parallel, devices=4),
        {"x": np.ones((8, 3), np.float32)},
        params={"w": np.ones((3, 5), np.float32)},
    )
    assert [kind for kind in wire_types(text) if "3x5" in kind] == [f"tensor<3x5x{wire}>"]
    assert not any("bf16" in kind for kind in wire_types(text) if "3x5" not in kind)


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_a_bfloat16_wire_rounds_the_gradients_and_nothing_else(scheme):
    """Device gradients 1, 1 + 2**-10, 1, 1: the small part is lost on the wire, so the mean is exactly 1."""
    batch = {"x": np.array([1, 1 + 2.0**-10, 1, 1], np.float32)}
    for asked, wanted in (("bfloat16", 1.0), ("float32", 1 + 2.0**-12)):
        got = run(
            step_of(products, OPTIMIZER, Parallel(scheme, reduce_dtype=asked), devices=4),
            [batch],
            params={"w": np.float32(0)},
        )
        assert -got.state["params"]["w"] == wanted and got.state["params"]["w"].dtype == np.float32
        assert got.metrics[0]["loss"] == 0


@functools.cache
def scaled(scheme):
    """Four rows of which one overflows float16 under the scale 2**15: 1000 * 2**15 / 4 is above 65504."""
    step = step_of(products, optax.sgd(0.5), Parallel(scheme, precision="float16"), devices=4)
    large, small = {"x": np.array([1, 1, 1000, 1], np.float32)}, {"x": np.ones(4, np.float32)}
    return step, run(step, [large, large, small], params={"w": np.float32(1)})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_overflow_on_one_device_halves_the_scale_on_all(scheme):
    """Two overflows, then a good update, under `stop`: both skipped, scale 2**13 in the bytes of each device."""
    _, got = scaled(scheme)
    assert [values["loss_scale"] for values in got.metrics] == [2.0**15, 2.0**14, 2.0**13]
    assert [values["skipped_updates"] for values in got.metrics] == [1, 2, 2]
    assert shard_bytes(got.placed.loss_scale.scale) == [np.float32(2.0**13).tobytes()] * 4
    assert shard_bytes(got.placed.params["w"]) == [np.float32(0.5).tobytes()] * 4
    assert got.state["loss_scale"].good_steps == 1


def test_the_scale_grows_after_enough_good_updates_in_a_row(monkeypatch):
    """Interval 3: doubled after three good ones, the count starts over after a change and after an overflow."""
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 3)
    scale = initial_loss_scale()
    seen = []
    for finite in (True, True, False, True, True, True, True, True, True):
        scale = next_loss_scale(scale, jnp.asarray(finite))
        seen.append((float(scale.scale) / 2**15, int(scale.good_steps)))
    assert seen == [(1, 1), (1, 2), (0.5, 0), (0.5, 1), (0.5, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_the_interval_of_growth_is_that_of_the_papers():
    """2,000 good updates, from 2**15 (Micikevicius et al. 2018): 1,999 are not enough."""
    nearly = LossScale(jnp.float32(2.0**15), jnp.int32(1998))
    nearly = next_loss_scale(nearly, jnp.asarray(True))
    assert (nearly.scale, nearly.good_steps) == (2.0**15, 1999)
    assert next_loss_scale(nearly, jnp.asarray(True)).scale == 2.0**16


def test_the_scale_never_falls_below_one():
    """Twenty overflows from 2**15: 1.0, which leaves the loss as it is."""
    scale = initial_loss_scale()
    for _ in range(20):
        scale = next_loss_scale(scale, jnp.asarray(False))
    assert scale.scale == 1 and scale.scale.dtype == jnp.float32


def test_half_precision_parameters_become_float32_masters():
    """bfloat16 and float16 in, float32 kept, same values; float32 stays, float64 stays under x64."""
    params = {"a": jnp.array([1.5], jnp.bfloat16), "b": jnp.array([0.1], jnp.float16), "c": jnp.array([0.1])}
    masters = master_params(params)
    assert {leaf.dtype for leaf in masters.values()} == {jnp.dtype("float32")}
    for name, leaf in params.items():
        np.testing.assert_array_equal(masters[name], np.asarray(leaf, np.float32))
    with jax.enable_x64(True):
        assert master_params({"a": jnp.zeros(2, jnp.float64)})["a"].dtype == jnp.float64


@pytest.mark.parametrize("leaf", [np.zeros(2, np.int32), np.zeros(2, bool), np.zeros(2, np.complex64)])
def test_a_parameter_that_is_no_float_is_refused(leaf):
    """The error names leaf and type; in the model state, as the fix says, the same leaf is fine."""
    with pytest.raises(StateError) as caught:
        start(step_of(squares, OPTIMIZER), {"w": np.float32(1), "layer": [{"ids": leaf}]})
    assert "'layer.0.ids'" in caught.value.what and str(leaf.dtype) in caught.value.what
    assert "model state" in caught.value.fix and "float32" in caught.value.fix
    start(step_of(squares, OPTIMIZER), {"w": np.float32(1)}, model_state={"ids": leaf})


def test_a_tree_without_parameters_is_refused():
    with pytest.raises(StateError, match="nothing to train") as caught:
        start(step_of(squares, OPTIMIZER), {"layers": []})
    assert "floating-point array" in caught.value.fix


def test_a_cast_leaves_everything_but_floats_alone():
    """Integers, booleans and keys keep their type; under float32 the very tree is returned."""
    tree = {"f": jnp.ones(2), "i": jnp.arange(2), "b": jnp.ones(2, bool), "k": jax.random.key(0)}
    cast = cast_floats(tree, "bfloat16")
    assert cast["f"].dtype == jnp.bfloat16
    assert all(cast[name] is tree[name] for name in "ibk")
    assert cast_floats(tree, "float32") is tree


def test_a_python_number_is_a_parameter_like_any_other():
    """``{"w": 1.0}`` from an init becomes a float32 scalar."""
    params = master_params({"w": 1.0})
    assert params["w"].dtype == jnp.float32
    assert params["w"].shape == ()

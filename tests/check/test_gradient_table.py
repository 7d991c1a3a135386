"""Fact 3: what becomes of the gradient of a mean loss under pmap and shard_map, in numbers, and how verify names it.

By pencil: x = 0..7, y = 2x, w = 0, loss mean((xw - y)^2). One device has the loss sum 4x^2 / 8 = 4 * 140 / 8 = 70 and
the gradient sum -4x^2 / 8 = -70. Of four devices each sees two rows, and their means have the gradients -2 (0 + 1),
-2 (4 + 9), -2 (16 + 25) and -2 (36 + 49), of which -70 is the mean and -280 the sum.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from paceline.check.parity import causes
from paceline.check.parity.verify import verify
from paceline.tasks.task import task
from paceline.topology.mesh import data_mesh

DATA = {"x": np.arange(8, dtype=np.float32), "y": 2 * np.arange(8, dtype=np.float32)}
AXIS, WHOLE, ROWS = "data", PartitionSpec(), PartitionSpec("data")
MAPS = ("pmap", "unchecked shard_map", "checked shard_map")


def mean_square(params: Any, batch: Any) -> Any:
    return ((batch["x"] * params["w"] - batch["y"]) ** 2).mean()


class Variant(NamedTuple):
    """How one device takes its gradient.

    Args:
      reduce: a collective, or None.
      inside: it reduces the loss, inside the function that is differentiated, and not the gradient.
      cast: the parameters are cast to varying ones first.
    """

    reduce: Any = None
    inside: bool = False
    cast: bool = False

    def gradient(self, params: Any, batch: Any) -> Any:
        params = lax.pcast(params, AXIS, to="varying") if self.cast else params
        if self.inside:
            return jax.grad(lambda p: self.reduce(mean_square(p, batch), AXIS))(params)
        gradient = jax.grad(mean_square)(params, batch)
        return gradient if self.reduce is None else self.reduce(gradient, AXIS)


VARIANTS = {
    "unreduced": Variant(),
    "pmean": Variant(lax.pmean),
    "psum": Variant(lax.psum),
    "pmean inside": Variant(lax.pmean, inside=True),
    "psum inside": Variant(lax.psum, inside=True),
    "cast": Variant(cast=True),
    "cast, pmean": Variant(lax.pmean, cast=True),
    "cast, psum": Variant(lax.psum, cast=True),
}


def mapped(function: Any, *, how: str, devices: int, state: int = 1, out_specs: Any = ROWS) -> Any:
    """``function(state..., batch)`` once a device: the state whole, the rows split."""
    if how == "pmap":
        return jax.pmap(function, axis_name=AXIS, devices=jax.devices()[:devices])
    mesh = data_mesh(jax.devices()[:devices])
    specs = (*[WHOLE] * state, ROWS)
    check = how.startswith("checked")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check))


@functools.cache
def gradients(how: str, devices: int) -> dict[str, list[float]]:
    """The gradient that each device has, by variant; all variants are one program."""
    variants = {name: variant for name, variant in VARIANTS.items() if how != "pmap" or not variant.cast}

    def all_of_them(params: Any, batch: Any) -> Any:
        return {name: variant.gradient(params, batch)["w"][None] for name, variant in variants.items()}

    params, batch = {"w": np.float32(0)}, DATA
    if how == "pmap":
        params = {"w": np.zeros(devices, np.float32)}
        batch = jax.tree.map(lambda leaf: leaf.reshape(devices, -1), DATA)
    found = mapped(all_of_them, how=how, devices=devices)(params, batch)
    return {name: np.asarray(leaf).ravel().tolist() for name, leaf in found.items()}


LOCAL = {
    2: [-14.0, -126.0],
    4: [-2.0, -26.0, -82.0, -170.0],
    8: [0.0, -4.0, -16.0, -36.0, -64.0, -100.0, -144.0, -196.0],
}
"""-4x^2, averaged over the rows of each device."""


def table(how: str, devices: int) -> dict[str, list[float]]:
    """What fact 3 says, with K = `devices`."""
    local, one = LOCAL[devices], [-70.0] * devices
    times_k, times_k2 = [-70.0 * devices] * devices, [-70.0 * devices**2] * devices
    casts = {"cast": local, "cast, pmean": one, "cast, psum": times_k}
    if how == "checked shard_map":
        plain = {"unreduced": times_k, "pmean": times_k, "psum": times_k2}
        return {**plain, "pmean inside": one, "psum inside": times_k, **casts}
    plain = {"unreduced": local, "pmean": one, "psum": times_k}
    inside = {"pmean inside": local, "psum inside": [devices * value for value in local]}
    return {**plain, **inside, **({} if how == "pmap" else casts)}


def test_one_device_has_loss_70_and_gradient_minus_70():
    """Exactly, in float32."""
    value, gradient = jax.value_and_grad(mean_square)({"w": jnp.float32(0)}, DATA)
    assert (float(value), float(gradient["w"])) == (70, -70)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("how", MAPS)
def test_the_table_of_gradients_is_what_jax_does(how, devices):
    """Every cell exactly, in float32: local, the mean, K times it, K^2 times it."""
    assert gradients(how, devices) == table(how, devices)


def verified(how: str, variant: str, *, devices: int = 4) -> Any:
    """What verify says of a training step with the gradient of one cell of the table."""
    optimizer = optax.sgd(1e-3)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        changes, opt_state = optimizer.update(VARIANTS[variant].gradient(params, batch), opt_state, params)
        loss = lax.pmean(mean_square(params, batch), AXIS)
        return optax.apply_updates(params, changes), opt_state, loss

    return verify(
        task(mean_square), optimizer, data=DATA, params={"w": np.float32(0)}, devices=(devices,), accumulation=(1,),
        step=mapped(step, how=how, devices=devices, state=2, out_specs=WHOLE), batch=8, updates=2,
    )  # fmt: skip


NAMED = [
    ("checked shard_map", "unreduced", 4, causes.GRADIENT_TIMES_K),
    ("checked shard_map", "pmean", 4, causes.GRADIENT_TIMES_K),
    ("checked shard_map", "psum", 4, causes.GRADIENT_TIMES_K2),
    ("unchecked shard_map", "psum", 8, causes.GRADIENT_TIMES_K),
    ("pmap", "unreduced", 4, causes.NEVER_REDUCED),
    ("pmap", "pmean inside", 4, causes.NEVER_REDUCED),
]


@pytest.mark.parametrize(("how", "variant", "devices", "cause"), NAMED)
def test_verify_names_a_wrong_cell_of_the_table(how, variant, devices, cause):
    """K times, K^2 times or never reduced, and no other cause; the fix says what to reduce."""
    outcome = verified(how, variant, devices=devices)
    assert not outcome.ok and [culprit.cause for culprit in outcome.culprits] == [cause]
    text = "\n".join(outcome.lines())
    assert "NOT VERIFIED" in text and f"cause: {cause.name}" in text and "jax.lax.pmean" in cause.fix


RIGHT = [("pmap", "pmean"), ("unchecked shard_map", "pmean"), ("checked shard_map", "pmean inside"),
         ("checked shard_map", "cast, pmean")]  # fmt: skip


@pytest.mark.parametrize(("how", "variant"), RIGHT)
def test_verify_accepts_the_cells_that_hold_the_gradient_of_one_device(how, variant):
    """The two fixes that verify names are among them: equal in float64 to 1e-10 and in float32."""
    outcome = verified(how, variant)
    assert outcome.ok, outcome.lines()
    assert [result.devices for result in outcome.results] == [4, 4]

"""Bytes by arithmetic, against pencil and against the compiler."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.engine.parallel import Parallel
from paceline.insight.memory.accounting import account, account_state, device_bytes
from tests.insight.memory.steps import PARAMS, ROWS, arguments, compiled, state_of

CASES = [
    Parallel(placement="zero1", precision="bfloat16"),
    Parallel(placement="fsdp"),
    Parallel(scheme="per_device", placement="zero1", ema_decay=0.9),
    Parallel(scheme="per_device", placement="fsdp", precision="float16"),
    Parallel(scheme="pmap"),
]


@pytest.mark.parametrize("parallel", CASES, ids=lambda p: f"{p.scheme}-{p.placement}-{p.precision}")
def test_the_arguments_are_exactly_the_compilers(parallel):
    """Adam, 16 rows on 4 devices: state by the closed form plus batch equals the compiled program's, to the byte."""
    expected = account_state(state_of(parallel), parallel=parallel, num_devices=4, batch=ROWS, rows=16)
    assert expected.arguments == compiled(parallel, rows=16).argument_bytes
    made = arguments(parallel, rows=16)
    assert expected.opt_state == device_bytes(made.state.opt_state)
    assert expected.params == device_bytes(made.state.params)
    assert expected.batch == device_bytes((made.batch, made.valid))


def test_each_field_is_what_a_pencil_says():
    """M = 16225 float32, adam 2 M and a count, 4 rows of 260 B and their mask; a bfloat16 copy is 2 M bytes."""
    expected = account_state(
        state_of(Parallel()), parallel=Parallel(precision="bfloat16"), num_devices=4, batch=ROWS, rows=16
    )
    assert expected.params == expected.gradients == 4 * PARAMS
    assert expected.opt_state == 8 * PARAMS + 4
    assert expected.counters == 3 * 4 + 8  # three int32 and the two words of a key
    assert expected.batch == 4 * 261
    assert expected.compute_params == 2 * PARAMS
    assert expected.ema == expected.model_state == 0


def test_placements_share_what_divides():
    """On 4 devices all but the scalar splits: a quarter of it; fsdp shares the parameters too, zero1 does not."""
    state = state_of(Parallel())
    shared = 4 * (PARAMS - 1) // 4 + 4
    zero1, fsdp = (
        account_state(state, parallel=Parallel(placement=placement), num_devices=4) for placement in ("zero1", "fsdp")
    )
    assert zero1.params == 4 * PARAMS and fsdp.params == shared
    assert zero1.opt_state == fsdp.opt_state == 2 * shared + 4
    assert zero1.gradients == fsdp.gradients == shared


def test_per_device_has_all_gradients_before_it_reduces_them():
    """Under every placement the local gradients are whole."""
    parallel = Parallel(scheme="per_device", placement="fsdp")
    assert account_state(state_of(parallel), parallel=parallel, num_devices=4).gradients == 4 * PARAMS


def test_the_optimizer_says_what_it_keeps():
    """Of 1000 x 1000: sgd nothing, momentum one copy, adam two and a count; float16 parameters become float32."""
    params = {"w": jax.ShapeDtypeStruct((1000, 1000), jnp.float16)}
    sizes = {
        optimizer: account(params, optimizer=made, parallel=Parallel(), num_devices=1).opt_state
        for optimizer, made in {
            "sgd": optax.sgd(0.1), "momentum": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.1),
        }.items()
    }  # fmt: skip
    assert sizes == {"sgd": 0, "momentum": 4_000_000, "adam": 8_000_004}
    found = account(params, optimizer=optax.sgd(0.1), parallel=Parallel(), num_devices=1, model_state={"m": np.ones(3)})
    assert found.params == 4_000_000 and found.model_state == 12
    assert dataclasses.astuple(found)[2] == 0

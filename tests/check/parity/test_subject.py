"""The engine's own step as verify looks at it."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from paceline.base.errors import ReplicationError
from paceline.check.parity.cases import Case
from paceline.check.parity.subject import Recorded, case_parallel, drifting_replicas, recording, run_case
from paceline.engine.parallel import Parallel
from paceline.topology.mesh import data_mesh
from tests.check.parity.problems import problem

X, Y = np.array([[1.0], [2], [3], [4]]), np.array([1.0, 0, 2, 1])
VALID = [True, True, True, False]


def squares(params, batch):
    rows = (batch["x"] @ params["w"] - batch["y"]) ** 2
    return rows, {"twice": 2 * rows}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scheme", ["global_view", "per_device", "pmap"])
def test_a_case_gives_the_values_of_every_update(scheme):
    """K = 2, 3 of 4 rows valid, w = 0.5: error (-0.5, 1, -0.5), gradient 2 (-0.5 + 2 - 1.5) / 3 = 0, loss 0.5; exact.

    At update 2 all rows count: error of the last 1, gradient 2 * 4 / 4 = 2, w = 0.5 - 0.1 * 2.
    """
    rows = {"x": X, "y": Y}
    given = problem(squares, [(rows, VALID), rows], params={"w": np.array([0.5])})
    ran = run_case(given, Case(scheme, "replicated", 2, 1, "float64"), devices=jax.devices())
    first, second = ran.trace
    assert ran.drifting == ()
    assert (first["loss"], first["gradient.w"], first["params.w"], first["metrics.twice"]) == (0.5, 0, 0.5, 1)
    assert (second["loss"], second["gradient.w"], second["params.w"]) == (0.625, 2, 0.3)
    assert first["gradient.w"].dtype == np.float64


def test_a_batch_that_says_nothing_has_gradient_zero():
    """The optimizer was not asked: what it remembers is the gradient of the update before, 2 * (0.5 - 1) = -1."""
    rows = {"x": X[:2] * 0 + 1, "y": Y[:2] * 0 + 1}
    given = problem(squares, [rows, (rows, [False, False])], params={"w": np.array([0.5], np.float32)})
    ran = run_case(given, Case("per_device", "replicated", 2, 1, "float32"), devices=jax.devices())
    assert [values["gradient.w"].item() for values in ran.trace] == [-1, 0]
    assert ran.trace[0]["params.w"] == ran.trace[1]["params.w"]


def test_an_optimizer_that_would_part_the_replicas_is_refused():
    """Its update depends on the device."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda leaf: leaf * jax.lax.axis_index("data"), updates), state

    given = problem(
        squares, [{"x": X, "y": Y}], params={"w": np.array([0.5], np.float32)},
        optimizer=optax.GradientTransformation(lambda params: (), update),
    )  # fmt: skip
    with pytest.raises(ReplicationError, match=r"params\.w"):
        run_case(given, Case("per_device", "replicated", 2, 1, "float32"), devices=jax.devices())


OPTIONS = Parallel(
    scheme="per_device", reduce_dtype="bfloat16", batch_norm="synced", clip_norm=1.0, ema_decay=0.5,
    dropout="per_device",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["global_view", "per_device", "pmap"])
def test_a_case_keeps_the_options_that_its_scheme_has(scheme):
    """The wire and BatchNorm's rows only where devices have programs of their own; masks always those of one device."""
    found = case_parallel(OPTIONS, Case(scheme, "replicated", 2, 4, "float32"))
    local = scheme != "global_view"
    assert (found.scheme, found.accumulation, found.dropout, found.donate) == (scheme, 4, "global", False)
    assert (found.reduce_dtype, found.batch_norm) == (("bfloat16", "synced") if local else (None, None))
    assert (found.clip_norm, found.ema_decay) == (1.0, 0.5)


def test_a_recording_optimizer_changes_nothing_and_remembers_the_gradients():
    """Updates and inner state are those of adam itself, bit for bit."""
    adam, params, gradients = optax.adam(0.1), {"w": jnp.ones(2)}, {"w": jnp.array([1.0, -2])}
    recorder = recording(adam)
    given = recorder.update(gradients, recorder.init(params), params)
    changes, state = cast(tuple[Any, Recorded], given)
    wanted, inner = adam.update(gradients, adam.init(params), params)
    assert jax.tree.all(
        jax.tree.map(np.array_equal, (changes, state.inner, state.gradients), (wanted, inner, gradients))
    )


WHOLE, ROWS = PartitionSpec(), PartitionSpec("data")


def copies(*values, spec=WHOLE):
    """An array on as many devices, each with bytes of its own under a sharding that says otherwise."""
    mesh = data_mesh(jax.devices()[: len(values)])
    parts = [jax.device_put(np.asarray(value), device) for value, device in zip(values, jax.devices(), strict=False)]
    shape = (len(values), *parts[0].shape[1:]) if spec else parts[0].shape
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), parts)


def test_replicas_with_other_bytes_are_named():
    """One differs; NaN equals NaN; -0.0 is not 0.0."""
    tree = {
        "same": copies(1.5, 1.5, 1.5), "odd": copies(1.5, 1.5, 1.25), "nan": copies(np.nan, np.nan),
        "zero": copies(0.0, -0.0),
    }  # fmt: skip
    assert drifting_replicas(tree, device_axis=False) == ("odd", "zero")


def test_parts_are_no_copies_but_for_pmap():
    """Split by rows, both halves may differ; with a device axis they are copies of one leaf."""
    tree = {"w": copies([1.0], [2.0], spec=ROWS)}
    assert drifting_replicas(tree, device_axis=False) == ()
    assert drifting_replicas(tree, device_axis=True) == ("w",)

"""The arguments of `paceline.verify`: what is refused, what is left out and said so, what is run."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import BatchSizeError, DeviceError, OptionError, PacelineError, TaskError
from paceline.check.parity import causes, task_run
from paceline.check.parity.cases import Grid
from paceline.check.parity.report import Verification
from paceline.check.parity.verify import _parts

SMALL = {
    "schemes": ("per_device",), "placements": ("replicated",), "devices": (2,), "accumulation": (1,), "updates": 1,
}  # fmt: skip
"""Two programs: float64 and float32."""

GRID = {name: SMALL[name] for name in Grid._fields}


def row_loss(params: Any, batch: Any) -> Any:
    return (batch["x"] * params["w"] - batch["y"]) ** 2


def mean_loss(params: Any, batch: Any) -> Any:
    return row_loss(params, batch).mean()


def verified(loss: Any = row_loss, *, optimizer: Any = None, **changes: Any) -> Verification:
    """Rows x = 0..63, y = 2x over 64, one parameter, plain SGD."""
    x = np.arange(64, dtype=np.float32) / 64
    options = {"params": {"w": np.zeros((), np.float32)}, "data": {"x": x, "y": 2 * x}, **SMALL, **changes}
    return paceline.verify(paceline.task(loss), optimizer or optax.sgd(0.1), **options)


@functools.cache
def smallest() -> Verification:
    """A right task in the fewest programs."""
    return verified()


def test_a_right_task_is_verified_in_float64_and_in_its_own_precision():
    """Two results in that order, nothing left out, no cause; it took time."""
    outcome = smallest()
    assert outcome.ok, outcome.lines()
    assert [result.precision for result in outcome.results] == ["float64", "float32"]
    assert (outcome.skipped, outcome.culprits, outcome.subject) == ((), (), "row_loss")
    assert outcome.seconds > 0


def test_the_batch_is_twice_the_smallest_that_splits():
    """K = 2, n = 1: 4 rows, 3 of them in the uneven batch; the setting says so."""
    assert smallest().setting == "row_loss: one device against 2 (cpu); 1 updates of 4 rows, one of them with 3"


@pytest.mark.parametrize("name", ["schemes", "placements", "devices", "accumulation"])
def test_nothing_to_vary_is_refused(name):
    """An empty tuple is no verification."""
    with pytest.raises(OptionError, match=f"no {name} to verify") as caught:
        verified(**{name: ()})
    assert "name at least one" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("devices", 1), ("devices", 0), ("devices", -2), ("devices", True), ("devices", 2.0),
        ("accumulation", 0), ("accumulation", -2), ("accumulation", 1.5),
        ("schemes", "pmpa"), ("placements", "zero3"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_verified_is_refused(name, value):
    """Named with the option, whatever stands beside it; one device is what the others are compared with."""
    with pytest.raises(OptionError, match=re.escape(f"{name} {value!r}")) as caught:
        _parts(Grid(**{**GRID, name: (*GRID[name], value)}))
    assert caught.value.fix.startswith("use ")


@pytest.mark.parametrize("updates", [0, -1])
def test_no_updates_are_refused(updates):
    """There is nothing to compare."""
    with pytest.raises(OptionError, match=f"updates.{updates}"):
        verified(updates=updates)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    """0 is no limit."""
    with pytest.raises(OptionError, match="0 for no limit"):
        verified(seconds=seconds)


@pytest.mark.parametrize(("position", "told"), [(0, "wrap the loss"), (1, "pass an optax optimizer")])
def test_a_task_or_optimizer_that_is_none_is_refused(position, told):
    """A bare loss, a function for an optimizer: with what to write. As users call it, without checked annotations."""
    arguments: list[Any] = [paceline.task(row_loss), optax.sgd(0.1)]
    arguments[position] = row_loss
    with pytest.raises(TaskError) as caught:
        inspect.unwrap(paceline.verify)(*arguments, data=())
    assert told in caught.value.fix


@pytest.mark.parametrize(
    ("batch", "parts", "fix"),
    [(18, 8, "--batch 16 or 24"), (7, 8, "--batch 8 or 16"), (0, 8, "--batch 8"), (-8, 8, "--batch 8")],
)
def test_a_batch_that_does_not_split_is_refused_with_the_nearest(batch, parts, fix):
    """K of 2 and 4, n of 1 and 2: multiples of 8."""
    with pytest.raises(BatchSizeError, match=f"{batch} rows does not split into {parts} equal parts") as caught:
        verified(batch=batch, devices=(2, 4), accumulation=(1, 2))
    assert fix in caught.value.fix


def test_what_must_divide_the_batch_is_the_least_common_multiple():
    """K of 4 and 6, n of 1: 12, and twice that by default; read off the refusal."""
    with pytest.raises(BatchSizeError, match="into 12 equal parts"):
        verified(batch=24 + 6, devices=(4, 6))


def test_devices_that_are_not_there_are_listed_as_not_run():
    """K = 16 of 8: no result for it; the others are run and verified."""
    outcome = verified(devices=(2, 16))
    assert outcome.ok
    assert {result.devices for result in outcome.results} == {2}
    assert [skip.what for skip in outcome.skipped] == ["K = 16"]
    assert "not run: K = 16: there are 8 devices; --simulate 16 makes so many of the CPU" in outcome.lines()


def test_only_devices_that_are_not_there_verify_nothing():
    """Not ok: nothing was run."""
    outcome = verified(devices=(16,))
    assert not outcome.ok
    assert outcome.results == ()
    assert outcome.lines()[-1] == "\nNOT VERIFIED: nothing was run"


def test_devices_that_do_not_fit_into_memory_are_listed_too(monkeypatch):
    """Memory for 3 of them beside the one-device run: 24 bytes of state each."""
    monkeypatch.setattr("paceline.check.parity.memory.memory_bytes", lambda device: 4 * 24)
    outcome = verified(devices=(2, 4))
    assert {result.devices for result in outcome.results} == {2}
    assert [skip.what for skip in outcome.skipped] == ["K = 4"]


def test_pmap_alone_with_a_split_state_verifies_nothing():
    """Left out with the reason, not ok."""
    outcome = verified(schemes=("pmap",), placements=("zero1",))
    assert not outcome.ok
    assert [skip.what for skip in outcome.skipped] == ["pmap with zero1"]


def clock(monkeypatch: Any, *, step_s: float) -> None:
    """A clock that goes on by so much at every look."""
    now = iter(np.arange(0.0, 1e6, step_s))
    monkeypatch.setattr(task_run.time, "perf_counter", lambda: float(next(now)))


def test_when_the_time_is_over_what_is_left_is_listed(monkeypatch):
    """The plainest case of every scheme is still run; every other one is named, and none is counted as equal."""
    clock(monkeypatch, step_s=1.0)
    outcome = verified(schemes=("per_device", "global_view"), accumulation=(1, 2), seconds=0.5)
    assert [(result.label, result.accumulation, result.precision) for result in outcome.results] == [
        ("per_device", 1, "float64"),
        ("global_view", 1, "float64"),
    ]
    left = [skip.what for skip in outcome.skipped]
    assert len(left) == len(set(left)) == 2 * 2 * 2 - 2
    assert {"per_device, K = 2, n = 1, float32", "global_view, K = 2, n = 2, float64"} <= set(left)
    assert {skip.why for skip in outcome.skipped} == {"the time is used up; --seconds 0 sets no limit"}
    assert any(line.startswith("not run: 6 programs, ") for line in outcome.lines())


def test_no_limit_of_time_runs_everything(monkeypatch):
    """However late the clock says it is."""
    clock(monkeypatch, step_s=1000.0)
    outcome = verified(seconds=0.0)
    assert (len(outcome.results), outcome.skipped) == (2, ())


def test_an_uneven_batch_that_cannot_be_tried_is_listed():
    """A scalar loss cannot be masked: all is equal, and the reader is told what was not shown."""
    outcome = verified(mean_loss)
    assert outcome.ok
    assert [skip.what for skip in outcome.skipped] == ["an uneven batch"]


def drifting_optimizer() -> optax.GradientTransformation:
    """SGD with a leaf of its state that is the number of the device, where there is one."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        try:
            number = jax.lax.axis_index("data")
        except NameError:
            number = jnp.zeros(())
        return jax.tree.map(lambda leaf: -0.1 * leaf, updates), {"seen": number.astype(state["seen"].dtype)}

    return optax.GradientTransformation(lambda params: {"seen": jnp.zeros(())}, update)


def test_an_optimizer_whose_state_drifts_is_named():
    """Not run, not ok: the cause, with the leaf, and the cases that were left out for it."""
    outcome = verified(optimizer=drifting_optimizer())
    assert not outcome.ok
    assert [culprit.cause for culprit in outcome.culprits] == [causes.STATE_DRIFTS]
    assert "seen" in outcome.culprits[0].evidence
    assert outcome.results == ()
    assert {skip.why for skip in outcome.skipped} == {"its state would differ between devices; see the cause"}


def test_an_optimizer_that_names_an_axis_is_refused():
    """One device has no axis."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.lax.pmean(updates, "data"), state

    with pytest.raises(PacelineError, match="'data'"):
        verified(optimizer=optax.GradientTransformation(lambda params: (), update))


def overflowing(params: Any, batch: Any) -> Any:
    """Beyond the largest float16, 65504, and far from that of float64."""
    return row_loss(params, batch) + 1e4 * (10 + params["w"])


def test_a_case_that_is_refused_is_listed_with_its_fix():
    """float16 overflows: that program is not run and told so; the one in float64 is equal."""
    outcome = verified(overflowing, parallel=paceline.Parallel(precision="float16"))
    assert [result.precision for result in outcome.results] == ["float64"]
    assert [skip.what for skip in outcome.skipped] == ["per_device, K = 2, n = 1, float16"]
    assert "refused: loss of task 'overflowing' is not finite" in outcome.skipped[0].why
    assert "fix: lower the learning rate" in outcome.skipped[0].why


def test_a_wrong_task_is_not_ok_and_its_cause_is_named():
    """A sum: K times too large, in float64 and float32."""
    outcome = verified(lambda params, batch: row_loss(params, batch).sum())
    assert not outcome.ok
    assert [culprit.cause for culprit in outcome.culprits] == [causes.NOT_A_MEAN]


def test_a_model_too_large_is_refused(monkeypatch):
    """Before any batch is read."""
    monkeypatch.setattr("paceline.check.parity.memory.memory_bytes", lambda device: 8)
    with pytest.raises(DeviceError, match="the machine has 8 B"):
        verified(data=())


def step(params: Any, opt_state: Any, batch: Any) -> Any:
    """Right, to be mapped over axis i."""
    value, gradients = jax.value_and_grad(mean_loss)(params, batch)
    gradients = jax.lax.pmean(gradients, "i")
    changes, opt_state = optax.sgd(0.1).update(gradients, opt_state, params)
    return optax.apply_updates(params, changes), opt_state, jax.lax.pmean(value, "i")


def test_a_step_is_verified_in_place_of_the_schemes():
    """One case a K and precision, by the name of the step; K = 16 and the uneven batch are listed."""
    outcome = verified(step=step, devices=(2, 16), batch=32)
    assert outcome.ok, outcome.lines()
    assert [(result.label, result.devices, result.precision) for result in outcome.results] == [
        ("step", 2, "float64"),
        ("step", 2, "float32"),
    ]
    assert {skip.what for skip in outcome.skipped} == {"an uneven batch", "K = 16"}
    assert outcome.subject == "step against row_loss"


def test_a_step_over_devices_that_are_not_there_verifies_nothing():
    """Not ok."""
    outcome = verified(step=step, devices=(16,))
    assert (outcome.ok, outcome.results) == (False, ())


def rootless(params: Any, batch: Any) -> Any:
    """A loss of 0 with a gradient of 0 times infinity, NaN."""
    return jnp.sqrt(params["w"] * 0 * batch["x"])


def jumping(params: Any, opt_state: Any, batch: Any) -> Any:
    """Adds 100 to the parameter; over axis i."""
    return {"w": params["w"] + 100}, opt_state, jax.lax.pmean(0 * batch["x"].sum(), "i")


def is_verified(loss: Any, **changes: Any) -> bool:
    """False for a refusal too."""
    try:
        return verified(loss, **changes).ok
    except PacelineError:
        return False


def test_what_is_nan_on_one_device_proves_nothing():
    """After the last update the one-device parameter is NaN and the step's is 100: never verified."""
    assert not is_verified(rootless, step=jumping)

"""A model that does not fit is refused from its shapes alone."""

from __future__ import annotations

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.core import Tracer

from paceline.base.errors import DeviceError, TaskError
from paceline.check.parity import memory
from paceline.check.parity.verify import verify
from paceline.tasks.task import Initial, task

HUGE = 2**50
"""Floats of a model that no machine holds."""


def loss(params: Any, batch: Any) -> Any:
    return (batch["x"] * params["w"].sum() - 1) ** 2


def model(size: int, *, state: bool = False) -> Any:
    """A task whose init makes so many numbers, and fails the test if it is ever run on real values."""

    def init(rng: Any) -> Any:
        assert isinstance(rng, Tracer)
        params = {"w": jnp.zeros(size)}
        return Initial(params, {"mean": jnp.zeros(3)}) if state else params

    return task(loss, init=init)


def start_bytes(size: int, optimizer: Any, **options: Any) -> int:
    return memory.start_bytes(model(size, **options), optimizer, params=None)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [(optax.sgd(0.1), 3 * 80), (optax.sgd(0.1, momentum=0.9), 4 * 80), (optax.adam(0.1), 5 * 80 + 8)],
    ids=["sgd", "momentum", "adam"],
)
def test_bytes_are_those_of_state_gradients_and_next_parameters_in_float64(optimizer, expected):
    """10 parameters of 8 bytes three times, one or two moments, adam's count."""
    assert start_bytes(10, optimizer) == expected


def test_model_state_is_no_parameter():
    """An init that returns `Initial` is counted by its parameters."""
    assert start_bytes(10, optax.sgd(0.1), state=True) == 240


@pytest.mark.parametrize("kind", ["numpy", "shapes"])
def test_given_parameters_are_counted_in_place_of_those_of_init(kind):
    """float16 is counted as float64, an integer with 8 bytes."""
    params = {"w": np.zeros(4, np.float16), "n": np.zeros(2, np.int32)}
    if kind == "shapes":
        params = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, params))
    assert memory.start_bytes(model(HUGE), optax.sgd(0.1), params=params) == 3 * 6 * 8


def test_a_task_without_parameters_needs_no_memory():
    """It is refused where the problem is made, in better words."""
    assert memory.start_bytes(task(loss), optax.sgd(0.1), params=None) == 0


def test_a_model_too_large_is_refused_before_anything_is_allocated():
    """2^50 floats of 8 bytes three times; the init runs on abstract values only."""
    with pytest.raises(DeviceError, match=r"take 27,021\.6 TB in float64") as caught:
        verify(model(HUGE), optax.sgd(0.1), data={"x": np.ones(64, np.float32)})
    assert "verify a smaller model of the same form" in caught.value.fix
    assert "float64, and the machine has" in caught.value.what


def test_an_init_that_raises_is_named():
    """With the user's words, not a traceback."""

    def init(rng: Any) -> Any:
        raise KeyError("no such layer")

    with pytest.raises(TaskError, match=r"init of task .*no such layer"):
        memory.start_bytes(task(loss, init=init), optax.sgd(0.1), params=None)


def device(*, platform: str = "cpu", stats: Any = None) -> Any:
    """A stand-in that passes for a `jax.Device`."""
    made = mock.Mock(spec=jax.Device, platform=platform)
    made.memory_stats.return_value = stats
    return made


def test_memory_is_that_of_an_accelerator_or_of_the_machine():
    """An accelerator's limit where it tells one; else the pages of this machine."""
    machine = memory.memory_bytes(device())
    assert machine == memory.memory_bytes(device(stats={"bytes_limit": 1}))
    assert machine == memory.memory_bytes(device(platform="gpu")) >= 2**28
    assert memory.memory_bytes(device(platform="gpu", stats={"bytes_limit": 12345})) == 12345


def most(size: int, *, there: int, platform: str, monkeypatch: Any) -> int:
    monkeypatch.setattr(memory, "memory_bytes", lambda _: there)
    return memory.most_devices(model(size), optax.sgd(0.1), params=None, device=device(platform=platform))


@pytest.mark.parametrize(("there", "devices"), [(240, 0), (479, 0), (480, 1), (240 * 9, 8)])
def test_simulated_devices_share_the_memory_with_the_one_device_run(there, devices, monkeypatch):
    """240 bytes each, one share for the reference."""
    assert most(10, there=there, platform="cpu", monkeypatch=monkeypatch) == devices


def test_accelerators_have_memory_of_their_own(monkeypatch):
    """If one device holds it, any number does."""
    assert most(10, there=240, platform="gpu", monkeypatch=monkeypatch) >= 2**20


def test_one_byte_too_few_is_refused(monkeypatch):
    """240 needed, 239 there."""
    with pytest.raises(DeviceError, match="verify computes every update on one device too"):
        most(10, there=239, platform="gpu", monkeypatch=monkeypatch)

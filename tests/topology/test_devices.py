"""Which devices a run gets, and what it is told when it cannot have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import pytest

from paceline.base.errors import DeviceError
from paceline.topology.devices import choose_devices, count_in_xla_flags, simulate_devices

# Each runs in a process of its own: the number of devices is fixed when the first one is used.
AFTER_USE = """
import jax
jax.devices()
show(lambda: simulate_devices(2))
show(lambda: choose_devices(4))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
show(lambda: choose_devices(4))
show(lambda: simulate_devices(4))
"""
BEFORE_USE = """
show(lambda: simulate_devices(3))
show(lambda: simulate_devices(2))
show(lambda: simulate_devices(4))
show(lambda: choose_devices())
"""
WITH_FLAGS = """
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
show(lambda: simulate_devices(4))
show(lambda: simulate_devices(2))
show(lambda: choose_devices())
"""
PROGRAM = """
import json, os
from paceline.base.errors import DeviceError
from paceline.topology.devices import choose_devices, simulate_devices

def show(call):
    try:
        print(json.dumps([device.id for device in call()]))
    except DeviceError as error:
        print(json.dumps(error.as_dict()))
"""


@pytest.fixture(scope="module")
def answers():
    """What each program printed, a line a call; they start together, since nearly all of their time is imports."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    sources = {"after": AFTER_USE, "before": BEFORE_USE, "flags": WITH_FLAGS}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", PROGRAM + source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name, source in sources.items()
    }
    answers = {}
    for name, process in running.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
        answers[name] = [json.loads(line) for line in out.splitlines()]
    return answers


def test_all_visible_devices_are_the_default():
    """Eight simulated devices in these tests, in JAX's order."""
    assert choose_devices() == jax.devices()
    assert len(choose_devices()) == 8


@pytest.mark.parametrize("count", [1, 3, 8])
def test_so_many_devices_are_the_first_ones(count):
    assert choose_devices(count) == jax.devices()[:count]


def test_given_devices_are_taken_as_they_come():
    """Order is the user's: it decides which rows a device sees."""
    chosen = jax.devices()[5:2:-1]
    assert choose_devices(chosen) == chosen


def test_more_devices_than_there_are_are_refused_with_two_ways_out():
    """12 asked for, 8 there: both counts are named, `--devices 8` works, `--simulate 12` would."""
    with pytest.raises(DeviceError) as caught:
        choose_devices(12)
    assert "12" in caught.value.what and "8 cpu devices" in caught.value.what
    assert "--devices 8" in caught.value.fix and "--simulate 12" in caught.value.fix
    assert len(choose_devices(8)) == 8


@pytest.mark.parametrize("count", [0, -1])
def test_no_device_is_no_choice(count):
    """The fix names the range that works."""
    with pytest.raises(DeviceError, match="--devices 1 to 8") as caught:
        choose_devices(count)
    assert str(count) in caught.value.what


@pytest.mark.parametrize("indices, what", [([], "empty"), ([0, 1, 0], "twice")])
def test_a_list_of_devices_has_each_once_and_at_least_one(indices, what):
    with pytest.raises(DeviceError, match=what) as caught:
        choose_devices([jax.devices()[index] for index in indices])
    assert "jax.devices()[:4]" in caught.value.fix
    assert len(choose_devices(jax.devices()[:4])) == 4


@pytest.mark.parametrize("count", [0, -2])
def test_simulating_no_device_is_refused(count):
    with pytest.raises(DeviceError, match="--simulate 1") as caught:
        simulate_devices(count)
    assert str(count) in caught.value.what


def test_simulating_fewer_devices_than_there_are_is_never_too_late():
    """Eight CPU devices are in use already: four of them are four simulated devices."""
    assert simulate_devices(4) == jax.devices()[:4]


def test_simulating_more_devices_comes_too_late_once_one_was_used():
    """In this process, which has 8; the error says how many there are and what to call first."""
    with pytest.raises(DeviceError, match="too late") as caught:
        simulate_devices(9)
    assert "8 cpu devices" in caught.value.what
    assert "paceline.simulate_devices" in caught.value.fix and "--simulate" in caught.value.fix


@pytest.mark.parametrize(
    "flags, count",
    [
        ("", None),
        ("--xla_cpu_enable_fast_math=false", None),
        ("--xla_force_host_platform_device_count=16 --xla_dump_to=x", 16),
        ("--xla_force_host_platform_device_count=2 --xla_force_host_platform_device_count=4", 4),
    ],
)
def test_the_last_device_count_in_the_flags_is_the_one_that_xla_reads(flags, count, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert count_in_xla_flags() == count


def test_devices_can_be_simulated_before_the_first_use(answers):
    """In a fresh process: three asked for and got, then two of them, not four; a run sees all three."""
    three, two, four, visible = answers["before"]
    assert three == visible == [0, 1, 2] and two == [0, 1]
    assert "too late" in four["what"] and "3 cpu devices" in four["what"]


def test_simulating_after_the_first_use_is_named_with_its_way_out(answers):
    """One device was used: neither two simulated devices nor four visible ones can be had any more."""
    late, four = answers["after"][:2]
    assert late["kind"] == "DeviceError" and "simulate_devices(2) came too late" in late["what"]
    assert "1 cpu device" in late["what"] and "before" in late["fix"]
    assert "--devices 1" in four["fix"] and "--simulate 4" in four["fix"]


def test_flags_set_after_the_first_use_are_said_to_be_ignored(answers):
    """Case 25: XLA_FLAGS asks for 4 devices, but was set after the first use, so there still is 1."""
    chosen, simulated = answers["after"][2:]
    assert "4 devices asked for, 1 cpu device visible" in chosen["what"]
    assert "XLA_FLAGS" in chosen["why"] and "after the first device was used" in chosen["why"]
    assert "before the program starts" in chosen["fix"]
    assert "too late" in simulated["what"] and "1 cpu device" in simulated["what"]


def test_flags_that_ask_for_another_count_are_named(answers):
    """XLA_FLAGS asks for 2: simulating 4 is refused, naming both; simulating 2, as the fix says, works."""
    refused, two, visible = answers["flags"]
    assert "4 simulated devices asked for, but XLA_FLAGS asks for 2" in refused["what"]
    assert "--xla_force_host_platform_device_count=2" in refused["fix"] and "--simulate 2" in refused["fix"]
    assert two == visible == [0, 1]

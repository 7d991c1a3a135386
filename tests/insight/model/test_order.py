"""The slowest of K, against numbers from tables and from drawing."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.insight.model.order import interrupted_maximum, normal_maximum


@pytest.mark.parametrize(
    ("devices", "expected"), [(1, 0.0), (2, 0.56419), (4, 1.02938), (8, 1.42360), (16, 1.76599), (100, 2.50759)]
)
def test_the_largest_of_normal_draws_is_that_of_the_tables(devices, expected):
    """Harter 1961, "Expected values of normal order statistics" (absolute tolerance 0.03, which two devices need)."""
    assert normal_maximum(devices) == pytest.approx(expected, abs=0.03)
    assert devices != 2 or normal_maximum(devices) - expected > 0.02


def test_certain_interruptions_have_the_harmonic_number_as_largest():
    """1/2 + 1/3 + 1/4 for four devices, by hand."""
    assert interrupted_maximum(4, chance=1.0) == pytest.approx(13 / 12)


def test_rare_interruptions_hit_one_of_many_devices():
    """With chance q = 0.001 and two devices: 2q - q^2/2 - q, by hand."""
    assert interrupted_maximum(2, chance=0.001) == pytest.approx(0.001 - 0.5e-6)


@pytest.mark.parametrize(("devices", "chance"), [(3, 0.3), (64, 0.05), (512, 0.9)])
def test_the_longest_interruption_is_that_of_drawn_ones(devices, chance):
    """20,000 draws; within four standard errors."""
    rng = np.random.default_rng(0)
    drawn = rng.exponential(size=(20_000, devices)) * (rng.random((20_000, devices)) < chance)
    largest = drawn.max(axis=1)
    error = largest.std() / np.sqrt(largest.size)
    assert interrupted_maximum(devices, chance=chance) == pytest.approx(largest.mean() - chance, abs=4 * error)


@pytest.mark.parametrize("chance", [0.0, 0.0027, 0.01, 0.5, 1.0])
def test_one_device_waits_for_nobody_and_more_devices_wait_longer(chance):
    """From one device to 4096; a run that is never interrupted never waits."""
    waits = [interrupted_maximum(2**power, chance=chance) for power in range(13)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert chance > 0 or waits[-1] == 0

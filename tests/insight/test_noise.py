"""The gradient noise scale from known gradients, and what it says of batches and devices, by pencil."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from paceline.insight.noise import (
    LEAST_STEPS,
    Estimate,
    NoiseScale,
    critical_batch,
    format_rows,
    statistical_efficiency,
    two_numbers,
    useful_devices,
)


def expected(rows: float, *, signal: float, noise: float) -> float:
    """``E|G_b|^2`` as the paper has it."""
    return signal + noise / rows


def steady(steps: int, *, signal: float = 2.0, noise: float = 600.0, small: float = 16, big: float = 64) -> NoiseScale:
    scale = NoiseScale()
    for _ in range(steps):
        squares = [expected(rows, signal=signal, noise=noise) for rows in (small, big)]
        scale.update(*squares, small_rows=small, big_rows=big)
    return scale


def test_squares_without_scatter_give_the_ratio_itself():
    """tr(S) = 600 and |G|^2 = 2 at every step: 300 rows, without error, over batches of 64 rows."""
    estimate = steady(30).estimate
    assert estimate is not None
    assert estimate.rows == pytest.approx(300) and estimate.relative_error == pytest.approx(0, abs=1e-6)
    assert (estimate.steps, estimate.batch_rows) == (30, 64)


def gradients(steps: int, *, devices: int, rows: int, mean: np.ndarray, deviation: np.ndarray, seed: int = 0):
    """Mean squares over the devices and squares of the mean, of drawn gradients."""
    draw = np.random.default_rng(seed)
    for _ in range(steps):
        means = (mean + deviation * draw.normal(size=(devices, rows, len(mean)))).mean(1)
        yield float((means**2).sum(1).mean()), float((means.mean(0) ** 2).sum())


def test_a_known_covariance_is_found_within_a_tenth():
    """Linear regression's gradient at a known place, 10 parameters: |G|^2 = 2.5, tr(S) = 140, so 56 rows."""
    mean, deviation = np.full(10, 0.5), np.sqrt(np.linspace(5, 23, 10))
    scale = NoiseScale(memory_steps=10_000)
    for small, big in gradients(1000, devices=4, rows=8, mean=mean, deviation=deviation):
        scale.update(small, big, small_rows=8, big_rows=32)
    assert scale.estimate is not None
    assert scale.estimate.rows == pytest.approx(56, rel=0.1)


def test_the_stated_error_is_the_scatter_of_repeated_runs():
    """Sixty runs of 200 steps: the scatter of their estimates is what each states, within a quarter."""
    mean, deviation = np.full(10, 0.5), np.full(10, 2.0)
    found = []
    for seed in range(60):
        scale = NoiseScale(memory_steps=10_000)
        for small, big in gradients(200, devices=2, rows=8, mean=mean, deviation=deviation, seed=seed):
            scale.update(small, big, small_rows=8, big_rows=16)
        assert scale.estimate is not None
        found.append((scale.estimate.rows, scale.estimate.relative_error))
    rows, errors = np.array(found).T
    assert np.mean(errors) == pytest.approx(rows.std() / rows.mean(), rel=0.25)


def test_the_error_of_few_steps_is_the_one_of_numpy():
    """25 steps, to 1e-9: the variance of a ratio of means to first order, from sample variances and covariance."""
    mean, deviation = np.full(10, 2.0), np.full(10, 2.0)
    squares = list(gradients(25, devices=2, rows=8, mean=mean, deviation=deviation))
    scale = NoiseScale()
    for small, big in squares:
        scale.update(small, big, small_rows=8, big_rows=16)
    small, big = np.array(squares).T
    noise, signal = (small - big) / (1 / 8 - 1 / 16), 2 * big - small
    (first, both), (_, second) = np.cov(noise, signal)
    a, b = noise.mean(), signal.mean()
    wanted = np.sqrt((first / a**2 + second / b**2 - 2 * both / (a * b)) / 25)
    assert scale.estimate is not None
    assert scale.estimate.rows == pytest.approx(a / b, rel=1e-9)
    assert scale.estimate.relative_error == pytest.approx(wanted, rel=1e-9)


def test_old_steps_fade():
    """Noise of 600, then a hundredfold for five memories of 100 steps: less than 1 % of the start is left."""
    scale = steady(100)
    for _ in range(500):
        squares = [expected(rows, signal=2.0, noise=60_000.0) for rows in (16, 64)]
        scale.update(*squares, small_rows=16, big_rows=64)
    assert scale.estimate is not None
    assert scale.estimate.rows == pytest.approx(30_000, rel=0.01)


def test_the_ratio_is_that_of_averages_not_the_average_of_ratios():
    """|G|^2 of 1 and 3 in turn, tr(S) = 600: 600 / 2 = 300 rows; the mean of the ratios would be 400."""
    scale = NoiseScale(memory_steps=10_000)
    for signal in [1.0, 3.0] * 200:
        squares = [expected(rows, signal=signal, noise=600.0) for rows in (16, 64)]
        scale.update(*squares, small_rows=16, big_rows=64)
    assert scale.estimate is not None
    assert scale.estimate.rows == pytest.approx(300)


def test_few_steps_are_unknown():
    scale = steady(LEAST_STEPS - 1)
    assert scale.estimate is None
    assert scale.why_unknown == f"{LEAST_STEPS - 1} steps seen, {LEAST_STEPS} are the least"


def test_gradients_that_do_not_differ_are_unknown():
    """Every row the same: no noise, and no scale of 0."""
    scale = steady(50, noise=0.0)
    assert scale.estimate is None and "no more than rounding" in scale.why_unknown


def test_pure_noise_is_unknown():
    """Gradients of mean zero: |G|^2 comes out around 0, and no scale is made of it."""
    scale = NoiseScale()
    for small, big in gradients(200, devices=2, rows=4, mean=np.zeros(10), deviation=np.ones(10)):
        scale.update(small, big, small_rows=4, big_rows=8)
    assert scale.estimate is None and "more steps" in scale.why_unknown


@pytest.mark.parametrize(
    "small_square, big_square, small_rows, big_rows",
    [(float("nan"), 1, 4, 8), (1, float("inf"), 4, 8), (1.0, 1.0, 8, 8), (0.0, 0.0, 0, 0)],
)
def test_a_step_without_two_batches_or_without_numbers_is_left_out(small_square, big_square, small_rows, big_rows):
    """Overflow, one device that holds all rows, an empty batch: the step does not count, the estimate stays."""
    scale = steady(30)
    scale.update(float(small_square), float(big_square), small_rows=small_rows, big_rows=big_rows)
    assert scale.steps == 30 and scale.estimate == steady(30).estimate


def test_a_row_brings_half_at_the_noise_scale():
    """B = B_noise: 1/2; a third of it: 3/4; and the batch of 90 % is a ninth of it."""
    assert statistical_efficiency(300, 300) == 0.5
    assert statistical_efficiency(100, 300) == 0.75
    assert critical_batch(900) == 900
    assert critical_batch(900, efficiency=0.9) == pytest.approx(100)


def test_two_numbers_multiply_to_the_speed_up_over_the_devices():
    """8 devices at 6 times the throughput of one, batch 800 against 100, B_noise 800: 75 % and (1/2) / (8/9)."""
    got = two_numbers(8, throughput=6000, single=1000, batch=800, single_batch=100, noise_scale=800)
    assert got.hardware == 0.75
    assert got.statistical == pytest.approx(0.5625)
    assert got.speed_up == pytest.approx(6 * 0.5625) and got.product == pytest.approx(got.speed_up / 8)


def test_a_fixed_global_batch_costs_no_statistical_efficiency():
    got = two_numbers(8, throughput=6000, single=1000, batch=256, single_batch=256, noise_scale=100)
    assert got.statistical == 1.0


@pytest.mark.parametrize("noise_scale, wanted", [(32, 512), (1600, 16_384)])
def test_devices_stop_being_useful_at_nine_noise_scales_over_the_batch_of_one(noise_scale, wanted):
    """Perfect hardware, 1 row a device: a doubling saves less than 5 % from K = 9 B_noise on. Of the powers of two the
    last useful one is the first that is not below 288 and 14,400."""
    found = useful_devices(
        lambda devices: 100 * devices,
        [2**power for power in range(20)],
        batch=lambda devices: devices,
        noise_scale=noise_scale,
    )
    assert (found.devices, found.is_end) == (wanted, False)


def test_devices_stop_being_useful_where_throughput_stops():
    """A fixed batch of 256; S = 100, 190, 360, 370: from 4 to 8 devices the time falls by 2.7 %."""
    rates = {1: 100, 2: 190, 4: 360, 8: 370}
    found = useful_devices(lambda k: rates[k], rates, batch=lambda _: 256, noise_scale=10)
    assert (found.devices, found.is_end) == (4, False)
    assert [numbers.hardware for numbers in found.curve] == pytest.approx([1, 0.95, 0.9, 0.4625])


def test_a_curve_that_ends_before_the_devices_do_says_so():
    found = useful_devices(lambda k: 100 * k, [1, 2, 4], batch=lambda k: 8 * k, noise_scale=1e6)
    assert (found.devices, found.is_end) == (4, True)


def test_steps_other_than_doublings_are_held_to_the_same_measure():
    """From 4 to 5 devices the time falls by 3 %: 9 % a doubling, which is worth it."""
    rates = {4: 400, 5: 400 / 0.97}
    assert useful_devices(lambda k: rates[k], rates, batch=lambda _: 8, noise_scale=10).devices == 5


def test_the_sentence_says_where_a_row_brings_half():
    """Batch 256, B_noise 1,243 rows: 1 / (1 + 256/1243) = 83 %."""
    assert str(Estimate(rows=1243.4, relative_error=0.12, steps=400, batch_rows=256.0)) == (
        "1,240 rows (± 12 %): at a batch of 256 rows a row brings 82.9 % of what it would in a small one; "
        "beyond 1,240 rows less than half"
    )


@pytest.mark.parametrize(
    "rows, text", [(1243.4, "1,240 rows"), (99.96, "100 rows"), (4.154, "4.15 rows"), (0.0321, "0.0321 rows")]
)
def test_a_noise_scale_has_three_digits(rows, text):
    assert format_rows(rows) == text


def test_the_noise_scale_needs_no_jax():
    """A page or a table can be made of it where no jax is."""
    code = "import sys, paceline.insight.noise; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

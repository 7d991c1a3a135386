"""Roofline and the rates that contradict it."""

from __future__ import annotations

import pytest

from paceline.insight.hardware.devices import find_device
from paceline.insight.model.roofline import RateError, Roofline, achieved, check_rate, peak_step_s, shortest_step_s
from paceline.insight.timeline import FULL_FLOAT32, Repeat, Work


def test_work_takes_as_long_as_its_slower_side():
    """An A100: 312 Tflop/s times the class's fraction, or 2039 GB/s times its fraction, by hand."""
    device = find_device("A100")
    fraction = achieved(device)
    seconds = Roofline(device)
    assert seconds(Work({"bfloat16": 312e12})) == pytest.approx(1 / fraction.matrix)
    assert seconds(Work({"bfloat16": 1.0}, bytes=float(device.memory_bytes_per_s))) == pytest.approx(
        1 / fraction.memory
    )
    assert seconds(Work({}, 1.0, kernels=1000)) == pytest.approx(1000 * fraction.kernel_s)


def test_float32_products_use_the_matrix_units_where_the_device_has_them():
    """156 Tflop/s of tfloat32 on an A100; a P100 has 10.6 of float32 only."""
    assert Roofline(find_device("A100"))(Work({"float32": 156e12})) == pytest.approx(1 / 0.70)
    assert Roofline(find_device("P100"))(Work({"float32": 10.6e12})) == pytest.approx(1 / 0.65)


def test_a_dtype_without_a_known_peak_is_refused_not_guessed():
    """int4 on a P100."""
    with pytest.raises(RateError) as caught:
        Roofline(find_device("P100"))(Work({"int4": 1.0}))
    assert "no peak rate for int4" in caught.value.what
    assert "--precision float32)" in caught.value.fix


def test_the_way_out_of_a_missing_rate_is_one_that_helps():
    """A measured rate would be checked against the peak that is missing; int8 and tfloat32 are no --precision."""
    with pytest.raises(RateError) as caught:
        Roofline(find_device("L4"))(Work({"float64": 1.0}))
    assert "--precision float32 or bfloat16 or float16)" in caught.value.fix
    assert "--rate" not in caught.value.fix and "int8" not in caught.value.fix


def test_products_that_may_not_be_rounded_run_in_true_float32():
    """An H100 does 67 Tflop/s of float32 for 494.7 of tfloat32."""
    device = find_device("H100")
    assert peak_step_s((Work({FULL_FLOAT32: 67e12}),), device) == pytest.approx(1.0)
    assert Roofline(device)(Work({FULL_FLOAT32: 67e12})) == pytest.approx(1 / achieved(device).vector)


def test_the_shortest_step_counts_loops_as_often_as_they_run():
    """Ten trips of 31.2 Tflop on an A100 take one second at peak."""
    timeline = (Repeat(10, (Work({"bfloat16": 31.2e12}),)),)
    assert shortest_step_s(timeline, find_device("A100")) == pytest.approx(1.0)


def test_a_rate_below_the_peak_gives_the_step():
    """128 rows at 2470 rows/s are 51.8 ms."""
    timeline = (Work({"bfloat16": 128 * 24.6e9}),)
    assert check_rate(timeline, find_device("A100"), rows=128, rate=2470.0) == pytest.approx(0.05182, rel=1e-3)


def test_a_rate_that_contradicts_the_peak_is_refused_and_the_most_is_said():
    """ResNet-50 takes 24.6 Gflop an image: 12,683 images/s at 312 Tflop/s, by hand; 8 devices' rate was given."""
    timeline = (Work({"bfloat16": 128 * 24.6e9}),)
    with pytest.raises(RateError) as caught:
        check_rate(timeline, find_device("A100"), rows=128, rate=16_621.0)
    assert "faster than A100" in caught.value.what
    assert "312 Tflop/s (bfloat16) allows 1.268e+04 rows/s at 24.6 Gflop a row" in caught.value.why
    assert "at most 1.268e+04" in caught.value.fix


def test_a_real_rate_above_the_nominal_peak_is_believed_where_winograd_explains_it():
    """VGG-16 on a P100: 154 images/s of 92.8 Gflop are 14.3 of 10.6 Tflop/s, and were measured; eight times are not."""
    flops = {"float32": 64 * 92.8e9}
    timeline = (Work(flops, convolutions=flops),)
    assert check_rate(timeline, find_device("P100"), rows=64, rate=154.0) == pytest.approx(0.4156, rel=1e-3)
    with pytest.raises(RateError, match="faster than P100"):
        check_rate(timeline, find_device("P100"), rows=64, rate=8 * 154.0)


def test_winograd_explains_convolutions_alone():
    """Matrix products at 1.35 of the peak are refused; of half convolutions the shortest step is 0.5 + 0.5 / 2.25."""
    device, flops = find_device("P100"), {"float32": 10.6e12}
    with pytest.raises(RateError, match="faster than P100"):
        check_rate((Work(flops),), device, rows=1, rate=1.35)
    half = (Work(flops, convolutions={"float32": 5.3e12}),)
    assert shortest_step_s(half, device) == pytest.approx(0.5 + 0.5 / 2.25)
    assert peak_step_s(half, device) == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [0.0, -3.0, float("nan")])
def test_a_rate_that_is_no_speed_is_refused(rate):
    """Zero, negative, not a number."""
    with pytest.raises(RateError, match="is not a speed") as caught:
        check_rate((Work({"bfloat16": 1.0}),), find_device("A100"), rows=1, rate=rate)
    assert "above 0" in caught.value.fix

"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.base.units import format_bytes, format_count, format_duration, format_percent, format_rate


@pytest.mark.parametrize(
    "size_bytes, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (5_900_000_000, "5.9 GB"),
        (2.5e12, "2.5 TB"),
        (3e15, "3,000.0 TB"),
        (-1500, "-1.5 kB"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_bytes_take_the_unit_that_keeps_them_below_a_thousand(size_bytes, text):
    """Powers of 1000; what would round to 1000 takes the next unit."""
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 µs"),
        (850e-6, "850 µs"),
        (999.7e-6, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (4.214, "4.21 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (360_000, "100 h 00 min"),
        (-0.0123, "-12.3 ms"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_durations_change_unit_where_rounding_would(seconds, text):
    """Never ``1e+03 ms`` or ``60 s``."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    "per_second, text",
    [(12_345.4, "12,345 samples/s"), (99.96, "100 samples/s"), (4.567, "4.57 samples/s"), (math.nan, "-")],
)
def test_rates_have_three_digits_or_whole_numbers(per_second, text):
    """Nobody reads the decimals of thousands."""
    assert format_rate(per_second) == text
    assert format_rate(8, "tokens") == "8 tokens/s"


@pytest.mark.parametrize(
    "value, noun, text",
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (1797, "row", "1,797 rows"),
        (3, "batch", "3 batches"),
        (2, "loss", "2 losses"),
    ],
)
def test_counts_agree_with_their_noun(value, noun, text):
    """One row, two rows, three batches."""
    assert format_count(value, noun) == text


@pytest.mark.parametrize(
    "share, text",
    [
        (0, "0 %"),
        (0.0042, "0.42 %"),
        (0.000001, "<0.01 %"),
        (0.1234, "12.3 %"),
        (1, "100 %"),
        (12.5, "1,250 %"),
        (-0.05, "-5 %"),
        (math.nan, "-"),
    ],
)
def test_percentages_stay_short(share, text):
    """Never in powers of ten, and a little is not nothing."""
    assert format_percent(share) == text


@given(st.floats(min_value=0))
def test_no_number_is_shown_in_powers_of_ten(value):
    """Durations, sizes and percentages of any number from 0 to 1e9."""
    for form in (format_bytes, format_duration, format_percent):
        assert "e" not in form(value) or abs(value) >= 1e9

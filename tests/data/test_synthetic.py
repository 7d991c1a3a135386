"""Rows made when they are read."""

from __future__ import annotations

import numpy as np

from paceline.data.source import as_source
from paceline.data.synthetic import Synthetic


def test_a_row_depends_on_its_index_alone_and_is_read_like_any_other():
    """Two reads in different order give the same rows; the source has the length asked for."""
    data = Synthetic(lambda random: {"x": random.normal(size=3)}, rows=1_000_000_000)
    source = as_source(data)
    assert len(source) == 1_000_000_000
    one, other = source.read(np.array([5, 999_999_999])), source.read(np.array([999_999_999, 5]))
    np.testing.assert_array_equal(one["x"], other["x"][::-1])
    assert not np.array_equal(one["x"][0], one["x"][1])

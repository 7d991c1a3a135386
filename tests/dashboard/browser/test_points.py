"""A live series that outgrows its points: stretches are joined, and say the same of all steps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dashboard.browser.conftest import module

MOST = 50
_LIVE = """
    const series = m.seriesOf(null, args[0]);
    args[1].forEach((value, at) => m.put(series, at + 1, 100 + at, value === null ? NaN : value));
    return series;
"""


@pytest.mark.parametrize("steps", [63, 64, 101, 1000, 1003])
def test_joined_stretches_keep_mean_extremes_and_count(shared_page, steps):
    """Of every step, by numpy; whatever number of stretches was joined how often (float64, rtol 1e-12)."""
    values = np.random.default_rng(steps).normal(size=steps)
    spoilt = steps // 3
    given = [None if at == spoilt else float(value) for at, value in enumerate(values)]
    series = module(shared_page("baseline"), "curves/points", _LIVE, MOST, given)
    finite = np.delete(values, spoilt)
    counts = np.array(series["count"])
    assert series["thinned"] and len(counts) <= MOST
    assert (counts.sum(), sum(series["odd"])) == (steps - 1, 1)
    assert np.dot(counts, series["value"]) / counts.sum() == pytest.approx(finite.mean(), rel=1e-12)
    assert (min(series["low"]), max(series["high"])) == (finite.min(), finite.max())
    assert series["from"][0] == 1 and series["to"][-1] == series["last"]["step"] == steps
    assert series["from"][1:] == [end + 1 for end in series["to"][:-1]]
    for first, last, mean, low in zip(series["from"], series["to"], series["value"], series["low"], strict=True):
        stretch = [one for one in given[first - 1 : last] if one is not None]
        assert (mean, low) == (pytest.approx(np.mean(stretch), rel=1e-12), min(stretch))

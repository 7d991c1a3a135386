"""The published table: what the model is worth, leaving each source out."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from paceline.insight.model.parameters import FITTED, FITTED_LOG_SD, PRIORS
from paceline.insight.published import fitted
from paceline.insight.published.cases import predicted
from paceline.insight.published.fit import ALL_PRIORS, prior_model
from paceline.insight.published.rows import read_rows
from paceline.insight.published.table import Line, Summary, as_text, rank_correlation, summary

# In a process of its own: the checks of every call's types, which tests run with, make a fit forty times as slow.
_CODE = """
import json
from dataclasses import asdict
from paceline.insight.published import fitted
from paceline.insight.published.fit import fit, fit_without
from paceline.insight.published.rows import read_rows
from paceline.insight.published.table import published_table

rows = read_rows()
found = [fit(rows, start=fitted.ALL.model), fit_without(rows, source=rows[0].source)]
fits = [[{**asdict(f.model.parameters), **asdict(f.model.transports)}, f.log_sd] for f in found]
print(json.dumps({"fits": fits, "lines": [asdict(line) for line in published_table()]}))
"""


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    """The table, and two new fits: of all rows, and without the rows of TensorFlow."""
    ran = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def lines(computed) -> list[Line]:
    """Of the whole table."""
    return [Line(**line) for line in computed["lines"]]


@pytest.fixture(scope="module")
def found(lines) -> Summary:
    """Its summary."""
    return summary(lines)


def test_every_published_efficiency_is_in_the_table_as_measured(lines):
    """52 rows of 4 sources; the first is ResNet-50 on two P100s, 96.3 %."""
    assert len(lines) == 52
    assert len({line.source for line in lines}) == 4
    assert (lines[0].model, lines[0].devices, lines[0].measured) == ("resnet50", 2, 0.963)


def test_the_error_is_at_most_half_of_the_best_constants(found):
    """Best constant 95.5 %: 4.87 points; half of it is 2.44."""
    assert found.constant_error == pytest.approx(0.0487, abs=1e-4)
    assert found.mean_error <= 0.5 * found.constant_error


def test_predictions_rank_as_the_measurements_do(found, lines):
    """Spearman at least 0.8, by scipy's count too."""
    assert found.rank_correlation >= 0.8
    theirs = np.corrcoef(rankdata([line.predicted for line in lines]), rankdata([line.measured for line in lines]))
    assert found.rank_correlation == pytest.approx(theirs[0, 1])


def test_intervals_hold_what_they_promise_and_are_not_wide(found, lines):
    """At least 70 % inside; half a width of 4.5 points on average, at most 12."""
    assert found.coverage >= 0.7
    widths = [line.high - line.low for line in lines]
    assert np.mean(widths) / 2 < 0.045
    assert max(widths) / 2 < 0.12


def test_no_constant_does_better_than_the_one_named(lines, found):
    """Every constant from 60 % to 100 %."""
    measured = np.array([line.measured for line in lines])
    best = min(np.abs(measured - value).mean() for value in np.linspace(0.6, 1.0, 801))
    assert found.constant_error <= best + 1e-9


def test_ranks_of_equal_values_are_shared():
    """By hand: 1, 2.5, 2.5, 4 against 1, 2, 3, 4 gives 4.5 / sqrt(4.5 * 5)."""
    assert rank_correlation([1.0, 2.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))


def test_the_text_says_every_row_and_the_numbers_that_judge_it(lines, found):
    """One line a row, a head, four lines of summary."""
    text = as_text(lines)
    assert len(text) == 52 + 6
    assert all(len(line) <= 120 for line in text)
    assert f"mean absolute error {found.mean_error * 100:.2f} points" in text[-3]
    assert f"rank correlation {found.rank_correlation:.2f}" in text[-1]


def test_fitting_again_gives_the_stored_parameters(computed):
    """All rows: every parameter within 3 % of the stored one, every width within 10 %."""
    found, log_sd = computed["fits"][0]
    assert found == pytest.approx(values(fitted.ALL.model), rel=0.03)
    assert log_sd == pytest.approx(fitted.ALL.log_sd, rel=0.1)
    assert fitted.ALL.model.parameters == FITTED
    assert {name: fitted.ALL.log_sd[name] for name in FITTED_LOG_SD} == FITTED_LOG_SD


def test_a_fit_without_a_source_moves_no_parameter_that_only_that_source_knows(computed):
    """Without TensorFlow the rates of its transports stay at the medians of their priors."""
    found, _ = computed["fits"][1]
    assert found == pytest.approx(values(fitted.WITHOUT["tensorflow benchmarks.md (2017)"].model), rel=0.03)
    for name in ("nccl1_bytes_per_s", "host_copy_bytes_per_s", "grpc_share"):
        assert found[name] == pytest.approx(ALL_PRIORS[name].median, rel=1e-3)


def test_no_parameter_belongs_to_a_source_and_none_left_its_range():
    """Each within two standard deviations of its prior, in every fit."""
    for found in (fitted.ALL, *fitted.WITHOUT.values()):
        for name, value in values(found.model).items():
            prior = ALL_PRIORS[name]
            assert abs(np.log(value / prior.median)) < 2 * prior.log_sd, name
    assert not {name for name in ALL_PRIORS if "tensorflow" in name or "horovod" in name}
    assert all(prior.source for prior in {**PRIORS, **ALL_PRIORS}.values())


def test_a_line_of_the_table_is_the_prediction_of_the_fit_without_its_source(lines):
    """VGG 16 on 512 GPUs of Horovod: predicted here again, by the fit that has seen none of that source."""
    row = next(row for row in read_rows() if row.source.startswith("horovod") and row.model == "vgg16")
    line = next(line for line in lines if line.source == row.source and line.model == row.model)
    assert line.predicted == pytest.approx(predicted(row, fitted.WITHOUT[row.source].model), rel=1e-9)
    assert line.low < line.predicted < line.high


def test_no_prediction_asks_which_source_a_row_is_from():
    """Every row under another source's name: the same to the last bit. What a run did is read from the run."""
    model = prior_model()
    for row in read_rows():
        assert predicted(replace(row, source="elsewhere"), model) == predicted(row, model)


def test_the_priors_alone_rank_well_before_any_efficiency_was_seen():
    """Spearman above 0.8 without a fit."""
    rows = read_rows()
    guesses = [predicted(row, prior_model()) for row in rows]
    assert rank_correlation(guesses, [row.measured for row in rows]) > 0.8


def values(model) -> dict[str, float]:
    """All parameters by name."""
    return {**asdict(model.parameters), **asdict(model.transports)}

"""Fits the model's parameters to published efficiencies.

Owns: the least squares with priors, leaving a source out.
Not here: the model (`insight.model`), the runs (`published.cases`), the numbers it once gave (`published.fitted`).
Invariant: parameters are shared by all rows; a prediction with its source left out knows nothing of that source.

Each parameter's logarithm has a normal prior, so the fit minimises the sum of squared residuals (in standard
deviations of the measurement) and of squared departures from the priors (Gauss-Newton: `scipy.optimize.least_squares`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from paceline.insight.model.parameters import PRIORS, Parameters, Prior, residual_sd
from paceline.insight.published.cases import Model, predicted
from paceline.insight.published.rows import Row
from paceline.insight.published.transports import TRANSPORT_PRIORS, Transports

ALL_PRIORS: Mapping[str, Prior] = {**PRIORS, **TRANSPORT_PRIORS}


@dataclass(frozen=True)
class Fit:
    """Values, and standard deviations of their logarithms."""

    model: Model
    log_sd: Mapping[str, float]


def prior_model() -> Model:
    """Every parameter at the median of its prior: the model before any efficiency was seen."""
    return _model([math.log(prior.median) for prior in ALL_PRIORS.values()])


def fit(rows: Sequence[Row], *, start: Model | None = None) -> Fit:
    """Parameters from these rows and the priors.

    Args:
      start: where the search begins; at the priors' medians if not given. The optimum does not depend on it.
    The covariance is the inverse of J^T J at the optimum, the Laplace approximation of the posterior.
    """
    from scipy.optimize import least_squares  # half a second, and a plan only reads what was fitted

    medians = np.array([math.log(prior.median) for prior in ALL_PRIORS.values()])
    widths = np.array([prior.log_sd for prior in ALL_PRIORS.values()])
    weights = np.array([residual_sd(predicted(row, prior_model())) for row in rows])
    measured = np.array([row.measured for row in rows])

    def residuals(logs: np.ndarray) -> np.ndarray:
        model = _model(logs)
        misfit = (np.array([predicted(row, model) for row in rows]) - measured) / weights
        return np.concatenate([misfit, (logs - medians) / widths])

    found = least_squares(
        residuals,
        medians if start is None else np.log(_values(start)),
        method="lm",
        diff_step=1e-3,
        xtol=1e-4,
        ftol=1e-4,
    )
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    return Fit(_model(found.x), dict(zip(ALL_PRIORS, np.sqrt(np.diag(covariance)).tolist(), strict=True)))


def _model(logs: Sequence[float] | np.ndarray) -> Model:
    values = dict(zip(ALL_PRIORS, (math.exp(value) for value in logs), strict=True))
    own = {name: values[name] for name in PRIORS}
    return Model(Parameters(**own), Transports(**{name: values[name] for name in TRANSPORT_PRIORS}))


def _values(model: Model) -> list[float]:
    values = {**asdict(model.parameters), **asdict(model.transports)}
    return [values[name] for name in ALL_PRIORS]


def fit_without(rows: Sequence[Row], *, source: str) -> Fit:
    """The fit that knows nothing of one source."""
    return fit([row for row in rows if row.source != source])

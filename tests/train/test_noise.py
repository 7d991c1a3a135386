"""The gradient noise scale of a run: in its events and in its report, or why it is unknown."""

from __future__ import annotations

import json

import numpy as np
import optax
import pytest

from paceline.data.source import rows
from paceline.telemetry.reader import read_events
from tests.train.linear import line, trainer_of, zeros

STILL = optax.sgd(0.0)
DEVIATION = 2.0


def noisy_line(count: int) -> dict[str, np.ndarray]:
    """y = 3x + 1 and noise of deviation 2, each row once."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=count).astype(np.float32)
    return {"x": x, "y": (3 * x + 1 + DEVIATION * draw.normal(size=count)).astype(np.float32)}


def test_the_noise_scale_of_linear_regression_is_found(tmp_path):
    """At w = b = 0 the gradient of a row is 2r(x, 1) with r = -3x - 1 - e: its mean is (-6, -2), of square 40; the mean
    of its square is 4 (3*9 + 1 + 4 + 9 + 1 + 4) = 184. So tr(S) = 144 and the scale is 3.6 rows, within three of the
    errors that the report states; events carry it from the twentieth step on."""
    trainer = trainer_of(scheme="per_device", noise_scale=True, optimizer=STILL)
    data = rows(noisy_line(12_800))
    _, report = trainer.fit(trainer.init(zeros()), data, batch=32, epochs=1, run=tmp_path / "run")
    assert report.noise_scale is not None and report.noise_scale.steps == 400
    error = report.noise_scale.relative_error
    assert 0 < error < 0.2
    assert report.noise_scale.rows == pytest.approx(3.6, rel=3 * error)
    assert any(text.startswith("noise scale ") and "of 32 rows" in text for text in report.lines())
    json.dumps(report.as_dict())
    known = [
        "train/noise_scale_rows" in event.values
        for event in read_events(tmp_path / "run" / "events-0.jsonl").events
        if event.kind == "step"
    ]
    assert not any(known[:19]) and known[-1]


@pytest.mark.parametrize("devices, why", [(4, "3 steps seen, 20 are the least"), (1, "one device has no other")])
def test_an_unknown_noise_scale_is_said_to_be_unknown(devices, why):
    """Too few steps, or nothing to compare with: a notice with the reason, no number."""
    trainer = trainer_of(scheme="per_device", noise_scale=True, devices=devices)
    _, report = trainer.fit(trainer.init(zeros()), rows(line()), batch=32, steps=3)
    assert report.noise_scale is None
    assert [notice for notice in report.notices if "noise scale is unknown" in notice and why in notice]


def test_a_run_that_was_not_asked_says_nothing_of_the_noise():
    trainer = trainer_of(scheme="per_device")
    _, report = trainer.fit(trainer.init(zeros()), rows(line()), batch=32, steps=3)
    assert report.noise_scale is None and not any("noise" in text for text in report.lines())

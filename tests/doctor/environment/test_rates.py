"""Input against step: both measured, slow ones made slow on purpose."""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import DataError
from paceline.doctor.environment import rates
from paceline.doctor.environment.rates import Rate, judge, read_rate, zero_state
from paceline.doctor.subject import Subject
from paceline.engine.parallel import Parallel
from tests.doctor.environment.machines import only


def loss(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


X = np.ones((640, 8), np.float32)
ROWS = {"x": X, "y": X[:, 0]}


class SlowRows:
    """A map-style data set, 5 ms a row."""

    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.005)
        return {"x": X[index], "y": X[index, 0]}


def subject(data, **fields):
    task = paceline.task(loss, init=lambda rng: {"w": jnp.zeros(8)})
    return Subject(task, optax.adam(0.1), data, batch=16, devices=4, **fields)


def measured(run):
    """In a tenth of the usual time."""
    return rates.rate_findings(run, input_s=0.2, steps_s=0.2)


@pytest.fixture
def quick_step(monkeypatch):
    """A step of a millisecond for 16 rows, whatever else this machine does."""
    monkeypatch.setattr(rates, "step_rate", lambda step, state, *, batch, limit_s: Rate(16, 0.001, 1))


@pytest.mark.usefixtures("quick_step")
def test_slow_rows_are_found_with_their_rate():
    """200 rows a second at most, against 16,000."""
    found = only(measured(subject(SlowRows())), "warning")
    assert "input is too slow" in found.what and "the devices would wait" in found.what
    assert float(found.what.partition(": ")[2].split()[0]) <= 200
    assert "to make, in one thread" in (found.fix or "") and "paceline.rows" in (found.fix or "")


@pytest.mark.parametrize("scheme", ["global_view", "per_device", "pmap"])
def test_rows_in_memory_are_measured_under_every_scheme(scheme):
    """Two rates, whatever they are on this machine, and the step compiled once for all checks."""
    run = subject(paceline.rows(ROWS), parallel=Parallel(scheme=scheme))
    found = measured(run)
    assert len(found) == 1 and "rows/s against" in found[0].what and "on simulated devices" in found[0].what
    assert run.step.compilations == 1


@pytest.mark.usefixtures("quick_step")
def test_ready_batches_are_measured_and_their_fix_is_another():
    """A stream that makes a batch in 200 ms."""

    def batches():
        while True:
            time.sleep(0.2)
            yield {"x": X[:16], "y": X[:16, 0]}

    found = only(measured(subject(paceline.stream(batches()))), "warning")
    assert "input is too slow" in found.what and "worker processes" in (found.fix or "")


def test_a_stream_that_ends_at_once_is_said():
    """Two batches are fewer than are made ahead."""
    two = paceline.stream(iter([{"x": X[:16], "y": X[:16, 0]}] * 2))
    assert "too short to measure" in only(measured(subject(two)), "ok").what
    with pytest.raises(DataError, match="empty"):  # which becomes a finding with its fix
        measured(subject(paceline.stream(iter([]))))


def test_the_state_of_zeros_is_what_the_step_takes():
    """Same shapes, types and places as a real first state."""
    import jax

    run = subject(paceline.rows(ROWS), parallel=Parallel(scheme="per_device", placement="zero1"))
    made, real = zero_state(run), run.trainer.init(seed=0)
    assert jax.tree.structure(made) == jax.tree.structure(real)
    for mine, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(real), strict=True):
        assert (mine.shape, mine.dtype, mine.sharding) == (theirs.shape, theirs.dtype, theirs.sharding)


STEP = Rate(rows=1000, time_s=1.0, batches=10)


@pytest.mark.parametrize(
    ("rows", "level", "words"),
    [
        (1100, "ok", "input keeps up: 1,100 rows/s against 1,000 rows/s"),
        (1099, "warning", "input hardly keeps up"),
        (999, "warning", "the devices would wait 0.1 % of the time"),
        (250, "warning", "the devices would wait 75 % of the time"),
    ],
)
def test_the_share_of_waiting_is_what_the_step_outruns(rows, level, words):
    """Input of a quarter of the step's rate leaves three quarters of the time."""
    found = judge(Rate(rows, 1.0, 10), STEP, simulated=False, is_stream=False)
    assert found.level == level and words in found.what and "a step takes 100 ms" in found.what
    assert (found.fix is None) == (level == "ok")


def test_batches_made_ahead_do_not_count():
    """Two are there at once, the rest come one a second by this clock: 4 rows a second, not more."""

    class Batch:
        data, rows = (), 4

    now = iter(range(100))
    rate = read_rate(iter([Batch()] * 10), prefetch=2, limit_s=5.0, clock=lambda: float(next(now)))
    assert rate == Rate(rows=20, time_s=5.0, batches=5) and rate.rows_per_s == 4
    assert read_rate(iter([Batch()] * 2), prefetch=2) is None

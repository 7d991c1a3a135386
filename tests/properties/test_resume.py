"""Saved and gone on with is unbroken: bit for bit on the same devices, to rounding on others, the same rows always."""

from __future__ import annotations

import numpy as np
import pytest

import paceline
from paceline.checkpoint.store import Store
from paceline.train.checkpoints import Checkpoints
from tests.engine.conftest import quickly_compiled
from tests.properties.resuming import (
    BATCH,
    BREAK,
    PLACED,
    ROWS,
    STEPS,
    NotedRows,
    fit_options,
    in_two_parts,
    leaves_of,
    make_rows,
    make_trainer,
    new_state,
    unbroken,
)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Sixty small programs."""
    with quickly_compiled():
        yield


def assert_same(whole, parts):
    assert parts.rows == whole.rows
    assert parts.steps == whole.steps
    assert parts.leaves == whole.leaves


KINDS = [(*placed, *kind) for placed in PLACED for kind in ((1, "float32"), (4, "float16"))]
KINDS += [("global_view", "replicated", 4, "float32"), ("per_device", "fsdp", 1, "float16")]


@pytest.mark.parametrize(("scheme", "placement", "accumulation", "precision"), KINDS)
def test_a_resumed_run_is_the_unbroken_run(scheme, placement, accumulation, precision, tmp_path):
    """5 steps, a new trainer, 7 more, in the middle of an epoch: state, metrics and rows of 12 steps, bit for bit."""
    kind = {"scheme": scheme, "placement": placement, "accumulation": accumulation, "precision": precision}
    trainer = make_trainer(**kind)
    whole = unbroken(trainer, tmp_path / "whole")
    parts = in_two_parts(trainer, make_trainer(**kind), tmp_path / "parts")
    assert_same(whole, parts)
    assert [len(ids) for ids in whole.rows] == [BATCH] * STEPS and list(whole.steps) == list(range(1, STEPS + 1))
    fields = {name.partition(".")[0] for name in whole.leaves}
    expected = {"step", "params", "model_state", "opt_state", "rng", "skipped", "empty", "ema"}
    assert fields == expected | ({"loss_scale"} if precision == "float16" else set())


def test_the_comparison_would_see_another_history(tmp_path):
    """The same 12 steps with another seed of rows, or from another step: rows, metrics and state differ."""
    trainer = make_trainer()
    whole = unbroken(trainer, tmp_path / "whole")
    other = unbroken(trainer, tmp_path / "other", seed=3)
    assert other.rows != whole.rows and other.steps != whole.steps
    assert {name for name in whole.leaves if whole.leaves[name] != other.leaves[name]} >= {"params.w", "ema.w"}
    assert len({ids for epoch in whole.rows[:4] for ids in epoch}) == 64  # no row twice in an epoch


@pytest.mark.parametrize("at", [3, 4, 8])
def test_it_goes_on_at_and_across_an_epoch_boundary(at, tmp_path):
    """Broken one step before the end of an epoch and exactly at it, twice: the rows of the next epoch follow."""
    trainer = make_trainer()
    assert_same(unbroken(trainer, tmp_path / "whole"), in_two_parts(trainer, trainer, tmp_path / "parts", at=at))


@pytest.mark.parametrize("at", [4, 5, 7])
def test_padding_and_stored_order_go_on(at, tmp_path):
    """70 rows in 5 batches an epoch, the last one padded, in stored order: before, at and behind the padded one."""
    trainer = make_trainer(scheme="per_device", stateful=False)
    options = {"remainder": "pad", "shuffle": False}
    whole = unbroken(trainer, tmp_path / "whole", **options)
    parts = in_two_parts(trainer, trainer, tmp_path / "parts", at=at, **options)
    assert_same(whole, parts)
    assert whole.rows[:5] == [list(range(first, min(first + BATCH, ROWS))) for first in range(0, ROWS, BATCH)]


class NotedBatches:
    """Ready batches, a pass of 5; notes which were taken."""

    def __init__(self):
        self.asked = []

    def __iter__(self):
        rows = make_rows(80)
        for number in range(5):
            self.asked.append(number)
            yield {name: leaf[number * BATCH : (number + 1) * BATCH] for name, leaf in rows.items()}


def test_ready_batches_that_were_trained_on_are_read_and_left_out(tmp_path):
    """A stream cannot seek: the resumed run takes 5 batches and one more, trains on the rest; counts only its own."""
    trainer = make_trainer()
    options = {"batch": None}
    whole = unbroken(trainer, tmp_path / "whole", data=NotedBatches(), **options)
    parts = in_two_parts(trainer, make_trainer(), tmp_path / "parts", data=NotedBatches, **options)
    assert parts.steps == whole.steps and parts.leaves == whole.leaves
    assert whole.rows == [number % 5 for number in range(STEPS)]
    assert parts.rows == whole.rows[:BREAK] + whole.rows
    ids = [float.fromhex(values["train/id"]) for values in whole.steps.values()]
    assert ids == [(number % 5) * BATCH + (BATCH - 1) / 2 for number in range(STEPS)]


def test_batches_that_were_left_out_before_the_break_are_not_counted_again(tmp_path):
    """A batch of 3 rows ends each pass of 2; broken behind 3 steps of 7: 1 left out before, 2 behind, 3 in one run."""
    batches = [{name: leaf[first : first + size] for name, leaf in make_rows(35).items()} for first, size in TAILED]
    trainer, options = make_trainer(), {"checkpoints": Checkpoints(), "seed": 2}

    def dropped(run, steps, resume):
        state = new_state(trainer)
        data = paceline.stream(batches)
        return trainer.fit(state, data, steps=steps, run=tmp_path / run, resume=resume, **options)[1].rows_dropped

    assert [dropped("whole", 7, False), dropped("parts", 3, False), dropped("parts", 7, True)] == [9, 3, 6]


TAILED = [(0, 16), (16, 16), (32, 3)]

OTHERS = {
    "fewer devices": {"devices": 2},
    "one device": {"devices": 1, "placement": "replicated"},
    "another placement": {"placement": "fsdp"},
    "another scheme": {"scheme": "per_device"},
    "pmap": {"scheme": "pmap", "placement": "replicated"},
    "more microbatches": {"accumulation": 4},
    "all of it": {"devices": 2, "scheme": "per_device", "placement": "fsdp", "accumulation": 4},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_it_goes_on_on_other_devices_in_another_form(change, tmp_path):
    """Saved on 4 devices under zero1: the same rows; state and metrics as unbroken on 4, to 1e-4 in float32."""
    saved = {"placement": "zero1", "devices": 4}
    trainer = make_trainer(**saved)
    whole = unbroken(trainer, tmp_path / "whole")
    parts = in_two_parts(trainer, make_trainer(**(saved | change)), tmp_path / "parts")
    assert parts.rows == whole.rows
    assert parts.steps.keys() == whole.steps.keys()
    for step, values in whole.steps.items():
        assert numbers(parts.steps[step]) == pytest.approx(numbers(values), rel=1e-4, abs=1e-5), step
    for name, (shape, dtype, content) in whole.leaves.items():
        if name == "model_state.seen" and change.get("accumulation"):
            continue  # it counts microbatches, of which there are more now
        assert parts.leaves[name][:2] == (shape, dtype), name
        found, expected = np.frombuffer(parts.leaves[name][2], dtype), np.frombuffer(content, dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def numbers(values):
    return {key: float.fromhex(value) for key, value in values.items()}


def test_equal_values_on_8_4_2_1_and_back(tmp_path):
    """Saved on 8 devices; restored on 4, 2, 1 and 8, each from a save of the one before: equal bytes every time."""
    trainer = make_trainer(devices=8, placement="fsdp")
    state, _ = trainer.fit(
        new_state(trainer), NotedRows(), steps=3, run=tmp_path / "8", checkpoints=Checkpoints(), **fit_options()
    )
    expected, last = leaves_of(trainer, state), tmp_path / "8"
    for number, devices in enumerate((4, 2, 1, 8)):
        own = make_trainer(devices=devices, placement="fsdp" if devices > 1 else "replicated")
        restored = paceline.restore(last, new_state(own, seed=1))
        assert leaves_of(own, restored) == expected, devices
        last = tmp_path / f"again-{number}"
        with Store(last, say=raised) as store:
            store.save(restored, 3, meta={})


def raised(text):
    raise AssertionError(text)


def test_a_run_of_microbatches_counts_updates_as_before(tmp_path):
    """Saved with n = 1, unbroken with n = 4: the schedule, Adam's count and the key go by updates, so 12 of each."""
    trainer = make_trainer(accumulation=4)
    parts = in_two_parts(make_trainer(), trainer, tmp_path / "parts")
    for name in ("step", "opt_state.0.count"):
        assert np.frombuffer(parts.leaves[name][2], parts.leaves[name][1]).item() == STEPS

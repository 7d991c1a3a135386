"""Tuning a small task on simulated devices: what fits, what runs, what is said when something does not."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from paceline.data.source import rows
from paceline.engine.parallel import Parallel
from paceline.insight.memory.largest import MemoryFitError
from paceline.measure.scale.subject import Subject
from paceline.measure.tune import tune as module
from paceline.measure.tune.result import Memory, TuneResult, speeds, trial_line
from paceline.measure.tune.rig import Bench, Rig
from paceline.measure.tune.search import Pairs
from paceline.measure.tune.setting import Setting
from paceline.measure.tune.tune import Heard, TuneError, TuneOptions, find_memory, memory_limit, tune
from paceline.tasks.task import task
from paceline.topology.devices import machine_memory

ROWS, DIMS = 256, 4
START = Setting(32, Parallel())
QUICK = TuneOptions(seconds=6.0)


def squared(params, batch):
    """One squared error a row."""
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def subject(batch: int, *, rate: float = 0.01) -> Subject:
    """A linear regression on 256 rows of 20 bytes."""
    del batch
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(size=(ROWS, DIMS)).astype(np.float32), "y": draw.normal(size=ROWS).astype(np.float32)}
    return Subject(
        task(squared, init=lambda rng: {"w": jnp.zeros(DIMS)}, name="squared"), optax.sgd(rate), rows(data)
    )  # fmt: skip


def tuned(start: Setting = START, *, make=subject, options: TuneOptions = QUICK, **more) -> TuneResult:
    return tune(make, start, devices=jax.devices()[:2], options=options, default=START, **more)


def rig(setting: Setting) -> Rig:
    """The setting on two devices, not compiled."""
    return Bench(subject, devices=jax.devices()[:2], limit_bytes=None, deadline_s=1e9, run_s=0.05).rig(setting)


@pytest.fixture(scope="module")
def found() -> tuple[TuneResult, list]:
    """One tuning, and what it told on the way."""
    told: list = []
    return tuned(heard=Heard(told.append, told.append)), told


def test_all_rows_of_a_small_data_set_fit():
    """256 rows on two devices are 128 each, and the machine has room for all of them; the compiler says so."""
    memory = find_memory(rig(START), subject(32), limit=10**9, deadline_s=1e9, clock=lambda: 0.0)
    assert (memory.largest_rows, memory.ended_by) == (128, "data")
    assert memory.peak_bytes is not None and 0 < memory.peak_bytes < 10**9
    assert "128 rows a device fit, all that the data has" in str(memory)


def test_a_search_that_the_time_ended_says_so(monkeypatch):
    """After one size: with what fits, or with what does not; five sizes without an end are neither memory nor data."""
    monkeypatch.setattr(Rig, "peak_bytes", lambda own, batch: 100)
    made, late = rig(START), {"deadline_s": 0.0, "clock": lambda: 1.0}
    some = find_memory(made, subject(32), limit=1000, **late)
    assert (some.largest_rows, some.ended_by) == (16, "time") and "there was time to compile" in str(some)
    monkeypatch.setattr(Rig, "peak_bytes", lambda own, batch: 2000)
    none = find_memory(made, subject(32), limit=1000, **late)
    assert (none.largest_rows, none.ended_by) == (None, "time")
    assert "16 rows a device do not fit, and the time was up" in str(none) and "--seconds" in str(none)
    monkeypatch.setattr(module, "_MOST_COMPILATIONS", 1)
    monkeypatch.setattr(Rig, "peak_bytes", lambda own, batch: 100)
    few = find_memory(made, subject(32), limit=1000, deadline_s=1e9, clock=lambda: 0.0)
    assert (few.largest_rows, few.ended_by) == (16, "compilations") and "that were compiled" in str(few)


def test_with_a_fixed_batch_only_the_start_is_compiled_for_its_memory(monkeypatch):
    """One number of rows is asked for, where the search asks for several; what it takes is told without a largest."""
    asked = []
    peak_bytes = Rig.peak_bytes
    monkeypatch.setattr(Rig, "peak_bytes", lambda own, batch: asked.append(batch) or peak_bytes(own, batch))
    ticks = iter([0.0, 0.0])
    memory = tuned(options=TuneOptions(seconds=6.0, keep_training=True), clock=lambda: next(ticks, 1e9)).memory
    assert set(asked) == {32}
    assert (memory.largest_rows, memory.ended_by, set(memory.compiled)) == (None, "batch fixed", {16})
    assert "the largest batch is not looked for, as it is fixed" in str(memory)


def test_every_option_has_a_trial_and_a_line(found):
    """Batch, scheme, placement, microbatches and prefetch, each told as it ended; samples/s of both sides where it was
    measured."""
    result, told = found
    assert told == [result.memory, *result.trials]
    assert {trial.option for trial in result.trials} >= {"batch", "scheme", "placement", "accumulation", "prefetch"}
    for trial in result.trials:
        assert trial.change in trial_line(trial) and trial.outcome in trial_line(trial)
        if trial.pairs is not None and trial.pairs.after:
            assert "samples/s -> " in trial_line(trial)


def test_the_result_is_the_last_setting_that_was_kept(found):
    """And the flags ask for it."""
    result, _ = found
    kept = [trial for trial in result.trials if trial.outcome == "kept"]
    assert (result.best == result.start) == (not kept)
    assert result.flags == result.best.flags(default=START)
    assert any(line.startswith("flags") for line in result.lines())


def test_simulated_devices_are_said_to_be_simulated(found):
    assert any("2 simulated devices on" in note for note in found[0].notes)


def test_the_result_is_one_json_object(found):
    document = json.loads(json.dumps(found[0].as_dict()))
    assert document["task"] == "squared" and document["start"]["batch"] == 32
    assert set(document) == {
        *("task", "devices", "device_kind", "memory", "start", "best", "flags", "trials", "total", "seconds", "notes")
    }


def test_a_task_that_not_even_one_row_makes_fit_is_refused():
    """A device of 100 bytes; the fix is the search's own."""
    with pytest.raises(MemoryFitError) as raised:
        tuned(options=dataclasses.replace(QUICK, memory_bytes=100))
    assert "placement" in raised.value.fix


def test_a_start_that_does_not_fit_is_told_the_largest_batch():
    """All 256 rows of a device of 2500 bytes: the fix names a batch that is smaller, and a whole number a device."""
    with pytest.raises(TuneError) as raised:
        tuned(Setting(256, Parallel()), options=dataclasses.replace(QUICK, memory_bytes=2500))
    assert "batch 256 does not fit" in raised.value.what
    batch = int(raised.value.fix.split("--batch ")[1].split()[0])
    assert 0 < batch < 256 and batch % 2 == 0


def test_a_start_that_diverges_is_refused():
    """A learning rate of 1e30 overflows at once: updates that are left out take another time."""
    with pytest.raises(TuneError) as raised:
        tuned(make=lambda batch: subject(batch, rate=1e30))
    assert "not finite" in raised.value.what and "paceline doctor" in raised.value.fix


def test_a_setting_that_runs_out_of_memory_is_listed(monkeypatch):
    """The runtime refuses everything but the start: all trials failed, with the first line of why; no error."""
    peak_bytes = Rig.peak_bytes

    def refuse(rig, batch):
        if rig.setting != START:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand a long trace")
        return peak_bytes(rig, batch)

    monkeypatch.setattr(Rig, "peak_bytes", refuse)
    result = tuned(options=TuneOptions(seconds=60.0, keep_training=True))
    assert result.best == START and result.total is None
    assert {(trial.outcome, trial.why) for trial in result.trials} == {("failed", "RESOURCE_EXHAUSTED: Out of memory")}
    assert "nothing gained" in result.lines()[0]


def test_when_the_time_is_up_the_rest_is_listed_as_not_tried():
    """A clock that has run out once the start was seen: nothing is measured, and the note says what to do."""
    ticks = iter([0.0, 0.0])
    result = tuned(clock=lambda: next(ticks, 1e9))
    assert {trial.outcome for trial in result.trials} == {"not tried"}
    assert any("more --seconds" in note for note in result.notes)


def test_batches_made_ahead_count_as_memory():
    """Two batches more ahead: twice 32 rows of 20 bytes, shared by two devices."""
    few, many = (rig(dataclasses.replace(START, prefetch=prefetch)).peak_bytes(32) for prefetch in (2, 4))
    assert few is not None and many is not None and many - few == 2 * 32 * 20 // 2


def test_the_memory_of_a_device_is_its_own_unless_told():
    """A GPU's limit; nothing where it says nothing; the number that was given, if it is the smaller: nine tenths of
    each. Two simulated devices halve the machine."""

    def device(stats):
        return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)

    assert memory_limit([device({"bytes_limit": 1000})], None) == 900
    assert memory_limit([device({})], None) is None and memory_limit([device(None)], None) is None
    assert memory_limit([device({})], 2000) == 1800
    assert memory_limit([device({"bytes_limit": 1000})], 2000) == 900, "what JAX has there, not what was told"
    assert memory_limit([device({"bytes_limit": 1000})], 500) == 450
    cpus = [SimpleNamespace(platform="cpu")] * 2
    assert memory_limit(cpus, 10**18) == memory_limit(cpus, None) == int(0.9 * (machine_memory() // 2))


def test_an_unknown_memory_is_said_to_be_unknown():
    assert "--memory-gb" in str(Memory(None, None, None, ended_by="nothing known"))


def test_a_gain_is_told_with_its_interval():
    """Six pairs: the median of the ratios, the smallest and the largest; three: how little they cover."""
    six = Pairs((100.0,) * 6, (110.0, 112.0, 114.0, 116.0, 118.0, 120.0))
    assert speeds(six) == "100 samples/s -> 115 samples/s, x 1.150 (1.100 to 1.200)"
    three = Pairs((100.0,) * 3, (80.0, 90.0, 95.0))
    assert speeds(three) == "100 samples/s -> 90 samples/s, x 0.900 (0.800 to 0.950, at 75 % from 3 pairs)"


FASTER = Setting(64, Parallel())


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (Pairs((100.0,) * 6, (110.0,) * 6), ""),
        (Pairs((100.0,) * 3, (110.0, 95.0, 90.0)), "what was kept may be luck"),
        (Pairs((100.0,) * 6, (101.0,) * 6), "what was kept may be luck"),
        (Pairs((100.0,) * 2, (110.0,) * 2), "more --seconds"),
        (None, "could not be compared with each other in the end: more --seconds"),
    ],
    ids=["kept", "lost twice", "too small", "not decided", "no time"],
)
def test_what_the_last_comparison_does_not_confirm_is_said_to_be_luck(total, words):
    """As a change is judged: won all, or it is said."""
    notes = module._total_notes(START, FASTER, total)
    assert bool(notes) == bool(words) and all(words in note for note in notes)
    assert module._total_notes(START, START, None) == []


def test_a_larger_batch_is_said_to_be_another_training(monkeypatch):
    """Every larger batch gains: the trials say it, and the note has linear scaling and the noise scale."""
    monkeypatch.setattr(Rig, "run", lambda rig, first: 0.1 if rig.setting.parallel == START.parallel else 1.0)
    monkeypatch.setattr(Rig, "peak_bytes", lambda rig, batch: 1000)
    monkeypatch.setattr(Rig, "compiled", SimpleNamespace(compile_s=0.0))
    result = tuned(options=TuneOptions(seconds=1e6))
    assert result.best.batch == 256 and result.flags == ["--batch 256"]
    assert all(trial_line(trial).endswith("[a larger batch is another training]") for trial in result.trials[:3])
    assert result.total is not None and result.total.gain.value == pytest.approx(8)
    (note,) = [note for note in result.notes if "batch 256 instead of 32" in note]
    assert "learning rate by 8" in note and "--noise-scale" in note and "--fix-batch" in note

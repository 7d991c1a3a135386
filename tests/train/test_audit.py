"""Audits in the loop: a replica that goes wrong in mid-run stops it, is told, or is repaired.

A step is wrapped so that after some update one bit of `params.w` is flipped on one device.
"""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import optax
import pytest

from paceline.base.errors import NonFiniteError, OptionError, ReplicaError
from paceline.check.audit import replicas
from paceline.check.rebroadcast import repair
from paceline.engine.step import StepFunction
from paceline.telemetry.events import Where
from paceline.telemetry.reader import read_run
from paceline.train.audit import AuditOptions
from tests.check.planted import bytes_by_device, corrupted
from tests.train.compilations import counted
from tests.train.linear import SCHEMES, line, params_of, trainer_of, zeros

STEPS = 12
FLIP_AT = 5
BIT = 12  # a lower one could be lost in the rounding of the next updates


@pytest.fixture
def flip(monkeypatch):
    """`flip({step: [devices]})`: from now on these updates leave `params.w` with a flipped bit on these devices."""

    def plant(devices_by_step):
        compiled = StepFunction.compiled

        def compile_wrapped(function, state, batch, valid):
            program = compiled(function, state, batch, valid)
            made = 0

            def call(state, batch, valid):
                nonlocal made
                state, metrics = program.call(state, batch, valid)
                made += 1
                for device in devices_by_step.get(made, []):
                    w = corrupted(state.params["w"], device=device, bit=BIT)
                    state = dataclasses.replace(state, params={**state.params, "w": w})
                return state, metrics

            return dataclasses.replace(program, call=call)

        monkeypatch.setattr(StepFunction, "compiled", compile_wrapped)

    return plant


def fit(trainer, *, steps=STEPS, **options):
    return trainer.fit(trainer.init(zeros()), line(), batch=16, steps=steps, **options)


def audited_steps(folder):
    return [event.step for event in read_run(folder).events_by_process[0] if event.kind == "audit"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_flipped_bit_stops_the_run(scheme, flip, tmp_path):
    """Flipped after update 5, found by the audit of step 8: leaf, device, process, step; the last state is carried."""
    flip({FLIP_AT: [2]})
    with pytest.raises(ReplicaError) as caught:
        fit(trainer_of(scheme=scheme), steps=40, audit_every=4, run=tmp_path / "run")
    assert caught.value.what == (
        "replicas differ after step 8 and were equal after step 4: "
        "params.w on device 2 (process 0) is unlike the other 3 replicas, which are equal"
    )
    assert "--on-divergence repair" in caught.value.fix
    assert "fit(on_divergence='repair')" in caught.value.fix
    assert caught.value.exit_code == 1
    record = read_run(tmp_path / "run")
    assert record.report["stopped"].startswith("ReplicaError: replicas differ after step 8")
    state = caught.value.state
    steps = set(np.asarray(state.step).ravel().tolist())
    assert steps == {record.report["last_step"]}
    assert not replicas(state).ok
    assert record.report["audit"]["audits"] == 3 and record.report["audit"]["differing"] == 1


def test_the_steps_made_before_the_stop_are_counted_and_recorded(flip, tmp_path):
    """Found when step 9 is finished, two steps later: 11 steps, 176 rows, 11 step events; no evaluation."""
    flip({FLIP_AT: [2]})
    with pytest.raises(ReplicaError):
        fit(trainer_of(), steps=40, audit_every=4, run=tmp_path / "run", evaluation=line(8))
    record = read_run(tmp_path / "run")
    assert [record.report[key] for key in ("steps", "rows_seen", "evaluation")] == [11, 176, {}]
    steps = [event.step for event in record.events_by_process[0] if event.kind == "step"]
    assert steps == list(range(1, 12))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_warning_lets_the_run_go_on(scheme, flip, tmp_path):
    """Audits of steps 0, 4, 8, 12: the last two differ. Events, the notice and the line of the report say so."""
    flip({FLIP_AT: [2]})
    trainer = trainer_of(scheme=scheme)
    state, report = fit(trainer, audit_every=4, on_divergence="warn", run=tmp_path / "run")
    assert report.steps == STEPS and report.stopped is None
    assert (report.audit.audits, report.audit.differing, report.audit.repairs) == (4, 2, 0)
    assert report.audit.differences[0].startswith("after step 8: params.w on device 2 (process 0)")
    assert report.notices == (f"replicas differed {report.audit.differences[0]}",)
    assert f"4 audits of {report.audit.leaves} leaves on 4 devices: 2 found a difference" in "\n".join(report.lines())
    assert not replicas(state).ok
    events = [event for event in read_run(tmp_path / "run").events_by_process[0] if event.kind == "audit"]
    assert [(event.step, event.values["audit/differing_leaves"]) for event in events] == [
        (0, 0),
        (4, 0),
        (8, 1),
        (12, 1),
    ]
    assert events[1].text is None and events[2].text == report.audit.differences[0]
    where = Where("params.w", devices=(2,), processes=(0,), replicas=4, odd=True)
    assert [event.where for event in events] == [(), (), (where,), (where,)]


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_repair_makes_the_replicas_equal(scheme, donate, flip, tmp_path, monkeypatch):
    """Found after step 8, repaired once, when step 9 is finished; equal on all devices, bit for bit, in the end.

    The repair reuses the memory of the state if the steps do.
    """
    flip({FLIP_AT: [0]})
    donated = []
    monkeypatch.setattr(
        "paceline.train.audit.repair",
        lambda state, audit, **options: donated.append(options["donate"]) or repair(state, audit, **options),
    )
    trainer = trainer_of(scheme=scheme, donate=donate)
    state, report = fit(trainer, audit_every=4, on_divergence="repair", run=tmp_path / "run")
    assert donated == [donate]
    assert (report.steps, report.stopped) == (STEPS, None)
    assert (report.audit.differing, report.audit.repairs) == (1, 1)
    assert ", 1 repair" in "\n".join(report.lines())
    assert replicas(state).ok
    assert len(set(bytes_by_device(state.params["w"]))) == 1
    notices = [event.text for event in read_run(tmp_path / "run").events_by_process[0] if event.kind == "notice"]
    assert notices == ["replicas repaired after step 11"]


def test_a_repaired_run_ends_near_an_untouched_one(flip):
    """A bit that is worth 5e-4 of the value, in one replica of four for six updates: rtol 1e-3."""
    trainer = trainer_of()
    expected, _ = fit(trainer)
    flip({FLIP_AT: [3]})
    state, report = fit(trainer, audit_every=4, on_divergence="repair")
    assert report.audit.repairs == 1
    for name, value in params_of(trainer, expected).items():
        np.testing.assert_allclose(params_of(trainer, state)[name], value, rtol=1e-3)


def test_a_second_fault_is_repaired_too(flip):
    """Device 1 after update 2, device 3 after update 7, audits after every update: two repairs, equal in the end."""
    flip({2: [1], 7: [3]})
    state, report = fit(trainer_of(), audit_every=1, on_divergence="repair")
    assert report.audit.repairs == 2
    assert replicas(state).ok


def test_a_fault_in_the_last_step_is_found_and_repaired(flip):
    """Update 12 of 12, default interval: the audit at the end finds it, and the state that is returned is repaired."""
    flip({STEPS: [1]})
    state, report = fit(trainer_of(), on_divergence="repair")
    assert (report.audit.audits, report.audit.repairs) == (3, 1)  # start, end, and the repaired state
    assert replicas(state).ok
    with pytest.raises(ReplicaError, match=f"after step {STEPS} and were equal after step 0"):
        fit(trainer_of())


def test_without_a_majority_a_repair_stops_the_run(flip):
    """Devices 2 and 3 flip the same bit: two against two. All four are named, and why nothing was repaired."""
    flip({FLIP_AT: [2, 3]})
    with pytest.raises(ReplicaError, match=r"params.w on devices 0, 1, 2, 3 .* none can be told right") as caught:
        fit(trainer_of(), audit_every=4, on_divergence="repair")
    assert "cannot repair" in caught.value.why
    assert "before the difference" in caught.value.fix
    assert caught.value.state is not None


def test_a_repair_that_does_not_hold_stops_the_run(monkeypatch, flip):
    """The audit of the repaired state differs again: an error, no endless loop."""
    monkeypatch.setattr("paceline.train.audit.repair", lambda state, *_, **__: state)
    flip({STEPS: [1]})
    with pytest.raises(ReplicaError, match="replicas differ after step 12") as caught:
        fit(trainer_of(), on_divergence="repair")
    assert "--on-divergence repair" not in caught.value.fix


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_sound_run_is_audited_at_start_every_so_often_and_at_the_end(scheme, tmp_path):
    """audit_every=5 over 12 steps: 0, 5, 10, 12; at a multiple of the interval the end is not audited twice."""
    trainer = trainer_of(scheme=scheme)
    _, report = fit(trainer, audit_every=5, run=tmp_path / "run")
    assert audited_steps(tmp_path / "run") == [0, 5, 10, 12]
    record = read_run(tmp_path / "run")
    assert record.run["audit"] == {"every": 5, "on_divergence": "stop"}
    assert record.report["audit"] == json.loads(json.dumps(dataclasses.asdict(report.audit)))
    assert report.audit.leaves == 6 and report.audit.excluded == {}  # step, skipped, empty, w, b, rng
    assert "4 audits of 6 leaves on 4 devices: equal, bit for bit" in "\n".join(report.lines())
    fit(trainer, audit_every=6, run=tmp_path / "again")
    assert audited_steps(tmp_path / "again") == [0, 6, 12]


def vector_loss(params, batch):
    return (batch["x"] * params["w"].sum() - batch["y"]) ** 2


@pytest.mark.parametrize(
    ("placement", "split"), [("zero1", ["opt_state.0.trace.w"]), ("fsdp", ["params.w", "opt_state.0.trace.w"])]
)
@pytest.mark.parametrize("scheme", ["global_view", "per_device"])
def test_split_leaves_are_excluded_with_the_reason(scheme, placement, split):
    """8 parameters and their momentum on 4 devices: what is split has no replica, the rest is compared."""
    trainer = trainer_of(vector_loss, optimizer=optax.sgd(0.01, momentum=0.9), scheme=scheme, placement=placement)
    _, report = trainer.fit(trainer.init({"w": np.zeros(8, np.float32)}), line(), batch=16, steps=2)
    assert sorted(report.audit.excluded) == sorted(split)
    assert all("split over 4 devices" in reason for reason in report.audit.excluded.values())
    assert report.audit.leaves == 6 - len(split)  # step, skipped, empty, rng, and w and its momentum
    assert f"{len(split)} not compared: split over 4 devices" in "\n".join(report.lines())


def test_audits_count_the_updates_of_the_state():
    """A second fit of 3 steps from step 12 on: audited at 12, 14 and 15 with audit_every=7."""
    trainer = trainer_of()
    state, _ = fit(trainer, audit_every=0)
    _, report = trainer.fit(state, line(), batch=16, steps=3, audit_every=7)
    assert report.audit.audits == 3


def test_no_audit_is_made_if_none_is_asked_for_or_there_is_one_device(flip, tmp_path):
    """audit_every=0 lets even a flipped bit pass; on one device there is nothing to compare."""
    flip({FLIP_AT: [2]})
    _, report = fit(trainer_of(), audit_every=0, run=tmp_path / "run")
    assert report.audit is None and audited_steps(tmp_path / "run") == []
    assert not any(text.startswith("replicas") for text in report.lines())
    _, report = fit(trainer_of(devices=1))
    assert report.audit is None


def test_audits_change_no_bit_of_a_run():
    """Parameters with an audit after every update and with none."""
    trainer = trainer_of()
    states = [fit(trainer, audit_every=every)[0] for every in (0, 1)]
    assert params_of(trainer, states[0]) == params_of(trainer, states[1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_program_serves_the_audits_of_all_trainers(scheme):
    """Before the first step, after it, and in a second trainer of the same shapes: compiled once at most."""
    fit(trainer_of(scheme=scheme), audit_every=1)
    trainer = trainer_of(scheme=scheme)
    state, _ = fit(trainer, steps=1, audit_every=0)
    with counted() as compiled:
        trainer.fit(state, line(), batch=16, steps=3, audit_every=1)
    assert compiled == []


def test_a_step_that_is_not_finite_keeps_its_own_error():
    """The loss is not finite from the first step; the replicas are equal."""
    trainer = trainer_of(lambda params, batch: (params["w"] + batch["x"] - batch["x"]) / 0.0)
    with pytest.raises(NonFiniteError):
        trainer.fit(trainer.init({"w": np.float32(1)}), line(), batch=16, steps=4, audit_every=1)


def test_options_that_make_no_sense_are_refused():
    """Before the first step, with what is allowed."""
    with pytest.raises(OptionError, match="audit_every=-1") as caught:
        AuditOptions(-1)
    assert "or 0 to leave audits out" in caught.value.fix
    for every in (None, "3", 2.5):
        with pytest.raises(OptionError, match=re.escape(f"audit_every={every!r}")):
            AuditOptions(every)
    with pytest.raises(OptionError, match="on_divergence='panic'") as caught:
        AuditOptions(on_divergence="panic")
    assert "stop, warn, repair" in caught.value.fix

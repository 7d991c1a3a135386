"""What a plan says beside its numbers, and what may stand in for the planned machine."""

from __future__ import annotations

import jax
import pytest

from paceline.base.errors import DeviceError, OptionError
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.network.curves import Curve, NetworkCurves
from paceline.insight.plan import place as module
from paceline.insight.plan.curves import curves_for, curves_note
from paceline.insight.plan.notes import data_notes, time_notes
from paceline.insight.plan.place import choose_place
from paceline.insight.timeline import FULL_FLOAT32, Work


def test_curves_of_another_device_are_refused(tmp_path):
    """Measured on CPUs, or on what no table knows; those of the same device are taken, and the note says what it is."""
    file = tmp_path / "network.json"
    for device, on in (("cpu", "8xA100"), ("Quantum 9", "8xA100"), ("NVIDIA A100-SXM4-80GB", "2xcpu")):
        NetworkCurves((Curve("all-reduce", 8, 1, (1e3,), (1e-3,)),), device, "nccl").save(file)
        with pytest.raises(OptionError, match=f"was measured on {device}") as raised:
            curves_for(parse_machine(on), str(file))
        assert "leave --curves out" in raised.value.fix
    curves = curves_for(parse_machine("8xA100"), str(file))
    assert "all-reduce over 8 devices of 1 node (nccl); other sizes of group are extrapolated" in curves_note(curves)


def test_a_batch_that_the_data_cannot_fill_is_said():
    assert data_notes(256, 256) == data_notes(256, None) == []
    assert data_notes(1000, 256) == ["the batch of 1,000 rows is more than the data have: 256 rows"]


def test_a_type_without_a_unit_is_named():
    """A V100 has none for bfloat16."""
    notes = time_notes((Work({"bfloat16": 1.0}, 1.0),), parse_machine("8xV100", nodes=2, network="100GbE"), fits=True)
    assert notes == ["V100 SXM2 32 GB has no unit for bfloat16: its products are timed at the rate of float32"]


def test_products_at_full_precision_are_said_where_they_are_slower():
    """An H100 does 494.7 Tflop/s of tfloat32 for 67 of float32: 7.4 times. A V100 has float32 alone."""
    timeline = (Work({FULL_FLOAT32: 1.0}, 1.0),)
    (note,) = time_notes(timeline, parse_machine("8xH100"), fits=True)
    assert note.startswith('products at precision "highest" are timed in true float32, 7.4 times slower')
    assert time_notes(timeline, parse_machine("8xV100"), fits=True) == []


def test_the_place_says_what_stands_in(monkeypatch):
    """Without the CUDA plugin a CPU program does, and the fix is named."""
    monkeypatch.setattr(module, "has_cuda_compiler", lambda: False)
    place = choose_place(parse_machine("4xA100"))
    assert place.is_cpu and not place.is_planned
    assert "pip install 'paceline[cuda13]'" in place.notes[0]


def test_one_cpu_device_does_not_stand_in_for_several(monkeypatch):
    """Its program sends nothing, so nothing could be said of how four scale."""
    one = jax.devices("cpu")[:1]
    monkeypatch.setattr(module, "has_cuda_compiler", lambda: False)
    monkeypatch.setattr(module.jax, "devices", lambda platform: one)
    with pytest.raises(DeviceError, match="one CPU device to compile for, where 4 devices are planned") as raised:
        choose_place(parse_machine("4xA100"))
    assert "paceline plan on the command line" in raised.value.fix
    assert choose_place(parse_machine("A100")).devices == one

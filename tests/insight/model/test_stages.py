"""Where a step's time goes by stage: by pencil, on a device that does 1 flop/s and moves 1 byte/s at its peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.insight.hardware.catalog import Device
from paceline.insight.hardware.links import find_link
from paceline.insight.hardware.machine import Machine, parse_machine
from paceline.insight.hlo.text import op_names, parse_module
from paceline.insight.model.costs import MachineCost
from paceline.insight.model.parameters import FITTED
from paceline.insight.model.roofline import Roofline
from paceline.insight.model.stages import divide
from paceline.insight.model.step import Setting, play
from paceline.insight.timeline import Collective, Done, Repeat, Start, Work
from tests.insight.hlo.texts import COMPILERS, stored, stored_text

DEVICE = Device("toy", (), {"float32": 1.0}, 1, 1.0, "memory")
ROOFLINE = Roofline(DEVICE)
ORIGINS = {"forward": "jit(step)/jvp()/dot", "backward": "jit(step)/transpose(jvp())/dot", "sgd": "jit(step)/sub"}


def work(flops, what):
    return Work({"float32": float(flops)}, 0.0, 1, what)


def reduction(seconds, *, leaves=("params.w",), asynchronous=False, name="sum"):
    return Collective(name, "all-reduce", seconds, "float32", 4, asynchronous, leaves)


def setting(*timeline):
    machine = Machine(DEVICE, 4, 1, find_link("memory"))
    return Setting(timeline, machine, 4, FITTED, lambda collective, group: float(collective.bytes))


def test_the_update_is_what_is_behind_the_last_gradient():
    """10 forward, 20 backward, a blocking reduction of 5 s, 3 of the norm, 7 of the update, on a 0.7 roofline."""
    step = setting(
        work(10, "forward"), work(20, "backward"), Start(reduction(5)), Done("sum"), work(3, "norm"), work(7, "sgd")
    )
    found = divide(step, ORIGINS)
    assert found is not None and "differentiation" in found.basis
    assert found.forward_backward_s == pytest.approx(ROOFLINE(work(30, "")))
    assert found.all_reduce_s == pytest.approx(5 * FITTED.slowdown)
    assert found.update_s == pytest.approx(ROOFLINE(work(10, "")))
    assert sum(found.shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert found.replay == play(step)


def test_a_loop_that_holds_gradients_belongs_to_them():
    """Four microbatches in a loop: the loop as a whole, with what it adds up; then the update."""
    step = setting(Repeat(4, (work(5, "backward"), work(1, "add"))), work(6, "sgd"))
    found = divide(step, ORIGINS)
    assert found is not None
    assert found.forward_backward_s == pytest.approx(ROOFLINE(work(24, "")))
    assert found.update_s == pytest.approx(ROOFLINE(work(6, "")))


def test_only_what_the_device_waits_for_counts_as_communication():
    """Hidden behind a long backward: none of it; what it slows that by belongs to forward and backward."""
    step = setting(
        work(10, "forward"), Start(reduction(5, asynchronous=True)), work(200, "backward"), Done("sum"), work(8, "sgd")
    )
    found = divide(step, ORIGINS)
    assert found is not None and found.all_reduce_s == 0.0
    slowed_s = play(step).contention_s
    assert slowed_s > 0
    assert found.forward_backward_s == pytest.approx(ROOFLINE(work(210, "")) + slowed_s)
    assert found.update_s == pytest.approx(ROOFLINE(work(8, "")))


def test_without_names_the_last_reduction_of_gradients_parts_them():
    """The sum of the loss behind the update does not."""
    totals = reduction(1, leaves=(), name="totals")
    step = setting(
        work(30, "a"), Start(reduction(5)), Done("sum"), work(10, "b"), Start(totals), Done("totals"), work(2, "c")
    )
    found = divide(step, {})
    assert found is not None and "reduction" in found.basis
    assert found.forward_backward_s == pytest.approx(ROOFLINE(work(30, "")))
    assert found.update_s == pytest.approx(ROOFLINE(work(12, "")))


def test_a_program_that_says_neither_has_no_stages():
    """Nothing is guessed; and a step that takes no time has no shares."""
    assert divide(setting(work(30, "a")), {}) is None
    nothing = divide(setting(Work({}, 0.0, 0, "forward")), ORIGINS)
    assert nothing is not None and nothing.shares is None


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("scheme", ["global_view", "per_device", "pmap", "zero1", "fsdp", "per_device_accumulating"])
def test_every_product_of_a_real_program_lies_before_its_update(scheme, compiler):
    """Stored MLPs, whose update (SGD with momentum) multiplies no matrices: products alone
    take no time there. All shares are above zero, and their sum is 1."""
    name, machine = f"mlp_{scheme}", parse_machine("8xH100")
    program, origins = stored(name, compiler), op_names(stored_text(name, compiler))
    found = divide(Setting(program.timeline, machine, 8, FITTED, MachineCost(machine)), origins)
    assert found is not None and found.shares is not None and "differentiation" in found.basis
    assert all(share > 0 for share in found.shares.values())
    assert sum(found.shares.values()) == pytest.approx(1.0, abs=1e-12)
    only = divide(Setting(products_of(program.timeline), machine, 8, FITTED, MachineCost(machine)), origins)
    assert only is not None and only.update_s == pytest.approx(0.0, abs=1e-15) and only.forward_backward_s > 0


def products_of(timeline):
    """The timeline with products alone: neither traffic nor the floor of a kernel."""
    return tuple(
        Repeat(event.times, products_of(event.body)) if isinstance(event, Repeat)
        else replace(event, bytes=0.0, kernels=0) if isinstance(event, Work)
        else event
        for event in timeline
    )  # fmt: skip


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_origins_are_those_that_the_parser_finds(compiler):
    """One search through the text finds the same names for the same instructions as reading each line."""
    text = stored_text("mlp_global_view", compiler)
    module = parse_module(text)
    read = {one.name: one.op_name for body in module.computations.values() for one in body.instructions if one.op_name}
    assert op_names(text) == read and len(read) > 50

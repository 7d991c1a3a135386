"""Plans of a small model on the CPU program that stands in for a GPU's, against pencil."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import paceline
from paceline.base.errors import BatchSizeError, OptionError
from paceline.engine.parallel import Parallel
from paceline.insight.hardware.machine import Machine, parse_machine
from paceline.insight.memory.advice import Advice
from paceline.insight.model.predict import predict
from paceline.insight.model.roofline import ROOFLINE_LOG_SD, RateError, achieved
from paceline.insight.model.step import HOST_STEP_S
from paceline.insight.network.curves import Curve, NetworkCurves
from paceline.insight.plan.compare import NoWay, Way, compare, compare_lines, other_ask, ways
from paceline.insight.plan.document import cost_of, plan_document
from paceline.insight.plan.notes import rematerialised_work, time_notes
from paceline.insight.plan.place import Place
from paceline.insight.plan.plan import Ask, LargestRows, make_plan, rows_per_device
from paceline.insight.plan.programs import Programs, Workload, in_type
from paceline.insight.plan.times import StepTimes
from paceline.insight.plan.words import plan_lines, verdict
from paceline.insight.timeline import FULL_FLOAT32, Work

WIDTH = 64
PARAMS = 2 * WIDTH * WIDTH
PER_DEVICE = Parallel("per_device")


def init(rng: Any) -> dict[str, Any]:
    return {"first": jnp.zeros((WIDTH, WIDTH)), "second": jnp.zeros((WIDTH, WIDTH))}


def loss(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["first"])
    return jnp.square(hidden @ params["second"] - batch["x"]).sum(-1)


WORK = Workload(
    paceline.task(loss, init=init), optax.sgd(0.1, momentum=0.9), {"x": np.zeros((1, WIDTH), np.float32)}, prefetch=2
)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return parse_machine("4xA100")


@pytest.fixture(scope="module")
def place(machine) -> Place:
    """Whatever is installed here, the program for CPUs stands in."""
    return Place(jax.devices("cpu")[:4], None, is_planned=False, is_cpu=True, notes=("CPU stands in",))


@pytest.fixture(scope="module")
def programs(place) -> Programs:
    return Programs(WORK, place, devices=4)


@pytest.fixture(scope="module")
def plan(programs, machine, place):
    ask = Ask(256, samples=3_600_000, price=2.0, noise_scale=1000.0)
    return make_plan(programs, machine, parallel=PER_DEVICE, ask=ask, notes=place.notes)


def test_memory_is_that_of_the_state_by_field(plan):
    """2 x 64 x 64 float32 parameters, as much momentum, 64 rows of 64 floats and a byte of mask, two more waiting."""
    parts = plan.step_program.memory.parts()
    assert parts["parameters"] == parts["optimizer state"] == 4 * PARAMS
    assert parts["batch"] == 64 * (4 * WIDTH + 1)
    assert parts["batches ahead"] == 2 * parts["batch"]
    assert sum(parts.values()) == plan.step_program.memory.peak
    assert plan.fits
    assert verdict(plan).startswith("fits: ")


def test_work_of_a_sample_is_three_times_its_forward_pass_but_for_the_input_gradient(plan):
    """Forward 2 x 2 x 64 x 64; backward as much for each weight, and once for the hidden layer: 2 (2 + 2 + 1) 64^2."""
    assert plan.flops_per_sample == pytest.approx(10 * WIDTH**2, rel=0.01)


def test_gradients_cross_the_wire_once_as_float32(plan):
    """M x 4 bytes; loss, weight and the like are a few bytes more."""
    sent = plan.step_program.program.gradient_bytes
    assert sent == {"float32": 4 * PARAMS}
    assert sum(plan.step_program.program.wire_bytes_by_dtype.values()) < 4 * PARAMS + 100


def test_speed_and_efficiency_belong_together(plan):
    """E_K = S_K / (K S_1), on the curve too; one device has an efficiency of exactly 1."""
    assert plan.time.efficiency == pytest.approx(plan.rate(plan.time) / (4 * plan.single_rate))
    assert [time.devices for time in plan.curve] == [2**power for power in range(13)]
    assert plan.curve[0].efficiency == 1.0
    assert plan.curve[2].efficiency == pytest.approx(plan.time.efficiency)
    for time in plan.curve:
        assert 0 <= time.efficiency_low <= time.efficiency <= time.efficiency_high <= 1


def test_a_measured_rate_replaces_the_prediction(programs, machine, place, plan):
    """64 rows at 64,000 rows/s are a step of 1 ms on one device."""
    given = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, rate=64_000.0), notes=())
    assert given.time.one_device_step_s == pytest.approx(1e-3)
    assert given.single_rate == pytest.approx(64_000.0)
    assert given.time.efficiency > plan.time.efficiency, "the same communication weighs less in a longer step"


def test_a_rate_far_from_the_predicted_one_is_said(programs, machine, plan):
    """The interval is a factor exp(1.28 x 0.25) = 1.38 either way: 1.3 times is within, a third and twice are not."""
    first, second = programs.several([(PER_DEVICE, 64), (PER_DEVICE, 128)])
    for share, said in ((0.33, True), (0.8, False), (1.3, False), (2.0, True)):
        notes = StepTimes(machine, first, second, rate=share * plan.single_rate).rate_notes()
        assert bool(notes) == said
        assert not said or f"is {share:.2g} of the predicted" in notes[0]
    assert StepTimes(machine, first, second).rate_notes() == []
    far = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, rate=64_000.0), notes=())
    assert any("was it measured with this batch" in note for note in far.notes)


def test_the_other_ways_have_a_measured_rate_times_the_ratio_of_predictions(programs, machine, plan):
    """S_1 of zero1 is to the measured one as the two are predicted; how sure it is stays the prediction's."""
    asked = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, rate=0.5 * plan.single_rate), notes=())
    zero1 = Parallel("per_device", placement="zero1")
    predicted = make_plan(programs, machine, parallel=zero1, ask=Ask(256), notes=())
    other = make_plan(programs, machine, parallel=zero1, ask=other_ask(asked), notes=())
    assert other.single_rate / asked.single_rate == pytest.approx(predicted.single_rate / plan.single_rate)
    assert other.time.one_device_log_sd == ROOFLINE_LOG_SD > asked.time.one_device_log_sd
    lines = compare_lines([Way("", PER_DEVICE, asked), Way("--placement zero1", zero1, other)])
    assert lines[-1].startswith("S_1 of the other ways: the measured rate times the ratio")
    assert len(compare_lines([Way("", PER_DEVICE, plan), Way("--placement zero1", zero1, predicted)])) == 3


def test_a_way_with_half_of_the_work_is_twice_as_fast_but_for_the_host(programs, machine):
    """10 ms measured for 5 ms of products at 0.7 of 156 Tflop/s: 2.5 ms become 5; the host's 0.54 ms become 1.08."""
    first, second = programs.several([(PER_DEVICE, 64), (PER_DEVICE, 128)])

    def of(seconds: float, **given: float) -> StepTimes:
        work = (Work({"float32": seconds * 0.7 * 156e12}),)
        return StepTimes(machine, dataclasses.replace(first, timeline=work), second, **given)

    share = of(5e-3, rate=64 / 10e-3).measured_share
    assert share == pytest.approx(2.0)
    for alone_s, expected_s in ((2.5e-3, 5e-3), (1e-6, 2 * HOST_STEP_S)):
        assert of(alone_s, correction=share).curve()[0].step_s == pytest.approx(expected_s)


def test_a_way_that_is_faster_than_the_peak_is_cut_there(programs, machine):
    """A thousandth of the predicted time is less than all operations at 156 Tflop/s (tfloat32) take."""
    first, second = programs.several([(PER_DEVICE, 64), (PER_DEVICE, 128)])
    found = StepTimes(machine, first, second, correction=1e-6).curve()[0]
    assert found.terms["compute_s"] == pytest.approx(first.program.work.total_flops / 156e12)


def test_the_share_of_the_peak_is_of_the_peak_itself(plan):
    """A V100 does 15.7 Tflop/s of float32, whatever convolutions may save there."""
    found = dataclasses.replace(plan, machine=parse_machine("4xV100"))
    expected = plan.step_program.program.work.total_flops / 15.7e12 / plan.time.step_s
    assert found.utilisation == pytest.approx(expected)


def test_measured_collectives_reach_the_plan(programs, machine, plan):
    """All-reduces of half a second over four devices: the step waits that long, at every number of rows."""
    curves = NetworkCurves((Curve("all-reduce", 4, 1, (1e3, 1e9), (0.5, 0.6)),), "NVIDIA A100-SXM4-80GB", "nccl")
    found = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, curves=curves), notes=())
    assert found.time.terms["exposed_s"] > 0.5 > 100 * plan.time.terms["exposed_s"]
    assert found.efficient_rows is None or found.efficient_rows > plan.efficient_rows


def test_a_rate_beyond_the_peak_is_refused(programs, machine):
    """An A100 does 156 Tflop/s with float32 operands (tfloat32): 40,960 flop a row allow 3.8e9 rows/s."""
    with pytest.raises(RateError, match="give the rate of one device") as caught:
        make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, rate=4e9), notes=())
    assert "3.809e+09" in caught.value.fix


def test_a_slow_input_is_waited_for(programs, machine):
    """256 rows of one node at 256 rows/s take a second, and the step all of it."""
    slow = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(256, input_rate=256.0), notes=())
    assert slow.time.step_s == pytest.approx(1.0, rel=0.01)
    assert "input" in slow.time.binding


def test_cost_is_devices_times_hours_times_price(plan):
    cost = cost_of(plan)
    assert cost is not None
    hours = 3_600_000 / plan.rate(plan.time) / 3600
    assert cost == pytest.approx({"samples": 3_600_000, "hours": hours, "device_hours": 4 * hours, "price": 8 * hours})


def test_statistical_efficiency_is_that_of_the_larger_batch(plan):
    """A row of 256 against one of 64 at a noise scale of 1000: 1064 / 1256."""
    assert plan.statistical.statistical == pytest.approx(1064 / 1256)
    assert plan.statistical.hardware == pytest.approx(plan.time.efficiency)
    assert plan.useful.devices in {time.devices for time in plan.curve}


def test_the_largest_batch_fills_the_memory(programs, machine):
    """On a device where the line ends at about 20,000 rows: compiled, it fits, and 5 % more does not."""
    small = dataclasses.replace(machine.device, memory_bytes=1.55e9)  # of it the runtime has its share
    plan = make_plan(
        programs, dataclasses.replace(machine, device=small), parallel=PER_DEVICE, ask=Ask(256, confirm=True), notes=()
    )
    rows = plan.largest.rows
    assert plan.largest.compiled
    assert programs.one(PER_DEVICE, rows).memory.peak <= plan.limit.most_bytes
    assert programs.one(PER_DEVICE, rows * 105 // 100).memory.peak > plan.limit.most_bytes
    assert plan.efficient_rows is None or plan.efficient_rows <= rows


def test_the_largest_batch_is_that_of_the_memory_however_few_the_data_are(place, machine, plan):
    """1,000 rows over 4 devices are 250 a device: said beside the line of the memory, which is not compiled for that.

    E_4 of 90 % takes as many rows as with endless data.
    """
    few = Programs(dataclasses.replace(WORK, source_rows=1000), place, devices=4)
    found = make_plan(few, machine, parallel=PER_DEVICE, ask=Ask(256), notes=())
    assert found.largest.data_rows == 250
    assert found.largest.rows > 1_000_000
    assert (found.largest.compiled, found.largest.is_bounded) == (False, True)
    assert found.efficient_rows == plan.efficient_rows is not None
    text = "\n".join(plan_lines(found))
    assert "the data have 250 rows a device: no batch can be larger" in text
    assert "not reached" not in text
    assert not any("more than the data have" in note for note in found.notes)
    assert plan_document(found)["largest_rows_per_device"]["data_rows"] == 250


def test_memory_that_does_not_grow_has_no_largest_batch(place, machine, plan, monkeypatch):
    """Steps of 64 and of 128 rows that take the same: 128 rows fit, more may, and no number is made up."""
    few = Programs(dataclasses.replace(WORK, source_rows=1000), place, devices=4)
    real, memory = few.several, plan.step_program.memory
    monkeypatch.setattr(few, "several", lambda wanted: [dataclasses.replace(s, memory=memory) for s in real(wanted)])
    found = make_plan(few, machine, parallel=PER_DEVICE, ask=Ask(256), notes=())
    assert found.largest == LargestRows(128, False, is_bounded=False, data_rows=250)


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (LargestRows(8, True), "8 rows a device, 32 in all (compiled)"),
        (LargestRows(8, True, is_bounded=False), "8 rows a device or more, 32 in all (compiled; the search ended"),
        (LargestRows(8, False), "about 8 rows a device, about 32 in all (read off the line"),
        (LargestRows(8, False, is_bounded=False), "8 rows a device or more, 32 in all (the two compiled batches take"),
    ],
)
def test_how_the_largest_batch_was_found_is_said(plan, largest, words):
    """Compiled or not, with an end or not: nowhere are there said to be no more data, whose number is unknown."""
    text = "\n".join(plan_lines(dataclasses.replace(plan, largest=largest)))
    assert f"largest that fits: {words}" in text
    assert "the data" not in text


def test_one_device_has_no_curve_and_the_plan_says_how_to_get_one(place):
    """A program for one device sends nothing: no efficiency of more devices follows from it, nor a useful number."""
    alone = Programs(
        dataclasses.replace(WORK, source_rows=8), dataclasses.replace(place, devices=place.devices[:1]), devices=1
    )
    found = make_plan(alone, parse_machine("A100"), parallel=PER_DEVICE, ask=Ask(64, noise_scale=1000.0), notes=())
    assert [time.devices for time in found.curve] == [1]
    assert found.useful is None and found.statistical is not None
    assert "compiled for one device, which sends nothing: plan for 8xA100, say" in found.notes[-2]
    assert "learning" in "\n".join(plan_lines(found)) and "useful" not in "\n".join(plan_lines(found))
    assert plan_document(found)["statistical"]["useful_devices"] is None


def test_what_does_not_fit_comes_with_ways_out_and_their_numbers(place, machine):
    """100,000 rows a device on one with a tenth of a GB for programs: more microbatches first, with the peak."""
    small = dataclasses.replace(machine.device, memory_bytes=1.6e9)
    programs = Programs(dataclasses.replace(WORK, prefetch=0), place, devices=4)
    machine = dataclasses.replace(machine, device=small)
    tight = make_plan(programs, machine, parallel=PER_DEVICE, ask=Ask(400_000), notes=())
    assert not tight.fits
    assert verdict(tight).startswith("does not fit")
    first = tight.ways_out[0]
    assert (first.name, first.how) == ("accumulation", "compiled")
    assert first.bytes is not None and first.bytes < tight.step_program.memory.peak


def test_every_number_of_the_text_is_in_the_document(plan):
    """The document is JSON, and holds what `scale --plan` reads."""
    document = json.loads(json.dumps(plan_document(plan)))
    assert document["curve"][2]["devices"] == 4
    assert document["curve"][2]["samples_per_s"] == pytest.approx(plan.rate(plan.time))
    assert document["statistical"]["product"] == pytest.approx(plan.statistical.product)
    text = "\n".join(plan_lines(plan))
    assert f"E_4 {plan.time.efficiency:.1%}" in text
    assert "CPU stands in" in text


def test_a_batch_that_does_not_split_is_refused_with_its_neighbours():
    with pytest.raises(BatchSizeError, match="use --batch 32 or 24"):
        rows_per_device(30, devices=4, accumulation=2)
    with pytest.raises(BatchSizeError, match=r"use --batch 8$"):
        rows_per_device(3, devices=4, accumulation=2)


@pytest.mark.parametrize("name", ["rate", "input_rate", "samples", "price", "noise_scale"])
def test_numbers_below_zero_are_refused(name):
    flag = {"input_rate": "input-rate", "noise_scale": "noise-scale-rows"}.get(name, name)
    with pytest.raises(OptionError, match=f"leave --{flag} out"):
        Ask(8, **{name: -1.0})


def test_a_price_needs_a_number_of_samples():
    with pytest.raises(OptionError, match="add --samples"):
        Ask(8, price=2.0)


def test_one_device_has_all_of_an_update_that_a_placement_splits(programs, machine):
    """S_1 is that of one whole device whatever the placement: 3 parameters, 2 momenta of 4 bytes are moved alone."""
    whole, split = (
        make_plan(programs, machine, parallel=Parallel("per_device", placement=placement), ask=Ask(256), notes=())
        for placement in ("replicated", "zero1")
    )
    bytes_alone = 5 * 4 * PARAMS * 3 / 4
    device = machine.device
    difference = bytes_alone / device.memory_bytes_per_s / achieved(device).memory
    terms = predict(
        split.step_program.timeline, machine, devices=1, update=Work({}, 5.0 * 4 * PARAMS, 1, "update")
    ).terms
    plain = predict(split.step_program.timeline, machine, devices=1).terms
    assert terms["compute_s"] - plain["compute_s"] == pytest.approx(difference)
    assert split.single_rate == pytest.approx(whole.single_rate, rel=0.05)


def test_simulated_devices_share_a_cpu():
    """Two devices of this CPU have half of its rates and of its memory each, and no pool of JAX's."""
    one, two = parse_machine("cpu").device, parse_machine("2xcpu").device
    assert two.peak_flops_per_s["float32"] == pytest.approx(one.peak_flops_per_s["float32"] / 2)
    assert two.memory_bytes == one.memory_bytes // 2


def test_gradients_on_the_wire_are_in_the_type_asked_for(programs):
    """M x 2 bytes in bfloat16, though the program for CPUs widens them, at every n and under pmap."""
    for parallel in (
        Parallel("per_device", reduce_dtype="bfloat16"),
        Parallel("pmap", reduce_dtype="bfloat16", accumulation=2),
    ):
        program = programs.one(parallel, 64).program
        assert program.gradient_bytes == {"bfloat16": 2 * PARAMS}


def test_a_change_that_does_not_suffice_alone_says_so(plan):
    """Of three changes one is below the limit, one above, one without a number."""
    small = dataclasses.replace(plan.limit, most_bytes=1000)
    ways = (
        Advice("zero1", "--placement zero1", "", 900, "compiled"),
        Advice("fsdp", "--placement fsdp", "", 1200, "compiled"),
        Advice("rematerialisation", "rematerialise", "", None, "unknown"),
    )
    lines = plan_lines(dataclasses.replace(plan, limit=small, ways_out=ways))
    assert any(line.startswith("  way out:  --placement zero1") for line in lines)
    assert any(line.startswith("  helps:    --placement fsdp") and "200 B too much" in line for line in lines)
    assert "  may help: rematerialise" in lines


def test_operations_that_xla_computes_again_are_no_work_of_a_sample(plan):
    """A product named .remat: named in a note, not counted."""
    again = Work({"float32": 1e9}, 0.0, 1, "gemm_fusion_dot.3.remat")
    timeline = (*plan.step_program.timeline, again)
    assert rematerialised_work(timeline).total_flops == 1e9
    assert "a second time" in time_notes(timeline, plan.machine, fits=True)[0]


def test_slow_rates_have_digits(plan):
    """A step of 100 s with 64 rows a device: 0.64 samples/s, not 1; its interval is not 0 to 1."""
    slow = dataclasses.replace(plan.time, one_device_step_s=100.0, step_s=100.0)
    text = "\n".join(plan_lines(dataclasses.replace(plan, time=slow, curve=(slow,))))
    assert "S_1 0.64 samples/s (predicted; 80 % interval 0.465 to 0.882)" in text
    assert "           2.56 " in text


def test_ways_are_compared_one_option_at_a_time(programs, machine):
    """global_view, two placements, bfloat16, two numbers of microbatches; each is as asked but for that option.

    Four microbatches do not divide 6 rows; pmap has no placements. Both are listed with the reason.
    """
    found = list(ways(PER_DEVICE, ("scheme", "placement", "precision", "accumulation"), rows=6))
    assert [change for change, _ in found] == [
        "", "--scheme global_view", "--placement zero1", "--placement fsdp", "--precision bfloat16", "--accumulation 2",
        "--accumulation 4",
    ]  # fmt: skip
    assert found[6][1] == NoWay("6 rows a device do not split into 4 microbatches")
    refused = dict(ways(Parallel("pmap"), ("placement",), rows=6))["--placement zero1"]
    assert isinstance(refused, NoWay) and "full copy of the state by construction" in refused.why
    assert found[3][1] == Parallel("per_device", placement="fsdp")

    def planned(parallel: Parallel) -> Any:
        return make_plan(programs, machine, parallel=parallel, ask=Ask(256), notes=())

    wrong = Parallel("per_device", accumulation=3)
    compared = compare(planned, [found[0], found[2], ("--accumulation 3", wrong), found[6]])
    lines = compare_lines(compared)
    assert len(lines) == 5
    assert lines[4] == "--accumulation 4: 6 rows a device do not split into 4 microbatches"
    assert "S_1 [samples/s]" in lines[0]
    assert lines[1].startswith("as asked")
    assert "does not split" in lines[3]
    zero1 = compared[1].plan
    assert zero1.step_program.memory.expected.opt_state == 4 * PARAMS // 4


def test_fewer_simulated_devices_stand_in_for_more():
    """16 devices with 8 here: each holds a sixteenth of the optimizer state all the same."""
    machine = parse_machine("16xA100")
    place = Place(jax.devices("cpu")[:8], None, is_planned=False, is_cpu=True)
    plan = make_plan(
        Programs(WORK, place, devices=16), machine, parallel=Parallel("per_device", placement="zero1"), ask=Ask(64),
        notes=(),
    )  # fmt: skip
    assert plan.step_program.memory.parts()["optimizer state"] == 4 * PARAMS // 16
    assert plan.time.devices == 16


def test_products_of_a_narrow_precision_are_counted_as_such(programs):
    """The CPU widens bfloat16 products to float32, jax 0.12 only some of them; the planned device would widen none."""
    step = programs.one(Parallel("per_device", precision="bfloat16"), 64)
    assert "float32" in step.program.flops
    assert in_type((Work({FULL_FLOAT32: 3.0, "float32": 4.0}),), "bfloat16")[0] == Work({"bfloat16": 7.0})
    assert {dtype for work in step.timeline for dtype in getattr(work, "flops", {})} == {"bfloat16"}

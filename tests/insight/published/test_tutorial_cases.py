"""Numbers that tutorials give, with the assumptions under which the model gives them too.

They are textbook numbers, and under-specified: each test states what was assumed, so that it can be disagreed with.
"""

from __future__ import annotations

from paceline.insight.hardware.machine import parse_machine
from paceline.insight.model.predict import StepTime, predict
from paceline.insight.published.layers import MODELS
from paceline.insight.published.schedules import data_parallel
from paceline.insight.timeline import Collective, Done, Repeat, Start, Timeline, Work, total_work


def holds(found: StepTime, efficiency: float) -> bool:
    """Whether the 80 % interval, at most 20 points wide, holds it."""
    assert found.efficiency_high - found.efficiency_low <= 0.2
    return found.efficiency_low <= efficiency <= found.efficiency_high


def test_resnet_50_with_batch_1024_on_eight_a100_is_6_8_times_as_fast():
    """85 % where the input is what eight share: 128 cores that each decode and augment 130 images/s.

    S_1 = 2470 images/s, 16-bit (NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch: 16,621 on eight, 84 %).
    """
    timeline = data_parallel(MODELS["resnet50"](), rows=128, group=8)
    found = predict(timeline, parse_machine("8xA100"), measured_step_s=128 / 2470, input_s=128 / (128 * 130))
    assert holds(found, 0.85)
    assert 6.5 < 8 * found.efficiency < 7.1
    assert found.binding.startswith("the input")


def test_resnet_50_without_waiting_for_input_reaches_what_nvidia_measured_in_tf32():
    """7.72 times on eight A100, 7.76 on eight V100 in float32 (the same table): slower steps, so the input keeps up."""
    timeline = data_parallel(MODELS["resnet50"](), rows=128, group=8)
    assert holds(predict(timeline, parse_machine("8xA100"), measured_step_s=128 / 938), 7.72 / 8)
    assert holds(predict(timeline, parse_machine("8xV100-16"), measured_step_s=128 / 367), 7.76 / 8)


def test_a_gpt_of_1_3_billion_parameters_spends_12_percent_of_its_time_communicating():
    """4 Mi tokens an update on 8 nodes of 8 A100: 4 microbatches of 8 sequences, then one float32 all-reduce.

    Assumed: one 200 Gbit/s adapter a node, nothing overlapped, compute at half of the peak (llm-foundry: 0.56).
    """
    layers = MODELS["mpt-1.3b"]()
    parameters = sum(layer.parameters for layer in layers)
    body = tuple(Work({"bfloat16": 3 * 8 * layer.forward_flops}, 0.0, 3, layer.name) for layer in layers)
    gradients = Collective("gradients", "all-reduce", int(4 * parameters), "float32", 64)
    timeline: Timeline = (Repeat(4, body), Start(gradients), Done("gradients"), Work({}, 16 * parameters))
    machine = parse_machine("8xA100-40", nodes=8, network="200Gb InfiniBand")
    flops = total_work(timeline).total_flops
    found = predict(timeline, machine, measured_step_s=flops / (0.5 * 312e12))
    assert 0.10 < found.terms["exposed_s"] / found.step_s < 0.13
    assert holds(found, 0.90)


def test_a_policy_network_with_64_environments_on_four_devices_is_3_5_times_as_fast():
    """64 environments a GPU times 128 steps are 8192 frames an update; gradients are sent after backward.

    Assumed: the convolutional network of Mnih et al. 2015 (1.7 M parameters) in float32, A100s joined by PCIe 4.
    """
    found = predict(policy_update(8192), parse_machine("4xA100", link="PCIe4"))
    assert holds(found, 3.5 / 4)
    assert 3.3 < 4 * found.efficiency < 3.7


def policy_update(rows: int) -> Timeline:
    """Forward and backward of the network on 84 x 84 x 4 frames: activations are read and written once a kernel."""
    layers = ((8 * 8 * 4 * 32, 400), (4 * 4 * 32 * 64, 81), (3 * 3 * 64 * 64, 49), (3136 * 512, 1), (512 * 19, 1))
    values = (28_224, 12_800, 5_184, 3_136, 512, 19)
    parameters = sum(weights for weights, _ in layers)
    forward = [
        Work({"float32": 2.0 * rows * weights * places}, 4.0 * rows * (values[i] + 2 * values[i + 1]), 2)
        for i, (weights, places) in enumerate(layers)
    ]
    backward = [
        Work({"float32": 4.0 * rows * weights * places}, 4.0 * rows * (2 * values[i] + 3 * values[i + 1]), 4)
        for i, (weights, places) in reversed(list(enumerate(layers)))
    ]
    gradients = Collective("gradients", "all-reduce", 4 * parameters, "float32", 4)
    return (*forward, *backward, Start(gradients), Done("gradients"), Work({}, 28.0 * parameters, 12))

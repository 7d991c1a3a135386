"""Tables of layers against the totals that their papers and libraries print."""

from __future__ import annotations

import pytest

from paceline.insight.published.layers import MODELS

# Parameters: torchvision's pages (without the auxiliary head of Inception) and llm-foundry's table.
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "inception3": 23_817_352 + 17_216,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1.3b": 1_315_950_592,
    "mpt-2.7b": 2_651_837_440,
    "mpt-6.7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
}
# Multiply-adds of the forward pass: arXiv 1512.03385 table 1 (3.8, 7.6, 11.3 G), torchvision (15.47, 0.71, 5.71 G).
MULTIPLY_ADDS = {
    "resnet50": 3.8e9,
    "resnet101": 7.6e9,
    "resnet152": 11.3e9,
    "vgg16": 15.47e9,
    "alexnet": 0.714e9,
    "inception3": 5.71e9,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name):
    """Within 0.3 %: normalisation's scales and biases are left out, convolutions' biases counted."""
    assert sum(layer.parameters for layer in MODELS[name]()) == pytest.approx(PARAMETERS[name], rel=3e-3)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_forward_operations_are_twice_the_published_multiply_adds(name):
    """Within 2 %."""
    flops = sum(layer.forward_flops for layer in MODELS[name]())
    assert flops / 2 == pytest.approx(MULTIPLY_ADDS[name], rel=2e-2)


def test_a_gpt_costs_six_operations_a_parameter_and_twelve_of_attention_a_token():
    """6N + 12 L d s for training (forward a third), N with the embedding; 1.3 B at 2048 tokens, within 1 %."""
    forward = sum(layer.forward_flops for layer in MODELS["mpt-1.3b"]()) / 2048
    assert 3 * forward == pytest.approx(6 * 1.316e9 + 12 * 24 * 2048 * 2048, rel=1e-2)


def test_big_layers_of_vgg_and_alexnet_come_last_forward_and_so_first_backward():
    """The three dense layers hold 89 % and 96 % of the parameters."""
    for name, share in (("vgg16", 0.89), ("alexnet", 0.96)):
        layers = MODELS[name]()
        dense = sum(layer.parameters for layer in layers[-3:])
        assert dense / sum(layer.parameters for layer in layers) == pytest.approx(share, abs=0.01)

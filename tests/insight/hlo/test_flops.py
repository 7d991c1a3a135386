"""Floating-point operations: dots, convolutions, library calls, loops; whole models against the literature."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from paceline.insight.hlo.convolution import WindowDim, taps
from paceline.insight.hlo.program import read_program
from paceline.insight.timeline import Repeat
from tests.insight.hlo.models import gpt_loss, gpt_parameters, resnet, resnet_kernels
from tests.insight.hlo.texts import COMPILERS, CUDA, array, compiled, lowered, stored

ROWS = {"cpu": 16, "cuda": 8}
"""Of the 64 of a stored program's batch, those of one device."""


@pytest.mark.parametrize("read", [compiled, lowered])
def test_a_dot_counts_two_operations_for_each_product(read):
    """[b, m, k] by [b, n, k] over k: 2 b m n k, whichever dims are batch dims; float32."""
    program = read(lambda x, y: jnp.einsum("bmk,bnk->bmn", x, y), array(3, 5, 7), array(3, 11, 7))
    assert program.flops == {"float32": 2 * 3 * 5 * 11 * 7}


def test_operations_are_counted_by_the_type_of_the_operands():
    """A product of bfloat16 that is added up in float32 is one of bfloat16, in the program that is not compiled."""
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    program = lowered(dot, array(4, 8, dtype="bfloat16"), array(8, 2, dtype="bfloat16"))
    assert program.flops == {"bfloat16": 2 * 4 * 8 * 2}


def test_other_operations_do_not_count():
    """Exponentials, sums, sorts: no dot, no convolution, no operation; the memory that they move counts."""
    program = compiled(lambda x: jnp.sort(jnp.exp(x)).sum(), array(1000))
    assert program.flops == {}
    assert program.bytes >= 2 * 4000


@st.composite
def convolutions(draw):
    """Strides, window dilations, paddings and groups over two dims; feature counts that the groups divide."""
    pairs = {
        name: draw(st.tuples(values, values))
        for name, values in {
            "size": st.integers(8, 12), "kernel": st.integers(1, 3), "stride": st.integers(1, 3),
            "dilation": st.integers(1, 2),
        }.items()
    }  # fmt: skip
    return {**pairs, "padding": draw(st.sampled_from(["SAME", "VALID"])), "groups": draw(st.sampled_from([1, 2, 4]))}


def _conv(x, kernel, *, stride, dilation, padding, groups):
    return lax.conv_general_dilated(
        x, kernel, stride, padding, rhs_dilation=dilation, feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


@settings(max_examples=8)
@given(convolutions())
def test_a_convolution_and_its_kernels_gradient_count_every_tap_of_every_output(options):
    """2 x outputs x taps x input features of a group, for the convolution and, compiled, the gradient to its kernel."""
    size, kernel = options.pop("size"), options.pop("kernel")
    function = functools.partial(_conv, **options)
    x, w = array(2, *size, 4), array(*kernel, 4 // options["groups"], 8)
    y = jax.eval_shape(function, x, w)
    expected = 2 * math.prod(y.shape) * math.prod(kernel) * (4 // options["groups"])
    assert compiled(function, x, w).work.total_flops == expected
    backward = compiled(lambda x, w, y: jax.vjp(function, x, w)[1](y), x, w, y).work.total_flops
    # Both gradients. That to the input may lack taps at the edge: at most one of each row of outputs and dim.
    edges = sum(1 / y.shape[dim] for dim in (1, 2))
    assert 2 * expected * (1 - edges) <= backward <= 2 * expected


@given(
    st.builds(
        WindowDim, size=st.integers(1, 5), stride=st.integers(1, 4), padding_low=st.integers(-2, 6),
        input_dilation=st.integers(1, 4), dilation=st.integers(1, 3),
    ),
    st.integers(1, 9), st.integers(1, 12),
)  # fmt: skip
def test_taps_on_zeros_between_inputs_do_not_count(window, inputs, outputs):
    """Counted one by one: positions that are multiples of the input's dilation, no more than inputs times taps."""
    o, k = np.meshgrid(np.arange(outputs), np.arange(window.size))
    position = o * window.stride + k * window.dilation - window.padding_low
    met = int((position % window.input_dilation == 0).sum())
    assert taps(window, input_size=inputs, output_size=outputs) == min(met, inputs * window.size)


def test_a_loop_counts_as_often_as_it_runs_and_loops_in_loops_multiply():
    """5 x 3 products of [4, 8] by [8, 8]; compiled, where the compiler notes the count, and not compiled."""

    def inner(x, w):
        return lax.scan(lambda x, _: (x @ w, None), x, length=3)[0]

    def outer(x, w):
        return lax.scan(lambda x, _: (jnp.tanh(inner(x, w)), None), x, length=5)[0]

    for read in (compiled, lowered):
        program = read(outer, array(4, 8), array(8, 8))
        assert program.flops == {"float32": 5 * 3 * 2 * 4 * 8 * 8}
        assert program.unknown_loops == ()


@pytest.mark.parametrize(
    ("first", "condition", "step", "times"),
    [
        (0, lambda i: i < 10, 3, 4), (1, lambda i: i <= 9, 2, 5), (7, lambda i: i > 0, -1, 7),
        (6, lambda i: i >= 0, -2, 4), (0, lambda i: i != 8, 4, 2), (5, lambda i: i < 5, 1, 0),
    ],
)  # fmt: skip
def test_trip_counts_follow_from_a_counter_and_its_comparison(first, condition, step, times):
    """0, 3, 6, 9 is 4 times, and so on; before compilation, where nothing notes them."""

    def function(x, w):
        start = (jnp.int32(first), x)
        return lax.while_loop(lambda c: condition(c[0]), lambda c: (c[0] + step, c[1] @ w), start)[1]

    program = lowered(function, array(4, 8), array(8, 8))
    assert program.work.total_flops == times * 2 * 4 * 8 * 8
    assert program.unknown_loops == ()


def test_a_loop_that_runs_until_something_happens_is_named_and_counts_once():
    """No trip count in the program: one product, and the loop's name."""
    program = compiled(
        lambda x, w: lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ w, x), array(4, 8), array(8, 8)
    )  # fmt: skip
    assert program.flops == {"float32": 2 * 4 * 8 * 8}
    assert len(program.unknown_loops) == 1
    assert any(isinstance(event, Repeat) and event.times == 1 for event in program.timeline)


def test_of_a_conditional_the_branch_with_the_most_work_counts_and_is_said():
    """Two products in one branch, one in the other."""

    def function(flag, x, w):
        return lax.cond(flag, lambda: jnp.tanh(x @ w) @ w, lambda: x @ w)

    program = compiled(function, array(dtype="bool"), array(4, 8), array(8, 8))
    assert program.flops == {"float32": 2 * 2 * 4 * 8 * 8}
    assert len(program.assumed) == 1 and "of 2 branches" in program.assumed[0]


def test_a_call_that_is_not_known_is_named():
    """A decomposition in LAPACK: nothing is counted, its target is in `unknown`."""
    program = compiled(jnp.linalg.qr, array(6, 4))
    assert any("geqrf" in name or "Qr" in name for name in program.unknown)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "name",
    ["mlp_per_device", "mlp_pmap", "mlp_global_view", "mlp_zero1", "mlp_fsdp", "mlp_per_device_bfloat16",
     "mlp_per_device_accumulating", "mlp_global_view_accumulating"],
)  # fmt: skip
def test_a_step_of_the_mlp_counts_the_same_under_every_scheme_and_compiler(name, compiler):
    """Weights 32 x 256 + 256 x 256 + 256 x 8 = 75,776: forward, to the weights; to the inputs of all but the first."""
    rows = ROWS[compiler.split("-")[1]]
    assert stored(name, compiler).work.total_flops == 2 * rows * (75_776 + 75_776 + 65_536 + 2_048)
    assert stored(name, compiler).unknown == {}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_step_with_convolutions_counts_them_in_cudnn_and_without(compiler):
    """3x3, 4 to 16 features at 16 x 16; 3x3, 16 to 32 at stride 2; a head of 32 x 10. No gradient to the image."""
    first, second, head = 256 * 16 * 9 * 4, 64 * 32 * 9 * 16, 32 * 10
    work, rows = stored("convnet_global_view", compiler).work, ROWS[compiler.split("-")[1]]
    assert work.total_flops == 2 * rows * (2 * first + 3 * second + 3 * head)
    assert sum(work.convolutions.values()) == 2 * rows * (2 * first + 3 * second)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_step_with_attention_counts_scores_and_mixtures(compiler):
    """Four projections of 64 x 64, 2 heads of 32, 32 positions; only the last projection has an input gradient."""
    projection, mixing = 32 * 64 * 64, 2 * 32 * 32 * 32 * 2
    counted = stored("attention_global_view", compiler).work.total_flops
    assert counted == 2 * ROWS[compiler.split("-")[1]] * ((4 + 4 + 1) * projection + 3 * mixing)


@pytest.mark.parametrize("compiler", CUDA)
def test_products_by_cublas_count(compiler):
    """[128, 256] by [256, 512] in float32; 4 times [128, 64] by [64, 96] in bfloat16. Scratch memory is no traffic."""
    program = stored("cublas_products", compiler)
    assert program.flops == {"float32": 2 * 128 * 256 * 512, "bfloat16": 2 * 4 * 128 * 64 * 96}
    float32, bfloat16 = 128 * 256 + 256 * 512 + 128 * 512, 4 * (128 * 64 + 64 * 96 + 128 * 96)
    assert program.bytes == 4 * float32 + 2 * bfloat16


DOT = "dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GEMM = (
    'custom-call(%x, %y), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
    '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]},"precision_config":'
)
IN_FULL = "full float32"


@pytest.mark.parametrize(
    ("call", "dtype", "assumed"),
    [
        (DOT, "float32", 0),
        (f"{DOT}, operand_precision={{high,high}}", "float32", 0),
        (f"{DOT}, operand_precision={{highest,highest}}", IN_FULL, 0),
        (f"{DOT}, operand_precision={{highest,default}}", IN_FULL, 0),
        (f"{DOT}, algorithm=dot_f32_f32_f32", IN_FULL, 0),
        (f"{DOT}, algorithm=dot_bf16_bf16_f32", "bfloat16", 0),
        (f"{DOT}, algorithm=dot_bf16_bf16_f32_x3", "float32", 1),
        (f'{GEMM}{{"operand_precision":["DEFAULT","DEFAULT"],"algorithm":"ALG_UNSET"}}}}}}', "float32", 0),
        (f'{GEMM}{{"operand_precision":["HIGHEST","HIGHEST"],"algorithm":"ALG_UNSET"}}}}}}', IN_FULL, 0),
        (f'{GEMM}{{"operand_precision":["DEFAULT","DEFAULT"],"algorithm":"ALG_DOT_F32_F32_F32"}}}}}}', IN_FULL, 0),
    ],
)
def test_products_whose_operands_may_not_be_rounded_count_by_themselves(call, dtype, assumed):
    """[8, 16] by [16, 4] in float32, as XLA prints it for H100; what takes several passes is said."""
    given = ["  %x = f32[8,16]{1,0} parameter(0)", "  %y = f32[16,4]{1,0} parameter(1)"]
    text = "\n".join(["HloModule m", "", "ENTRY %e {", *given, f"  ROOT %r = f32[8,4]{{1,0}} {call}", "}"])
    program = read_program(text)
    assert program.flops == {dtype: 2 * 8 * 16 * 4}
    assert len(program.assumed) == assumed
    assert not assumed or "dot_bf16_bf16_f32_x3 count as one pass" in program.assumed[0]


def test_precision_is_read_through_fusions_and_in_convolutions():
    """A product at the highest precision, lowered and compiled; a convolution of cuDNN as jax 0.12 prints it."""
    dot = functools.partial(jnp.dot, precision="highest")
    for read in (compiled, lowered):
        assert read(lambda x, y: jnp.tanh(dot(x, y)), array(8, 16), array(16, 4)).flops.keys() == {IN_FULL}
    call = (
        "custom-call(%x, %y), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, "
        'operand_precision={highest,highest}, custom_call_target="__cudnn$convForward"'
    )
    given = ["  %x = f32[8,32,32,64]{3,2,1,0} parameter(0)", "  %y = f32[64,3,3,64]{3,2,1,0} parameter(1)"]
    text = [
        "HloModule m",
        "",
        "ENTRY %e {",
        *given,
        f"  ROOT %r = (f32[8,32,32,64]{{3,2,1,0}}, u8[0]{{0}}) {call}",
        "}",
    ]
    work = read_program("\n".join(text)).work
    assert work.flops == work.convolutions == {IN_FULL: 2 * 8 * 32 * 32 * 64 * 9 * 64}


@pytest.mark.parametrize("right", ["f32[3,16,32]{2,1,0}", "f32[3,32,16]{2,1,0}"])
def test_products_by_onednn_count_transposed_or_not(right):
    """3 times [8, 16] by [16, 32]; written as XLA prints such a call."""
    call = 'custom-call(%x, %y), custom_call_target="__onednn$matmul"'
    given = ["  %x = f32[3,8,16]{2,1,0} parameter(0)", f"  %y = {right} parameter(1)"]
    lines = ["HloModule m", "", "ENTRY %e {", *given, f"  ROOT %r = f32[3,8,32]{{2,1,0}} {call}", "}"]
    assert read_program("\n".join(lines)).flops == {"float32": 2 * 3 * 8 * 16 * 32}


@pytest.mark.parametrize("compiler", CUDA)
def test_attention_by_cudnn_counts_two_products_forward_and_five_backward(compiler):
    """2 sequences, 8 heads, 1024 x 1024 scores of 64 features: each product 2 x 2 x 8 x 1024^2 x 64 operations."""
    program = stored("cudnn_attention", compiler)
    assert program.flops == {"bfloat16": (2 + 5) * 2 * 2 * 8 * 1024**2 * 64}


def test_resnet_50_has_8_2_gflop_an_image():
    """Published: 4.1 G multiply-adds at 224 x 224 (He et al. 2016 and its version 1.5); within 3 %."""
    program = lowered(resnet, resnet_kernels(), array(2, 224, 224, 3))
    assert program.work.total_flops / 2 == pytest.approx(8.2e9, rel=0.03)
    assert program.unknown == {}


def test_a_gpt_has_6_n_plus_12_l_d_s_operations_a_token():
    """Forward and backward, from the program before compilation; Kaplan et al. 2020 and Chowdhery et al. 2022; 3 %."""
    layers, width, context, vocabulary = 12, 768, 1024, 50304
    params = gpt_parameters(layers=layers, width=width, vocabulary=vocabulary)
    program = lowered(jax.grad(gpt_loss), params, array(2, context + 1, dtype="int32"))
    count = vocabulary * width + 12 * layers * width**2
    expected = 6 * count + 12 * layers * width * context
    assert program.work.total_flops / (2 * context) == pytest.approx(expected, rel=0.03)
    assert program.unknown_loops == ()

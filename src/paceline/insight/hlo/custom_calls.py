"""What libraries do that a program calls by name: cuBLAS, cuDNN, oneDNN.

Owns: the floating-point operations of each known call, the names of calls without dots or convolutions.
Not here: dots, convolutions and fusions that XLA compiles itself (`flops`).
Invariant: a name that is not known gives None, never a guess.

Source of the layouts: the custom-call targets and backend configurations that XLA prints (its files
xla/service/gpu/cublas_cudnn.h and backend_configs.proto).
"""

from __future__ import annotations

import math
import re

from paceline.insight.hlo.convolution import multiply_adds
from paceline.insight.hlo.precision import backend_config, product_type
from paceline.insight.hlo.shapes import Shape, arrays, dtype_name
from paceline.insight.hlo.text import Instruction

Flops = dict[str, float]
"""By type of the operands, as `precision.product_type` names it."""

_FORWARD = ("__cudnn$convForward", "__cudnn$convBiasActivationForward", "__cudnn$convForwardGraph")
_GEMM = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__cublas$lt$matmul$mx")
_WITHOUT = re.compile(
    r"Sharding|SPMD\w+|LayoutConstraint|AllocateBuffer|MoveTo\w+|annotate_device_placement|TopK|xla\.\w[\w.]*|Slice\w*"
    r"|__cub\$\w+|cub_sort\w*|cu_threefry2x32\w*|__gpu\$TopK|__cudnn\$norm\w*|__xla_internal\w*|Bitcast"
    r"|x64\w*|X64\w*|AssumeGatherIndicesInBound|ducc_fft|xla_python_\w*|xla_ffi_\w*callback\w*|inspect_sharding\w*"
)
"""Calls without dots or convolutions; host callbacks among them, whose work is not the device's."""


_MARKERS = frozenset({
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape", "xla.sdy.FuncResultSharding", "LayoutConstraint",
})  # fmt: skip


def is_marker(instruction: Instruction) -> bool:
    """Whether a custom call only says how its operands are laid out; a lowered program holds such."""
    return instruction.opcode == "custom-call" and target(instruction) in _MARKERS


def target(instruction: Instruction) -> str:
    """The name of what a custom call calls."""
    return (instruction.attribute("custom_call_target") or "").strip('"')


def is_convolution(instruction: Instruction) -> bool:
    """Whether a custom call is a convolution of cuDNN, or one of its two gradients."""
    return target(instruction) in _FORWARD or target(instruction).startswith("__cudnn$convBackward")


def custom_call_flops(instruction: Instruction, operands: list[Shape]) -> Flops | None:
    """FLOPs of a custom call; None if the call is not known, or its configuration cannot be read.

    Args:
      operands: their types, of a tuple the first array.
    """
    name = target(instruction)
    result = instruction.shape
    if is_convolution(instruction):
        image, kernel, output = operands[0], operands[1], result
        if name == "__cudnn$convBackwardInput":
            image, output = result, operands[0]
        elif name == "__cudnn$convBackwardFilter":
            kernel, output = result, operands[1]
        count = multiply_adds(instruction, image=image, kernel=kernel, output=output)
        return {product_type(instruction, operands[0]): 2.0 * count}
    if name in _GEMM:
        return _gemm(instruction, operands)
    if name.startswith("__cudnn$fmha"):
        return _attention(instruction, operands)
    if name == "__onednn$matmul":
        return _onednn_matmul(instruction, operands)
    return {} if _WITHOUT.fullmatch(name) else None


def _gemm(instruction: Instruction, operands: list[Shape]) -> Flops | None:
    config = backend_config(instruction).get("gemm_backend_config")
    if config is None:
        return None
    contracted = config.get("dot_dimension_numbers", {}).get("lhs_contracting_dimensions", [])
    inner = math.prod(operands[0].dims[int(dim)] for dim in contracted)
    return {product_type(instruction, operands[0]): 2.0 * instruction.shape.elements * inner}


def _attention(instruction: Instruction, operands: list[Shape]) -> Flops | None:
    """cuDNN's fused attention: forward q k^T and p v; backward their four gradients and q k^T once more.

    The operands are q, k, v first; the scores have ``intermediate_tensor_shape`` [batch, heads, rows, columns]. A
    causal mask changes nothing here: half of the products are then zeros, which cuDNN may leave out.
    """
    config = backend_config(instruction).get("cudnn_fmha_backend_config")
    scores = (config or {}).get("intermediate_tensor_shape", {}).get("dimensions")
    if not scores:
        return None
    products = 5 if "Backward" in target(instruction) else 2
    return {dtype_name(operands[0].dtype): 2.0 * products * math.prod(map(int, scores)) * operands[0].dims[-1]}


def _onednn_matmul(instruction: Instruction, operands: list[Shape]) -> Flops | None:
    """[..., m, k] by [..., k, n], either one perhaps transposed: left x right / result has batch x k^2 elements."""
    result = instruction.shape
    batch = math.prod(result.dims[:-2])
    inner = math.isqrt(operands[0].elements * operands[1].elements // (result.elements * batch))
    if inner**2 * result.elements * batch != operands[0].elements * operands[1].elements:
        return None
    return {dtype_name(operands[0].dtype): 2.0 * result.elements * inner}


def result_without_workspace(instruction: Instruction) -> int:
    """Bytes a library call writes: its results, without the scratch memory behind them, ``u8[n]`` or ``s8[n]``."""
    parts = list(arrays(instruction.type))
    if (
        len(parts) > 1
        and parts[-1].dtype in ("u8", "s8")
        and len(parts[-1].dims) == 1
        and target(instruction).startswith(("__cu", "__onednn"))
    ):
        parts = parts[:-1]
    return sum(part.bytes for part in parts)

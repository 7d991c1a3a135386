"""In which type the units of a device multiply: the type of the operands, and what the program says of their rounding.

Owns: reading ``operand_precision`` and ``algorithm`` of products, in instructions and in configurations of cuBLAS.
Not here: how fast a device is in a type (`insight.model.roofline`).
Invariant: a product whose operands may not be rounded never counts as one that may.

Sources: documentation of `jax.lax.Precision` (DEFAULT and HIGH let GPUs use tensorfloat32, HIGHEST is float32) and of
`jax.lax.DotAlgorithmPreset`; the attributes as XLA prints them for H100, jax 0.10 and 0.12.
"""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.insight.hlo.shapes import Shape, dtype_name
from paceline.insight.hlo.text import Instruction
from paceline.insight.timeline import FULL_FLOAT32

_NARROW = {"dot_bf16_bf16_f32": "bfloat16", "dot_bf16_bf16_bf16": "bfloat16", "dot_f16_f16_f32": "float16",
           "dot_f16_f16_f16": "float16"}  # fmt: skip
_PASSES = re.compile(r"_x\d+$")


def product_type(instruction: Instruction, operand: Shape) -> str:
    """The type that a product counts under: that of its operand as JAX names it, `FULL_FLOAT32` for float32 at
    precision "highest" or by an algorithm of float32 throughout, a narrower one where the algorithm narrows it."""
    dtype = dtype_name(operand.dtype)
    if dtype != "float32":
        return dtype
    algorithm, highest = _asked(instruction)
    if algorithm == "dot_f32_f32_f32" or (highest and not algorithm):
        return FULL_FLOAT32
    return _NARROW.get(algorithm, dtype)


def several_passes(instruction: Instruction) -> str:
    """The algorithm of a product that multiplies parts of the operands in several passes (``dot_bf16_bf16_f32_x3``);
    empty for any other."""
    algorithm = _asked(instruction)[0]
    return algorithm if _PASSES.search(algorithm) else ""


def _asked(instruction: Instruction) -> tuple[str, bool]:
    """The algorithm, empty if none is set, and whether the precision is the highest."""
    config = backend_config(instruction).get("gemm_backend_config", {}).get("precision_config", {})
    algorithm = str(config.get("algorithm", "ALG_UNSET")).removeprefix("ALG_").lower()
    algorithm = instruction.attribute("algorithm") or ("" if algorithm == "unset" else algorithm)
    precisions = [instruction.attribute("operand_precision") or "", *config.get("operand_precision", [])]
    return algorithm, any("highest" in str(precision).lower() for precision in precisions)


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The JSON that the compiler hung on an instruction; empty if there is none."""
    text = instruction.attribute("backend_config")
    try:
        config = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    return config if isinstance(config, dict) else {}

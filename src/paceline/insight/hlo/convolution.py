"""How many multiply-adds a convolution does.

Owns: windows, dimension labels, the count along one spatial dim.
Invariant: a convolution and both of its gradients count the same, but for taps at the edge, however the compiler writes
them: a gradient to the input is a convolution of a spread-out gradient, one to the kernel has it for its window.

Along a dim, output o and tap k meet position ``o * stride + k * window_dilation - padding`` of an input that is spread
out by its dilation (openxla.org/xla/operation_semantics, ConvWithGeneralPadding). Three rules:
- taps on padding count, as in published numbers (ResNet-50: 4.1 G multiply-adds, He et al. 2016) and in the kernels of
  libraries, which multiply them; without them ResNet-50 would have 3.95 G;
- the zeros between spread-out inputs do not;
- no element of the input meets a tap twice, so that a wide padding adds nothing.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from paceline.insight.hlo.shapes import Shape
from paceline.insight.hlo.text import Instruction


@dataclass(frozen=True)
class WindowDim:
    """The window along one spatial dim; `input_dilation` is XLA's base dilation."""

    size: int
    stride: int = 1
    padding_low: int = 0
    input_dilation: int = 1
    dilation: int = 1


@dataclass(frozen=True)
class Labels:
    """Positions of the dims of input, kernel and output: ``b01f``, ``01io``, ``b01f``."""

    input: str
    kernel: str
    output: str


def multiply_adds(instruction: Instruction, *, image: Shape, kernel: Shape, output: Shape) -> int:
    """Of a convolution with these shapes, in the roles that its ``dim_labels`` names.

    Args:
      instruction: carries ``window`` and ``dim_labels``. Groups need no attribute: the kernel holds the input features
        of one group, the output the features and rows of all.
    """
    labels = parse_labels(instruction.attribute("dim_labels") or "")
    window = parse_window(instruction.attribute("window") or "", dims=len(labels.input) - 2)
    count = _dim(output, labels.output, "b") * _dim(output, labels.output, "f") * _dim(kernel, labels.kernel, "i")
    for number, dim in enumerate(window):
        sizes = _dim(image, labels.input, str(number)), _dim(output, labels.output, str(number))
        count *= taps(dim, input_size=sizes[0], output_size=sizes[1])
    return count


def _dim(shape: Shape, labels: str, label: str) -> int:
    return shape.dims[labels.index(label)]


def parse_labels(text: str) -> Labels:
    """From ``b01f_01io->b01f``."""
    found = re.fullmatch(r"(\w+)_(\w+)->(\w+)", text)
    assert found is not None, "XLA prints them on every convolution"
    return Labels(found[1], found[2], found[3])


def parse_window(text: str, *, dims: int) -> tuple[WindowDim, ...]:
    """From ``{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=2x2 rhs_dilate=1x1}``; what is not said is 1, padding 0."""
    fields = {name: value.split("x") for name, value in re.findall(r"(\w+)=([\d_x\-]+)", text)}

    def number(name: str, dim: int, default: int) -> int:
        return int(fields[name][dim].split("_")[0]) if name in fields else default

    return tuple(
        WindowDim(
            size=number("size", dim, 1), stride=number("stride", dim, 1), padding_low=number("pad", dim, 0),
            input_dilation=number("lhs_dilate", dim, 1), dilation=number("rhs_dilate", dim, 1),
        )
        for dim in range(dims)
    )  # fmt: skip


@functools.lru_cache(maxsize=1 << 12)
def taps(window: WindowDim, *, input_size: int, output_size: int) -> int:
    """Multiply-adds along one dim, by the three rules."""
    if window.input_dilation == 1:
        met = window.size * output_size
    else:
        met = sum(_off_zeros(window, tap=tap, outputs=output_size) for tap in range(window.size))
    return min(met, window.size * input_size)


def _off_zeros(window: WindowDim, *, tap: int, outputs: int) -> int:
    """Outputs for which a tap does not fall on a zero between spread-out inputs."""
    every = window.input_dilation
    first = tap * window.dilation - window.padding_low
    period = every // math.gcd(window.stride, every)
    start = next((o for o in range(period) if (first + o * window.stride) % every == 0), None)
    return 0 if start is None or start >= outputs else (outputs - 1 - start) // period + 1

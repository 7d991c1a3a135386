"""Makes the compiled programs that the tests read: ``python -m tests.insight.hlo.make_programs cpu`` (or ``cuda``).

Owns: small steps of every scheme, compiled for 4 simulated CPU devices or for 8 H100s of one machine that need not be
there; their texts, gzipped, under ``programs/<jax version>-<platform>/``.
Not here: what the texts must say (the tests, by pencil).
Invariant: shapes are abstract, so nothing runs; the text is what the compiler scheduled.

For GPUs: ``pip install "jax[cuda13]"``, and JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 and CUDA_VISIBLE_DEVICES=-1 set.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

import paceline
from paceline.engine.parallel import Parallel
from paceline.engine.placement import state_shardings
from paceline.engine.state import add_device_axis, new_state
from paceline.engine.step import StepFunction
from paceline.engine.update import StepSpec
from paceline.tasks.task import Task
from paceline.topology.mesh import data_mesh, rows_by_device, split_rows

PROGRAMS = Path(__file__).parent / "programs"
ROWS = 64
"""Of the global batch of every program here."""

H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000
l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 28 } runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3" """

Example = tuple[Task, Any, Any]
"""A task, the shapes of its parameters, the shapes of one row of each leaf of its batch."""


def mlp() -> Example:
    """32 -> 256 -> 256 -> 8 with biases: M = 8192 + 256 + 65536 + 256 + 2048 + 8 = 76296."""

    def loss(params: Any, batch: Any) -> Array:
        x = jnp.tanh(batch["x"] @ params["first"]["w"] + params["first"]["b"])
        x = jnp.tanh(x @ params["second"]["w"] + params["second"]["b"])
        return jnp.mean((x @ params["third"]["w"] + params["third"]["b"] - batch["y"]) ** 2, axis=-1)

    sizes = {"first": (32, 256), "second": (256, 256), "third": (256, 8)}
    params = {name: {"w": _float(*size), "b": _float(size[1])} for name, size in sizes.items()}
    return paceline.task(loss), params, {"x": _float(32), "y": _float(8)}


def convnet() -> Example:
    """Two convolutions with the batch's own statistics between them, on images of 16 x 16 x 4."""

    def conv(x: Array, kernel: Array, stride: int) -> Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)

    def normed(x: Array, scale: Array) -> Array:
        mean, square = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
        return jax.nn.relu((x - mean) * lax.rsqrt(square - mean**2 + 1e-5) * scale)

    def loss(params: Any, batch: Any) -> Array:
        x = normed(conv(batch["image"], params["conv1"], 1), params["scale1"])
        x = normed(conv(x, params["conv2"], 2), params["scale2"])
        logits = x.mean((1, 2)) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])

    params = {
        "conv1": _float(3, 3, 4, 16), "scale1": _float(16), "conv2": _float(3, 3, 16, 32), "scale2": _float(32),
        "head": _float(32, 10),
    }  # fmt: skip
    return paceline.task(loss), params, {"image": _float(16, 16, 4), "label": jax.ShapeDtypeStruct((), jnp.int32)}


def attention() -> Example:
    """One causal attention layer of 2 heads of 32 over 32 positions, projections without biases."""

    def loss(params: Any, batch: Any) -> Array:
        x = batch["x"]
        query, key, value = ((x @ params[name]).reshape(*x.shape[:-1], 2, 32) for name in ("query", "key", "value"))
        out = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        out = out.reshape(x.shape) @ params["out"]
        return jnp.mean((out - x) ** 2, axis=(1, 2))

    return (
        paceline.task(loss),
        {name: _float(64, 64) for name in ("query", "key", "value", "out")},
        {"x": _float(32, 64)},
    )


def _float(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


STEPS: dict[str, tuple[Callable[[], Example], Parallel]] = {
    "mlp_per_device": (mlp, Parallel(scheme="per_device")),
    "mlp_per_device_bfloat16": (mlp, Parallel(scheme="per_device", precision="bfloat16", reduce_dtype="bfloat16")),
    "mlp_per_device_accumulating": (mlp, Parallel(scheme="per_device", accumulation=4)),
    "mlp_pmap": (mlp, Parallel(scheme="pmap")),
    "mlp_global_view": (mlp, Parallel()),
    "mlp_global_view_accumulating": (mlp, Parallel(accumulation=4)),
    "mlp_zero1": (mlp, Parallel(scheme="per_device", placement="zero1")),
    "mlp_fsdp": (mlp, Parallel(scheme="per_device", placement="fsdp")),
    "convnet_global_view": (convnet, Parallel(precision="bfloat16")),
    "attention_global_view": (attention, Parallel(precision="bfloat16")),
}
"""Name, model and how the step runs; every one with SGD and momentum."""


def lowered(name: str, devices: Any) -> Any:
    """The step of that name as `jax.stages.Lowered`, over those devices; they may be ones that are not there."""
    example, parallel = STEPS[name]
    task, params, row = example()
    mesh = data_mesh(devices)
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = jax.eval_shape(partial(new_state, optimizer, parallel, model_state={}, seed=0), params=params)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((ROWS, *leaf.shape), leaf.dtype), row)
    valid = jax.ShapeDtypeStruct((ROWS,), jnp.bool_)
    if parallel.scheme == "pmap":
        state = jax.eval_shape(partial(add_device_axis, num_devices=mesh.size), state)
        batch, valid = jax.eval_shape(partial(rows_by_device, num_devices=mesh.size), (batch, valid))
    state = jax.tree.map(_placed, state, state_shardings(state, parallel=parallel, mesh=mesh))
    batch, valid = jax.tree.map(partial(_placed, sharding=split_rows(mesh)), (batch, valid))
    spec = StepSpec(task, optimizer, parallel, mesh)
    return StepFunction(spec).lowered(state, batch, valid)


def _placed(leaf: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def cublas_products(devices: Any) -> Any:
    """a @ b and c @ d, by cuBLAS: [128, 256] by [256, 512] in float32, [4, 128, 64] by [4, 64, 96] in bfloat16."""
    here = jax.sharding.SingleDeviceSharding(devices.flat[0])
    given = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=here)
        for dtype, shapes in (("float32", ((128, 256), (256, 512))), ("bfloat16", ((4, 128, 64), (4, 64, 96))))
        for shape in shapes
    ]
    program = jax.jit(lambda a, b, c, d: (a @ b, c @ d)).lower(*given)
    return program.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def cudnn_attention(devices: Any) -> Any:
    """Causal attention and its gradient by cuDNN: 2 sequences of 1024, 8 heads of 64, bfloat16."""
    here = jax.sharding.SingleDeviceSharding(devices.flat[0])
    given = [jax.ShapeDtypeStruct((2, 1024, 8, 64), "bfloat16", sharding=here)] * 3

    def total(*given: Array) -> Array:
        return jax.nn.dot_product_attention(*given, is_causal=True, implementation="cudnn").astype("float32").sum()

    return jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*given).compile()


LIBRARIES: dict[str, Callable[[Any], Any]] = {"cublas_products": cublas_products, "cudnn_attention": cudnn_attention}
"""Programs for one GPU that call a library."""


def without_sources(text: str) -> str:
    """The text without the tables of source files, lines and stack frames, and without references to them."""
    text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*", "", text)
    return re.sub(r' (stack_frame_id=\d+|source_file="[^"]*"|source_(?:end_)?(?:line|column)=\d+)', "", text)


def target_devices(platform: str) -> Any:
    """4 simulated CPU devices, or the 8 GPUs of one machine as the compiler sees them."""
    if platform == "cpu":
        return jax.devices("cpu")[:4]
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=" ".join(H100.split("\n")), topology="1x1x8"
    )
    return np.asarray(described.devices)


def program_path(name: str, platform: str, *, version: str) -> Path:
    """Where the text of a program lies; the version is jax's minor one, as in ``0.12``."""
    return PROGRAMS / f"jax{version}-{platform}" / f"{name}.txt.gz"


def main() -> None:
    """Compiles all and writes what the compiler made of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platform", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if arguments.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", 4)
    devices = target_devices(arguments.platform)
    version = ".".join(jax.__version__.split(".")[:2])
    programs = {name: lambda devices, name=name: lowered(name, devices).compile() for name in STEPS}
    for name, make in (programs | (LIBRARIES if arguments.platform == "cuda" else {})).items():
        if arguments.only not in name:
            continue
        text = without_sources(make(devices).as_text())
        path = program_path(name, arguments.platform, version=version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{path.name}: {len(text)} bytes, {path.stat().st_size} gzipped")


if __name__ == "__main__":
    main()

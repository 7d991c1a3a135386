"""Descriptions of GPUs for compiling on a machine that has none.

Owns: the text protobuf of XLA's `GpuTargetConfigProto` for the devices whose fields are published.
Not here: compiling (`insight.compiling`), peak rates (`hardware.catalog`).
Invariant: a device without a description has none; another's is never used in its place.

Sources: per-block and per-core limits from the CUDA C++ Programming Guide, table of compute capabilities; core count,
clock and L2 cache from NVIDIA's white papers (Ampere 2020, Hopper 2022), those of B200 from XLA's own description of
it; memory and bandwidth are those of the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.insight.hardware.catalog import Device

_TEXT = """\
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: {core_shared} shared_memory_per_block_optin: {block_shared}
  threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {clock} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 28 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{name}"
"""


@dataclass(frozen=True)
class _Target:
    name: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    core_shared: int
    block_shared: int
    l2: int
    clock_ghz: float


_AMPERE = {"capability": (8, 0), "cores": 108, "fpus": 64, "core_shared": 167936, "block_shared": 166912}
_HOPPER = {"capability": (9, 0), "fpus": 128, "core_shared": 233472, "block_shared": 232448, "l2": 52428800}
_TARGETS: dict[str, _Target] = {
    "A100 SXM 40 GB": _Target(
        "NVIDIA A100-SXM4-40GB", **_AMPERE, l2=41943040, clock_ghz=1.41,
    ),
    "A100 SXM 80 GB": _Target(
        "NVIDIA A100-SXM4-80GB", **_AMPERE, l2=41943040, clock_ghz=1.41,
    ),
    "H100 SXM 80 GB": _Target("NVIDIA H100 80GB HBM3", **_HOPPER, cores=132, clock_ghz=1.98),
    "H100 PCIe 80 GB": _Target("NVIDIA H100 PCIe", **_HOPPER, cores=114, clock_ghz=1.755),
    "H200 SXM 141 GB": _Target("NVIDIA H200", **_HOPPER, cores=132, clock_ghz=1.98),
    "B200 SXM 180 GB": _Target(
        "NVIDIA B200", capability=(10, 0), cores=148, fpus=128, core_shared=233472, block_shared=232448,
        l2=132644864, clock_ghz=1.965,
    ),
}  # fmt: skip


def target_config(device: Device) -> str | None:
    """The text that JAX's ahead-of-time compilation takes for this device; None where there is no description.

    It goes into ``jax.experimental.topologies.get_topology_desc(platform="cuda", target_config=TEXT, ...)``, in a
    process with ``JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1`` (`insight.compiling.target`).
    """
    target = _TARGETS.get(device.name)
    if target is None:
        return None
    return _TEXT.format(
        name=target.name,
        major=target.capability[0],
        minor=target.capability[1],
        cores=target.cores,
        fpus=target.fpus,
        core_shared=target.core_shared,
        block_shared=target.block_shared,
        l2=target.l2,
        clock=target.clock_ghz,
        memory=round(device.memory_bytes),
        bandwidth=round(device.memory_bytes_per_s),
    )


def targets() -> tuple[str, ...]:
    """Names of the devices that can be compiled for without one."""
    return tuple(_TARGETS)

"""GPUs to compile for on a machine that has none.

Owns: the devices of a described target, and whether this installation can compile for CUDA.
Not here: the descriptions (`insight.hardware.targets`), the compilation (`insight.compiling.program`).
Invariant: no GPU is opened, so nothing is taken from a job that runs on one.

What must be set and when (measured, jax 0.10.2 and 0.12.0): JAX registers the CUDA plugin once, when a process first
asks for any device. Where `jax_platforms` does not name CUDA at that moment, or JAX_SKIP_CUDA_CONSTRAINTS_CHECK is set,
it does so without looking for a GPU; otherwise the look fails where there is none, and the process cannot compile for
CUDA any more. `use_no_gpu` before the first device decides it. CUDA_VISIBLE_DEVICES plays no part.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from paceline.base.errors import DeviceError
from paceline.base.units import format_count

PLUGINS = {"jax-cuda13-plugin": "jax_plugins.xla_cuda13", "jax-cuda12-plugin": "jax_plugins.xla_cuda12"}
"""Distributions that carry the CUDA compiler, and the module that each registers with."""

_INSTALL = "pip install 'paceline[cuda13]' (no GPU is needed)"


@dataclass(frozen=True)
class Target:
    """GPUs to compile for.

    Args:
      config: what XLA has to know of the GPU, a text protobuf of its `GpuTargetConfigProto`.
      num_devices: K.
      devices_per_node: GPUs that share a machine; the last machine may not be half full.
    Raises: DeviceError: K devices do not fill whole nodes.
    """

    config: str
    num_devices: int
    devices_per_node: int

    def __post_init__(self) -> None:
        if self.num_devices < 1 or self.devices_per_node < 1 or self.num_devices % self.devices_per_node:
            raise DeviceError(
                what=f"{format_count(self.num_devices, 'GPU')} on nodes of {self.devices_per_node}",
                why="the compiler takes nodes that are all alike and full",
                fix=f"use a multiple of {max(1, self.devices_per_node)} GPUs, or fewer GPUs a node",
            )

    @property
    def topology(self) -> str:
        """``1x<nodes>x<GPUs a node>``, as XLA writes it: slices, hosts of a slice, devices of a host."""
        return f"1x{self.num_devices // self.devices_per_node}x{self.devices_per_node}"


def use_no_gpu() -> None:
    """Make this process compile for GPUs without opening one: its own devices are those of the CPU.

    Call it before anything asks for a device. Later it changes nothing, and `topology_devices` says if that matters.
    """
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    try:
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError:  # jax 0.12, where a device is in use already
        return


def cuda_plugins() -> dict[str, str]:
    """Version of each CUDA plugin that is installed, by distribution; nothing is loaded."""
    return {name: _version(name) for name, module in PLUGINS.items() if _is_there(module)}


def has_cuda_compiler() -> bool:
    """Whether a plugin that compiles for CUDA is installed."""
    return bool(cuda_plugins())


def topology_devices(target: Target) -> list[Any]:
    """Devices of a target, for a `jax.sharding.Mesh` to compile over; nothing can be put on them.

    Raises: DeviceError: no plugin, a plugin that this process cannot use, or a description that XLA refuses.
    """
    if not has_cuda_compiler():
        raise DeviceError(
            what="this installation cannot compile for CUDA",
            why="the CUDA plugin of JAX carries the compiler for GPUs, and it is not installed",
            fix=_INSTALL,
        )
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # counts if no device was asked for so far
    try:
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=target.config, topology=target.topology
        )
    except NotImplementedError as error:
        raise DeviceError(
            what="this process cannot compile for CUDA any more",
            why="JAX looked for a GPU, found none, and gave its CUDA plugin up for the rest of the process",
            fix="set JAX_PLATFORMS=cpu in the environment, or call use_no_gpu before the first device is asked for",
        ) from error
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise DeviceError(
            what=f"XLA does not take the description of the target: {first_line(error)}",
            why="it compiles for a GPU from that description alone",
            fix="use a target_config in the form of XLA's GpuTargetConfigProto, as insight.hardware.targets writes it",
        ) from error
    return list(found.devices)


def first_line(error: Exception) -> str:
    """The first line of what a library raised, for a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # packaged under another name
        return "unknown"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # no plugin of any kind, so no package of plugins
        return False

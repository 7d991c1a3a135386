"""GPUs to compile for on a machine that has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from paceline.base.errors import DeviceError
from paceline.insight.compiling import target as target_module
from paceline.insight.compiling.target import Target, cuda_plugins, has_cuda_compiler, topology_devices

H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000
l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 28 } runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3" """

PROGRAM = """
import json, sys
from paceline.insight.compiling.target import Target, topology_devices, use_no_gpu
use_no_gpu()
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from paceline.insight.compiling.program import compile_program
from paceline.topology.mesh import data_mesh
if sys.argv[2] == "devices first":
    jax.devices()
target = Target(sys.argv[1], 8, 4)
mesh = data_mesh(topology_devices(target))
def spec(shape, *names):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*names)))
step = jax.jit(lambda w, x: w - (x @ w).sum(0), donate_argnums=0)
done = compile_program(step.lower(spec((256, 256)), spec((64, 256), "data")), target=target)
print(json.dumps([done.platform, done.memory.argument_bytes, "all-reduce" in done.text, jax.devices()[0].platform]))
"""

needs_compiler = pytest.mark.skipif(not has_cuda_compiler(), reason="needs a CUDA plugin of JAX (jax[cuda13])")


@needs_compiler
@pytest.mark.parametrize("order", ["devices first", "target first"])
def test_a_step_compiles_for_gpus_that_are_not_here(order):
    """8 H100s on 2 nodes from a process of CPU devices: 256 KB of w and 8 of 64 rows a device, reduced over all."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, H100, order], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    platform, size, reduces, own = json.loads(done.stdout.splitlines()[-1])
    assert (platform, reduces, own) == ("cuda", True, "cpu")
    assert size == 256 * 256 * 4 + 8 * 256 * 4


@needs_compiler
def test_a_description_that_xla_does_not_take_is_said():
    """No protobuf: an error of ours, with what XLA said."""
    with pytest.raises(DeviceError, match="does not take the description"):
        topology_devices(Target("this is no protobuf {", 2, 2))


def test_without_the_plugin_it_says_what_to_install(monkeypatch):
    """No plugin of either CUDA version: the fix is the pip command, and that no GPU is needed."""
    monkeypatch.setattr(target_module, "PLUGINS", {"jax-cuda99-plugin": "jax_plugins.xla_cuda99"})
    assert not has_cuda_compiler() and cuda_plugins() == {}
    with pytest.raises(DeviceError, match="cannot compile for CUDA") as caught:
        topology_devices(Target(H100, 8, 8))
    assert "pip install 'paceline[cuda13]'" in caught.value.fix and "no GPU" in caught.value.fix


def test_a_process_that_gave_its_plugin_up_says_how_to_start(monkeypatch):
    """JAX has dropped the plugin: the fix is the variable to start with."""

    def gone(**_: object) -> object:
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(target_module, "PLUGINS", {"pytest": "pytest"})
    monkeypatch.setattr(target_module.topologies, "get_topology_desc", gone)
    monkeypatch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    with pytest.raises(DeviceError, match="any more") as caught:
        topology_devices(Target(H100, 8, 8))
    assert "JAX_PLATFORMS=cpu" in caught.value.fix


@pytest.mark.parametrize(("devices", "a_node"), [(12, 8), (0, 8), (8, 0)])
def test_nodes_that_are_not_full_are_refused(devices, a_node):
    """12 GPUs on nodes of 8, none at all, nodes of none: refused with what to use."""
    with pytest.raises(DeviceError, match="GPU") as caught:
        Target(H100, devices, a_node)
    assert "multiple of" in caught.value.fix


def test_the_topology_counts_nodes_then_gpus():
    """32 GPUs, 8 a node: 4 nodes of 8."""
    assert Target(H100, 32, 8).topology == "1x4x8"

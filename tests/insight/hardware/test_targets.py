"""Descriptions of GPUs: complete, and taken by the compiler where it is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

from paceline.insight.hardware.devices import find_device
from paceline.insight.hardware.targets import target_config, targets

PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")

PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from paceline.insight.hardware.devices import find_device
from paceline.insight.hardware.targets import target_config, targets
for name in targets():
    text = target_config(find_device(name))
    found = topologies.get_topology_desc(platform="cuda", topology_name="", target_config=text, topology="1x1x8")
    mesh = Mesh(np.array(found.devices), ("data",))
    x = jax.ShapeDtypeStruct((1024, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    whole = NamedSharding(mesh, P())
    program = jax.jit(lambda x: (x.T @ x), out_shardings=whole).trace(x).lower().compile()
    print(json.dumps({"name": name, "kind": found.devices[0].device_kind, "devices": len(found.devices),
                      "reduces": "all-reduce" in program.as_text()}))
"""


def test_the_gpus_of_the_plan_have_descriptions():
    """A100 in both sizes, H100 in both forms, H200, B200; an L4 has none and gets none."""
    assert set(targets()) == {
        find_device(name).name for name in ("A100-40", "A100-80", "H100", "H100-PCIe", "H200", "B200")
    }
    assert target_config(find_device("L4")) is None


@pytest.mark.parametrize(
    ("name", "capability", "cores", "shared"),
    [("A100-40", 8, 108, 166912), ("H100", 9, 132, 232448), ("H200", 9, 132, 232448), ("B200", 10, 148, 232448)],
)
def test_a_description_says_what_the_vendor_says(name, capability, cores, shared):
    """Compute capability, number of multiprocessors, shared memory of a block (CUDA programming guide)."""
    fields = dict(re.findall(r"(\w+): (\d+)", target_config(find_device(name))))
    assert f"major: {capability} minor: 0" in target_config(find_device(name))
    assert int(fields["core_count"]) == cores
    assert int(fields["shared_memory_per_block_optin"]) == shared
    assert int(fields["memory_bandwidth"]) == find_device(name).memory_bytes_per_s
    assert int(fields["device_memory_size"]) == find_device(name).memory_bytes


def test_every_description_compiles_a_program():
    """A matrix product over 8 of each, on a machine without GPUs, ends in an all-reduce."""
    if not {distribution.name for distribution in importlib.metadata.distributions()} & set(PLUGINS):
        pytest.skip("no CUDA plugin: pip install 'jax[cuda13]'")
    env = os.environ | {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": ""}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [line["name"] for line in lines] == list(targets())
    for line in lines:
        assert line["devices"] == 8 and line["reduces"], line
        assert find_device(line["kind"]).name == line["name"]

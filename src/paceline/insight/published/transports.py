"""How the published runs' frameworks moved bytes where NCCL as it is now did not.

Owns: costs of TensorFlow's transports of 2017: NCCL 1, copies through the host, gRPC to parameter servers; their rates.
Not here: NCCL (`insight.network`), the schedules.
Invariant: rates are of a transport, not of a source or model; each has a prior range and where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.insight.model.parameters import Prior
from paceline.insight.timeline import Collective

GB = 1e9


@dataclass(frozen=True)
class Transports:
    """Rates of transports that only the published runs use.

    Args:
      nccl1_bytes_per_s: bus bandwidth of an all-reduce by one multiprocessor of a GPU.
      host_copy_bytes_per_s: between a GPU and the host's memory, through one PCI Express root.
      grpc_share: of the nominal rate of Ethernet that TensorFlow's gRPC reaches.
      update_s: host work of an eager framework at an update, in which its devices idle.
    """

    nccl1_bytes_per_s: float
    host_copy_bytes_per_s: float
    grpc_share: float
    update_s: float

    def moved(self, name: str, factor: float) -> Transports:
        """One rate multiplied."""
        return replace(self, **{name: getattr(self, name) * factor})


TRANSPORT_PRIORS: Mapping[str, Prior] = {
    "nccl1_bytes_per_s": Prior(
        13 * GB, 0.30,
        "TensorFlow, High-performance models (2017): the kernel uses a single multiprocessor, of 56; its share of the "
        "memory's 732 GB/s is 13, less than the 16 that one NVLink 1 carries",
    ),
    "host_copy_bytes_per_s": Prior(
        10 * GB, 0.20, "PCI Express 3.0 x16: 15.75 GB/s nominal, 10 to 12 in bandwidth tests with page-locked memory"
    ),
    "grpc_share": Prior(
        0.70, 0.25,
        "github.com/tensorflow/tensorflow issues 6116 and 6256 (2017): 500 to 800 MB/s a stream; more fill 10 Gbit/s",
    ),
    "update_s": Prior(
        0.015, 0.70, "assumption: hundreds of small kernels and two host synchronisations, 10 to 30 ms in eager PyTorch"
    ),
}  # fmt: skip

# TensorFlow, High-performance models: implicit copies go to the copy engines, and cost compute nothing.
_RING_STEP_S = 10e-6
_RPC_S = 1e-3


@dataclass(frozen=True)
class Nccl1:
    """One ring, one multiprocessor: 2 (K-1)/K of the bytes at its rate."""

    transports: Transports

    def __call__(self, collective: Collective, group: int) -> float:
        sent = 2 * (group - 1) / group * collective.bytes
        return sent / self.transports.nccl1_bytes_per_s + 2 * (group - 1) * _RING_STEP_S


@dataclass(frozen=True)
class ParameterServer:
    """Push (reduce-scatter) and pull (all-gather) of parameters that live on servers on the same instances.

    In the node every GPU copies to the host or back, sharing `roots` PCI Express roots. Between W nodes each sends one
    sum to the servers; a node with a server takes those of the W - 1 others for its share of the parameters. Variables
    are passed on one by one, so copies in the node run beside transfers between nodes, and the slower of them counts.
    """

    transports: Transports
    devices_per_node: int
    roots: int
    servers: int
    network_bytes_per_s: float

    def __call__(self, collective: Collective, group: int) -> float:
        sharing = max(min(group, self.devices_per_node) / self.roots, 1.0)
        local = collective.bytes * sharing / self.transports.host_copy_bytes_per_s
        nodes = -(-group // self.devices_per_node)
        if nodes == 1:
            return local
        carried = collective.bytes * (nodes - 1) / min(self.servers, nodes)
        return max(local, carried / (self.network_bytes_per_s * self.transports.grpc_share) + _RPC_S)

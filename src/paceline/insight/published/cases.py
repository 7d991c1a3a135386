"""What each published run was: machine, schedule, transport, and the seconds that it took a row.

Owns: from a row and a set of parameters to a predicted efficiency.
Not here: the schedules and transports themselves, the fit.
Invariant: what differs between runs is what their sources say they did; no branch asks which source a row is from.
Rates of transports that one source alone used are known from that source alone (docs/design/014-prediction.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from paceline.insight.hardware.catalog import Device
from paceline.insight.hardware.links import Link, parse_network
from paceline.insight.hardware.machine import Machine, parse_machine
from paceline.insight.model.costs import CollectiveCost, MachineCost
from paceline.insight.model.parameters import Parameters
from paceline.insight.model.step import Setting, play, step_terms
from paceline.insight.published.layers import MODELS
from paceline.insight.published.rows import (
    ACCUMULATING_BASE,
    OTHER_ROWS,
    PARAMETER_SERVERS,
    Microbatches,
    Row,
    transport,
)
from paceline.insight.published.schedules import after_backward, behind_barrier, data_parallel, fully_sharded
from paceline.insight.published.transports import Nccl1, ParameterServer, Transports
from paceline.insight.timeline import Timeline

T, GB = 1e12, 1e9


@dataclass(frozen=True)
class Model:
    """Everything that is uncertain."""

    parameters: Parameters
    transports: Transports

    def moved(self, name: str, factor: float) -> Model:
        """One of them multiplied."""
        if hasattr(self.parameters, name):
            return replace(self, parameters=self.parameters.moved(name, factor))
        return replace(self, transports=self.transports.moved(name, factor))


_K80 = Device(
    name="K80 (one of its two GPUs)",
    aliases=(),
    peak_flops_per_s={"float32": 4.37 * T},
    memory_bytes=12_000_000_000,
    memory_bytes_per_s=240 * GB,
    link="PCIe3",
    sources={"peak_flops_per_s": "NVIDIA Tesla K80 board specification, 2015: 8.74 Tflop/s a board at boost"},
)

# A P100's rows/s, TensorFlow's page; where a source prints no rate of its own. ResNet-101 runs as many operations a
# second as the mean of ResNet-50 and -152. Horovod's "Pascal" servers are taken for cards: 9.3 of 10.6 Tflop/s.
_P100_RATE = {("resnet50", 64): 219.0, ("resnet50", 32): 195.0, ("resnet152", 64): 91.8, ("inception3", 64): 142.0,
              ("vgg16", 64): 154.0, ("resnet101", 64): 124.0}  # fmt: skip
_PASCAL_CARD = 9.3 / 10.6


def predicted(row: Row, model: Model) -> float:
    """S_K / (K/base S_base): efficiency relative to the run that the source compares with."""
    scale, base_s = _base_run(replace(row, devices=row.base, measured=1.0), model)
    terms, _ = step_terms(replace(setting(row, model, devices=row.devices), compute_scale=scale))
    return base_s / (terms.step_s / _rows(row))


@lru_cache(maxsize=512)
def _base_run(row: Row, model: Model) -> tuple[float, float]:
    """Factor on compute such that the base run takes what was published, and its seconds a row."""
    base = setting(row, model, devices=row.base)
    number = _base(row)
    rows = number.rows * number.number
    published_s = rows / base_rate(row)
    alone_s = play(replace(base, devices=1)).compute_s
    terms, _ = step_terms(replace(base, compute_scale=published_s / alone_s))
    # What is not compute is small, so it may be taken from a step whose compute is the whole of it.
    beside_s = min(terms.step_s - terms.compute_s, 0.5 * published_s)
    scale = (published_s - beside_s) / alone_s
    terms, _ = step_terms(replace(base, compute_scale=scale))
    return scale, terms.step_s / rows


def _rows(row: Row) -> int:
    return OTHER_ROWS.get((row.model, row.devices), row.rows_per_device)


def _base(row: Row) -> Microbatches:
    if row.strategy == "fsdp":
        return ACCUMULATING_BASE[row.model]
    return Microbatches(row.rows_per_device, 1)


def base_rate(row: Row) -> float:
    """Rows/s of one device of the base run."""
    if row.rate is not None:
        return row.rate
    rate = _P100_RATE[row.model, row.rows_per_device]
    return rate * (_PASCAL_CARD if row.hardware == "Pascal" else 1.0)


def setting(row: Row, model: Model, *, devices: int) -> Setting:
    """One run on so many devices."""
    machine = _machine(row.hardware, row.devices_per_node, row.network).with_devices(devices)
    parameters = model.parameters
    update_s, synchronisations = 0.0, 1
    if row.strategy == "fsdp":
        number = _base(row) if devices == row.base else Microbatches(_rows(row), 1)
        update_s, synchronisations = model.transports.update_s, number.number
    elif transport(row) != "nccl":
        # Rates of `published.transports` are those within a step. Where copy engines move the bytes, they slow nothing.
        parameters = replace(parameters, slowdown=1.0)
        parameters = parameters if transport(row) == "nccl1" else replace(parameters, contention=0.0)
    return Setting(
        _timeline(row, devices),
        machine,
        devices,
        parameters,
        _cost(row, model, machine),
        update_s=update_s,
        synchronisations=synchronisations,
    )


@cache
def _timeline(row: Row, devices: int) -> Timeline:
    layers = MODELS[row.model]()
    if row.strategy == "fsdp":
        number = _base(row) if devices == row.base else Microbatches(_rows(row), 1)
        return fully_sharded(layers, rows=number.rows, microbatches=number.number, group=devices, wire_bytes=2)
    if transport(row) == "parameter servers":
        return behind_barrier(layers, rows=row.rows_per_device, group=devices)
    schedule = after_backward if transport(row) == "nccl1" else data_parallel
    return schedule(layers, rows=row.rows_per_device, group=devices)


def _cost(row: Row, model: Model, machine: Machine) -> CollectiveCost:
    if transport(row) == "parameter servers":
        servers = PARAMETER_SERVERS.get((row.model, machine.nodes), machine.nodes)
        return ParameterServer(
            model.transports, devices_per_node=8, roots=2, servers=servers, network_bytes_per_s=1.25 * GB
        )
    if transport(row) == "nccl1":
        return Nccl1(model.transports)
    if transport(row) == "parameter server on a node":
        return ParameterServer(model.transports, devices_per_node=8, roots=4, servers=1, network_bytes_per_s=1.25 * GB)
    return _network_cost(row.hardware, row.devices_per_node, row.network, machine.num_devices)


@cache
def _network_cost(hardware: str, devices_per_node: int, network: str, devices: int) -> CollectiveCost:
    """NCCL had rings only before 2.4; the run of arXiv 1706.02677 was hierarchical by its own hand (section 4)."""
    machine = _machine(hardware, devices_per_node, network).with_devices(devices)
    return MachineCost(machine, choose=("ring", "hierarchical") if hardware == "P100" else ("ring",))


@cache
def _machine(hardware: str, devices_per_node: int, network: str) -> Machine:
    if hardware.startswith("K80"):
        return Machine(_K80, devices_per_node, 1, _PCIE, parse_network(network, devices_per_node=devices_per_node))
    names = {"Pascal": "P100-PCIe", "P100 DGX-1": "P100", "P100": "P100", "A100-40": "A100-40", "H100-80": "H100"}
    known = f"{devices_per_node}x{names[hardware]}"
    return parse_machine(known, network=None if network.startswith("NVLink") else network)


_PCIE = Link("PCIe3", "pcie", 15.75 * GB, 10 * GB, 5.7e-6, "PCI Express 3.0, 16 lanes", "not used")

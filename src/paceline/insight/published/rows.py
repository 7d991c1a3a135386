"""The published efficiencies, as they were collected.

Owns: reading `efficiencies.csv`, and what the sources say elsewhere about the same runs.
Not here: any prediction.
Invariant: nothing here was fitted; each number is printed by the source that the row names.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One published efficiency.

    Args:
      base: devices that the efficiency compares with.
      devices: K.
      rows_per_device: rows (images, sequences) that a device sees between two synchronisations.
      rate: of one device of the base run, rows/s; None where the source has none.
      measured: efficiency; above 1 is noise of the measurement, and left as it is.
    """

    source: str
    model: str
    hardware: str
    devices_per_node: int
    network: str
    strategy: str
    rows_per_device: int
    rate: float | None
    base: int
    devices: int
    measured: float


_TOKENS = 2048


@cache
def read_rows() -> tuple[Row, ...]:
    """All of the file, in its order. A rate in tokens is turned into sequences."""
    text = files("paceline.insight.published").joinpath("efficiencies.csv").read_text(encoding="utf-8")
    return tuple(_row(entry) for entry in csv.DictReader(text.splitlines()))


def _row(entry: dict[str, str]) -> Row:
    rate = float(entry["rate_per_gpu"]) if entry["rate_per_gpu"] else None
    if rate is not None and entry["rate_unit"].startswith("tok/s"):
        rate /= _TOKENS
    return Row(
        source=entry["source"],
        model=entry["model"],
        hardware=entry["hardware"],
        devices_per_node=int(entry["gpus_per_node"]),
        network=entry["network"],
        strategy=entry["strategy"],
        rows_per_device=int(entry["batch_per_gpu"]),
        rate=rate,
        base=int(entry["base_K"]),
        devices=int(entry["K"]),
        measured=float(entry["efficiency_pct"]) / 100,
    )


Transport = Literal["nccl", "nccl1", "parameter server on a node", "parameter servers"]
"""How devices exchanged gradients: NCCL from 2.0 on; its first version; through the host's memory, where one server
keeps the variables of a node; through servers on all nodes."""

# TensorFlow's page names how variables were kept for each model on a DGX-1: replicated with NCCL, or on a server.
_TRANSPORTS: dict[tuple[str, str], Transport] = {
    ("P100 DGX-1", "alexnet"): "nccl1",
    ("P100 DGX-1", "vgg16"): "nccl1",
    ("P100 DGX-1", "resnet50"): "parameter server on a node",
    ("P100 DGX-1", "resnet152"): "parameter server on a node",
    ("P100 DGX-1", "inception3"): "parameter server on a node",
}


def transport(row: Row) -> Transport:
    """How the devices of a run exchanged gradients, by what its source says of that machine and model."""
    if row.strategy == "dp-parameter-server":
        return "parameter servers"
    return _TRANSPORTS.get((row.hardware, row.model), "nccl")


@dataclass(frozen=True)
class Microbatches:
    """Sequences of a microbatch, and microbatches of an update."""

    rows: int
    number: int


# llm-foundry's table (scripts/train/benchmarking/README.md) also prints MicroBatchSize and GradAccum: the runs on 8
# GPUs, to which the others are compared, accumulate; those on more do not. Throughput a GPU there confirms that the
# rates are of one GPU: 136,334 tok/s at 8 GPUs is 43 % of an A100's bfloat16 peak for 125 M parameters.
ACCUMULATING_BASE: dict[str, Microbatches] = {
    "mpt-125m": Microbatches(26, 3),
    "mpt-350m": Microbatches(16, 4),
    "mpt-760m": Microbatches(12, 4),
    "mpt-1.3b": Microbatches(8, 8),
    "mpt-2.7b": Microbatches(5, 8),
    "mpt-6.7b": Microbatches(12, 4),
    "mpt-13b": Microbatches(2, 1),
}
# Microbatches that differ from the file's, by model and K.
OTHER_ROWS: dict[tuple[str, int], int] = {("mpt-1.3b", 16): 8, ("mpt-2.7b", 16): 5, ("mpt-6.7b", 16): 16}

# Parameter servers on so many instances, where that is not one on each: (model, instances).
PARAMETER_SERVERS: dict[tuple[str, int], int] = {("inception3", 8): 6, ("resnet152", 8): 4}

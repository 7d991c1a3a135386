"""The published numbers of each device, as data.

Owns: peak rates, memory, links and names of accelerators, each with the document it was read from.
Not here: finding one by name (`hardware.devices`), the rates of links (`hardware.links`), this CPU (`hardware.cpu`).
Invariant: peak rates are dense (vendors often print twice as much, for structured sparsity) and at boost clock; a dtype
that a device has no peak for is absent, never guessed.

A rate is that of the fastest unit that multiplies operands of the dtype and adds in float32 or wider. ``float32`` on
NVIDIA devices is true float32; ``tfloat32`` is what the matrix units make of it, JAX's default there from Ampere on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

T = 1e12
GB = 10**9


@dataclass(frozen=True)
class Device:
    """One device as JAX counts them.

    Args:
      name: as messages call it, with the form that is meant: ``H100 SXM 80 GB``.
      aliases: other names; compared without case, spaces, dashes and the vendor's name.
      peak_flops_per_s: by dtype as JAX names it, and ``tfloat32``; a multiply-add is two operations.
      memory_bytes: that the driver shows, some percent more than the decimal GB of the name; a context and the
        allocator take a few hundred MB of it.
      memory_bytes_per_s: peak of the device's memory.
      link: the usual link between devices of a node (`links.find_link`), None where there is none.
      network: the usual network between nodes in clouds (`links.parse_network`), None where there is no usual one.
      devices_per_node: the most that usual nodes hold.
      sources: where each number comes from.
      note: what a reader of the name must know.
    """

    name: str
    aliases: tuple[str, ...]
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    link: str | None
    network: str | None = None
    devices_per_node: int = 8
    sources: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_DRIVERS = (
    "device_memory_size of XLA's target descriptions (A100, H100, H200, B200); "
    "else total memory as nvidia-smi or rocm-smi prints it"
)


def _sources(rates: str, *, others: str = "", **single: str) -> dict[str, str]:
    return {
        "peak_flops_per_s": rates,
        "memory_bytes": _DRIVERS,
        "memory_bytes_per_s": others or rates,
        "link": single.get("link", others or rates),
        "network": single.get("network", "usual cloud instance; an assumption, said where it is used"),
    }


_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, 2021"
_A100_RATES = {
    "float64": 19.5 * T,
    "float32": 19.5 * T,
    "tfloat32": 156 * T,
    "bfloat16": 312 * T,
    "float16": 312 * T,
    "int8": 624 * T,
}
_H100_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, 2023 (half of the figures with sparsity)"
_H100_RATES = {
    "float64": 67 * T,
    "float32": 67 * T,
    "tfloat32": 494.7 * T,
    "bfloat16": 989.4 * T,
    "float16": 989.4 * T,
    "float8": 1978.9 * T,
    "int8": 1978.9 * T,
}
_P100_SHEET = "NVIDIA Tesla P100 data sheet, 2016"
_V100_SHEET = "NVIDIA V100 Tensor Core GPU data sheet, 2020"
_V100_RATES = {"float64": 7.8 * T, "float32": 15.7 * T, "float16": 125 * T}
_MI250X_SHEET = "AMD Instinct MI250X data sheet, 2021 (matrix rates)"

NVIDIA = (
    Device(
        "K80 half",
        ("K80", "Tesla K80", "K80 p2.8xlarge", "GK210"),
        {"float64": 1.455 * T, "float32": 4.37 * T},
        11_996_954_624,
        240 * GB,
        "PCIe3",
        network="10GbE",
        devices_per_node=16,
        sources=_sources("NVIDIA Tesla K80 board specification BD-07317, 2015; half of the card, at boost clock"),
        note="one of the two GPUs of a K80 card, as JAX and cloud instances count them",
    ),
    Device(
        "P100 SXM2 16 GB",
        ("P100", "P100-SXM2", "Tesla P100-SXM2-16GB", "P100 DGX-1"),
        {"float64": 5.3 * T, "float32": 10.6 * T},  # its float16 units add in float16
        17_066_885_120,
        732 * GB,
        "NVLink1",
        network="50Gb InfiniBand per GPU",
        sources=_sources(_P100_SHEET, network="NVIDIA DGX-1 data sheet, 2017: four EDR adapters for 8"),
    ),
    Device(
        "P100 PCIe 16 GB",
        ("P100-PCIe", "Tesla P100-PCIE-16GB"),
        {"float64": 4.7 * T, "float32": 9.3 * T},
        17_066_885_120,
        732 * GB,
        "PCIe3",
        network="25GbE",
        devices_per_node=4,
        sources=_sources(_P100_SHEET),
    ),
    Device(
        "V100 SXM2 16 GB",
        ("V100-16", "V100-16GB", "V100-SXM2-16", "Tesla V100-SXM2-16GB"),
        _V100_RATES,
        16_945_512_448,
        900 * GB,
        "NVLink2",
        network="25GbE",
        sources=_sources(_V100_SHEET),
    ),
    Device(
        "V100 SXM2 32 GB",
        ("V100", "V100-32", "V100-32GB", "V100-SXM2", "V100-SXM2-32", "Tesla V100-SXM2-32GB"),
        _V100_RATES,
        34_089_205_760,
        900 * GB,
        "NVLink2",
        network="100GbE",
        sources=_sources(_V100_SHEET, network="AWS p3dn.24xlarge, 2018: 100 Gbit/s a node"),
    ),
    Device(
        "A100 SXM 40 GB",
        ("A100-40", "A100-40GB", "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        _A100_RATES,
        42_331_013_120,
        1555 * GB,
        "NVLink3",
        network="400Gb EFA",
        devices_per_node=16,
        sources=_sources(_A100_SHEET, network="AWS p4d.24xlarge, 2020: 400 Gbit/s a node"),
    ),
    Device(
        "A100 SXM 80 GB",
        ("A100", "A100-80", "A100-80GB", "A100-SXM", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        _A100_RATES,
        85_100_068_864,
        2039 * GB,
        "NVLink3",
        network="200Gb InfiniBand per GPU",
        devices_per_node=16,
        sources=_sources(
            _A100_SHEET, network="NVIDIA DGX A100 data sheet, 2020; Azure NDm A100 v4: 8 HDR adapters for 8"
        ),
    ),
    Device(
        "A100 PCIe 40 GB",
        ("A100-PCIe-40", "NVIDIA A100-PCIE-40GB"),
        _A100_RATES,
        42_331_013_120,
        1555 * GB,
        "PCIe4",
        sources=_sources(_A100_SHEET),
    ),
    Device(
        "A100 PCIe 80 GB",
        ("A100-PCIe", "A100-PCIe-80", "NVIDIA A100 80GB PCIe"),
        _A100_RATES,
        85_100_068_864,
        1935 * GB,
        "PCIe4",
        sources=_sources(_A100_SHEET),
    ),
    Device(
        "H100 SXM 80 GB",
        ("H100", "H100-SXM", "H100-80", "H100-SXM5-80GB", "NVIDIA H100 80GB HBM3", "H100 SXM5"),
        _H100_RATES,
        84_942_979_072,
        3350 * GB,
        "NVLink4",
        network="400Gb per GPU",
        sources=_sources(_H100_SHEET, network="NVIDIA DGX H100 data sheet, 2023: 8 NDR adapters"),
    ),
    Device(
        "H100 PCIe 80 GB",
        ("H100-PCIe", "NVIDIA H100 PCIe"),
        {
            "float64": 51 * T,
            "float32": 51 * T,
            "tfloat32": 378 * T,
            "bfloat16": 756 * T,
            "float16": 756 * T,
            "float8": 1513 * T,
            "int8": 1513 * T,
        },
        84_942_979_072,
        2000 * GB,
        "PCIe5",
        sources=_sources("NVIDIA H100 PCIe GPU product brief PB-11133, 2022 (half of the figures with sparsity)"),
    ),
    Device(
        "H200 SXM 141 GB",
        ("H200", "H200-SXM", "NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        _H100_RATES,
        151_397_597_184,
        4800 * GB,
        "NVLink4",
        network="400Gb per GPU",
        sources=_sources("NVIDIA H200 Tensor Core GPU data sheet, 2024 (half of the figures with sparsity)"),
    ),
    Device(
        "B200 SXM 180 GB",
        ("B200", "B200-SXM", "NVIDIA B200"),
        {
            "float64": 37 * T,
            "float32": 75 * T,
            "tfloat32": 1125 * T,
            "bfloat16": 2250 * T,
            "float16": 2250 * T,
            "float8": 4500 * T,
            "int8": 4500 * T,
        },
        191_514_411_008,
        8000 * GB,
        "NVLink5",
        network="400Gb per GPU",
        sources=_sources(
            "NVIDIA HGX platform specifications (HGX B200), 2025: an eighth of the node, half of sparsity",
            others="NVIDIA DGX B200 data sheet, 2024: an eighth of 1,440 GB and of 64 TB/s",
        ),
    ),
    Device(
        "L4 24 GB",
        ("L4", "NVIDIA L4"),
        {
            "float32": 30.3 * T,
            "tfloat32": 60 * T,
            "bfloat16": 121 * T,
            "float16": 121 * T,
            "float8": 242.5 * T,
            "int8": 242.5 * T,
        },
        24_152_899_584,
        300 * GB,
        "PCIe4",
        network="100GbE",
        sources=_sources("NVIDIA L4 Tensor Core GPU data sheet, 2023 (half of the figures with sparsity)"),
    ),
    Device(
        "RTX 4090 24 GB",
        ("RTX 4090", "4090", "NVIDIA GeForce RTX 4090", "RTX4090", "GeForce RTX 4090"),
        {
            "float64": 1.29 * T,
            "float32": 82.6 * T,
            "tfloat32": 82.6 * T,
            "bfloat16": 165.2 * T,
            "float16": 165.2 * T,
            "float8": 330.3 * T,
            "int8": 660.6 * T,
        },
        25_757_220_864,
        1008 * GB,
        "PCIe4 host",
        sources=_sources(
            "NVIDIA Ada GPU architecture white paper, appendix A, 2022 (dense, float32 accumulation)",
            link="consumer cards have no peer-to-peer transfers: NCCL goes through the host's memory",
        ),
    ),
)

AMD = (
    Device(
        "MI250X GCD",
        ("MI250X", "AMD Instinct MI250X", "AMD Instinct MI250X/MI250", "gfx90a", "MI250X-GCD"),
        {
            "float64": 47.9 * T,
            "float32": 47.9 * T,
            "bfloat16": 191.5 * T,
            "float16": 191.5 * T,
            "int8": 191.5 * T,
        },
        68_702_699_520,
        1638.4 * GB,
        "xGMI2",
        network="100Gb Slingshot per GPU",
        sources=_sources(
            f"{_MI250X_SHEET}; half of the card", network="OLCF Frontier user guide: four Slingshot adapters for 8"
        ),
        note="one of the two dies (GCDs) of a card: JAX shows each as a device, a node of 4 cards has 8",
    ),
    Device(
        "MI250X card",
        ("MI250X-card", "MI250X both dies"),
        {
            "float64": 95.7 * T,
            "float32": 95.7 * T,
            "bfloat16": 383 * T,
            "float16": 383 * T,
            "int8": 383 * T,
        },
        137_405_399_040,
        3276.8 * GB,
        "xGMI2",
        network="200Gb Slingshot per GPU",
        devices_per_node=4,
        sources=_sources(_MI250X_SHEET, network="OLCF Frontier user guide: four Slingshot adapters for 4 cards"),
        note="both dies of a card together; no program sees them as one device",
    ),
    Device(
        "MI300X 192 GB",
        ("MI300X", "AMD Instinct MI300X", "gfx942", "MI300X OAM"),
        {
            "float64": 163.4 * T,
            "float32": 163.4 * T,
            "tfloat32": 653.7 * T,
            "bfloat16": 1307.4 * T,
            "float16": 1307.4 * T,
            "float8": 2614.9 * T,
            "int8": 2614.9 * T,
        },
        206_141_652_992,
        5300 * GB,
        "xGMI3",
        network="400Gb per GPU",
        sources=_sources("AMD Instinct MI300X data sheet, 2023 (matrix rates, dense)"),
    ),
)

DEVICES: tuple[Device, ...] = NVIDIA + AMD

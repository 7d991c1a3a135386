"""Results of the fits.

Owns: nothing that is written by hand: `python -m benchmarks.published` prints them; a test fits again and compares.
Not here: the fit (`published.fit`).
Invariant: `WITHOUT[source]` has seen no row of that source.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.insight.model.parameters import Parameters
from paceline.insight.published.cases import Model
from paceline.insight.published.fit import Fit
from paceline.insight.published.transports import Transports

ALL = Fit(
    Model(
        Parameters(
            contention=0.1391, slowdown=1.089, spread=0.0149, interruption_s=0.002069, interruptions_per_s=5.114
        ),
        Transports(nccl1_bytes_per_s=1.479e10, host_copy_bytes_per_s=9.716e09, grpc_share=0.7092, update_s=0.01971),
    ),
    {
        "contention": 0.336,
        "slowdown": 0.101,
        "spread": 0.250,
        "interruption_s": 0.513,
        "interruptions_per_s": 0.696,
        "nccl1_bytes_per_s": 0.151,
        "host_copy_bytes_per_s": 0.182,
        "grpc_share": 0.151,
        "update_s": 0.247,
    },
)

WITHOUT: Mapping[str, Fit] = {
    "tensorflow benchmarks.md (2017)": Fit(
        Model(
            Parameters(
                contention=0.1419, slowdown=1.093, spread=0.01434, interruption_s=0.001937, interruptions_per_s=4.998
            ),
            Transports(nccl1_bytes_per_s=1.3e10, host_copy_bytes_per_s=1e10, grpc_share=0.7, update_s=0.02022),
        ),
        {
            "contention": 0.343,
            "slowdown": 0.101,
            "spread": 0.314,
            "interruption_s": 0.586,
            "interruptions_per_s": 0.700,
            "nccl1_bytes_per_s": 0.300,
            "host_copy_bytes_per_s": 0.200,
            "grpc_share": 0.250,
            "update_s": 0.256,
        },
    ),
    "horovod benchmarks.rst": Fit(
        Model(
            Parameters(
                contention=0.1527, slowdown=1.105, spread=0.01528, interruption_s=0.002118, interruptions_per_s=5.095
            ),
            Transports(nccl1_bytes_per_s=1.484e10, host_copy_bytes_per_s=9.745e09, grpc_share=0.714, update_s=0.01921),
        ),
        {
            "contention": 0.361,
            "slowdown": 0.146,
            "spread": 0.251,
            "interruption_s": 0.514,
            "interruptions_per_s": 0.696,
            "nccl1_bytes_per_s": 0.151,
            "host_copy_bytes_per_s": 0.182,
            "grpc_share": 0.152,
            "update_s": 0.256,
        },
    ),
    "arXiv 1706.02677": Fit(
        Model(
            Parameters(
                contention=0.1471, slowdown=1.093, spread=0.01453, interruption_s=0.00236, interruptions_per_s=5.076
            ),
            Transports(nccl1_bytes_per_s=1.487e10, host_copy_bytes_per_s=9.709e09, grpc_share=0.7084, update_s=0.01927),
        ),
        {
            "contention": 0.347,
            "slowdown": 0.101,
            "spread": 0.261,
            "interruption_s": 0.516,
            "interruptions_per_s": 0.696,
            "nccl1_bytes_per_s": 0.152,
            "host_copy_bytes_per_s": 0.182,
            "grpc_share": 0.150,
            "update_s": 0.255,
        },
    ),
    "llm-foundry benchmarking": Fit(
        Model(
            Parameters(
                contention=0.1453, slowdown=1.092, spread=0.01681, interruption_s=0.001596, interruptions_per_s=5.111
            ),
            Transports(nccl1_bytes_per_s=1.476e10, host_copy_bytes_per_s=9.815e09, grpc_share=0.7251, update_s=0.015),
        ),
        {
            "contention": 0.333,
            "slowdown": 0.100,
            "spread": 0.249,
            "interruption_s": 0.586,
            "interruptions_per_s": 0.698,
            "nccl1_bytes_per_s": 0.150,
            "host_copy_bytes_per_s": 0.183,
            "grpc_share": 0.156,
            "update_s": 0.700,
        },
    ),
}

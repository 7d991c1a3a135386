"""What this machine has: GPUs, cores, free ports. Without jax, which would take the devices for itself.

Owns: counting and trying; each answer is of this moment and may have changed when it is used.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def gpu_count(environment: Mapping[str, str] = os.environ, *, listing: Path = _NVIDIA_GPUS) -> int:
    """NVIDIA GPUs that a process started from here may use; 0 where JAX is told to use CPUs.

    Args:
      environment: CUDA_VISIBLE_DEVICES, where set, hides GPUs; JAX_PLATFORMS may leave them out.
      listing: folder with one entry for each GPU of the machine.
    """
    platforms = {name.strip() for name in environment.get("JAX_PLATFORMS", "").split(",") if name.strip()}
    if platforms and not platforms & {"cuda", "gpu"}:
        return 0
    try:
        there = sum(1 for _ in listing.iterdir())
    except OSError:  # no NVIDIA driver
        return 0
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    count = 0
    for entry in visible.split(","):
        if not _names_a_gpu(entry.strip(), there=there):
            break  # CUDA stops at the first entry that names none, too
        count += 1
    return count


def _names_a_gpu(entry: str, *, there: int) -> bool:
    return int(entry) < there if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def is_port_free(port: int) -> bool:
    """Whether a program could listen on the port; connections that an ended one left behind do not count."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno not in _TAKEN:  # a machine without IPv6
                continue
            return False
    return True

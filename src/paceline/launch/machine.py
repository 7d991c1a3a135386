"""What this machine has: GPUs, cores, free ports. Without jax, which would take the devices for itself.

Owns: counting and trying; each answer is of this moment and may have changed when it is used.
Not here: how GPUs are counted (`base.gpus`).
"""

from __future__ import annotations

import errno
import os
import socket

from paceline.base.gpus import gpu_count as gpu_count

_TAKEN = (errno.EADDRINUSE, errno.EACCES)


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

"""What a machine must have for the tests of clusters and networks.

Owns: the reasons for which such a test is skipped.
Not here: the fixtures that ask.
Invariant: a reason names what is absent and the Debian package or the user that would bring it.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping

import pytest

from tests.processes.run import child_environment


def tool(name: str) -> str | None:
    """Path of an installed program, also of one for the administrator."""
    return shutil.which(name, path=child_environment()["PATH"])


def require_root(what: str) -> None:
    """Skips unless this is root."""
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


def require_tools(packages: Mapping[str, str]) -> dict[str, str]:
    """Paths of programs.

    Args:
      packages: program to the Debian package that brings it. Skips, naming the packages, when one is absent.
    """
    paths = {name: tool(name) for name in packages}
    absent = sorted({packages[name] for name, path in paths.items() if path is None})
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    return {name: path for name, path in paths.items() if path is not None}


def require_own_name() -> str:
    """The machine's own host name; skips when it does not resolve, for Gloo and Slurm connect to it."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        pytest.skip(f"the host name {name} does not resolve (it needs a line in /etc/hosts)")
    return name

"""The folder that keeps compiled programs between runs.

Owns: is there one, can it be written, how large it is, on which kind of disk.
Invariant: reads it for a limited time, and makes no folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.base.units import format_bytes, format_count
from paceline.doctor.environment.limits import mount_type
from paceline.doctor.environment.system import System
from paceline.doctor.finding import Finding

CHECK = "cache"

_NETWORK = ("nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "9p", "fuse.sshfs", "afs", "glusterfs", "panfs")
_READ_S = 1.0
_LEFT_BYTES = 1_000_000_000


def cache_findings(system: System, folder: str | None) -> list[Finding]:
    """What is to be said of it.

    Args:
      folder: from the command line, else what JAX is told; None or empty: no cache.
    """
    if not folder:
        text = "no compilation cache: every start compiles again; --compilation-cache FOLDER keeps programs"
        return [Finding(CHECK, "ok", text)]
    if "://" in folder:
        return [Finding(CHECK, "ok", f"the compilation cache {folder} lies in remote storage and was not tried")]
    path = Path(folder).absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = f"the compilation cache {folder} cannot be written: every start would compile again"
        return [Finding(CHECK, "error", what, "choose a folder that you can write to")]
    space = system.space(there)
    if space is not None and space[1] < _LEFT_BYTES:
        what = f"the disk of the compilation cache {folder} has {format_bytes(space[1])} left"
        return [Finding(CHECK, "warning", what, "remove old programs from the folder, or choose another disk")]
    return [Finding(CHECK, "ok", f"compilation cache {folder}: {_size(path)}{_remark(mount_type(system, there))}")]


def _remark(kind: str | None) -> str:
    if kind is None or not kind.startswith(_NETWORK):
        return ""
    return f", on a network file system ({kind}): shared by all machines, slower to read than a local disk"


def _size(path: Path) -> str:
    """Files and bytes, as far as they can be read in a second."""
    if not path.exists():
        return "not there yet"
    end, number, total = time.monotonic() + _READ_S, 0, 0
    with os.scandir(path) as entries:
        for entry in entries:
            if time.monotonic() > end:
                return f"more than {format_count(number, 'file')} and {format_bytes(total)}"
            if entry.is_file(follow_symlinks=False):
                number, total = number + 1, total + entry.stat(follow_symlinks=False).st_size
    return f"{format_count(number, 'file')}, {format_bytes(total)}"

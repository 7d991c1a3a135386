"""How much of the cores other programs used while something was measured on them.

Owns: reading busy time of cores and of own processes, the share that is left for others.
Not here: which cores (`cores`).
Invariant: unknown is None; nothing is read anywhere but on Linux.

Source of the fields: proc(5). /proc/stat holds for each core the time spent in user, nice, system, idle, iowait, irq,
softirq, steal ...; /proc/PID/stat holds utime and stime behind the name in brackets, as fields 14 and 15. Both count in
clock ticks, so a second is seen to 1 %. Time stolen by the host of a virtual machine counts as used by others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

BUSY = 0.1
"""A share from which on a report says that the machine was busy."""

_IDLE = (3, 4)  # idle, iowait
_COUNTED = 8  # user to steal; guest time behind it is part of user


class OtherLoad:
    """Watches cores from when it is made.

    Args:
      cores: whose time counts.
      processes: own ones, whose time is not that of others; the calling one is added.
      root: of the file system.
    """

    def __init__(self, cores: Sequence[int], processes: Sequence[int], *, root: str = "/proc") -> None:
        self._root = Path(root)
        self._cores, self._processes = list(cores), [os.getpid(), *processes]
        self._start = self._read()

    def share(self) -> float | None:
        """Of the time of these cores since then, what others used; in [0, 1]."""
        start, now = self._start, self._read()
        if start is None or now is None or now[0] <= start[0]:
            return None
        total, busy, own = (b - a for a, b in zip(start, now, strict=True))
        return min(1.0, max(0.0, (busy - own) / total))

    def _read(self) -> tuple[int, int, int] | None:
        """Ticks: of the cores, of these busy, of own processes."""
        try:
            lines = (self._root / "stat").read_text(encoding="ascii").splitlines()
            own = sum(self._ticks(process) for process in self._processes)
        except (OSError, ValueError, IndexError):
            return None
        times = {words[0]: [int(word) for word in words[1 : _COUNTED + 1]] for line in lines if (words := line.split())
                 and words[0].startswith("cpu")}  # fmt: skip
        found = [times[f"cpu{core}"] for core in self._cores if f"cpu{core}" in times]
        total = sum(map(sum, found))
        return total, total - sum(core[place] for core in found for place in _IDLE), own

    def _ticks(self, process: int) -> int:
        text = (self._root / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return int(fields[11]) + int(fields[12])

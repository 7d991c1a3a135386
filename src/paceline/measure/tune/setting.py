"""What can be tuned: a global batch, how the step runs, how far the feed runs ahead.

Owns: `Setting`, the flags that ask for one.
Not here: which settings are tried (`options`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paceline.engine.parallel import Parallel

_TUNED = ("scheme", "placement", "accumulation", "batch_norm")


@dataclass(frozen=True)
class Setting:
    """One way to run a task on K devices.

    Args:
      batch: rows B of the global batch.
      parallel: how the step runs.
      prefetch: batches made ahead.
    """

    batch: int
    parallel: Parallel
    prefetch: int = 2

    def with_parallel(self, **changes: Any) -> Setting:
        """The same but for fields of `parallel`. Raises: SchemeError: they do not go together."""
        return replace(self, parallel=replace(self.parallel, **changes))

    def flags(self, *, default: Setting) -> list[str]:
        """What `paceline train` has to be told to run it: all that is not `default`, which it does untold."""
        found = [f"--batch {self.batch}"] if self.batch != default.batch else []
        for name in _TUNED:
            value = getattr(self.parallel, name)
            if value != getattr(default.parallel, name):
                found.append(f"--{name.replace('_', '-')} {value}")
        if self.parallel.bucket_bytes is not None:
            found.append(f"--bucket-mb {self.parallel.bucket_bytes / 1e6:g}")
        if self.prefetch != default.prefetch:
            found.append(f"--prefetch {self.prefetch}")
        return found

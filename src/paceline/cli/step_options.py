"""The options that shape a step, which every command that makes one has.

Owns: their names, defaults and help, and what they mean for the engine.
Not here: the options of a run (`cli.run_options`), those of the other commands.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from paceline.base.errors import OptionError
from paceline.engine.parallel import (
    BatchNorm,
    DropoutStream,
    NonFinite,
    Parallel,
    Placement,
    Precision,
    ReduceDtype,
    Scheme,
)


@dataclass(frozen=True)
class StepOptions:
    """Options of every step.

    Args:
      batch: rows of the global batch, shared by all devices (default: the recipe's).
      scheme: how a step runs on the devices.
      placement: what the devices share, each holding a part: nothing, the optimizer state, the parameters too.
      accumulation: microbatches accumulated in an update.
      precision: type of the computation; parameters stay float32.
      reduce_dtype: type of the gradients on the wire (per_device and pmap).
      bucket_mb: pack gradients into messages of at most so many megabytes of 10^6 bytes (per_device and pmap).
      noise_scale: measure the gradient noise scale (per_device and pmap).
      clip_norm: clip the mean gradient to this global norm.
      nonfinite: what to do when a loss or gradient is not finite.
      dropout: which devices draw which dropout masks.
      batch_norm: whose rows BatchNorm's statistics are taken from (per_device and pmap).
      ema_decay: keep a moving average of the parameters with this decay.
      prefetch: batches made ahead by the background feed.
    """

    batch: int | None = None
    scheme: Scheme = "global_view"
    placement: Placement = "replicated"
    accumulation: int = 1
    precision: Precision = "float32"
    reduce_dtype: ReduceDtype | None = None
    bucket_mb: float | None = None
    noise_scale: bool = False
    clip_norm: float | None = None
    nonfinite: NonFinite = "stop"
    dropout: DropoutStream = "global"
    batch_norm: BatchNorm | None = None
    ema_decay: float | None = None
    prefetch: int = 2

    def parallel(self) -> Parallel:
        """The part that the engine reads.

        Raises: SchemeError: options that do not go together. OptionError: a bucket that nothing fits in.
        """
        own = ("donate", "bucket_bytes")
        names = [field.name for field in dataclasses.fields(Parallel) if field.name not in own]
        return Parallel(**{name: getattr(self, name) for name in names}, bucket_bytes=self._bucket_bytes())

    def _bucket_bytes(self) -> int | None:
        size_mb = self.bucket_mb
        if size_mb is not None and not 1 <= size_mb * 1e6 < math.inf:
            raise OptionError(
                what=f"--bucket-mb {size_mb:g}",
                why="it is the size of a message of gradients",
                fix="use a size of one byte (1e-6) or more, such as --bucket-mb 4, or leave it out: one message a leaf",
            )
        return None if size_mb is None else round(size_mb * 1e6)

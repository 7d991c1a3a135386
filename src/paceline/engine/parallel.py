"""`Parallel`: how a step runs, as one frozen value that checks itself.

Owns: the options of a step and which of them go together.
Invariant: an accepted `Parallel` does what each of its fields says; a combination that could not is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.base.errors import PacelineError, SchemeError

Scheme = Literal["global_view", "per_device", "pmap"]
Precision = Literal["float32", "bfloat16", "float16"]
ReduceDtype = Literal["float32", "bfloat16"]
NonFinite = Literal["stop", "skip"]
DropoutStream = Literal["global", "per_device", "shared"]
BatchNorm = Literal["local", "synced"]
Placement = Literal["replicated", "zero1", "fsdp"]


@dataclass(frozen=True)
class Parallel:
    """How a step runs on K devices.

    Args:
      scheme: `global_view` (jit over sharded arrays), `per_device` (shard_map, one gradient reduction an update) or
        `pmap` (the classic form; its state carries a leading device axis).
      placement: what the devices share instead of each holding a copy: `replicated`, nothing; `zero1`, the optimizer
        state and the moving average; `fsdp`, the parameters too. Leaves that K does not divide stay whole. Not for
        `pmap`.
      accumulation: microbatches n an update accumulates; the global batch must divide by K * n.
      precision: type of the computation. Parameters, optimizer state and sums stay float32. `float16` scales the loss
        dynamically.
      reduce_dtype: type in which gradients cross the wire, for `per_device` and `pmap`; default float32. Under
        `global_view` the compiler chooses.
      clip_norm: clip the mean gradient to this global norm.
      nonfinite: a loss or gradient that is not finite stops the run (`stop`), or that update is left out on all devices
        and counted (`skip`). An overflow of the float16 loss scale is left out under either.
      dropout: `global`: the mask of one device, whatever K, n and scheme; `per_device`: every device draws its own;
        `shared`: all devices draw the same. `global_view` knows only `global`.
      batch_norm: `local` (default of `per_device` and `pmap`): statistics of a device's rows, running mean and variance
        merged as those of the union; `synced`: statistics of all rows. `global_view` is always synced.
      ema_decay: keep an exponential moving average of the parameters.
      donate: let the step reuse the memory of the state that it is given; that state cannot be used afterwards.
      bucket_bytes: gradients of one type are packed into messages of at most so many bytes, the last leaves first; a
        leaf that is larger goes alone. None: one message a leaf. For `per_device` and `pmap` with a replicated state.
      noise_scale: measure what the gradient noise scale is estimated from (see `insight.noise`), for `per_device` and
        `pmap`. It needs two devices, and changes no parameter.
    Raises: SchemeError: a value out of range, or a combination that would not do what it says.
    """

    scheme: Scheme = "global_view"
    accumulation: int = 1
    precision: Precision = "float32"
    reduce_dtype: ReduceDtype | None = None
    clip_norm: float | None = None
    nonfinite: NonFinite = "stop"
    dropout: DropoutStream = "global"
    batch_norm: BatchNorm | None = None
    ema_decay: float | None = None
    donate: bool = True
    placement: Placement = "replicated"
    bucket_bytes: int | None = None
    noise_scale: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        if not isinstance(self.accumulation, int) or self.accumulation < 1:
            raise _out_of_range("accumulation", self.accumulation, "a whole number, 1 or more")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise _out_of_range("clip_norm", self.clip_norm, "above 0")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise _out_of_range("ema_decay", self.ema_decay, "in [0, 1), usually 0.99 to 0.9999")
        if self.scheme == "global_view":
            self._check_global_view()
        if self.bucket_bytes is not None:
            self._check_buckets(self.bucket_bytes)
        if self.scheme == "pmap" and self.placement != "replicated":
            raise SchemeError(
                what=f"placement={self.placement!r} with scheme='pmap'",
                why="there every device holds a full copy of the state by construction",
                fix="use scheme='per_device' or 'global_view', or leave placement out",
            )

    @property
    def synced_batch_norm(self) -> bool:
        """Whether BatchNorm has to be told to reduce over the device axis."""
        return self.batch_norm == "synced" and self.scheme != "global_view"

    def _check_choices(self) -> None:
        choices = {
            "scheme": Scheme,
            "precision": Precision,
            "reduce_dtype": ReduceDtype,
            "nonfinite": NonFinite,
            "dropout": DropoutStream,
            "batch_norm": BatchNorm,
            "placement": Placement,
        }
        for name, kind in choices.items():
            value = getattr(self, name)
            optional = name in ("reduce_dtype", "batch_norm")
            if value not in kind.__args__ and not (optional and value is None):
                raise _out_of_range(name, value, "one of " + ", ".join(kind.__args__))

    def _check_buckets(self, size_bytes: object) -> None:
        if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 1:
            raise _out_of_range("bucket_bytes", size_bytes, "a whole number of bytes, 1 or more")
        if self.placement != "replicated":
            raise SchemeError(
                what=f"bucket_bytes={size_bytes} with placement={self.placement!r}",
                why="there each leaf is reduced to the part that a device keeps, leaf by leaf",
                fix="use placement='replicated', or leave bucket_bytes out",
            )

    def _check_global_view(self) -> None:
        if self.reduce_dtype is not None:
            raise SchemeError(
                what=f"reduce_dtype={self.reduce_dtype!r} with scheme='global_view'",
                why="under jit the compiler decides where it reduces, and with it the type on the wire",
                fix="use scheme='per_device', or leave reduce_dtype out",
            )
        if self.bucket_bytes is not None:
            raise SchemeError(
                what=f"bucket_bytes={self.bucket_bytes} with scheme='global_view'",
                why="under jit the compiler decides where it reduces, and what it packs together",
                fix="use scheme='per_device', or leave bucket_bytes out",
            )
        if self.noise_scale:
            raise SchemeError(
                what="noise_scale=True with scheme='global_view'",
                why="that program sees the whole batch, so there is no gradient of a device to compare with the mean",
                fix="use scheme='per_device', or leave noise_scale out",
            )
        if self.dropout != "global":
            raise SchemeError(
                what=f"dropout={self.dropout!r} with scheme='global_view'",
                why="that program sees the whole batch and no devices, so its masks are those of one device",
                fix="use scheme='per_device', or dropout='global'",
            )
        if self.batch_norm == "local":
            raise SchemeError(
                what="batch_norm='local' with scheme='global_view'",
                why="that program sees the whole batch, so its statistics are those of all rows",
                fix="use scheme='per_device', or leave batch_norm out",
            )


def _out_of_range(name: str, value: object, allowed: str) -> PacelineError:
    return SchemeError(
        what=f"{name}={value!r}",
        why="the step could not be built with that value",
        fix=f"use a value that is {allowed}" if not allowed.startswith("one of") else f"use {allowed}",
    )

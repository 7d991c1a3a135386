"""Equinox's BatchNorm as Paceline runs it: in float32 or wider, over the rows and any device axis.

Owns: a copy of a module with its BatchNorms replaced.
Invariant: one device computes what `eqx.nn.BatchNorm` computes in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

ROW_AXIS = "batch"


def with_wide_norms(module: Any, axis: str | None) -> Any:
    """The module whose BatchNorms reduce over the rows, over the axes that they name, and over `axis`."""

    def replace(node: Any) -> Any:
        return _widened(node, axis) if isinstance(node, eqx.nn.BatchNorm) else node

    return jax.tree.map(replace, module, is_leaf=lambda node: isinstance(node, eqx.nn.BatchNorm))


class _WideBatchNorm(eqx.nn.BatchNorm):
    """In and out in the type of `x`, inside in at least float32: bfloat16 would round the running statistics."""

    def __call__(
        self, x: Array, state: eqx.nn.State, *, key: Array | None = None, inference: bool | None = None
    ) -> tuple[Array, eqx.nn.State]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        inference = self.inference if inference is None else inference
        if self.mode == "ema" and not inference:
            state, inference = self._with_running_values(wide, state), True
        output, state = super().__call__(wide, state, key=key, inference=inference)
        return output.astype(x.dtype), state

    def _with_running_values(self, x: Array, state: eqx.nn.State) -> eqx.nn.State:
        """The state after a step of ``mode="ema"``, which then normalises by its running values, as inference does.

        Equinox's own code sets a constant here, and inside shard_map refuses it: the type of an argument names the
        mesh, that of a constant does not.
        """
        assert self.ema_first_time_index is not None and self.ema_state_index is not None
        first_time, old = state.get(self.ema_first_time_index), state.get(self.ema_state_index)
        inner = tuple(range(1, x.ndim))
        mean = lax.pmean(jnp.mean(x, inner), self.axis_name)
        variance = lax.pmean(jnp.mean(jnp.square(x - jnp.expand_dims(mean, inner)), inner), self.axis_name)
        running = [
            jnp.where(first_time, now, self.momentum * before + (1 - self.momentum) * now)
            for before, now in zip(old, (mean, variance), strict=True)
        ]
        state = state.set(self.ema_state_index, (running[0], running[1]))
        return state.set(self.ema_first_time_index, first_time & False)


def _widened(norm: eqx.nn.BatchNorm, axis: str | None) -> _WideBatchNorm:
    named = tuple(norm.axis_name) if isinstance(norm.axis_name, list | tuple) else (norm.axis_name,)
    fields = {field.name: getattr(norm, field.name) for field in dataclasses.fields(norm)}
    fields["axis_name"] = tuple(dict.fromkeys([ROW_AXIS, *named, *([] if axis is None else [axis])]))
    # The constructor would make new arrays. A copy of a subclass keeps isinstance checks in the user's code true.
    wide = object.__new__(_WideBatchNorm)
    for name, value in fields.items():
        object.__setattr__(wide, name, value)
    return wide

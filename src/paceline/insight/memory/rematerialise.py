"""The same loss with less of its forward pass kept for the backward pass.

Owns: what is kept: results of matrix multiplications and convolutions, dear to compute again; the rest is not.
Invariant: values and gradients are those of the loss as it was.

How much memory it saves only the compiler can say: XLA drops much of what is cheap to compute anew by itself. Measured
for H100: a small convolutional net 14 % less, though JAX counts 70 % fewer bytes between the passes.
"""

from __future__ import annotations

import dataclasses

import jax

from paceline.tasks.task import Task

CODE = "loss = jax.checkpoint(loss, policy=jax.checkpoint_policies.dots_saveable)"
"""What a user writes for it; of a model in layers, around each layer, without a policy, it saves more."""


def rematerialised(task: Task) -> Task:
    """The task, with all but dear results computed again in the backward pass (Chen et al. 2016)."""
    return dataclasses.replace(task, loss=jax.checkpoint(task.loss, policy=jax.checkpoint_policies.dots_saveable))

"""The memory of a step, and what it is made of.

Owns: `StepMemory`: the compiler's numbers split by field with the arithmetic of `insight.memory.accounting`.
Not here: other batch sizes (`insight.memory.model`), what to do about it (`insight.memory.advice`).
Invariant: the parts add up to the peak.

The compiler gives one number for everything between arguments and results. The gradients in it are known: one float32
number a parameter, all of which exist when backward ends, since the update needs their norm. What the block holds
beyond that is called activations and temporaries. It is no sum of activations: XLA reuses the memory of those that
backward is done with for gradients, so the block is what is alive at the worst moment, packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.insight.memory.accounting import FIELDS, Accounting
from paceline.insight.memory.stats import MemoryStats, memory_stats


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one device while a step runs.

    Args:
      arguments: state and batch, also what the program does not use, which the device holds all the same.
      outputs: next state and metrics, without what reuses the memory of arguments.
      temporaries: gradients, activations, constants and the rest.
      waiting: batches that the feed has made ahead.
      expected: the arithmetic, for the split; None if it is not asked for.
      compiler_arguments: what the compiler says of the arguments, for the cross-check; None if it was not asked.
    """

    arguments: int
    outputs: int
    temporaries: int
    waiting: int
    expected: Accounting | None = None
    compiler_arguments: int | None = None

    @property
    def peak(self) -> int:
        """At most so much at once."""
        return self.arguments + self.outputs + self.temporaries + self.waiting

    @property
    def gradients(self) -> int:
        """The part of the temporaries that is gradients; 0 without the arithmetic."""
        return 0 if self.expected is None else min(self.expected.gradients, self.temporaries)

    @property
    def activations(self) -> int:
        """Temporaries beyond the gradients."""
        return self.temporaries - self.gradients

    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; their sum is the peak. Without the arithmetic the arguments are one part."""
        return (self.argument_parts() or {"arguments": self.arguments}) | self.other_parts()

    def argument_parts(self) -> dict[str, int]:
        """The arguments by field, parts of 0 bytes left out; empty without the arithmetic."""
        if self.expected is None:
            return {}
        parts = {words: getattr(self.expected, field) for field, words in FIELDS.items()}
        parts |= {"counters and key": self.expected.counters, "batch": self.expected.batch}
        # Nothing unless the arithmetic is wrong; then the parts still add up, and the difference shows.
        parts["not accounted for"] = self.arguments - self.expected.arguments
        return _present(parts)

    def other_parts(self) -> dict[str, int]:
        """What is no argument, parts of 0 bytes left out."""
        parts = {"gradients": self.gradients, "activations and temporaries": self.activations}
        if self.expected is None:
            parts = {"temporaries": self.temporaries}
        return _present({"outputs": self.outputs, **parts, "batches ahead": self.waiting})


def split_memory(stats: MemoryStats, *, expected: Accounting | None = None, waiting: int = 0) -> StepMemory:
    """The memory of a step from the compiler's numbers.

    Args:
      expected: of the same run.
      waiting: bytes of the batches that wait beside the one in use: prefetch depth times `Accounting.batch`.
    """
    held = max(stats.argument_bytes, expected.arguments if expected else 0)
    return StepMemory(
        held, stats.new_output_bytes, stats.temp_bytes + stats.other_bytes, waiting, expected, stats.argument_bytes
    )


def step_memory(compiled: Any, *, waiting: int, expected: Accounting | None = None) -> StepMemory | None:
    """As `split_memory`, of a `jax.stages.Compiled`; None if the compiler of its devices says nothing."""
    stats = memory_stats(compiled)
    return None if stats is None else split_memory(stats, expected=expected, waiting=waiting)


def _present(parts: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in parts.items() if size}

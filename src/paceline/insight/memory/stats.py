"""What the compiler says a program takes of one device's memory.

Owns: the numbers of `Compiled.memory_analysis`, and which of them is the truth.
Not here: what they are made of (`insight.memory.split`).
Invariant: `allocated_bytes` is what a device must have free for the program to run.

Measured on jax 0.10.2 and 0.12.0, CPU and CUDA targets: a program is given its arguments, its outputs without those
that reuse arguments, and one block for everything else, all for the whole run. The sum of the three is the
`total_allocation_bytes` that jax 0.12 adds, but for constants, which CUDA programs hold too. `peak_memory_in_bytes` is
not that: on the CPU it leaves the block out altogether, and for CUDA it counts what is alive at once (up to 7 % less),
though the block is allocated whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of one device, from the compiler.

    Args:
      argument_bytes: inputs that the program reads; an input that it does not use is no argument of it.
      output_bytes: results, with those that take the place of an argument.
      alias_bytes: results that do.
      temp_bytes: the block for all values in between.
      other_bytes: constants and what else the program brings along.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    other_bytes: int = 0

    @property
    def new_output_bytes(self) -> int:
        """Results that need memory of their own."""
        return max(0, self.output_bytes - self.alias_bytes)

    @property
    def allocated_bytes(self) -> int:
        """All that the program holds while it runs."""
        return self.argument_bytes + self.new_output_bytes + self.temp_bytes + self.other_bytes


def memory_stats(compiled: Any) -> MemoryStats | None:
    """The numbers of a `jax.stages.Compiled`; None if the compiler of its devices gives none."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = MemoryStats(
        found.argument_size_in_bytes, found.output_size_in_bytes, found.alias_size_in_bytes, found.temp_size_in_bytes
    )
    # Constants: in the total of jax 0.12; in 0.10 the peak shows them at least where they outweigh what it leaves out.
    total = max(getattr(found, "total_allocation_bytes", 0), found.peak_memory_in_bytes)
    other = max(found.generated_code_size_in_bytes, total - parts.allocated_bytes, 0)
    return MemoryStats(parts.argument_bytes, parts.output_bytes, parts.alias_bytes, parts.temp_bytes, other)

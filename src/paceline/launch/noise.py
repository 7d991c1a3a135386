"""Lines of libraries that tell a user nothing: they stay in the logs and are not shown.

Owns: which lines, and leaving them out of output that comes in pieces.
Invariant: every other byte passes, in order.
"""

from __future__ import annotations

import re

NOISE = "[Gloo] Rank "
"""How they begin: Gloo's C++ code prints one for each group of devices."""

_START = NOISE.encode()
_LINE = re.compile(rb"^" + re.escape(_START) + rb"[^\n]*\n", re.MULTILINE)


class NoiseFilter:
    """Output without noise. Keeps back the last line while it may still turn out to be noise."""

    def __init__(self) -> None:
        self._kept = b""
        self._within_line = False

    def pass_on(self, output: bytes) -> bytes:
        """What of this output, and of what was kept back, is to be shown now."""
        output = self._kept + output
        self._kept = b""
        begun = output.find(b"\n") + 1 or len(output) if self._within_line else 0
        head, lines = output[:begun], _LINE.sub(b"", output[begun:])
        last = lines[lines.rfind(b"\n") + 1 :]
        if last and (last.startswith(_START) or _START.startswith(last)):
            self._kept, lines = last, lines[: -len(last)]
        if output:
            self._within_line = not self._kept and not output.endswith(b"\n")
        return head + lines

    def rest(self) -> bytes:
        """What was kept back and is no noise, when no more output comes."""
        kept, self._kept, self._within_line = self._kept, b"", False
        return b"" if kept.startswith(_START) else kept

"""What each value of a program depends on, read from its jaxpr without running it.

Owns: the entry to the abstract interpreter.
Not here: labels (`check.values`), the walk (`check.interpreter`), single operations (`check.rules`); what the labels of
inputs should be and what a finding means (`check.replication`, `check.keys`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.check.interpreter import Interpreter
from paceline.check.rules import RULES
from paceline.check.values import Draw, Labels, Value


@dataclass(frozen=True)
class Flow:
    """What the interpreter found.

    Args:
      outputs: one a flat output of the jaxpr.
      draws: every random draw, in the order of the program.
    """

    outputs: list[Value]
    draws: list[Draw]


def flow(jaxpr: Any, labels: Sequence[Labels]) -> Flow:
    """Interpret a jaxpr.

    Args:
      jaxpr: from `jax.make_jaxpr` or `jax.jit(...).trace(...)`.
      labels: of each flat input.
    """
    interpreter = Interpreter(RULES)
    inputs = [Value(given, interpreter.token("input", index)) for index, given in enumerate(labels)]
    return Flow(interpreter.body(jaxpr, inputs), interpreter.draws)

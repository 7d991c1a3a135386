"""How the wall time of a step is divided over its stages, and which of them is the bottleneck.

Owns: shares, the seconds that the model gives, the rule for the bottleneck.
Not here: the model (``program.json`` brings its numbers), the means of the steps (`views.pipeline`).
Invariant: shares sum to 1. Only input is measured apart: communication and update have what the model says of them, and
all that is left of the step is the share of forward and backward.

What is left may be more than the model's own forward and backward: time of the host, of starting kernels, or an error
of the model. `Division.modelled_s` keeps what the model itself says, so that nobody takes the rest for computing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.dashboard.follow.documents import number_in
from paceline.dashboard.follow.words import Words, say

COMPILED = ("forward_backward", "all_reduce", "update")
MUCH_INPUT = 0.10
WORTH_NAMING = 0.05
_EXPLAINED = 0.5


class Division(NamedTuple):
    """Of a mean step.

    Args:
      shares: of the step's wall time by stage; empty if the step's time is not known.
      modelled_s: what the model says of the stages of the compiled step, whatever the clock says; empty without one.
      unexplained: the model's forward and backward is less than half of what is left for it.
    """

    shares: dict[str, float]
    modelled_s: dict[str, float]
    unexplained: bool

    @property
    def is_whole(self) -> bool:
        """Whether the compiled step stands as one, under forward and backward."""
        return "all_reduce" not in self.shares


def divide(program: dict[str, Any] | None, *, step_s: float | None, wait_s: float | None) -> Division:
    """Divide a step of ``step_s`` in which the devices waited ``wait_s`` for input."""
    parts = _parts(program)
    modelled_s = _modelled_s(program, parts)
    if step_s is None or step_s <= 0:
        return Division({}, modelled_s, unexplained=False)
    waits = min(1.0, max(0.0, (wait_s or 0.0) / step_s))
    if not parts:
        return Division({"input": waits, "forward_backward": 1 - waits}, modelled_s, unexplained=False)
    total_s = sum(modelled_s.values())
    compiled_s = (1 - waits) * step_s
    if not 0 < total_s <= compiled_s:
        # The model explains more than there is, or gives shares alone: they divide what there is.
        weights = modelled_s if total_s > 0 else parts
        whole = sum(weights.values())
        shares = {name: (1 - waits) * weight / whole for name, weight in weights.items()}
        return Division({"input": waits, **shares}, modelled_s, unexplained=False)
    others = {name: modelled_s[name] / step_s for name in COMPILED[1:]}
    rest = max(0.0, 1 - waits - sum(others.values()))
    unexplained = modelled_s["forward_backward"] < _EXPLAINED * rest * step_s
    return Division({"input": waits, "forward_backward": rest, **others}, modelled_s, unexplained)


def bottleneck(division: Division, *, process: int | None = None) -> tuple[str, Words] | None:
    """The stage and the reason; None without a step time.

    Args:
      process: whose devices wait for input, if the others wait for them.

    It is ``input`` if the devices wait for more than `MUCH_INPUT` of the step: while a run is steady there is a wait
    only if input is slower than all behind it. Else it is the stage with the largest share; beside forward and
    backward, which should be it, the largest other one is named above `WORTH_NAMING`.
    """
    shares = division.shares
    if not shares:
        return None
    if shares["input"] > MUCH_INPUT:
        key = "bottleneck.input" if process is None else "bottleneck.input_process"
        words = say(key, share=shares["input"], **({} if process is None else {"process": process}))
        return "input", say("bottleneck.rest.unexplained", first=words) if division.unexplained else words
    stage = max(shares, key=lambda name: shares[name])
    if stage != "forward_backward":
        return stage, say(f"bottleneck.{stage}", share=shares[stage])
    form = "whole_step" if division.is_whole else "unexplained" if division.unexplained else stage
    words = say(f"bottleneck.{form}", share=shares[stage])
    other = max((name for name in shares if name != stage), key=lambda name: shares[name])
    if shares[other] > WORTH_NAMING:
        words = say(f"bottleneck.rest.{other}", first=words, share=shares[other])
    return stage, words


def _parts(program: dict[str, Any] | None) -> dict[str, float]:
    """The model's shares of the compiled step; empty if it gives none that make sense."""
    parts = {name: float(number_in(program, "stages", name) or 0.0) for name in COMPILED}
    return parts if all(0 <= part <= 1 for part in parts.values()) and sum(parts.values()) > 0 else {}


def _modelled_s(program: dict[str, Any] | None, parts: dict[str, float]) -> dict[str, float]:
    """Seconds of the stages by the model; empty if ``program.json`` has shares alone."""
    if not parts:
        return {}
    total = sum(parts.values())
    communication_s = number_in(program, "communication_s")
    step_s = number_in(program, "step_s")
    if step_s is None and communication_s and parts["all_reduce"] > 0:  # files of older versions: it follows
        step_s = communication_s * total / parts["all_reduce"]
    if step_s is None or step_s <= 0:
        return {}
    found = {name: step_s * part / total for name, part in parts.items()}
    # The one number for communication, here as in `communication/share` and in comparisons.
    return found if communication_s is None else found | {"all_reduce": max(0.0, float(communication_s))}

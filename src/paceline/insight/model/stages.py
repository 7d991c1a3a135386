"""How a step's time divides into forward and backward, communication, and the update.

Owns: where in a schedule the update begins, and the seconds of each stage.
Not here: the seconds of work and of collectives (`model.step`), the text of programs (`insight.hlo`).
Invariant: the three stages sum to the replay of the whole schedule.

The program's own words tell the stages apart: JAX names what differentiation made, ``jvp(...)`` forward and
``transpose(jvp(...))`` backward. No update can begin before all gradients are there, because whether they are finite is
decided over all of them; so what is scheduled behind the last such piece of work is the update, the norms included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.insight.model.replay import Replay
from paceline.insight.model.step import Setting, play
from paceline.insight.timeline import Collective, Event, Repeat, Start, Timeline, Work, each_collective, each_work

_DIFFERENTIATED = "jvp("
_REDUCING = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class Stages:
    """Seconds of a step by stage.

    Args:
      forward_backward_s: work up to the last gradient; communication that runs beside it slows it.
      all_reduce_s: all communication for which the device waits, whatever its kind.
      update_s: work behind it.
      replay: of the whole schedule.
      basis: how the stages were told apart, in words.
    """

    forward_backward_s: float
    all_reduce_s: float
    update_s: float
    replay: Replay
    basis: str

    @property
    def shares(self) -> dict[str, float] | None:
        """Of the step, summing to 1; None if nothing takes time."""
        seconds = {
            "forward_backward": self.forward_backward_s,
            "all_reduce": self.all_reduce_s,
            "update": self.update_s,
        }
        total_s = sum(seconds.values())
        return {name: part_s / total_s for name, part_s in seconds.items()} if total_s > 0 else None


def divide(setting: Setting, origins: Mapping[str, str]) -> Stages | None:
    """The stages of a step on a machine; None if nothing says where its update begins.

    Args:
      origins: for each instruction, where the user's program made it (`insight.hlo.text.op_names`).
    Raises: as the setting's roofline and cost do.
    """
    whole = play(setting)
    begin, basis = _update_begin(setting.timeline, origins)
    if begin is None:
        return None
    before = play(replace(setting, timeline=setting.timeline[:begin]))
    first_s = min(before.compute_s + before.contention_s, whole.total_s - whole.exposed_s)
    return Stages(first_s, whole.exposed_s, whole.total_s - whole.exposed_s - first_s, whole, basis)


def _update_begin(timeline: Timeline, origins: Mapping[str, str]) -> tuple[int | None, str]:
    """The place behind the last gradient, and how it was found."""

    def made_by_differentiation(event: Event) -> bool:
        return any(_DIFFERENTIATED in origins.get(work.what, "") for work in _works(event))

    def reduces_gradients(event: Event) -> bool:
        return any(
            one.kind in _REDUCING and any(leaf.startswith("params.") for leaf in one.leaves)
            for one in _collectives(event)
        )

    tests: list[tuple[Callable[[Event], bool], str]] = [
        (made_by_differentiation, "the update is what is scheduled behind the last work of differentiation"),
        (reduces_gradients, "the update is what is scheduled behind the last reduction of gradients"),
    ]
    for is_before, words in tests:
        places = [place for place, event in enumerate(timeline) if is_before(event)]
        if places:
            return places[-1] + 1, words
    return None, ""


def _works(event: Event) -> list[Work]:
    return [work for work, _ in each_work((event,))]


def _collectives(event: Event) -> list[Collective]:
    return [one for one, _ in each_collective((event,))] if isinstance(event, (Start, Repeat)) else []

"""From instructions to `insight.timeline.Timeline`: what one device does, in the order of the schedule.

Owns: which instructions are kernels, where collectives begin and end, loops, branches.
Not here: what a kernel costs (`flops`, `traffic`), trip counts (`loops`).
Invariant: as of `insight.timeline`: a `Done` for each `Start`, behind it, in the same body.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

from paceline.insight.hlo.collectives import collective_of, finished_by, read_collective
from paceline.insight.hlo.flops import FlopCounter
from paceline.insight.hlo.groups import Groups
from paceline.insight.hlo.loops import trip_count
from paceline.insight.hlo.text import Computation, Instruction, Module
from paceline.insight.hlo.traffic import kernel_bytes
from paceline.insight.timeline import Collective, Done, Event, Repeat, Start, Timeline, Work, total_work


@dataclass(frozen=True)
class FoundCollective:
    """A collective and where it stands.

    Args:
      collective: as it is in the timeline.
      groups: devices that exchange; None if the program spells them in an unknown form.
      start, done: the instructions; `done` is None if it ends where it begins.
      computation: in which.
    """

    collective: Collective
    groups: Groups | None
    start: Instruction
    done: Instruction | None
    computation: Computation


@dataclass
class TimelineBuilder:
    """Builds the timeline of a module and keeps what it met on the way.

    Attributes, filled by `build`:
      collectives: by the name that they have in the timeline.
      unknown_loops: names of loops whose trip count is not known; each is counted once.
      branches: conditionals of which one branch was taken, as text.
    """

    module: Module
    collectives: dict[str, FoundCollective] = field(default_factory=dict)
    unknown_loops: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)

    @functools.cached_property
    def counter(self) -> FlopCounter:
        """Counts this module's operations, and knows what it could not count."""
        return FlopCounter(self.module)

    def build(self) -> Timeline:
        """The whole program."""
        return self._body(self.module.computations[self.module.entry])

    def _body(self, computation: Computation) -> Timeline:
        events: list[Event] = []
        finishing: dict[str, str] = {}
        for instruction in computation.instructions:
            if instruction.name in finishing:
                events.append(Done(finishing[instruction.name]))
            elif collective_of(instruction, self.module) is not None:
                found = self._collective(instruction, computation)
                events.append(Start(found.collective))
                if found.done is not None and found.collective.asynchronous:
                    finishing[found.done.name] = found.collective.name
                else:
                    events.append(Done(found.collective.name))
            else:
                events.extend(self._compute(instruction, computation))
        return tuple(events)

    def _collective(self, instruction: Instruction, computation: Computation) -> FoundCollective:
        done = finished_by(instruction, computation)
        collective, groups = read_collective(
            instruction, computation=computation, module=self.module, has_done=done is not None
        )
        if collective.name in self.collectives:  # a computation that is called from several places
            many = sum(name.split("#")[0] == collective.name for name in self.collectives)
            collective = Collective(**{**vars(collective), "name": f"{collective.name}#{many + 1}"})
        found = FoundCollective(collective, groups, instruction, done, computation)
        self.collectives[collective.name] = found
        return found

    def _compute(self, instruction: Instruction, computation: Computation) -> Timeline:
        if instruction.opcode == "while":
            return self._loop(instruction, computation)
        if instruction.opcode == "conditional":
            return self._branch(instruction)
        if instruction.opcode == "call":
            return self._called(instruction)
        if instruction.opcode == "async-start":
            return (self._wrapped(instruction),)
        flops, convolutions = self.counter.of(instruction, computation)
        size = kernel_bytes(instruction, computation=computation, module=self.module)
        if not flops and not size:
            return ()
        return (Work(flops, float(size), 1, instruction.name, convolutions),)

    def _called(self, instruction: Instruction) -> Timeline:
        bodies = [self.module.computations[name] for name in instruction.called if name in self.module.computations]
        return tuple(event for body in bodies for event in self._body(body))

    def _loop(self, instruction: Instruction, computation: Computation) -> Timeline:
        times = trip_count(instruction, computation=computation, module=self.module)
        if times is None:
            self.unknown_loops.append(instruction.name)
        body = self.module.computations.get((instruction.attribute("body") or "").lstrip("%"))
        events = () if body is None else self._body(body)
        return (Repeat(1 if times is None else times, events),) if events else ()

    def _branch(self, instruction: Instruction) -> Timeline:
        """The branch with the most work; collectives of the others are forgotten."""
        before = dict(self.collectives)
        built = []
        for name in instruction.called:
            self.collectives = dict(before)
            events = self._body(self.module.computations[name])
            work = total_work(events)
            built.append(((work.total_flops, work.bytes), name, events, self.collectives))
        _, name, events, self.collectives = max(built, key=lambda branch: branch[0])
        if events:
            self.branches.append(f"{instruction.name}: of {len(built)} branches the one with the most work, {name}")
        return events

    def _wrapped(self, instruction: Instruction) -> Work:
        """What an asynchronous computation that is no collective does; counted where it begins."""
        work = total_work(self._called(instruction))
        return replace(work, what=instruction.name)

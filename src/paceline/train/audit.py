"""When a run compares its replicas, and what it does when they differ.

Owns: the options, the order of audits in the loop, the error that stops a run, what the report says of audits.
Not here: the comparison (`check.audit`), the repair (`check.rebroadcast`).
Invariant: an audit is read only once a later step is known to be finished, and at the end; the same steps in every
process, so that all of them stop or repair together.
"""

from __future__ import annotations

import collections
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from paceline.base.errors import OptionError, ProcessError, ReplicaError
from paceline.base.units import format_count
from paceline.check.audit import Audit, Divergence, PendingAudit, start
from paceline.check.rebroadcast import repair
from paceline.telemetry.events import Where
from paceline.telemetry.metrics import AUDIT_COMPARED_LEAVES, AUDIT_DIFFERING_LEAVES
from paceline.telemetry.progress import Progress
from paceline.telemetry.recorder import EventSink

OnDivergence = Literal["stop", "warn", "repair"]


@dataclass(frozen=True)
class AuditOptions:
    """How often replicas are compared, and what follows a difference.

    Args:
      every: updates between audits; one precedes the first update and one follows the last. 0: none at all.
      on_divergence: `stop` with an error, `warn` and go on, or `repair`: copy the state of a device that agrees with
        the majority.
    Raises: OptionError: no whole number or a negative one, or another word.
    """

    every: int = 500
    on_divergence: OnDivergence = "stop"

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 0:
            raise OptionError(
                what=f"audit_every={self.every!r}",
                why="replicas are compared every so many updates",
                fix="use audit_every=1 or more, or 0 to leave audits out",
            )
        if self.on_divergence not in get_args(OnDivergence):
            raise OptionError(
                what=f"on_divergence={self.on_divergence!r}",
                why="nothing would say what follows when replicas differ",
                fix=f"use one of {', '.join(get_args(OnDivergence))}",
            )


@dataclass(frozen=True)
class AuditReport:
    """What the audits of a run came to.

    Args:
      audits: how many.
      differing: how many of them found a difference.
      leaves: leaves of the state that were compared.
      devices: devices that hold them.
      excluded: leaves that were not compared, by name, with the reason.
      differences: what the first of these found, one sentence a leaf, step included.
      repairs: how often the state was repaired.
    """

    audits: int
    differing: int
    leaves: int
    devices: int
    excluded: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    repairs: int = 0

    def __str__(self) -> str:
        times = format_count(self.audits, "audit")
        found = f"{self.differing} found a difference" if self.differing else "equal, bit for bit"
        repaired = f", {format_count(self.repairs, 'repair')}" if self.repairs else ""
        reasons = collections.Counter(self.excluded.values())
        skipped = "".join(f"; {count} not compared: {reason}" for reason, count in reasons.items())
        return f"{times} of {self.leaves} leaves on {self.devices} devices: {found}{repaired}{skipped}"


class _Started(NamedTuple):
    step: int
    audit: PendingAudit


class RunAudits:
    """The audits of one run.

    Args:
      options: how often, and what to do.
      num_devices: K; nothing is audited for 1.
      device_axis: whether the state's leaves are ``[K, ...]`` copies, as under `pmap`.
      donate: whether a repair may reuse the memory of the state.
    """

    def __init__(
        self, options: AuditOptions, *, num_devices: int, device_axis: bool, donate: bool, recorder: EventSink,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.error: ReplicaError | None = None
        self._options = options
        self._every = options.every if num_devices > 1 else 0
        self._device_axis = device_axis
        self._donate = donate
        self._recorder = recorder
        self._progress = progress
        self._pending: deque[_Started] = deque()
        self._started_at: int | None = None
        self._equal_at: int | None = None
        self._repaired_at: int | None = None
        self._count = self._differing = self._repairs = 0
        self._last: Audit | None = None
        self._first_found: tuple[str, ...] = ()

    def begin(self, state: Any, step: int, *, at_once: bool = False) -> None:
        """Audit the state before the first step.

        Args:
          at_once: audit even if audits were left out, and wait: several processes made the state, each from its own
            values.
        Raises: ProcessError: they made different ones.
        """
        if self._every or at_once:
            self._start(state, step)
        if at_once:
            at, pending = self._pending.popleft()
            audit = pending.result()
            self._note(audit, at)
            if audit.divergences:
                raise _different_start(audit.divergences)

    def after_step(self, state: Any, step: int, *, finished: int) -> Any:
        """Read the audits that precede a finished step, start one if it is time; returns the state, perhaps repaired.

        Args:
          finished: last step that is known to be finished.
        """
        state = self._read(state, step, before=finished)
        if self._every and step % self._every == 0 and self.error is None:
            self._start(state, step)
        return state

    def finish(self, state: Any, step: int) -> Any:
        """Audit the last state and wait for all audits; returns the state, perhaps repaired."""
        if self._every and self.error is None:
            self._start(state, step)
        return self._read(state, step, before=step + 1)

    def report(self) -> AuditReport | None:
        """What was found so far; None if nothing was audited."""
        last = self._last
        if last is None:
            return None
        return AuditReport(
            self._count, self._differing, leaves=last.leaves_compared, devices=last.num_devices,
            excluded=last.excluded, differences=self._first_found, repairs=self._repairs,
        )  # fmt: skip

    def notices(self) -> list[str]:
        """What the report should say in words."""
        found = self._first_found
        return [f"replicas differed {found[0]}{_and_more(found)}"] if found else []

    def _start(self, state: Any, step: int) -> None:
        if self._started_at != step:
            self._started_at = step
            self._pending.append(_Started(step, start(state, device_axis=self._device_axis)))

    def _read(self, state: Any, step: int, *, before: int) -> Any:
        while self._pending and self._pending[0].step < before and self.error is None:
            at, pending = self._pending.popleft()
            audit = pending.result()
            self._note(audit, at)
            if audit.divergences:
                state = self._answer(audit, at, state, step)
        return state

    def _note(self, audit: Audit, step: int) -> None:
        self._count += 1
        self._last = audit
        found = tuple(f"after step {step}: {divergence}" for divergence in audit.divergences)
        if found:
            self._differing += 1
            self._first_found = self._first_found or found
            self._progress.message(f"replicas differ {found[0]}{_and_more(found)}")
        else:
            self._equal_at = step
        leaves = len({divergence.leaf for divergence in audit.divergences})
        values = {AUDIT_COMPARED_LEAVES.key: audit.leaves_compared, AUDIT_DIFFERING_LEAVES.key: leaves}
        where = [Where(one.leaf, one.devices, one.processes, one.replicas, one.odd) for one in audit.divergences]
        self._recorder.audit(step, values, text="\n".join(found) or None, where=where)

    def _answer(self, audit: Audit, at: int, state: Any, step: int) -> Any:
        """What the options say: `audit` of step `at` found a difference, and `state` is that after `step`."""
        policy = self._options.on_divergence
        if policy == "warn":
            return state
        if policy == "stop" or at == self._repaired_at:  # a repair that did not hold is not tried again
            self.error = self._stop(audit, at)
            return state
        try:
            state = repair(state, audit, device_axis=self._device_axis, donate=self._donate)
        except ReplicaError as error:
            self.error = self._stop(audit, at)
            self.error.why = f"{error.what}; {error.why}"
            return state
        self._restart(state, step)
        return state

    def _restart(self, state: Any, step: int) -> None:
        """Go on from a repaired state. Audits from before would find the same again; a new one says if it held."""
        self._repairs += 1
        self._repaired_at, self._started_at = step, None
        text = f"replicas repaired after step {step}"
        self._recorder.notice(step, text)
        self._progress.message(text)
        self._pending.clear()
        self._start(state, step)

    def _stop(self, audit: Audit, step: int) -> ReplicaError:
        found = audit.divergences
        since = "" if self._equal_at is None else f" and were equal after step {self._equal_at}"
        repairable = self._options.on_divergence == "stop" and all(divergence.odd for divergence in found)
        choice = (
            "go on with --on-divergence repair (in Python fit(on_divergence='repair')), which copies the state of a "
            "device that agrees with the majority"
            if repairable
            else "go back to a state from before the difference"
        )
        return ReplicaError(
            what=f"replicas differ after step {step}{since}: {found[0]}{_and_more(found)}",
            why="the devices no longer train one model: each adds gradients of other parameters to the mean",
            fix=f"{choice}; if it comes again, have the memory of that device checked, and look in the step for values "
            "that depend on the device",
        )


def _different_start(found: Sequence[Divergence]) -> ProcessError:
    names = list(dict.fromkeys(divergence.leaf for divergence in found))
    leaves = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    processes = ", ".join(map(str, sorted({process for divergence in found for process in divergence.processes})))
    odd = all(divergence.odd for divergence in found)
    where = f"in process {processes} from the others" if odd else f"between processes {processes}"
    return ProcessError(
        what=f"the processes begin with different states: {leaves} differs {where}",
        why="each would train a model of its own on gradients that all of them share",
        fix="make parameters and model state from the seed and from the same files in every process: no unseeded "
        "random "
        "numbers, no clock, no process index",
    )


def _and_more(found: Sequence[object]) -> str:
    return f", and {format_count(len(found) - 1, 'more difference')}" if len(found) > 1 else ""

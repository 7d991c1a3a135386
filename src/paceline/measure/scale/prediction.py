"""What `paceline plan` predicted, to stand beside what is measured.

Owns: reading the JSON file of a plan, which of its points may stand beside a measurement, how the two differ.
Not here: predicting (`insight.plan`).
Invariant: a prediction stands only beside as many rows a device as it was made for, and a predicted efficiency only
beside one that is measured against the same; a file that holds no curve, or the plan of another task, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.base.errors import DeviceError, OptionError
from paceline.engine.parallel import Parallel
from paceline.insight.hardware.devices import find_device
from paceline.measure.scale.rounds import Setting

_COMPARED = ("scheme", "precision", "placement", "accumulation", "reduce_dtype", "bucket_bytes", "batch_norm")
_FIX = "write it with paceline plan TASK --on MACHINE --json FILE"


@dataclass(frozen=True)
class Prediction:
    """One point of the curve of a plan.

    Args:
      samples_per_s: S_K.
      efficiency, efficiency_low, efficiency_high: E_K with its interval, as shares; None if the plan has none, or none
        against the same baseline.
    """

    samples_per_s: float
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None


@dataclass(frozen=True)
class Planned:
    """A plan.

    Args:
      machine: that it is for, in words.
      rows_per_device: rows of a device in a step.
      curve: by number of devices.
      parallel: the options of its step.
      target: recipe or file; None if the file does not say.
      task_options: those of the task; None if the file does not say.
    """

    machine: str
    rows_per_device: int
    curve: Mapping[int, Prediction]
    parallel: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None
    task_options: Mapping[str, Any] | None = None

    def at(self, setting: Setting, *, one: Setting) -> Prediction | None:
        """What it says of a setting; None if it has no such number of devices, or other rows for each.

        Args:
          one: the setting of one device that E_K is measured against. That of the plan is against as many rows a
            device; where `one` has others (strong scaling), the efficiency is left out.
        """
        found = self.curve.get(setting.devices)
        if found is None or setting.batch != self.rows_per_device * setting.devices:
            return None
        if one.batch != self.rows_per_device:
            return Prediction(found.samples_per_s, None, None, None)
        return found

    def check_target(self, target: str) -> None:
        """Raise OptionError for the plan of another task. Files of one name count as one task."""
        if self.target is None or Path(self.target).name == Path(target).name:
            return
        raise OptionError(
            what=f"--plan is of task {self.target!r}, and {target!r} is measured",
            why="the two have nothing to do with each other",
            fix=f"write a plan of this task with paceline plan {target} --on MACHINE --json FILE",
        )

    def differences(
        self, settings: list[Setting], *, parallel: Parallel, kind: str, task_options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """How what is measured differs from what was planned, as sentences.

        Args:
          settings: that are measured.
          kind: of the devices, as JAX names it; ``cpu`` for simulated ones.
        """
        own = {name: getattr(parallel, name) for name in _COMPARED if name in self.parallel}
        other = {name: self.parallel[name] for name in own if self.parallel[name] != own[name]}
        notes = [f"{name} {_said(other[name])} there, {_said(own[name])} here" for name in other]
        if self.task_options is not None:
            notes += [
                f"{name} {self.task_options[name]!r} there, {value!r} here"
                for name, value in task_options.items()
                if name in self.task_options and self.task_options[name] != _as_json(value)
            ]
        if not self._is_for(kind):
            notes.append(f"the devices there are others than here ({kind})")
        if notes:
            notes = [f"the plan is of something else: {'; '.join(notes)}"]
        missing = [setting for setting in settings if setting.batch != self.rows_per_device * setting.devices]
        if missing:
            notes.append(
                f"the plan has {self.rows_per_device:,} rows a device, so it says nothing of "
                + ", ".join(f"K = {setting.devices} with batch {setting.batch:,}" for setting in missing)
            )
        return tuple(notes)

    def _is_for(self, kind: str) -> bool:
        if kind == "cpu":
            return "this CPU" in self.machine
        try:
            return self.machine.endswith(f" x {find_device(kind).name}")
        except DeviceError:  # a device that no plan can be for
            return False


def read_plan(path: str) -> Planned:
    """What ``paceline plan --json`` wrote.

    Raises: OptionError: it cannot be read, is no JSON, or holds no curve.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            what=f"--plan {path}: {error.strerror}", why="there is no prediction to compare with", fix=_FIX
        ) from error
    except ValueError as error:
        raise OptionError(
            what=f"--plan {path} holds no JSON", why="there is no prediction to compare with", fix=_FIX
        ) from error
    try:
        return _planned(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise OptionError(
            what=f"--plan {path} holds no predicted curve (plan.curve, plan.machine and plan.rows_per_device)",
            why="there is no prediction to compare with",
            fix=_FIX,
        ) from error


def _planned(document: Any) -> Planned:
    plan, config = document["plan"], document.get("config", {})
    curve = {int(point["devices"]): _prediction(point) for point in plan["curve"]}
    if not curve:
        raise ValueError("no point")
    return Planned(
        str(plan["machine"]), int(plan["rows_per_device"]), curve, dict(plan.get("parallel", {})),
        config.get("target"), config.get("recipe"),
    )  # fmt: skip


def _prediction(point: Mapping[str, Any]) -> Prediction:
    def share(name: str) -> float | None:
        value = point.get(name)
        return None if value is None else float(value)

    return Prediction(
        float(point["samples_per_s"]), share("efficiency"), share("efficiency_low"), share("efficiency_high")
    )


def _said(value: Any) -> str:
    return "unset" if value is None else repr(value)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

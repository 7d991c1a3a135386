"""The last numbers of all runs in the text format of Prometheus.

Owns: names, labels, escaping, the order of lines.
Not here: the numbers (`dashboard.views`), HTTP (`serve.app`).
Invariant: each metric has its HELP and TYPE once and its samples together; a name is legal whatever a task called it.

A metric key ``train/loss`` becomes ``paceline_train_loss``; a key of a task's own, which may hold anything, keeps its
spelling in the label ``key`` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from paceline.dashboard.follow.health import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_READ_HELP = "part of the run's events that is read; before that, metrics are those of its newest step"
STATES: tuple[str, ...] = get_args(State)

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9]*/[a-z][a-z0-9_]*")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


@dataclass
class _Family:
    help: str
    samples: list[str] = field(default_factory=list)


class _Page:
    """Samples, put together by the name of their metric."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, name: str, value: Any, *, labels: Mapping[str, str], help_text: str) -> None:
        """One sample; none for a value that is not there."""
        if value is None:
            return
        family = self._families.setdefault(name, _Family(help_text))
        shown = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels.items())
        number = _SPECIAL.get(value, value) if isinstance(value, str) else value
        family.samples.append(f"{name}{{{shown}}} {number}")

    def text(self) -> str:
        """The whole page."""
        lines: list[str] = []
        for name, family in self._families.items():
            lines += [f"# HELP {name} {_escape_help(family.help)}", f"# TYPE {name} gauge", *family.samples]
        return "".join(line + "\n" for line in lines)


def render(runs: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], *, now_s: float) -> str:
    """All gauges.

    Args:
      runs: of each run its summary, and its metrics as ``/api/run`` gives them.
      now_s: Unix time [s].
    """
    page = _Page()
    for summary, metrics in runs:
        labels = {"run": str(summary["id"])}
        for state in STATES:
            in_it = int(summary["state"] == state)
            page.add(
                "paceline_state", in_it, labels=labels | {"state": state}, help_text="1 for the run's state, else 0"
            )
        updated_s = summary["updated_s"]
        age_s = None if updated_s is None else max(0.0, now_s - updated_s)
        page.add("paceline_step", summary["step"], labels=labels, help_text="updates completed")
        page.add("paceline_steps", summary["steps"], labels=labels, help_text="updates that the run is to make")
        page.add("paceline_last_event_age_seconds", age_s, labels=labels, help_text="time since the run's last event")
        read = summary["read"]
        share = read["bytes"] / read["of_bytes"] if read["of_bytes"] else None
        page.add("paceline_events_read_ratio", share, labels=labels, help_text=_READ_HELP)
        for metric in metrics:
            name, own = _name(metric["key"], process=metric["process"])
            page.add(name, metric["last"], labels=labels | own, help_text=metric.get("description") or metric["key"])
    return page.text()


def _name(key: str, *, process: int | None) -> tuple[str, dict[str, str]]:
    """The metric's name and the labels that its key adds. A key may hold an ``@`` and belong to no process."""
    base, labels = key, {}
    if process is not None:
        base, labels = key.removesuffix(f"@{process}"), {"process": str(process)}
    if not _PLAIN_KEY.fullmatch(base):
        labels["key"] = base
    return "paceline_" + _NO_NAME.sub("_", base), labels


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")

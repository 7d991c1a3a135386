"""The source check as one call: the user's file and what it imports from its folder.

Owns: the order of findings: by file, then by line.
Invariant: the file is never run.
"""

from __future__ import annotations

from pathlib import Path

from paceline.base.units import format_count
from paceline.doctor.finding import Finding
from paceline.doctor.source.files import read_project
from paceline.doctor.source.gradients import gradient_findings
from paceline.doctor.source.keys import key_findings
from paceline.doctor.source.late import late_settings
from paceline.doctor.source.loops import loop_findings
from paceline.doctor.source.removed import removed_names


def check_source(path: str | Path, *, devices: int | None = None) -> list[Finding]:
    """What is wrong with a file and the modules beside it that it imports, read without running them.

    Args:
      path: of a Python file.
      devices: K of the run, for keys that are split by number; None leaves those unchecked.
    Returns: findings by file and line; one ``ok`` finding that says what was read if there is nothing else.
    """
    project, unreadable = read_project(path)
    found = [finding for file in project.files.values() for finding in (*removed_names(file), *late_settings(file))]
    found += [*gradient_findings(project), *loop_findings(project), *key_findings(project, devices=devices)]
    order = {file.path: number for number, file in enumerate(project.files.values())}
    found = sorted(found, key=lambda finding: (order[finding.file or ""], finding.line or 0))
    if found or unreadable:
        return [*unreadable, *found]
    lines = sum(len(file.tree.body) > 0 for file in project.files.values())
    return [Finding("source", "ok", f"{format_count(lines, 'file')} read: no name that is gone, no known mistake")]

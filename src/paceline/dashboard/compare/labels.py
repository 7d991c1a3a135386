"""What subjects are called: the shortest end of each path that no other has, as editors name their tabs.

Owns: the labels.
Not here: names that a subject was given (`serve` calls runs by their ids).
Invariant: labels are unique; the same subjects in another order have the same labels, but for one that is there twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from paceline.dashboard.compare.subject import Subject
from paceline.telemetry.folder import RUN_FILE


def labels_of(subjects: Sequence[Subject]) -> list[str]:
    """One label a subject: its name, or the end of its path; one that is there twice is numbered."""
    paths = [_parts(one) for one in subjects]
    plain = [one.name or _end(path, paths) for one, path in zip(subjects, paths, strict=True)]
    labels: list[str] = []
    for label in plain:
        numbered = (f"{label} ({number})" for number in count(2))
        labels.append(label if label not in labels else next(one for one in numbered if one not in {*labels, *plain}))
    return labels


def _parts(subject: Subject) -> tuple[str, ...]:
    """The folder of a run, or the file, from the root on; links are not followed, since people know their names."""
    path = Path(os.path.abspath(os.path.expanduser(subject.path)))
    return (path.parent if subject.kind == "run" and path.name == RUN_FILE else path).parts


def _end(path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> str:
    others = {other for other in paths if other != path}
    for length in range(1, len(path)):
        end = path[-length:]
        if all(other[-length:] != end for other in others):
            return "/".join(end)
    return str(Path(*path))

"""From the path that a user gives to the checkpoints that it means.

Owns: the run's folder, the folder of checkpoints, one step's folder, an item that Orbax wrote for other code; and what
to say when it is none of these.
Not here: whether a checkpoint is sound (`checkpoint.reading`).
Invariant: nothing is opened but for names, and one small file to tell ours from others'.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from paceline.base.errors import CheckpointError
from paceline.checkpoint import files
from paceline.checkpoint.arrays import MARK

_METADATA = "_METADATA"
_ITEMS = ("", "default", "state", "item", "params", "model")
_RUNS_NAMED = 3


@dataclass(frozen=True)
class Candidate:
    """A folder that may hold a checkpoint.

    Args:
      step: by its name; None if the name is no number.
      path: of the step's folder, or of a half-written one.
      foreign: path of the Orbax item, if other code wrote it.
      half: written only in part, by its name.
    """

    step: int | None
    path: Path
    foreign: Path | None = None
    half: bool = False

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step}" if self.step is not None else f"the checkpoint {str(self.path)!r}"


def candidates(path: str | os.PathLike[str], *, step: int | None) -> list[Candidate]:
    """What may be restored from a path, the best choice first.

    Args:
      path: folder of a run, of its checkpoints or of one step; or an Orbax checkpoint of other code.
      step: only this one.

    Raises: CheckpointError: the path holds no checkpoint, or not that step.
    """
    place = Path(os.path.expanduser(path)).absolute()
    if not place.is_dir():
        raise _no_folder(place)
    if (place / files.DOCUMENT).exists() or _orbax_item(place) is not None:
        return [_only(place, step)]
    folder = place / "checkpoints" if (place / "checkpoints").is_dir() else place
    found = [_candidate(number, item) for number, item in files.step_folders(folder).items()]
    found += [
        Candidate(int(rest.stem), rest, half=True) for rest in files.leftovers(folder) if rest.suffix == ".saving"
    ]
    if not found:
        raise _none_inside(place, folder)
    if step is not None:
        chosen = [one for one in found if one.step == step and not one.half]
        if not chosen:
            raise _no_step(folder, step)
        return chosen
    return sorted(found, key=lambda one: (one.step or 0, not one.half), reverse=True)


def _only(place: Path, step: int | None) -> Candidate:
    number = int(place.name) if place.name.isdecimal() else None
    if step is not None and number is not None and step != number:
        raise _no_step(place, step)
    return _candidate(number, place)


def _candidate(step: int | None, path: Path) -> Candidate:
    item = None if (path / files.DOCUMENT).exists() else _orbax_item(path)
    return Candidate(step, path, foreign=None if item is None or _is_ours(item) else item)


def _orbax_item(path: Path) -> Path | None:
    return next((path / name for name in _ITEMS if (path / name / _METADATA).is_file()), None)


def _is_ours(item: Path) -> bool:
    try:
        content = json.loads((item / _METADATA).read_bytes())
        return content.get("custom_metadata") == MARK
    except (OSError, ValueError, AttributeError):
        return False


def _no_folder(place: Path) -> CheckpointError:
    if place.is_file():
        weights = place.suffix == ".safetensors"
        return CheckpointError(
            what=f"{str(place)!r} is a file, not a folder of checkpoints",
            why="a checkpoint is a folder: it holds the whole state of a run",
            fix=f"read weights with paceline.import_weights({str(place)!r}, like=state.params)"
            if weights
            else f"name the folder of the run, perhaps {str(_run_above(place))!r}",
        )
    nearest = next(parent for parent in place.parents if parent.is_dir())
    runs = _runs(nearest)
    return CheckpointError(
        what=f"no checkpoint at {str(place)!r}: there is no such folder",
        why="there is nothing to go on from",
        fix=f"name the folder of a run, such as {str(runs[-1])!r}" if runs else "name the folder that the run printed",
    )


def _run_above(place: Path) -> Path:
    for parent in place.parents:
        if (parent / "checkpoints").is_dir() or files.step_folders(parent):
            return parent
    return place.parent


def _none_inside(place: Path, folder: Path) -> CheckpointError:
    runs = _runs(place)
    if runs:
        shown = ", ".join(repr(str(run)) for run in runs[-_RUNS_NAMED:])
        return CheckpointError(
            what=f"{str(place)!r} holds runs, not checkpoints",
            why="it is not said which run to go on from",
            fix=f"name one run: {shown}",
        )
    is_run = folder != place or (place / "run.json").exists()
    return CheckpointError(
        what=f"no checkpoint in {str(folder)!r}" + (": the run saved none" if is_run else ""),
        why="there is nothing to go on from",
        fix="begin the run anew, with --checkpoint-every to save" if is_run else "name the folder that the run printed",
    )


def _no_step(folder: Path, step: int) -> CheckpointError:
    there = files.steps(folder) or files.steps(folder.parent)
    return CheckpointError(
        what=f"no checkpoint of step {step} in {str(folder)!r}",
        why="it was never saved, or deleted when newer ones were kept",
        fix=f"choose one that is there: {', '.join(str(one) for one in there)}" if there else "name another folder",
    )


def _runs(place: Path) -> list[Path]:
    """Folders of runs with checkpoints, directly inside, the newest last."""
    try:
        inside = [child for child in place.iterdir() if (child / "checkpoints").is_dir()]
        return sorted(inside, key=lambda child: child.stat().st_mtime)
    except OSError:
        return []

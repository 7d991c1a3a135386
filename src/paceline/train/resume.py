"""Going on from a checkpoint.

Owns: what `resume` may be, the choice of the checkpoint, the state from it in the form of the run's scheme.
Not here: reading (`checkpoint.reading`), the test that it is the same run (`train.checkpoints.RunIdentity`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.base.errors import CheckpointError, OptionError
from paceline.checkpoint.files import step_folders
from paceline.checkpoint.reading import read_meta
from paceline.checkpoint.restore import restore_kept
from paceline.engine.placement import is_placed
from paceline.engine.state import TrainState, drop_device_axis
from paceline.engine.update import StepSpec
from paceline.telemetry.folder import RUN_FILE
from paceline.topology.processes import Processes

Resume = bool | int | Literal["auto"]
"""False: a new run. True: the latest sound checkpoint of the run folder. A number: that step. ``auto``: as True if
the folder holds a run, and a new run else, or if it holds no checkpoint yet."""


@dataclass(frozen=True)
class Resumed:
    """A run that goes on.

    Args:
      state: as the scheme keeps it.
      meta: what was saved with it.
      step: of the checkpoint.
      said: what the user should know, such as a damaged checkpoint that was passed over.
    """

    state: TrainState
    meta: dict[str, Any]
    step: int
    said: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """Updates of this run before the checkpoint."""
        return self.step - int(self.meta["run"]["started_at"])


def resume(
    state: TrainState,
    run: str | os.PathLike[str] | None,
    *,
    how: Resume,
    spec: StepSpec,
    processes: Processes,
) -> Resumed | None:
    """The state to go on from, or None for a new run.

    Args:
      state: a new one, as the scheme keeps it: its structure, its place.
      run: the run folder.
    Raises: OptionError: no run folder, or another word. CheckpointError: nothing to go on from, or of another model.
    """
    if how is False:
        return None
    _check(run, how)
    folder = Path(os.path.expanduser(run or ""))
    if how == "auto" and processes.by_first("resume", lambda: str(_holds_checkpoints(folder))) == "False":
        return None
    said: list[str] = []
    step = None if how is True or how == "auto" else int(how)
    try:
        restored = restore_kept(
            folder, like=state, step=step, say=said.append,
            agree=lambda sound: all(text == "1" for text in processes.exchange("sound", str(int(sound)))),
        )  # fmt: skip
    except CheckpointError as error:
        _check_task(folder, step, task=spec.task.name, error=error)
        raise
    if "run" not in restored.meta:
        raise CheckpointError(
            what=f"the checkpoint of step {restored.step} in {str(folder)!r} was not saved by a run",
            why="it does not say which rows were seen, so the run could not go on where it stopped",
            fix="read it with paceline.restore and begin a new run with that state",
        )
    return Resumed(restored.state, restored.meta, restored.step, tuple(said))


def _check_task(folder: Path, step: int | None, *, task: str, error: CheckpointError) -> None:
    """Raise CheckpointError if the checkpoint that does not fit is that of another task, which says more than its
    leaves."""
    try:
        latest = max(step_folders(folder / "checkpoints")) if step is None else step
        saved = read_meta(folder, latest)["run"]["task"]
    except (CheckpointError, KeyError, ValueError):
        return
    if saved != task:
        raise CheckpointError(
            what=f"the checkpoints in {str(folder)!r} are of the task {saved!r}, and this one is {task!r}: "
            f"{error.what}",
            why="a run goes on with the task that it began with",
            fix="name the folder of a run of this task with --run, or leave --resume out",
        ) from error


def _check(run: object, how: object) -> None:
    if run is None:
        raise OptionError(
            what=f"resume={how!r} without a run folder",
            why="the checkpoints lie in it",
            fix="pass run=, the folder of the run to go on with",
        )
    if how is not True and how != "auto" and not (isinstance(how, int) and how >= 0):
        raise OptionError(
            what=f"resume={how!r}",
            why="it says which checkpoint to go on from",
            fix="use True for the latest, the number of a step, or 'auto' to begin anew if there is none",
        )


def _holds_checkpoints(folder: Path) -> bool:
    """Whether a run lies there that has saved something: one that was killed in its first save has not."""
    return (folder / RUN_FILE).is_file() and bool(step_folders(folder / "checkpoints"))


def single_to_save(spec: StepSpec) -> Callable[[TrainState], TrainState]:
    """What is saved of a state: without the device axis of `pmap`, split leaves as they are."""
    if spec.parallel.scheme == "pmap" or not is_placed(spec.parallel, spec.mesh):
        return lambda state: drop_device_axis(state, parallel=spec.parallel, mesh=spec.mesh)
    return lambda state: state

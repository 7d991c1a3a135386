"""Where a run writes: its folder, its recorder, its store of checkpoints.

Owns: making or taking them for a run, and taking the folder away again after a run without a step.
Not here: what lies in the folder (`telemetry.folder`), when a state is saved (`train.checkpoints`).
Invariant: process 0 makes the folder, the others see the same one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from paceline.base.errors import RunFolderError
from paceline.checkpoint.store import Store
from paceline.telemetry.exporters.fanout import check_exporters, open_recorder
from paceline.telemetry.folder import RUN_FILE, RunFolder
from paceline.telemetry.progress import Progress
from paceline.telemetry.recorder import EventSink
from paceline.topology.processes import processes
from paceline.train.checkpoints import Checkpoints
from paceline.train.options import FitOptions


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a run lies there."""
    return os.path.isfile(os.path.join(os.path.expanduser(path), RUN_FILE))


def run_folder(
    options: FitOptions, document: Mapping[str, Any], *, is_resumed: bool, stack: ExitStack
) -> RunFolder | None:
    """The run folder, made or taken by process 0 for itself, with ``run.json``; None if none was asked for."""
    run = options.run
    if run is None:
        return None

    def make() -> str:
        check_exporters(options.exporters, run)
        there = is_resumed or (options.resume == "auto" and is_run(run))
        folder = RunFolder.open(run) if there else RunFolder.create(run)
        stack.enter_context(folder.taken())
        if document["counts"]["steps"] != 0:  # a run that has made all of its steps stays what it was
            folder.write_run(document)
        return str(folder.path)

    path = processes().by_first("run folder", make)
    try:
        return RunFolder.open(path)
    except RunFolderError as error:
        raise RunFolderError(
            what=f"process {processes().index} does not see the run folder {path!r} that process 0 made: {error.what}",
            why="events and checkpoints of all processes lie in it",
            fix="choose a folder on a file system that all machines share, with --run",
        ) from error


def run_recorder(
    folder: RunFolder | None, options: FitOptions, *, document: Mapping[str, Any], progress: Progress
) -> EventSink:
    """Of this process; of a run without a folder one that keeps nothing. Process 0 logs to exporters too.

    What it warns of stands among the messages of a run that shows its progress; else it is a warning of Python.
    """
    index, first_step = processes().index, document["counts"]["first_step"]
    warn = None if index or options.progress == "none" else progress.message
    return open_recorder(
        folder, process=index, first_step=first_step, log_to=options.exporters, run=document, warn=warn
    )


@contextlib.contextmanager
def run_store(options: Checkpoints | None, *, folder: RunFolder | None, progress: Progress) -> Iterator[Store | None]:
    """The checkpoints of the run, closed behind it; None if there are none."""
    if options is None or folder is None:
        yield None
        return
    store = Store(folder.checkpoints, keep=options.keep, best=options.best, say=progress.message)
    try:
        yield store
    except BaseException:
        # The others may be gone: a save that waits for them is given up. Alone, what was begun is finished.
        store.close(give_up=processes().several)
        raise
    store.close()


@contextlib.contextmanager
def discarding(folder: RunFolder | None, recorder: EventSink) -> Iterator[None]:
    """Take the run folder away again if what is inside fails: no step was made, and the next try may use the path."""
    try:
        yield
    except BaseException:
        recorder.close()
        if folder is not None and processes().index == 0:
            folder.discard()
        raise

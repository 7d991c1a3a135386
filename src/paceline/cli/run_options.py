"""The options of every run.

Owns: names, defaults and help of the flags of `paceline train`, and what they mean for the engine and the trainer.
Not here: reading them (`cli.options`), a recipe's own options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import tyro

from paceline.base.errors import OptionError
from paceline.cli.step_options import StepOptions
from paceline.data.batch import Remainder
from paceline.telemetry.progress import Mode
from paceline.train.audit import OnDivergence
from paceline.train.checkpoints import Checkpoints, OnSaveFailure
from paceline.train.resume import Resume

_EVERY = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)?")
_MINUTES = {"s": 1 / 60, "min": 1.0, "h": 60.0}


@dataclass(frozen=True)
class RunOptions(StepOptions):
    """Options of every run.

    Args:
      epochs: passes over the data (default: the recipe's).
      steps: updates to make, instead of epochs.
      devices: number of devices (default: all that are visible).
      simulate: simulate so many CPU devices on this machine.
      remainder: what to do with rows that do not fill a batch.
      shuffle: a new order of rows in each epoch.
      evaluate_every: updates between evaluations (default: one an epoch).
      audit_every: updates between comparisons of the state on all devices; 0 leaves them out.
      on_divergence: what to do when devices do not hold the same state.
      seed: of parameters, data order and dropout.
      checkpoint_every: updates between checkpoints (500), or time (10min, 90s, 2h); end: only at the end and at a
        signal; off: none.
      keep: checkpoints that stay, the last ones.
      keep_best: metric by which the best checkpoint stays too, such as evaluate/loss.
      on_save_failure: what follows a checkpoint that could not be saved: an error at the end, or a notice.
      resume: go on in the folder of --run from its latest checkpoint, or from that of a step; auto begins anew if there
        is none.
      weights: begin with the parameters of a safetensors file.
      run: folder of the run (default: runs/NAME-TIME); it must not exist, unless the run resumes.
      progress: what the terminal shows.
      log_to: log to tensorboard, wandb, mlflow too; several with commas between, or the option several times.
      watch: show the run on a live page while it goes on (as paceline watch does).
      json: write the report to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      compilation_cache: folder that keeps compiled programs between runs.
      max_restarts: with --processes: start all again after a failure, at most so often.
      processes: start so many processes on this machine and train on the devices of all (as paceline launch does).
      coordinator: host:port of process 0, if nothing else says so.
      num_processes: how many processes train together.
      process_index: which of them this one is.
      devices_per_process: GPUs of a process, or CPU devices that it simulates.
      join_timeout: seconds to wait for the other processes at the start.
      peer_timeout: seconds without a sign of another process after which it is given up.
      traceback: show Python's traceback for errors.
    """

    epochs: int | None = None
    steps: int | None = None
    devices: int | None = None
    simulate: int | None = None
    remainder: Remainder = "drop"
    shuffle: bool = True
    evaluate_every: int | None = None
    audit_every: int = 500
    on_divergence: OnDivergence = "stop"
    checkpoint_every: int | str = "10min"
    keep: int = 3
    keep_best: str | None = None
    on_save_failure: OnSaveFailure = "fail"
    resume: bool | int | str | None = None
    weights: str | None = None
    seed: int = 0
    run: str | None = None
    progress: Mode = "auto"
    log_to: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    watch: bool = False
    json: str | None = None
    config: str | None = None
    compilation_cache: str | None = None
    processes: int | None = None
    max_restarts: int = 0
    coordinator: str | None = None
    num_processes: int | None = None
    process_index: int | None = None
    devices_per_process: int | None = None
    join_timeout: float = 60.0
    peer_timeout: float = 30.0
    traceback: bool = False

    def checkpoints(self) -> Checkpoints | None:
        """When the run saves; None: never.

        Raises: OptionError: ``--checkpoint-every`` is neither updates nor time, a number below 1.
        """
        every, minutes = _every(str(self.checkpoint_every))
        if self.checkpoint_every == "off" and self.keep_best is not None:
            raise OptionError(
                what=f"--keep-best {self.keep_best} with --checkpoint-every off",
                why="no checkpoint is saved that could be kept",
                fix="use --checkpoint-every end to save the evaluated states, the last one and at a signal",
            )
        options = Checkpoints(every, minutes, keep=self.keep, best=self.keep_best, on_failure=self.on_save_failure)
        return None if self.checkpoint_every == "off" else options

    def resumes(self) -> Resume:
        """Where the run goes on from. Raises: OptionError: neither a step nor one of the words."""
        if self.resume is None or self.resume is False:
            return False
        if self.resume is True or self.resume == "latest":
            return True
        if self.resume == "auto":
            return "auto"
        if str(self.resume).isdigit():
            return int(self.resume)
        raise OptionError(
            what=f"--resume {self.resume}",
            why="it says which checkpoint to go on from",
            fix="use --resume for the latest, --resume 400 for that of step 400, or --resume auto to begin anew if "
            "there is none",
        )


def _every(text: str) -> tuple[int | None, float | None]:
    """Updates, or minutes, between checkpoints."""
    if text in ("off", "end"):
        return None, None
    found = _EVERY.fullmatch(text.strip())
    if found is None or not float(found[1]) or (not found[2] and "." in found[1]):
        raise OptionError(
            what=f"--checkpoint-every {text}",
            why="a run saves every so many updates, or after so much time",
            fix="use a number of updates such as 500, a time such as 90s, 10min or 2h, end, or off",
        )
    return (None, float(found[1]) * _MINUTES[found[2]]) if found[2] else (int(found[1]), None)

"""`Trainer`: a task, an optimizer and devices, joined.

Owns: the public methods and what they share (mesh, compiled programs).
Not here: the loop (`train.loop`), the step (`engine`), batches (`data`).
Invariant: one trainer compiles one program for each shape of batch, over all its calls.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from paceline.base.errors import DeviceError, SchemeError, StateError
from paceline.check.replication import check_step
from paceline.data.batch import Remainder
from paceline.data.feed import Feed
from paceline.engine.evaluation import EvaluationFunction
from paceline.engine.metrics import StepMetrics
from paceline.engine.parallel import Parallel
from paceline.engine.placement import param_shardings, state_shardings
from paceline.engine.state import (
    TrainState,
    add_device_axis,
    check_context,
    check_state,
    drop_device_axis,
    initial,
    new_state,
    place_state,
)
from paceline.engine.step import StepFunction
from paceline.engine.update import Schedule, StepSpec, check_task
from paceline.engine.usercode import user_code
from paceline.tasks.task import Task
from paceline.telemetry.progress import Mode
from paceline.topology.devices import choose_devices
from paceline.topology.mesh import data_mesh, put, replicated
from paceline.topology.processes import processes
from paceline.train.agreement import agree
from paceline.train.audit import AuditOptions, OnDivergence
from paceline.train.batching import DataOptions, Start, refuse_padding
from paceline.train.checkpoints import Checkpoints
from paceline.train.evaluate import Evaluation, Evaluator
from paceline.train.facts import program_facts
from paceline.train.fit import Fit, scalar
from paceline.train.loop import Callback
from paceline.train.options import FitOptions
from paceline.train.place import PlacedBatch, Placer
from paceline.train.report import Report
from paceline.train.resume import Resume


class Trainer:
    """Trains a task on K devices.

    Args:
      task: the user's loss, from `paceline.task` or an adapter.
      optimizer: any optax optimizer that does not evaluate the loss itself, as `lbfgs` with a line search, `sam` and
        `sophia` do; its schedules count updates.
      devices: how many devices, or which; default: all that are visible.
      parallel: scheme, accumulation, precision and the rest.
      schedule: learning rate by update, for reports only: optax does not tell it, except for an optimizer that was made
        with `optax.inject_hyperparams`.
    Raises: TaskError: no task, or no optimizer. DeviceError: devices that are not there. SchemeError: BatchNorm that
      cannot be synced.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        *,
        devices: int | Sequence[jax.Device] | None = None,
        parallel: Parallel | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        check_task(task, optimizer, caller="paceline.Trainer")
        self.mesh = data_mesh(choose_devices(devices))
        self.parallel = parallel or Parallel()
        _check_processes(self.parallel, self.mesh)
        spec = StepSpec(task, optimizer, self.parallel, self.mesh, schedule)
        self._step = StepFunction(spec, check=check_step, check_program=_agree_on_program)
        self.spec = self._step.spec
        self._placer = Placer(self.parallel, self.mesh)
        self._evaluator = Evaluator(
            EvaluationFunction(self.spec.task, self.parallel), self._placer, num_devices=self.num_devices
        )
        self._fit = Fit(self._step, self._placer, self._start_evaluation)

    @property
    def num_devices(self) -> int:
        """K."""
        return self.mesh.size

    @property
    def compilations(self) -> int:
        """Step programs compiled so far: one for each shape of batch."""
        return self._step.compilations

    def init(self, params: Any = None, *, model_state: Any = None, seed: int = 0) -> TrainState:
        """The state before the first step, made where it will live.

        Args:
          params: parameters, any tree of floating-point arrays; None lets the task make them from the seed. They stay
            the caller's: the step never reuses their memory.
          model_state: what the model carries beside `params`.
          seed: of the parameters (if the task makes them), of dropout and of everything else random in the step.
        Raises: TaskError: no parameters given and the task has no init. StateError: a parameter that is no float array.
        """
        check_context()
        make = functools.partial(new_state, self.spec.optimizer, self.parallel, seed=seed)
        if params is not None:
            given = jax.tree.map(_as_array, (params, {} if model_state is None else model_state))
            places = (param_shardings(given[0], parallel=self.parallel, mesh=self.mesh), replicated(self.mesh))
            # As inputs, not as constants of the program: large constants are slow to compile.
            inputs = (put(given[0], places[0]), put(given[1], jax.tree.map(lambda _: places[1], given[1])))
            return self._make(lambda params, model_state: make(params=params, model_state=model_state), *inputs)
        return self._make(lambda: make(**initial(self.spec.task, seed)._asdict()))

    def _make(self, make: Callable[..., TrainState], *inputs: Any) -> TrainState:
        """Run `make` as one program whose outputs are born where they will live."""
        classic = self.parallel.scheme == "pmap"
        add_axis = functools.partial(add_device_axis, num_devices=self.num_devices)
        made = (lambda *inputs: add_axis(make(*inputs))) if classic else make
        with user_code(f"the init of task {self.spec.task.name!r}", when="to trace it"):
            places = state_shardings(jax.eval_shape(made, *inputs), parallel=self.parallel, mesh=self.mesh)
            return jax.jit(made, out_shardings=places)(*inputs)

    def place(self, state: TrainState) -> TrainState:
        """A state without device axis, for example one from the host, copied to where this trainer keeps states.

        Raises: StateError: a state that a step used up, or one with a device axis.
        """
        return place_state(state, parallel=self.parallel, mesh=self.mesh)

    def single(self, state: TrainState) -> TrainState:
        """The state as one device has it: without the device axis of `pmap`, every leaf whole on every device.

        Leaves that are whole already are the arrays of `state` itself: all of them without placement, those that could
        not be split with it. The next step takes their memory (unless `donate=False`), so read them before it, or keep
        ``jax.tree.map(jax.numpy.copy, ...)`` of them.

        Raises: StateError: a state that a step used up.
        """
        return drop_device_axis(state, parallel=self.parallel, mesh=self.mesh)

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        """One update.

        Args:
          state: from `init` or an earlier step; with donation on (the default) it cannot be used afterwards.
          batch: leaves ``[B, ...]`` on the host, B a multiple of K times the accumulation; or a batch of `feed`.
        Returns: the next state and the step's numbers, which the devices may still be computing.
        Raises: BatchSizeError, DataError: rows that do not split, or padding for a model with state. TaskError,
          LossError, StateError: the task cannot be traced. ReplicationError: devices would get different states.
        """
        check_state(state, parallel=self.parallel, mesh=self.mesh)
        placed = batch if isinstance(batch, PlacedBatch) else self._placer.user_batch(batch)
        maskable = functools.partial(self._step.is_maskable, state, placed.data)
        refuse_padding(placed.host, state.model_state, maskable=maskable)
        return self._step(state, placed.data, placed.valid)

    def compiled(self, state: TrainState, batch: Any) -> Any:
        """The compiled program of `step` for these shapes (`jax.stages.Compiled`): text, memory, cost."""
        placed = batch if isinstance(batch, PlacedBatch) else self._placer.user_batch(batch)
        return self._step.compiled(state, placed.data, placed.valid).program

    def feed(
        self,
        data: Any,
        *,
        batch: int | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        remainder: Remainder = "drop",
        prefetch: int = 2,
        first_step: int = 0,
    ) -> Feed[PlacedBatch]:
        """Batches on the devices, made ahead by a background thread; for your own loop around `step`.

        Use it in a ``with`` block. Arguments as in `fit`; `first_step` is the step to begin at.
        """
        options = FitOptions(DataOptions(batch, steps, epochs, shuffle, seed, remainder, prefetch))
        plan = self._fit.plan(data, options, start=Start(first_step))
        return Feed(plan.host_batches, self._placer.train_batch, depth=prefetch)

    def evaluate(
        self, state: TrainState, data: Any, *, batch: int | None = None, use_ema: bool = False
    ) -> dict[str, float]:
        """Mean loss and metrics over all rows of `data`, each counted once.

        Args:
          batch: rows at once (default 256); does not change the result.
          use_ema: evaluate the moving average of the parameters.
        Returns: ``loss``, every metric of the task, and ``rows``. Nothing is dropped, whatever the number of rows.
        """
        check_state(state, parallel=self.parallel, mesh=self.mesh)
        evaluation = self._start_evaluation(state, data, batch=batch, step=scalar(state.step), use_ema=use_ema)
        assert evaluation is not None, "nothing stops it"
        return evaluation.result()

    def fit(
        self,
        state: TrainState,
        data: Any,
        *,
        batch: int | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        remainder: Remainder = "drop",
        prefetch: int = 2,
        evaluation: Any = None,
        evaluate_every: int | None = None,
        audit_every: int = 500,
        on_divergence: OnDivergence = "stop",
        checkpoints: Checkpoints | None = None,
        resume: Resume = False,
        callbacks: Sequence[Callback] = (),
        run: str | os.PathLike[str] | None = None,
        progress: Mode = "none",
        config: Mapping[str, Any] | None = None,
        log_to: str | Sequence[str] = (),
    ) -> tuple[TrainState, Report]:
        """Train for so many steps or epochs more, from the step that the state has.

        Args:
          data: `paceline.rows`, arrays, a map-style data set, or ready batches (an iterable, `paceline.stream`).
          batch, prefetch: rows B of the global batch, which the devices share; batches made ahead.
          steps, epochs: how long; one of the two.
          shuffle, seed: the order of rows, new in each epoch and the same for any number of devices.
          remainder: rows that do not fill a batch are dropped and counted, padded with zero weight, or refused.
          evaluation: data for `evaluate`, after the last step and every `evaluate_every` updates.
          audit_every, on_divergence: how often replicas are compared, and what a difference leads to: `AuditOptions`.
          checkpoints: when the state is saved in the run folder; None: never.
          resume: go on from a checkpoint of the run folder; see `paceline.train.resume.Resume`. `state` then only says
            what a state looks like, and `steps` and `epochs` count from the beginning of the run.
          callbacks: called with (step, values) for each finished step and evaluation; True ends the run soon.
          run: folder for ``run.json``, events and ``report.json``; must be new or empty, unless the run resumes.
          progress, log_to: ``auto``, ``rich``, ``plain``, ``none``; ``tensorboard``, ``wandb``, ``mlflow``.
          config: what ``run.json`` should say about where the run came from.
        Returns: the last state and the report. Raises:
          Interrupted, Terminated: Ctrl-C, SIGTERM (or SIGUSR1 under Slurm); they carry state and report.
          Whatever the data or a callback raises, with an attribute `state`, the state after the last step.
          NonFiniteError, DataError, ReplicaError, SaveError: a step was not finite, devices do not hold the same state,
            a checkpoint was not saved. `state` of the error is the last good state, or the last one.
          BatchSizeError, OptionError, RunFolderError, CheckpointError, TaskError, LossError, ReplicationError,
            ProcessError: before the first step.
          PeerError: another process died. StateError: a state that a step used up, or that no step would update.
        """
        options = FitOptions(
            DataOptions(batch, steps, epochs, shuffle, seed, remainder, prefetch), evaluation=evaluation,
            evaluate_every=evaluate_every, callbacks=callbacks, run=run, progress=progress, config=config or {},
            audit=AuditOptions(audit_every, on_divergence), checkpoints=checkpoints, resume=resume, log_to=log_to,
        )  # fmt: skip
        check_state(state, parallel=self.parallel, mesh=self.mesh)
        if evaluation is not None:
            repeated = evaluate_every is not None
            self._evaluator.check(self._evaluated(state, use_ema=False), evaluation, batch=batch, repeated=repeated)
        return self._fit.run(state, data, options=options)

    def _start_evaluation(
        self,
        state: TrainState,
        data: Any,
        *,
        batch: int | None,
        step: int,
        use_ema: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Evaluation | None:
        if use_ema and state.ema is None:
            raise StateError(
                what="use_ema=True, but the state holds no moving average",
                why="there is nothing to evaluate",
                fix="train with Parallel(ema_decay=0.999), or leave use_ema out",
            )
        evaluated = self._evaluated(state, use_ema=use_ema)
        return self._evaluator.start(evaluated, data, batch=batch, step=step, use_ema=use_ema, stop=stop)

    def _evaluated(self, state: TrainState, *, use_ema: bool) -> TrainState:
        """What an evaluation reads, as one device has it: nothing else is gathered."""
        unread = {"opt_state": None, "loss_scale": None, "params" if use_ema else "ema": None}
        return self.single(dataclasses.replace(state, **unread))


def _check_processes(parallel: Parallel, mesh: jax.sharding.Mesh) -> None:
    """Raise for what cannot be done in a run of several processes."""
    here = {device.process_index for device in mesh.devices.flat}
    absent = sorted(set(range(jax.process_count())) - here)
    if absent:
        raise DeviceError(
            what=f"the {mesh.size} devices of the run leave out process{'es' if len(absent) > 1 else ''} "
            + ", ".join(map(str, absent)),
            why="every process takes part in every step",
            fix="leave --devices out to train on all devices, or start fewer processes",
        )
    if parallel.scheme == "pmap" and len(here) > 1:
        raise SchemeError(
            what="scheme='pmap' in a run of several processes",
            why="jax.pmap takes only the arrays of its own process there, so state and checks would be those of a part",
            fix="use --scheme per_device, which computes the same",
        )


def _agree_on_program(lowered: jax.stages.Lowered) -> None:
    """Every process runs the same program: the host values that a loss closed over are constants of it."""
    team = processes()
    if team.several:
        agree(team, program_facts(lowered), name="program")


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)

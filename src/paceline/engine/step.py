"""`StepFunction`: one step, compiled once for each shape of batch, by any scheme.

Owns: the choice of scheme, compilation and its time, the cache of compiled programs.
Not here: what the step computes (`engine.microbatch`, `engine.update`).
Invariant: calls with the same shapes never compile twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding

from paceline.base.errors import SchemeError
from paceline.engine.metrics import StepMetrics
from paceline.engine.schemes import classic, global_view, per_device
from paceline.engine.state import TrainState, check_device_axis, check_optimizer_state, check_placement
from paceline.engine.update import StepSpec
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.losses import outcome_is_maskable
from paceline.tasks.task import Task
from paceline.tasks.tree import signature
from paceline.topology.mesh import DATA_AXIS, split_rows

IN_FLIGHT = 16
"""Steps that a caller can be ahead of the devices. It bounds the memory of batches that wait for theirs; and with 32
programs in flight XLA's CPU client (jax 0.10) can deadlock in a reduction over simulated devices and abort."""

_BUILDERS = {"global_view": global_view.build, "per_device": per_device.build, "pmap": classic.build}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step program for fixed shapes.

    Args:
      call: ``(state, batch, valid) -> (state, metrics)``; donates the state if asked to.
      compile_s: seconds spent tracing and compiling.
      program: the compiled program, as `jax.stages.Compiled`.
    """

    call: Callable[[TrainState, Any, Array], tuple[TrainState, StepMetrics]]
    compile_s: float
    program: jax.stages.Compiled


class StepFunction:
    """Compiles and caches the step of one `StepSpec`.

    Args:
      spec: what the step is.
      check: looks at the step before it is compiled for new shapes, and raises if it should not run. Called with this
        object, state, batch and valid; it shares the trace (see `traced`) with the compilation.
      check_program: looks at each program before it is compiled.
    """

    def __init__(
        self, spec: StepSpec, *, check: Callable[..., None] | None = None,
        check_program: Callable[[jax.stages.Lowered], None] | None = None,
    ) -> None:  # fmt: skip
        self.spec = dataclasses.replace(spec, task=scheme_task(spec))
        self._check = check
        self._check_program = check_program
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._compiled: dict[Any, CompiledStep] = {}
        self._in_flight: deque[StepMetrics] = deque()
        self._maskable: dict[Any, bool] = {}

    @property
    def compilations(self) -> int:
        """Number of programs compiled so far."""
        return len(self._compiled)

    def __call__(self, state: TrainState, batch: Any, valid: Array) -> tuple[TrainState, StepMetrics]:
        """One update; compiles if the shapes are new. Waits for the step `IN_FLIGHT` calls ago."""
        compiled = self.compiled(state, batch, valid)
        try:
            state, metrics = compiled.call(state, batch, valid)
        except ValueError:  # of JAX, before anything runs, if an array lives elsewhere than the program takes it
            self._check_placement(state)
            raise
        self._in_flight.append(metrics)
        if len(self._in_flight) > IN_FLIGHT:
            self._in_flight.popleft().wait()
        return state, metrics

    def compiled(self, state: TrainState, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> CompiledStep:
        """The program for these shapes, from the cache or compiled now.

        Args:
          state, batch, valid: arrays placed as the scheme wants them (see `batch_sharding`), or their abstract values.
        Raises: TaskError, LossError, StateError, AxisNameError: the task cannot be traced.
        """
        key = signature((state, batch, valid))
        if key not in self._compiled:
            self._compiled[key] = self._compile(state, batch, valid)
        return self._compiled[key]

    def lowered(self, state: TrainState, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> jax.stages.Lowered:
        """The traced program before compilation."""
        built = self._built(state, batch, valid)
        with user_code(f"the loss of task {self.spec.task.name!r}"):
            return built.lower(state, batch, valid)  # pyright: ignore[reportFunctionMemberAccess]: jit and pmap both return an object with lower

    def traced(self, state: TrainState, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> Any:
        """The jaxpr of the step, for checks that read it; under `per_device` and `pmap` it holds a `shard_map`.

        JAX keeps what a function was traced to as long as the function lives, and here it lives until it is compiled:
        reading the jaxpr first and compiling then traces the user's code once.
        """
        built = self._built(state, batch, valid)
        with user_code(f"the loss of task {self.spec.task.name!r}"):
            return jax.make_jaxpr(built)(state, batch, valid)

    def _built(self, state: TrainState, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> Callable[..., Any]:
        """The step as its scheme builds it; for the same shapes the same function, until it is compiled."""
        key = signature((state, batch, valid))
        if key not in self._functions:
            self._functions[key] = self._build(state, batch)
        return self._functions[key]

    def _build(self, state: TrainState, batch: Any) -> Callable[..., Any]:
        check_device_axis(state, parallel=self.spec.parallel, num_devices=self.spec.mesh.size)
        check_optimizer_state(state, self.spec.optimizer, parallel=self.spec.parallel)
        self._check_placement(state)
        spec = self.spec
        if spec.parallel.scheme == "global_view":
            key = jax.eval_shape(lambda: jax.random.key(0))
            arguments = (state.params, state.model_state, batch, key)
            spec = dataclasses.replace(spec, task=with_data_axis(spec.task, *arguments, fields=("loss",)))
        return _BUILDERS[spec.parallel.scheme](spec, state)

    def _check_placement(self, state: TrainState) -> None:
        check_placement(state, parallel=self.spec.parallel, mesh=self.spec.mesh)

    def is_maskable(self, state: TrainState, batch: Any) -> bool:
        """Whether padding can be left out of the loss and of every metric; traces the loss once a shape of batch.

        Args:
          state, batch: as the step takes them; only shapes are read.
        """
        key = signature(batch)
        if key not in self._maskable:
            shapes = jax.eval_shape(lambda: (state.params, state.model_state, batch))
            if self.spec.parallel.scheme == "pmap":
                shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)
            arguments = (*shapes, jax.eval_shape(lambda: jax.random.key(0)))
            with user_code(f"the loss of task {self.spec.task.name!r}"):
                task = with_data_axis(self.spec.task, *arguments, fields=("loss",))
                self._maskable[key] = outcome_is_maskable(jax.eval_shape(task.loss, *arguments))
        return self._maskable[key]

    def _compile(self, state: TrainState, batch: Any, valid: Array | jax.ShapeDtypeStruct) -> CompiledStep:
        start = time.perf_counter()
        if self._check is not None:
            self._check(self, state, batch=batch, valid=valid)
        lowered = self.lowered(state, batch, valid)
        if self._check_program is not None:
            self._check_program(lowered)
        program = lowered.compile()
        self._functions.pop(signature((state, batch, valid)))
        return CompiledStep(program, time.perf_counter() - start, program)


def batch_sharding(spec: StepSpec) -> NamedSharding:
    """Where the leaves of a batch live: split over the mesh along their first dim, in every scheme."""
    return split_rows(spec.mesh)


def scheme_task(spec: StepSpec) -> Task:
    """The task as the scheme runs it: with synced BatchNorm if that was asked for.

    Raises: SchemeError: the task cannot sync its BatchNorm.
    """
    if not spec.parallel.synced_batch_norm:
        return spec.task
    if spec.task.synced is None:
        raise SchemeError(
            what=f"batch_norm='synced' for task {spec.task.name!r}, which does not say how to sync",
            why="Paceline cannot reach into a plain loss function to reduce its statistics over devices",
            fix=f"give the model axis_name={DATA_AXIS!r} and leave batch_norm out, use scheme='global_view', "
            "or make the task with paceline.from_nnx, from_linen or from_equinox",
        )
    return spec.task.synced(DATA_AXIS)

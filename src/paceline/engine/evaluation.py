"""The evaluation program: totals and weights of one batch, the state unchanged."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from paceline.engine.microbatch import outcome_totals
from paceline.engine.parallel import Parallel
from paceline.engine.precision import cast_floats
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.losses import Outcome, Totals, outcome_is_maskable
from paceline.tasks.task import LossFunction, Task
from paceline.tasks.tree import signature


class EvaluationFunction:
    """Compiles the task's evaluation once for each shape of batch. Takes arrays split over devices or replicated."""

    def __init__(self, task: Task, parallel: Parallel) -> None:
        self._task = task
        self._parallel = parallel
        self._program: Any = None
        self._maskable: dict[Any, bool] = {}

    def __call__(self, params: Any, model_state: Any, batch: Any, valid: Array, rng: Array) -> dict[str, Totals]:
        """Totals over the valid rows, replicated: the loss under ``loss``, each metric under its name.

        Raises: TaskError, LossError: the evaluation cannot be traced.
        """
        with user_code(f"the evaluation of task {self._task.name!r}"):
            if self._program is None:
                function = self._bound(params, model_state, batch, rng)
                self._program = jax.jit(lambda *args, valid: outcome_totals(self._run(function, *args), valid))
            return self._program(params, model_state, batch, rng, valid=valid)

    def is_maskable(self, params: Any, model_state: Any, batch: Any, rng: Array | jax.ShapeDtypeStruct) -> bool:
        """Whether the loss and every metric have one entry a row, so that padding can be left out.

        Takes arrays or their shapes.
        Traces the evaluation once for each structure and shape of batch, not at every evaluation of a run.
        """
        key = signature(batch)
        if key not in self._maskable:
            self._maskable[key] = self._trace_maskable(params, model_state, batch, rng)
        return self._maskable[key]

    def _trace_maskable(self, params: Any, model_state: Any, batch: Any, rng: Array | jax.ShapeDtypeStruct) -> bool:
        with user_code(f"the evaluation of task {self._task.name!r}"):
            function = self._bound(params, model_state, batch, rng)
            found: list[bool] = []

            def trace(valid: Array, *arguments: Any) -> Any:
                outcome = self._run(function, *arguments)
                sums = outcome_totals(outcome, valid)  # refuses what is no loss and no metric
                found.append(outcome_is_maskable(outcome))
                return sums

            rows = jax.ShapeDtypeStruct(jax.tree.leaves(batch)[0].shape[:1], bool)
            jax.eval_shape(trace, rows, params, model_state, batch, rng)
        return found[0]

    def _bound(self, *arguments: Any) -> LossFunction:
        field = "loss" if self._task.evaluate is None else "evaluate"
        return getattr(with_data_axis(self._task, *arguments, fields=(field,)), field)

    def _run(self, function: LossFunction, params: Any, model_state: Any, batch: Any, rng: Array) -> Outcome:
        precision = self._parallel.precision
        return function(cast_floats(params, precision), model_state, cast_floats(batch, precision), rng)

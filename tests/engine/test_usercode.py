"""What a user's code raises while it is traced: whose line, which axis."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax import lax

from paceline.base.errors import AxisNameError, LossError, TaskError
from paceline.engine.parallel import Parallel
from paceline.engine.usercode import user_code, with_data_axis
from paceline.tasks.losses import Outcome
from paceline.tasks.task import task
from tests.engine.helpers import place, start, step_of

HERE = Path(__file__).name
ROWS = {"x": np.arange(4.0, dtype=np.float32)}
KEY = jax.random.key(0)


def squares(params, batch):
    return (batch["x"] * params["w"]) ** 2


def bad_shapes(params, batch):
    return batch["x"] @ jnp.ones((3, 3))  # line of the mistake


def line_of_the_mistake():
    return bad_shapes.__code__.co_firstlineno + 1


def trace(made):
    with user_code("the loss"):
        return jax.eval_shape(made.loss, {}, {}, ROWS, KEY)


def test_an_exception_points_at_the_line_that_raised_it():
    """The fix names file, line and function of the innermost frame that is the user's, below JAX's own frames."""
    with pytest.raises(TaskError, match="the loss raised TypeError") as caught:
        trace(task(bad_shapes))
    assert re.search(rf"{HERE}:{line_of_the_mistake()} in bad_shapes$", caught.value.fix)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("code", "said"), [(0, "sys.exit(0)"), (None, "sys.exit()"), ("no data", "sys.exit('no data')")]
)
def test_a_file_that_leaves_the_program_is_refused(code, said):
    """An exit code of 0 would otherwise say that the command succeeded; the fix names the guard and the line."""
    with pytest.raises(TaskError) as caught, user_code("the file"):
        sys.exit(code)
    assert caught.value.what == f"the file left with {said}"
    assert "__name__ == '__main__'" in caught.value.fix and HERE in caught.value.fix


def test_an_exit_that_is_not_the_users_passes():
    """As that of --help: raised by lines of Python alone, below no line of a user."""
    context = user_code("the options")
    context.__enter__()
    assert not context.__exit__(SystemExit, SystemExit(0), None)  # no frame of this file; False: it goes on


OPTIMIZERS = {
    "sam": (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "made by sam, raised TypeError"),
    "sophia": (optax.contrib.sophia(1e-2), "raised ValueError: obj_fn"),
    "lbfgs": (optax.lbfgs(), "'value_fn'"),
    "sm3": (optax.sm3(0.1), "made by scale_by_sm3, raised IndexError"),
}


@pytest.mark.parametrize(("optimizer", "what"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_that_cannot_run_is_named(optimizer, what):
    """All lines of the traceback are of optax, so there is no line of the user's to point at."""
    step = step_of(squares, optimizer, devices=2)
    with pytest.raises(TaskError, match="the optimizer, made by") as caught:
        step(start(step, {"w": np.float32(1)}), *place(step, ROWS))
    assert what in caught.value.what and "lbfgs(linesearch=None)" in caught.value.fix


def test_lbfgs_without_a_line_search_runs():
    """As the fix of the error above says: one update changes the parameter."""
    step = step_of(squares, optax.lbfgs(0.1, linesearch=None), devices=2)
    state, _ = step(start(step, {"w": np.float32(1)}), *place(step, ROWS))
    assert float(state.params["w"]) < 1


def shifting(updates, state, params=None):
    del params
    return jax.tree.map(lambda leaf: leaf + 0 * lax.axis_index("data"), updates), state


SHIFT = optax.GradientTransformation(lambda params: (), shifting)


@pytest.mark.parametrize("parallel", [Parallel(), Parallel("per_device", placement="zero1")])
def test_an_optimizer_that_names_the_axis_where_there_is_none_is_told_so(parallel):
    """The name is right and the program has no axis; with the scheme that the fix names it runs."""
    step = step_of(squares, SHIFT, parallel, devices=2)
    with pytest.raises(AxisNameError) as caught:
        step(start(step, {"w": np.float32(1)}), *place(step, ROWS))
    assert caught.value.what == "the optimizer names the device axis 'data' in a program that has no device axis"
    assert "scheme='per_device' with placement='replicated'" in caught.value.fix
    step = step_of(squares, SHIFT, Parallel("per_device"), devices=2)
    step(start(step, {"w": np.float32(1)}), *place(step, ROWS))


def fails_on_the_host(x):
    raise ValueError("bad row 7")


def test_an_exception_of_a_callback_points_at_its_line():
    """It reaches us as text from the runtime; the fix names the callback's own line."""
    result = jax.ShapeDtypeStruct((), jnp.float32)
    with (
        pytest.raises(TaskError, match="a callback of the loss raised ValueError: bad row 7") as caught,
        user_code("the loss"),
    ):
        jax.jit(lambda x: jax.pure_callback(fails_on_the_host, result, x))(1.0).block_until_ready()
    assert f"{HERE}:{fails_on_the_host.__code__.co_firstlineno + 1} in fails_on_the_host" in caught.value.fix


def test_what_a_device_reports_passes_unchanged():
    """Out of memory is no mistake of a line."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"), user_code("the loss"):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")


def test_a_misspelled_name_is_no_axis():
    """A NameError of Python's stays what it is, at its line."""
    with pytest.raises(TaskError, match="NameError") as caught:
        trace(task(lambda params, batch: undefined_name))  # noqa: F821 - the mistake that is tested
    assert HERE in caught.value.fix


def test_our_own_errors_pass_unchanged():
    """An error that already has a fix is not wrapped into another."""
    error = LossError(what="a", why="b", fix="c")
    with pytest.raises(LossError) as caught, user_code("the loss"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("axis", ["devices", "model.parallel"])
def test_an_unknown_axis_is_named_with_the_one_there_is(axis):
    """Case 5: not a word of JAX's; the name stands in quotes, whole."""
    with pytest.raises(AxisNameError, match=f"'{axis}'") as caught:
        trace(task(lambda params, batch: lax.pmean(batch["x"], axis)))
    assert "axis_name='data'" in caught.value.fix and "batch_norm='synced'" in caught.value.fix


def test_the_data_axis_is_bound_where_a_program_sees_the_whole_batch():
    """Case 5: a mean over ``data`` is then the value itself, a sum too; metrics and state keep their shapes."""

    def loss(params, model_state, batch, rng):
        rows = lax.pmean(batch["x"], "data")
        return Outcome(rows, {"sum": lax.psum(batch["x"], "data")}, {"mean": lax.pmean(jnp.mean(rows), "data")})

    made = with_data_axis(task(loss), {}, {}, ROWS, KEY)
    outcome = made.loss({}, {}, ROWS, KEY)
    np.testing.assert_array_equal(outcome.loss, ROWS["x"])
    np.testing.assert_array_equal(outcome.metrics["sum"], ROWS["x"])
    assert outcome.model_state["mean"].shape == () and outcome.model_state["mean"] == 1.5


def test_evaluation_is_bound_by_itself():
    """Only the function that names the axis changes."""
    plain = task(lambda params, batch: batch["x"], evaluate=lambda params, batch: lax.pmean(batch["x"], "data"))
    made = with_data_axis(plain, {}, {}, ROWS, KEY)
    assert made.loss is plain.loss
    assert made.evaluate is not None
    np.testing.assert_array_equal(made.evaluate({}, {}, ROWS, KEY).loss, ROWS["x"])


def test_a_task_that_names_no_axis_is_left_alone():
    """The same object, so that nothing is traced twice later."""
    plain = task(lambda params, batch: batch["x"])
    assert with_data_axis(plain, {}, {}, ROWS, KEY) is plain


def test_a_task_that_raises_is_left_for_the_step_to_name():
    """Looking for the axis must not hide the place of the mistake."""
    broken = task(bad_shapes)
    assert with_data_axis(broken, {}, {}, ROWS, KEY) is broken

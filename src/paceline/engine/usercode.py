"""What the user's code raised while it was traced, turned into an error that points at their line.

Owns: the translation of foreign exceptions; binding the device axis where a one-device program lacks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import optax

from paceline.base.errors import AxisNameError, PacelineError, TaskError
from paceline.tasks.task import LossFunction, Task
from paceline.topology.mesh import DATA_AXIS

_UNBOUND = re.compile(r"unbound axis name:?\s*['\"]?([\w.]*\w)")  # JAX may end its sentence right after the name
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_OURS = str(Path(__file__).parents[1])


@contextlib.contextmanager
def user_code(what: str, *, when: str = "to trace it on abstract arrays of the batch's shapes") -> Iterator[None]:
    """Raise TaskError (or AxisNameError) for whatever the user's code raises inside; `what` names the code.

    Exceptions raised by Paceline's own lines pass unchanged: they are our bugs. So does a `SystemExit` that no line of
    the user's raised, such as that of ``--help``.
    """
    try:
        yield
    except PacelineError:
        raise
    except SystemExit as error:
        raise _exit_error(what, error) or error from error
    except NameError as error:
        raise _axis_error(what, error) or _task_error(what, error, when) from error
    except jax.errors.JaxRuntimeError as error:
        raise _callback_error(what, error) or error from error
    except Exception as error:
        place = _user_line(error)
        if place is None:
            raise
        raise _task_error(what, error, when) from error


@contextlib.contextmanager
def optimizer_code(optimizer: optax.GradientTransformation) -> Iterator[None]:
    """Raise TaskError for whatever the optimizer raises inside, also if all its lines are of an installed package."""
    try:
        with user_code("the optimizer", when="to trace it on the parameters and their gradients"):
            yield
    except PacelineError:
        raise
    except Exception as error:
        frame = _optimizer_frame(error)
        update: Any = optimizer.update
        name = getattr(update, "__qualname__", repr(update)) if frame is None else frame.f_code.co_qualname
        raise TaskError(
            what=f"the optimizer, made by {name.partition('.')[0]}, raised {type(error).__name__}: {error}",
            why="a step gives an optimizer the mean gradient, its state, the parameters, and the loss as `value`",
            fix="use another optimizer: lbfgs with a line search, sam and sophia evaluate the loss themselves, which a "
            "step does not offer (optax.lbfgs(linesearch=None) runs); sm3 takes no scalar parameters",
        ) from error


def _optimizer_frame(error: BaseException) -> FrameType | None:
    """The innermost frame of an `init` or `update` that an optimizer's maker defined, if there is one."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    made = [frame for frame in frames if re.search(r"<locals>.*(init|update)", frame.f_code.co_qualname)]
    return next((frame for frame in reversed(made) if not is_ours(frame.f_code.co_filename)), None)


def with_data_axis(task: Task, *arguments: Any, fields: Sequence[str] = ("loss", "evaluate")) -> Task:
    """The task with axis ``data`` bound around its loss if the loss names it, for programs that see the whole batch.

    Args:
      arguments: params, model_state, batch and key, abstract or not, to trace the loss with.
      fields: the functions of the task that are going to run; each is traced once, to see what it names.
    """
    changes: dict[str, LossFunction] = {}
    for field in fields:
        function = getattr(task, field)
        if function is not None and _names_axis(function, arguments):
            changes[field] = _bind(function)
    return dataclasses.replace(task, **changes) if changes else task


def _names_axis(function: LossFunction, arguments: tuple[Any, ...]) -> bool:
    try:
        jax.eval_shape(function, *arguments)
    except NameError as error:
        return unbound_axis(error) == DATA_AXIS
    except Exception:  # whatever it is, it is reported where the step is compiled, with its place
        return False
    return False


def _bind(function: LossFunction) -> LossFunction:
    """Run under an axis ``data`` of size 1: a mean over it leaves the value, which already covers all rows."""

    def bound(*arguments: Any) -> Any:
        mapped: Callable[..., Any] = jax.vmap(lambda _: function(*arguments), axis_size=1, axis_name=DATA_AXIS)
        return jax.tree.map(lambda leaf: leaf[0], mapped(jax.numpy.zeros(1)))

    return bound


def unbound_axis(error: BaseException | None) -> str | None:
    """The device axis that a program names and that does not exist where it runs, or None for any other error."""
    found = _UNBOUND.search(str(error))
    return None if found is None else found[1]


def _axis_error(what: str, error: NameError) -> PacelineError | None:
    axis = unbound_axis(error)
    if axis is None:
        return None
    if axis == DATA_AXIS:
        return AxisNameError(
            what=f"{what} names the device axis {axis!r} in a program that has no device axis",
            why="the step of scheme='global_view', and every update of zero1 and fsdp, work on whole arrays",
            fix="use scheme='per_device' with placement='replicated', or do not name the axis outside the loss",
        )
    return AxisNameError(
        what=f"the task names a device axis {axis!r}; Paceline's axis is called {DATA_AXIS!r}",
        why="a reduction over an axis that does not exist cannot be compiled",
        fix=f"use axis_name={DATA_AXIS!r} in the model, or leave axis_name out and set batch_norm='synced'",
    )


def _exit_error(what: str, error: SystemExit) -> PacelineError | None:
    """The error of the user's code that left the program; None if it was not the user's."""
    place = _user_line(error)
    if place is None:
        return None
    return TaskError(
        what=f"{what} left with sys.exit({'' if error.code is None else repr(error.code)})",
        why="the command would end with it, before it has done anything",
        fix=f"guard it with if __name__ == '__main__', or raise an exception instead: look at {place}",
    )


def _task_error(what: str, error: Exception, when: str) -> PacelineError:
    place = _user_line(error)
    message = str(error).strip().split("\n\n")[0]
    return TaskError(
        what=f"{what} raised {type(error).__name__}: {message}",
        why=f"it was run {when}",
        fix=f"look at {place}" if place else "run the loss alone on one batch to see where it fails",
    )


def _callback_error(what: str, error: jax.errors.JaxRuntimeError) -> PacelineError | None:
    """The error of a user's callback, which reaches us as text; None for what else a device reports."""
    frames = [match for match in _FRAME.finditer(str(error)) if is_user_file(match["file"])]
    if "allback" not in str(error) or not frames:
        return None
    *_, raised = str(error).strip().splitlines()
    return TaskError(
        what=f"a callback of {what} raised {raised}",
        why="it was called by the program while that ran on the devices",
        fix=f"look at {frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['name']}",
    )


def _user_line(error: BaseException) -> str | None:
    """``file:line in function`` of the innermost frame outside Paceline and installed packages, if there is one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


def is_ours(filename: str) -> bool:
    """Whether a source file belongs to Paceline."""
    return filename.startswith(_OURS)


def is_user_file(filename: str) -> bool:
    """Whether a source file is the user's own: not of Paceline, of an installed package or of Python."""
    foreign = "site-packages" in filename or "/lib/python" in filename or filename.startswith("<frozen")
    return not foreign and not is_ours(filename)

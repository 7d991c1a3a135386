"""`paceline COMMAND ...`: finds the command and renders errors.

Owns: the list of commands, help, version, exit codes, the words of an error on the terminal, the trial of XLA_FLAGS
before a command that may use a device.
Invariant: a user's mistake ends with what, why and fix on standard error and exit code 2, never with a traceback.

Exit codes: 0 done, 1 the run failed (a loss that is not finite), 2 a user's mistake, 75 another process was lost, 130
interrupted, 141 nobody read the output to its end, 143 terminated.

This module imports no jax, so that ``paceline --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from paceline.base import launched
from paceline.base.errors import OptionError, PacelineError, nearest
from paceline.base.exits import BROKEN_PIPE, INTERRUPTED
from paceline.cli.several import launch_if_asked
from paceline.cli.voice import leave, speaks
from paceline.telemetry.status import open_status

COMMANDS = {
    "train": "train a recipe or your own task on all devices",
    "verify": "prove that K devices compute what one would, or name the cause",
    "doctor": "before a run: what would go wrong, in order, with the fix; alone: this machine",
    "plan": "before you rent a GPU: does it fit, how fast, how efficient, what limits it",
    "scale": "measure throughput and efficiency on 1 to K devices, and where the rest goes",
    "tune": "the largest batch that fits, and the settings that train fastest here",
    "watch": "a live page of runs: the pipeline, curves, replicas, schemes side by side",
    "compare": "runs and results side by side, as text, picture or one HTML file",
    "log": "pass a run on to TensorBoard, Weights & Biases or MLflow",
    "launch": "start several processes of one run, watch them, restart them",
    "export": "write the weights of a checkpoint to a safetensors file",
}

_NO_TRIAL = ("doctor", "watch", "compare", "log")
"""Commands for which XLA_FLAGS are not tried: doctor tries them itself, the others use no device."""

_EXAMPLES = """\
examples:
  paceline train image --simulate 4        a shipped recipe on 4 simulated CPU devices
  paceline train my_task.py --batch 1024   your own task on all devices
  paceline doctor my_task.py --batch 1024  what would go wrong, before it does
  paceline plan my_task.py --on 8xH100     what it would be on GPUs that you do not have
  paceline watch                           look at the runs in runs/ while they train
  paceline train image --help              every option"""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
      argv: arguments without the program's name; default: those of the process.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if launched.LAUNCH_FOLDER in os.environ:  # the supervisor sees this process from here on, while jax is imported too
        open_status().phase("start", 0)
    try:
        code = _dispatch(arguments)
        if sys.stdout is not None:  # as it is where it was closed
            sys.stdout.flush()  # a broken pipe shows here rather than when Python ends
        return leave(code)
    except BrokenPipeError:
        _drop_output()
        return leave(BROKEN_PIPE)
    except OSError:
        refused = _output_error()
        if refused is None:
            raise
        _drop_output()
        _print_error(refused, with_traceback=False)
        return leave(refused.exit_code)
    except PacelineError as error:
        if speaks(error):
            _print_error(error, with_traceback="--traceback" in arguments)
        return leave(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return leave(INTERRUPTED, at_once=True)


def _print_error(error: PacelineError, *, with_traceback: bool) -> None:
    if with_traceback:
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)


def _output_error() -> OptionError | None:
    """Why standard output cannot be written, or None. Tried with an empty line: what failed is not kept in a buffer."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except (AttributeError, ValueError):  # it has no descriptor
        return None
    except OSError as error:
        return OptionError(
            what=f"standard output cannot be written: {error.strerror or error}",
            why="what this command found is told there; what it wrote to files is whole",
            fix="free some space, or send the output elsewhere",
        )
    return None


def _drop_output() -> None:
    """Python flushes standard output once more at its end, and would show a traceback for it."""
    with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):  # ValueError: no descriptor
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"paceline {importlib.metadata.version('paceline')}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise OptionError(
            what=f"{name!r} is no command{nearest(name, COMMANDS)}",
            why="paceline does not know what to do",
            fix="use one of " + ", ".join(COMMANDS) + "; paceline --help lists them",
        )
    if os.environ.get("XLA_FLAGS") and name not in _NO_TRIAL and arguments[1:2] not in ([], ["-h"], ["--help"]):
        _check_flags(name, arguments[1:])
    code = launch_if_asked(arguments[1:]) if name == "train" else None
    if code is not None:
        return code
    return _command(name)(arguments[1:])


def _command(name: str) -> Callable[[list[str]], int]:
    """The function of a command, from its module, which imports jax for most.

    Raises: VariableError: jax refuses the value of a variable when it is imported.
    """
    try:
        return importlib.import_module(f"paceline.cli.{name}").run
    except ValueError as error:  # what JAX raises for such a value
        from paceline.doctor.environment.system import System
        from paceline.doctor.environment.variables import import_refusal

        refusal = import_refusal(System(), error)
        if refusal is None:
            raise
        raise refusal from error


def _check_flags(name: str, arguments: list[str]) -> None:
    """XLA ends a process for a flag that it does not know: say what, why and fix before it does. 0.2 s, once.

    Raises: FlagsError: such a flag; ``--json`` has it too.
    """
    # Only here: a command line without XLA_FLAGS, and --help, do without these.
    from paceline.cli.options import early_value
    from paceline.cli.reporting import check_writable
    from paceline.cli.voice import is_first
    from paceline.doctor.environment.flags import FlagsError, refuse_flags
    from paceline.telemetry.document import write_document

    launches = name == "launch"
    own = arguments[: arguments.index("--")] if launches and "--" in arguments else arguments
    if launches and any(argument.partition("=")[0] == "--write" for argument in own):
        return  # a file for other machines
    try:
        refuse_flags(os.environ)
    except FlagsError as error:
        path = early_value(own, "json")
        if path is not None and is_first():
            check_writable(path)
            ended = {"exit_code": error.exit_code, "attempts": []} if launches else {}
            write_document(Path(path), ended | {"error": error.as_dict()})
        raise


def _usage() -> str:
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: paceline COMMAND [OPTIONS]\n\n"
        "Trains a JAX loss written for one device on all of them.\n\n"
        f"commands:\n{commands}\n\n{_EXAMPLES}"
    )


if __name__ == "__main__":
    sys.exit(main())
